"""What this process committed last: it saves the next commit of an execution most of its reads.

A worker commits a run's next step right after the last one, so it knows the rows that the step
builds on. Nothing of it is trusted: the commit head is replaced only if it is still the one that is
remembered, rows only in the revision that is remembered, and unique indexes refuse what is there
already. Whatever differs makes the commit start again and read.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from stores.commits import CommitHead
from stores.effects import EffectRow
from stores.planning import CommitPlan, Existing
from stores.rows import PositionRow, RunRow

MAX_EXECUTIONS = 1000
"""Executions to remember: as many as a worker has in its workflow cache, at some 10 KB each."""

MAX_POSITIONS = 8
"""Positions to remember: a save sends again what was stamped since, normally one message."""


class OutdatedError(Exception):
    """What was remembered is no longer so; read instead."""


@dataclass(frozen=True, kw_only=True)
class RecentExecution:
    """An execution as its last commit left it: head, runs, open effects, the last positions.

    `log_ends` has the first free position of the runs of which it is known.
    """

    head: CommitHead
    runs: dict[str, RunRow] = field(default_factory=dict[str, RunRow])
    effects: dict[tuple[str, str], EffectRow] = field(
        default_factory=dict[tuple[str, str], EffectRow]
    )
    positions: dict[tuple[str, int], PositionRow] = field(
        default_factory=dict[tuple[str, int], PositionRow]
    )
    log_ends: dict[str, int] = field(default_factory=dict[str, int])

    def existing(self) -> Existing:
        """What is remembered, for a planner to consume."""
        return Existing(
            runs=dict(self.runs), effects=dict(self.effects), positions=dict(self.positions)
        )


class RecentCommits:
    """The executions that were committed last, the newest at the end."""

    def __init__(self) -> None:
        self._executions: OrderedDict[tuple[str, str], RecentExecution] = OrderedDict()

    def find(self, workspace_id: str, execution_id: str) -> RecentExecution | None:
        """What is remembered of an execution."""
        return self._executions.get((workspace_id, execution_id))

    def keep(self, recent: RecentExecution) -> None:
        """Remember an execution in place of what was remembered of it."""
        key = (recent.head.workspace_id, recent.head.execution_id)
        self._executions[key] = recent
        self._executions.move_to_end(key)
        if len(self._executions) > MAX_EXECUTIONS:
            self._executions.popitem(last=False)


def after_commit(
    head: CommitHead, existing: Existing, written: CommitPlan, log_ends: dict[str, int]
) -> RecentExecution:
    """What to remember after a commit.

    Args:
        head: the commit head after it.
        existing: what its planner knew, and left.
        written: its plan, with the rows as they are stored.
        log_ends: what was known of the logs before it.
    """
    runs = {
        run_id: run
        for run_id, run in existing.runs.items()
        if run.mark is None and run.record.workspace_id == head.workspace_id
    }
    effects = existing.effects | {(each.run_id, each.effect_key): each for each in written.effects}
    stored = {(each.run_id, each.position): each for each in written.messages.positions}
    positions = existing.positions | stored
    ends = log_ends | {each.record.run_id: 0 for each in written.new_runs}
    for run_id, position in stored:
        if run_id in ends:
            ends[run_id] = max(ends[run_id], position + 1)
    return RecentExecution(
        head=head,
        runs=runs,
        effects={key: row for key, row in effects.items() if row.is_unresolved},
        positions=dict(list(positions.items())[-MAX_POSITIONS:]),
        log_ends=ends,
    )
