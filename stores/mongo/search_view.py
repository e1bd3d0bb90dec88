"""A conversation's log in memory: the records of its runs, and what each message holds.

Records are put together as `stores.search.corpus` does: in the order in which runs began, what an
earlier run holds is left out at the beginning of a later one.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stores.mongo.search_entries import SearchedEntries
from stores.mongo.search_log import numbers_in, references_in
from stores.mongo.search_segments import appends_in
from stores.search.corpus import Inheritance, Section

_NO_CHANGES: frozenset[str] = frozenset()

_NOWHERE = -1
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
    borrowed: set[int] = field(default_factory=set[int])
    """Places whose entry is another run's."""
    inherited: int = 0
    is_counted: bool = False
    """Whether it is in the corpus."""
    unreadable: set[int] = field(default_factory=set[int])

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
        self.digests: list[str] = []
        self.copies: dict[int, list[str]] = {}
        """By entry, digests of what other runs have of the same message."""
        self._hashes: list[int] = []
        self._changes: dict[int, frozenset[str]] = {}
        self._first_of: dict[tuple[str, int], int] = {}
        self.runs: dict[str, RunRecordView] = {}
        self._corpus: list[RunRecordView] = []
        self._sections: list[Section] = []
        self._flat: list[int] = []
        self._starts: list[int] = []
        self._inheritance = Inheritance()
        self._is_stale = False
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
            for append in appends_in(document):
                if not self._follows(append):
                    return False
                self.until[append["conversation_id"]] = append["sequence"]
                if not append.get("is_reset"):
                    self._take_record(append)
            self.kept_terms.add(document["analyzer"])
            self.entries.take(document, includes_own=self.includes_own)
            self._places = None
        return True

    def _follows(self, append: Mapping[str, Any]) -> bool:
        known = self.until.get(append["conversation_id"], 0)
        if "is_merged" in append:  # since the segments were read
            return False
        if append.get("is_reset"):
            return not known
        return bool(append["sequence"] == known + 1)

    def _take_record(self, document: Mapping[str, Any]) -> None:
        conversation, sequence = document["conversation_id"], document["sequence"]
        run = self.runs.get(document["run_id"])
        if run is None:
            run = RunRecordView(
                run_id=document["run_id"],
                conversation_id=conversation,
                started_at=document["started_at"],
            )
            self.runs[run.run_id] = run
        places = numbers_in(document["places"])
        first = len(self.digests)
        self._first_of[conversation, sequence] = first
        digests = document["messages"]
        self.digests += digests[: len(places)]
        self._hashes += document["hashes"]
        for index, changes in document.get("changes", {}).items():
            self._changes[first + int(index)] = frozenset(changes)
        entries: Sequence[int] = range(first, first + len(places))
        own = len(places)
        if "inherited" in document:
            inherited = dict(references_in(document["inherited"]))
            run.borrowed |= inherited.keys()
            firsts = (
                self._first_of[conversation, at.sequence] + at.index for at in inherited.values()
            )
            places, entries = [*inherited, *places], [*firsts, *entries]
        if run.borrowed:
            run.borrowed.difference_update(places[len(places) - own :])
        before = len(run.entries)
        is_added = run.put(places, entries, document.get("dropped", ()))
        for place, digest in zip(document.get("renewed", ()), digests[own:], strict=True):
            entry = run.entries[bisect_left(run.places, place)]
            if place in run.borrowed:
                self.copies.setdefault(entry, []).append(digest)
            else:
                self.digests[entry] = digest
        if "unreadable" in document:
            run.unreadable.update(document["unreadable"])
        self._count_on(run, before if is_added else None)

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
        hashes = [self._hashes[each] for each in added]
        changes = [_NO_CHANGES] * len(added)
        if self._changes:
            changes = [self._changes.get(each, _NO_CHANGES) for each in added]
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
        self._flat += counted

    def _put_together(self) -> None:
        """Bring the sections up to the records, from the first run on."""
        self._inheritance = Inheritance()
        self._sections, self._flat, self._starts = [], [], []
        self._corpus = sorted(self.runs.values(), key=lambda each: each.order)
        for run in self._corpus:
            run.inherited, run.is_counted = 0, True
            self._inherit(run, 0)
        self._is_stale = False

    def places(self, run_id: str | None) -> "Places":
        """Where the entries of the corpus are: of all sections, or of one run's whole record."""
        if run_id is not None:
            runs = [self.runs[run_id]] if run_id in self.runs else []
            sections = [_section(run, 0) for run in runs if run.entries]
            entries = runs[0].entries if runs else []
            return self._places_of(runs, sections, entries, [0] * len(sections))
        if self._is_stale:
            self._put_together()
        if self._places is None:
            sections = list(self._sections)
            self._places = self._places_of(self.runs.values(), sections, self._flat, self._starts)
        return self._places

    def _places_of(
        self,
        runs: Collection[RunRecordView],
        sections: list[Section],
        entries: Sequence[int],
        starts: Sequence[int],
    ) -> "Places":
        flat = np.array(entries, np.int64)
        order = np.full(len(self.digests), _NOWHERE)
        order[flat[::-1]] = np.arange(len(flat))[::-1]
        again = np.flatnonzero(order[flat] != np.arange(len(flat)))
        further = zip(flat[again].tolist(), again.tolist(), strict=True)
        return Places(
            sections=sections,
            flat=flat,
            order=order,
            starts=np.array(starts, np.int64),
            again=tuple(further),
            run_count=sum(bool(each.entries) for each in runs),
            skipped=sum(len(each.unreadable) for each in runs),
        )


def _section(run: RunRecordView, first_index: int) -> Section:
    return Section(
        run_id=run.run_id,
        conversation_id=run.conversation_id or None,
        first_index=first_index,
        length=len(run.entries) - first_index,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """A corpus: its entries section by section, where each section starts, and back again.

    `order` has an entry's place among those of the corpus, -1 for one that is not of it. `again`
    has the further places of entries that are in two sections: a run that branched off before a
    change of instructions has what it inherited as its own. `run_count` and `skipped` are those of
    `Ranking`.
    """

    sections: list[Section]
    flat: NDArray[Any]
    order: NDArray[Any]
    starts: NDArray[Any]
    again: tuple[tuple[int, int], ...]
    run_count: int
    skipped: int
