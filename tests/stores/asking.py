"""What the conformance classes of commits ask of a store."""

from stores.commits import CommitResult
from stores.protocols import StepStore
from tests.stores.writer import Execution, RunScript


def dispositions(result: CommitResult) -> dict[int, str]:
    return {each.index: each.disposition for each in result.outcomes}


async def kinds(store: StepStore, run_id: str = "run-1") -> list[str]:
    return [each.kind for each in await store.list_events(run_id=run_id)]


async def started(store: StepStore) -> tuple[Execution, RunScript]:
    """A run whose first commit is written."""
    script, execution = RunScript(result_size=10), Execution()
    await store.commit(execution.commit(script.register(), script.event("run_started", 0)))
    return execution, script


async def everything(store: StepStore, run_id: str = "run-1") -> dict[str, object]:
    """All that can be read of a run."""
    return {
        "run": await store.get_run(run_id=run_id),
        "events": await store.list_events(run_id=run_id),
        "snapshots": await store.list_snapshots(run_id=run_id),
        "effects": await store.list_tool_effects(run_id=run_id),
    }
