"""A conversation's log in memory: the records of its runs, and what each message holds.

Records are put together as `stores.search.corpus` does: in the order in which runs began, what an
earlier run holds is left out at the beginning of a later one.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from stores.mongo.search_entries import SearchedEntries
from stores.mongo.search_log import reference_ranges_in
from stores.mongo.search_places import PlaceColumns, Places
from stores.mongo.search_segments import DIGEST_BYTES, AppendsOfRun, appends_in
from stores.search.corpus import Inheritance, Section

_NO_CHANGES: frozenset[str] = frozenset()

_BYTES_OF_ENTRY = 300
"""Of what is kept of a message besides its postings: digest, hash, places in lists."""


@dataclass(kw_only=True, slots=True)
class RunRecordView:
    """The record of a run: entries in the order of their places."""

    run_id: str
    conversation_id: str
    started_at: int
    places: list[int] = field(default_factory=list[int])
    entries: list[int] = field(default_factory=list[int])
    borrowed: frozenset[int] = frozenset()
    """Places whose entry is another run's."""
    inherited: int = 0
    is_counted: bool = False
    """Whether it is in the corpus."""
    unreadable: frozenset[int] = frozenset()

    @property
    def order(self) -> tuple[int, str]:
        """When the run began; runs of one moment are in the order of their ids."""
        return self.started_at, self.run_id

    def put(
        self, places: Sequence[int], entries: Sequence[int], dropped: Sequence[int] = ()
    ) -> bool:
        """Put entries at places and drop others; whether that only added to the end."""
        last = self.places[-1] if self.places else -1
        if not dropped and (not places or (places[0] > last and _is_ascending(places))):
            self.places += places
            self.entries += entries
            return True
        away = set(dropped)
        record = dict(zip(self.places, self.entries, strict=True))
        record |= zip(places, entries, strict=True)
        self.places = sorted(place for place in record if place not in away)
        self.entries = [record[place] for place in self.places]
        return False


def _is_ascending(numbers: Sequence[int]) -> bool:
    return list(numbers) == sorted(numbers)


class Digests:
    """The digests of entries, in the room that they need."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __len__(self) -> int:
        """Of how many entries."""
        return len(self._bytes) // DIGEST_BYTES

    def __getitem__(self, entry: int) -> str:
        """In hexadecimal, as messages are named."""
        return self._bytes[entry * DIGEST_BYTES : (entry + 1) * DIGEST_BYTES].hex()

    def __setitem__(self, entry: int, digest: str) -> None:
        """Of an entry that has one already."""
        self._bytes[entry * DIGEST_BYTES : (entry + 1) * DIGEST_BYTES] = bytes.fromhex(digest)

    def append(self, digests: bytes) -> None:
        """Those of the next entries."""
        self._bytes += digests


class LogView:
    """What was read of a log up to `until`, for searches with or without the search's own calls.

    Args:
        includes_own: count what the search itself asked and answered, too.
        only: keep what is needed to look for these terms alone.
    """

    def __init__(self, *, includes_own: bool, only: Sequence[str] | None = None) -> None:
        self.includes_own = includes_own
        self.is_searched = False
        self.until: dict[str, int] = {}
        self.kept_terms: set[str] = set()
        """Ids of the terms in the log; see `stores.mongo.search_terms.terms_id`."""
        self.entries = SearchedEntries(only)
        self.digests = Digests()
        self.copies: dict[int, list[str]] = {}
        """By entry, digests of what other runs have of the same message."""
        self._hashes: list[int] = []
        self._changes: dict[int, frozenset[str]] = {}
        self._firsts: dict[str, tuple[int, list[int]]] = {}
        """By conversation, the sequence of its first append, and the first entry of each."""
        self.runs: dict[str, RunRecordView] = {}
        self._corpus: list[RunRecordView] = []
        self._sections: list[Section] = []
        self._flat = array("q")
        self._starts = array("q")
        self._inheritance = Inheritance()
        self._is_stale = False
        self._run_count = self._skipped = 0
        self._columns = PlaceColumns()
        self._places: Places | None = None

    @property
    def size_bytes(self) -> int:
        """About what it takes."""
        return self.entries.size_bytes + _BYTES_OF_ENTRY * len(self.digests)

    def take(self, documents: Iterable[Mapping[str, Any]]) -> bool:
        """Take in appends or segments, each conversation's in their order.

        Returns:
            Whether none is missing. If one is, a view has to begin again.
        """
        for document in documents:
            for appends in appends_in(document):
                if not self._follows(appends):
                    return False
                self.until[appends.conversation_id] = appends.last
                if not appends.further.get("is_reset"):
                    self._take_record(appends)
            self.kept_terms.add(document["analyzer"])
            self.entries.take(document, includes_own=self.includes_own)
            self._places = None
        return True

    def _follows(self, appends: AppendsOfRun) -> bool:
        known = self.until.get(appends.conversation_id, 0)
        if "is_merged" in appends.further:  # since the segments were read
            return False
        if appends.further.get("is_reset"):
            return not known
        return appends.sequence == known + 1

    def _take_record(self, appends: AppendsOfRun) -> None:
        run = self.runs.get(appends.run_id)
        if run is None:
            run = RunRecordView(
                run_id=appends.run_id,
                conversation_id=appends.conversation_id,
                started_at=appends.started_at,
            )
            self.runs[run.run_id] = run
        places, first = appends.places, len(self._hashes)
        firsts = self._firsts.setdefault(appends.conversation_id, (appends.sequence, []))[1]
        if len(appends.sizes) == 1:
            firsts.append(first)
        else:
            firsts += accumulate(appends.sizes[:-1], initial=first)
        self._hashes += appends.hashes
        self.digests.append(appends.digests[: len(places) * DIGEST_BYTES])
        before, skipped = len(run.entries), len(run.unreadable)
        entries: Sequence[int] = range(first, first + len(places))
        if appends.further:
            is_added = self._take_further(run, appends, entries)
        else:
            if run.borrowed:
                run.borrowed -= frozenset(places)
            is_added = run.put(places, entries)
        self._run_count += bool(run.entries) - bool(before)
        self._skipped += len(run.unreadable) - skipped
        self._count_on(run, before if is_added else None)

    def _take_further(
        self, run: RunRecordView, appends: AppendsOfRun, entries: Sequence[int]
    ) -> bool:
        """Take in what else an append says, with its entries; see `RunRecordView.put`."""
        further, own = appends.further, appends.places
        for index, changes in further.get("changes", {}).items():
            self._changes[entries[int(index)]] = frozenset(changes)
        places = own
        if "inherited" in further:
            base, firsts = self._firsts[appends.conversation_id]
            at: list[int] = []
            of: list[int] = []
            for place, sequence, index, count in reference_ranges_in(further["inherited"]):
                at += range(place, place + count)
                start = firsts[sequence - base] + index
                of += range(start, start + count)
            run.borrowed |= frozenset(at)
            places, entries = [*at, *own], [*of, *entries]
        run.borrowed -= frozenset(own)
        is_added = run.put(places, entries, further.get("dropped", ()))
        renewed = appends.digests[len(own) * DIGEST_BYTES :]
        for index, place in enumerate(further.get("renewed", ())):
            digest = renewed[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
            entry = run.entries[bisect_left(run.places, place)]
            if place in run.borrowed:
                self.copies.setdefault(entry, []).append(digest.hex())
            else:
                self.digests[entry] = digest.hex()
        run.unreadable |= frozenset(further.get("unreadable", ()))
        return is_added

    # The corpus

    def _count_on(self, run: RunRecordView, before: int | None) -> None:
        """Follow with the sections what was added behind `before`; `None`: it was changed."""
        if self._is_stale:
            return
        last = self._corpus[-1] if self._corpus else None
        is_behind = last is not None and last is not run and run.order < last.order
        if before is None or is_behind or (run.is_counted and run is not last):
            self._is_stale = True
            return
        if not run.is_counted:
            if before:
                self._is_stale = True
                return
            run.is_counted = True
            self._corpus.append(run)
        self._inherit(run, before)

    def _inherit(self, run: RunRecordView, before: int) -> None:
        added = run.entries[before:]
        hashes = list(map(self._hashes.__getitem__, added))
        changes = [self._changes.get(each, _NO_CHANGES) for each in added] if self._changes else ()
        leading = self._inheritance.leading(hashes, changes)
        if run.inherited == before:
            run.inherited += leading
        counted = run.entries[max(before, run.inherited) :]
        if not counted:
            return
        section = _section(run, run.inherited)
        if self._sections and self._sections[-1].run_id == run.run_id:
            self._sections[-1] = section
        else:
            self._sections.append(section)
            self._starts.append(len(self._flat))
        self._flat.extend(counted)

    def _put_together(self) -> None:
        """Bring the sections up to the records, from the first run on."""
        self._inheritance = Inheritance()
        self._sections, self._flat, self._starts = [], array("q"), array("q")
        self._columns = PlaceColumns()
        self._corpus = sorted(self.runs.values(), key=lambda each: each.order)
        for run in self._corpus:
            run.inherited, run.is_counted = 0, True
            self._inherit(run, 0)
        self._is_stale = False

    def places(self, run_id: str | None) -> Places:
        """Where the entries of the corpus are: of all sections, or of one run's whole record."""
        if run_id is not None:
            return self._places_of(self.runs.get(run_id))
        if self._is_stale:
            self._put_together()
        if self._places is None:
            self._columns.grow(
                self._flat[self._columns.size :], self.entries.lengths, len(self.digests)
            )
            self._places = self._columns.places(
                self._sections, self._starts, run_count=self._run_count, skipped=self._skipped
            )
        return self._places

    def _places_of(self, run: RunRecordView | None) -> Places:
        columns = PlaceColumns()
        if run is None or not run.entries:
            skipped = len(run.unreadable) if run else 0
            return columns.places([], [], run_count=0, skipped=skipped)
        columns.grow(run.entries, self.entries.lengths, len(self.digests))
        return columns.places([_section(run, 0)], [0], run_count=1, skipped=len(run.unreadable))


def _section(run: RunRecordView, first_index: int) -> Section:
    length = len(run.entries) - first_index
    return Section(run.run_id, run.conversation_id or None, first_index, length)
