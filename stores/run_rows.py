"""All that a store keeps of one run, as rows: what a comparison with its histories reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stores.commits import CommitHead
from stores.effects import EffectRow
from stores.rows import EventRow, PositionRow, RunRow, SnapshotRow


@dataclass(frozen=True, kw_only=True)
class RunRows:
    """The rows of a run that count, and snapshots that retention has pruned.

    Attributes:
        run: its record; `None` where there is none that counts.
        texts: by digest the messages that `positions` name, media inlined.
        damaged: by digest why a message cannot be had, or is not what its digest says.
        are_details_pruned: retention has taken rows of events, effects or snapshots away.
    """

    run: RunRow | None = None
    events: tuple[EventRow, ...] = ()
    snapshots: tuple[SnapshotRow, ...] = ()
    effects: tuple[EffectRow, ...] = ()
    positions: tuple[PositionRow, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    damaged: Mapping[str, str] = field(default_factory=dict[str, str])
    are_details_pruned: bool = False


@dataclass(frozen=True, kw_only=True)
class Mending:
    """Rows to be put into a store: one with a `row_id` takes the place of the stored row.

    Attributes:
        texts: by position the messages to be put there, as JSON text with all of their content;
            each has its row in `positions`.
        head: of an execution that has ended.
    """

    run: RunRow | None = None
    events: tuple[EventRow, ...] = ()
    snapshots: tuple[SnapshotRow, ...] = ()
    effects: tuple[EffectRow, ...] = ()
    positions: tuple[PositionRow, ...] = ()
    texts: Mapping[int, str] = field(default_factory=dict[int, str])
    head: CommitHead | None = None

    @property
    def count(self) -> int:
        """How many rows that is."""
        rows = (self.events, self.snapshots, self.effects, self.positions)
        return sum(map(len, rows)) + (self.run is not None) + (self.head is not None)
