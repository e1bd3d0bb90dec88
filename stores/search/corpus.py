"""Runs as sections of one corpus: what a run inherited belongs to the run that said it first."""

from collections.abc import Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from pydantic_ai.messages import ModelMessage

from stores.records import RunRecord
from stores.search.identity import instruction_changes, message_hash

Changes = AbstractSet[Hashable]

_NO_CHANGES: Changes = frozenset()


class Section(NamedTuple):
    """A run's part of the corpus.

    `first_index` is the place of the first message in the run's own record, so that a message has
    the same number whether its run is searched alone or with others.
    """

    run_id: str
    conversation_id: str | None
    first_index: int
    length: int

    @property
    def label(self) -> str:
        """How an excerpt names it."""
        run = f"run: {self.run_id}"
        if self.conversation_id is None:
            return run
        return f"{run} | conversation: {self.conversation_id}"


class Inheritance:
    """Tells how many messages a run began with that earlier runs hold.

    Ask for the runs in the order of their starts. A message that gained a change of instructions
    since is not inherited, and neither is what follows it.
    """

    def __init__(self) -> None:
        self._seen: set[Hashable] = set()
        self._changes: dict[Hashable, Changes] = {}
        """What each carries, once any of them does."""

    def leading(self, hashes: Sequence[Hashable], changes: Sequence[Changes] = ()) -> int:
        """The number of inherited messages of the next run; from now on its own count as held.

        Args:
            hashes: of all messages of its record.
            changes: of instructions, that each of them carries; empty when none carries any.
        """
        count = 0
        for hashed in hashes:
            if hashed not in self._seen:
                break
            if changes and not changes[count] <= self._changes.get(hashed, _NO_CHANGES):
                break
            count += 1
        self._seen.update(hashes)
        if changes or self._changes:
            carried = changes or [_NO_CHANGES] * len(hashes)
            self._changes.update(zip(hashes, carried, strict=True))
        return count


@dataclass(frozen=True, kw_only=True)
class RunMessages:
    """A section with its messages."""

    section: Section
    messages: Sequence[ModelMessage]


def corpus_of(runs: Iterable[tuple[RunRecord, Sequence[ModelMessage]]]) -> list[RunMessages]:
    """The sections of runs with their records, in the order of the runs' starts."""
    inheritance = Inheritance()
    corpus: list[RunMessages] = []
    for run, record in runs:
        inherited = inheritance.leading(
            [message_hash(each) for each in record], [instruction_changes(each) for each in record]
        )
        if inherited == len(record):
            continue
        section = Section(
            run_id=run.run_id,
            conversation_id=run.conversation_id,
            first_index=inherited,
            length=len(record) - inherited,
        )
        corpus.append(RunMessages(section=section, messages=record[inherited:]))
    return corpus
