"""What is known of a run that came to grief, for somebody who has to decide."""

from dataclasses import dataclass

from stores.protocols import StepStore
from stores.records import ContinuableSnapshot, ToolEffectRecord


@dataclass(frozen=True, kw_only=True)
class RecoveryInspection:
    """Facts alone. Whether a call may run again is not among them: only its tool's owner knows.

    `newest` is the newest snapshot of any state, `settled` the newest complete one.
    `completed_tools` and `failed_tools` are the names of tools with such a call, in order of their
    first one. A failed call may have changed something, too.
    """

    run_id: str
    newest: ContinuableSnapshot | None
    settled: ContinuableSnapshot | None
    unresolved: tuple[ToolEffectRecord, ...]
    completed_tools: tuple[str, ...]
    failed_tools: tuple[str, ...]


async def inspect_recovery(store: StepStore, run_id: str) -> RecoveryInspection:
    """What the store holds of a run that decides how it may go on; all empty for an unknown one.

    Raises:
        DamagedSnapshotError: a snapshot cannot be read. Not retryable.
    """
    effects = await store.list_tool_effects(run_id=run_id)
    return RecoveryInspection(
        run_id=run_id,
        newest=await store.latest_snapshot(run_id=run_id, include_interrupted=True),
        settled=await store.latest_snapshot(run_id=run_id),
        unresolved=tuple(await store.list_unresolved_tool_effects(run_id=run_id)),
        completed_tools=_names(effects, "completed"),
        failed_tools=_names(effects, "failed"),
    )


def _names(effects: list[ToolEffectRecord], status: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each.tool_name for each in effects if each.status == status))
