"""A conversation's log in memory: the records of its runs, and what each message holds.

Records are put together as `stores.search.corpus` does: in the order in which runs began, what an
earlier run holds is left out at the beginning of a later one.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stores.mongo.search_log import references_in
from stores.mongo.search_postings import Column, Keys, Postings
from stores.search.corpus import Inheritance, Section

_NO_CHANGES: frozenset[str] = frozenset()

_NOWHERE = -1

_BYTES_OF_ENTRY = 300
"""Of what is kept of a message besides its postings: digest, hash, places in lists."""


@dataclass(kw_only=True)
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
    unreadable: set[int] = field(default_factory=set[int])

    @property
    def order(self) -> tuple[int, str]:
        """When the run began; runs of one moment are in the order of their ids."""
        return self.started_at, self.run_id

    def put(self, placed: Sequence[tuple[int, int]], dropped: Iterable[int]) -> bool:
        """Put entries at places and drop others; whether that only added to the end."""
        away = set(dropped)
        last = self.places[-1] if self.places else -1
        places = [place for place, _ in placed]
        if not away and places == sorted(places) and all(each > last for each in places):
            self.places += places
            self.entries += [entry for _, entry in placed]
            return True
        record = dict(zip(self.places, self.entries, strict=True)) | dict(placed)
        kept = sorted(place for place in record if place not in away)
        self.places, self.entries = kept, [record[place] for place in kept]
        return False


class LogView:
    """What was read of a log up to `until`, for searches with or without the search's own calls.

    Args:
        includes_own: count what the search itself asked and answered, too.
        only: keep postings of these keys alone.
    """

    def __init__(self, *, includes_own: bool, only: Keys | None = None) -> None:
        self.includes_own = includes_own
        self.is_searched = False
        self.until: dict[str, int] = {}
        self.analyzers: set[str] = set()
        self.postings = Postings(only)
        self._lengths = Column(np.int64)
        self.digests: list[str] = []
        self.copies: dict[int, list[str]] = {}
        """By entry, digests of what other runs have of the same message."""
        self._hashes: list[int] = []
        self._changes: dict[int, frozenset[str]] = {}
        self._first_of: dict[tuple[str, int], int] = {}
        self.runs: dict[str, RunRecordView] = {}
        self.corpus: list[RunRecordView] = []
        self.sections: list[Section] = []
        self._inheritance = Inheritance()
        self._is_stale = False
        self._flat, self._starts = Column(np.int64), Column(np.int64)
        self._order = Column(np.int64)
        self._again: list[tuple[int, int]] = []

    @property
    def size_bytes(self) -> int:
        """About what it takes."""
        return self.postings.size_bytes + _BYTES_OF_ENTRY * len(self.digests)

    @property
    def lengths(self) -> NDArray[Any]:
        """Terms of each entry."""
        return self._lengths.values

    def take(self, documents: Sequence[Mapping[str, Any]]) -> bool:
        """Take in appends, each conversation's in their order; whether none is missing."""
        for document in documents:
            conversation, sequence = document["conversation_id"], document["sequence"]
            known = self.until.get(conversation, 0)
            if document.get("is_reset"):
                if known:
                    return False
            elif sequence != known + 1:
                return False
            self.until[conversation] = sequence
            self._take_record(document)
        self._take_terms(documents)
        return True

    def _take_record(self, document: Mapping[str, Any]) -> None:
        self.analyzers.add(document["analyzer"])
        run = self.runs.get(document["run_id"])
        if document.get("is_reset"):
            return
        if run is None:
            run = RunRecordView(
                run_id=document["run_id"],
                conversation_id=document["conversation_id"],
                started_at=document["started_at"],
            )
            self.runs[run.run_id] = run
        conversation, sequence = document["conversation_id"], document["sequence"]
        places = np.frombuffer(document["places"], "<u4").tolist()
        first = len(self.digests)
        self._first_of[conversation, sequence] = first
        digests = document["messages"]
        self.digests += digests[: len(places)]
        self._hashes += document["hashes"]
        self._order.append(np.full(len(places), _NOWHERE))
        for index, changes in document.get("changes", {}).items():
            self._changes[first + int(index)] = frozenset(changes)
        placed = [
            (place, self._first_of[conversation, at.sequence] + at.index)
            for place, at in references_in(document.get("inherited", b""))
        ]
        run.borrowed.update(place for place, _ in placed)
        run.borrowed.difference_update(places)
        placed += zip(places, range(first, first + len(places)), strict=True)
        before = len(run.entries)
        is_added = run.put(placed, document.get("dropped", ()))
        for place, digest in zip(document.get("renewed", ()), digests[len(places) :], strict=True):
            entry = run.entries[bisect_left(run.places, place)]
            if place in run.borrowed:
                self.copies.setdefault(entry, []).append(digest)
            else:
                self.digests[entry] = digest
        run.unreadable.update(document.get("unreadable", ()))
        self._count_on(run, before if is_added else None)

    def _take_terms(self, documents: Sequence[Mapping[str, Any]]) -> None:
        total = len(self._lengths.values)
        documents = [each for each in documents if each["hashes"]]
        if not documents:
            return
        lengths = _joined(documents, "lengths", "<u4")
        sizes = _joined(documents, "sizes", "<u4")
        entries = np.arange(total, total + len(lengths), dtype=np.int32)
        keys = _joined(documents, "terms", "<u8")
        counts = _counts(documents, "")
        # A message that holds a word in its text and in a call of the search has it in both.
        if self.includes_own and any("own_terms" in each for each in documents):
            keys, entries, counts, lengths = _with_own(documents, total, lengths)
        else:
            entries = np.repeat(entries, sizes)
        self._lengths.append(lengths.astype(np.int64))
        self.postings.append(keys, entries, counts)

    # The corpus

    def _count_on(self, run: RunRecordView, before: int | None) -> None:
        """Follow with the sections what was added behind `before`; `None`: it was changed."""
        if self._is_stale:
            return
        is_new = not self.corpus or self.corpus[-1] is not run
        if before is None or (is_new and self.corpus and run.order < self.corpus[-1].order):
            self._is_stale = True
            return
        if is_new:
            if before or any(each is run for each in self.corpus):
                self._is_stale = True
                return
            self.corpus.append(run)
        self._inherit(run, before)

    def _inherit(self, run: RunRecordView, before: int) -> None:
        added = run.entries[before:]
        hashes = [self._hashes[each] for each in added]
        changes = [self._changes.get(each, _NO_CHANGES) for each in added]
        leading = self._inheritance.leading(hashes, changes)
        if run.inherited == before:
            run.inherited += leading
        counted = run.entries[max(before, run.inherited) :]
        if not counted:
            return
        section = _section(run, run.inherited)
        if self.sections and self.sections[-1].run_id == run.run_id:
            self.sections[-1] = section
        else:
            self.sections.append(section)
            self._starts.append(np.array([len(self._flat.values)]))
        entries = np.array(counted)
        places = np.arange(len(self._flat.values), len(self._flat.values) + len(counted))
        is_first = self._order.values[entries] == _NOWHERE
        self._order.values[entries[is_first]] = places[is_first]
        self._again += zip(entries[~is_first].tolist(), places[~is_first].tolist(), strict=True)
        self._flat.append(entries)

    def _put_together(self) -> None:
        """Bring the sections up to the records, from the first run on."""
        self._inheritance = Inheritance()
        self.sections = []
        self._flat, self._starts = Column(np.int64), Column(np.int64)
        self._order.values[:] = _NOWHERE
        self._again = []
        self.corpus = sorted(self.runs.values(), key=lambda each: each.order)
        for run in self.corpus:
            run.inherited = 0
            self._inherit(run, 0)
        self._is_stale = False

    def places(self, run_id: str | None) -> "Places":
        """Where the entries of the corpus are: of all sections, or of one run's whole record."""
        if run_id is None:
            if self._is_stale:
                self._put_together()
            return Places(
                list(self.sections),
                self._flat.values,
                self._order.values,
                self._starts.values,
                tuple(self._again),
            )
        run = self.runs.get(run_id)
        flat = np.array(run.entries if run else [], np.int64)
        order = np.full(len(self.digests), _NOWHERE)
        order[flat] = np.arange(len(flat))
        sections = [_section(run, 0)] if run and run.entries else []
        return Places(sections, flat, order, np.zeros(len(sections), np.int64))


def _section(run: RunRecordView, first_index: int) -> Section:
    return Section(
        run_id=run.run_id,
        conversation_id=run.conversation_id or None,
        first_index=first_index,
        length=len(run.entries) - first_index,
    )


@dataclass(frozen=True, slots=True)
class Places:
    """A corpus: its entries section by section, where each section starts, and back again.

    `order` has an entry's place among those of the corpus, -1 for one that is not of it. `again`
    has the further places of entries that are in two sections: a run that branched off before a
    change of instructions has what it inherited as its own.
    """

    sections: list[Section]
    flat: NDArray[Any]
    order: NDArray[Any]
    starts: NDArray[Any]
    again: tuple[tuple[int, int], ...] = ()


def _joined(documents: Sequence[Mapping[str, Any]], name: str, dtype: str) -> NDArray[Any]:
    return np.frombuffer(b"".join(each[name] for each in documents), dtype)


def _counts(documents: Sequence[Mapping[str, Any]], prefix: str) -> NDArray[Any]:
    if not any(f"{prefix}is_wide" in each for each in documents):
        return _joined(documents, f"{prefix}counts", "u1")
    return np.concatenate(
        [
            np.frombuffer(
                each[f"{prefix}counts"], "<u4" if f"{prefix}is_wide" in each else "u1"
            ).astype(np.uint32)
            for each in documents
        ]
    )


def _with_own(
    documents: Sequence[Mapping[str, Any]], total: int, lengths: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Keys, entries and counts with the own ones added, and the lengths that come of it."""
    keys: list[int] = []
    entries: list[int] = []
    counts: list[int] = []
    longer: list[int] = []
    entry = total
    for document in documents:
        counted = [_counted(document, ""), _counted(document, "own_")]
        for index in range(len(document["hashes"])):
            merged: dict[int, int] = {}
            for each in counted:
                for key, count in each[index] if each else ():
                    merged[key] = merged.get(key, 0) + count
            keys += merged
            counts += merged.values()
            entries += [entry] * len(merged)
            longer.append(sum(merged.values()))
            entry += 1
    return (
        np.array(keys, np.uint64),
        np.array(entries, np.int32),
        np.array(counts, np.uint32),
        np.array(longer, lengths.dtype),
    )


def _counted(document: Mapping[str, Any], prefix: str) -> list[list[tuple[int, int]]]:
    if f"{prefix}terms" not in document:
        return []
    keys: list[int] = np.frombuffer(document[f"{prefix}terms"], "<u8").tolist()
    counts: list[int] = _counts([document], prefix).tolist()
    pairs = iter(zip(keys, counts, strict=True))
    sizes = np.frombuffer(document[f"{prefix}sizes"], "<u4").tolist()
    return [[next(pairs) for _ in range(size)] for size in sizes]
