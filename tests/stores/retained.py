"""Runs of all kinds, written by their commits: for tests of what a retention takes out."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from stores.protocols import StepStore
from stores.search.answering import search_history
from stores.search.query import HistoryQuery
from stores.search.source import SnapshotHistorySource
from tests.stores.writer import Execution, RunScript, at, request

DAY = 86_400.0
NOW = at(100 * DAY)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run to make. `of` and `origin` are numbers of runs before it."""

    conversation: str | None
    steps: int
    days_ago: float
    is_open: bool
    is_unresolved: bool
    relation: str
    origin: int


PLANS = st.lists(
    st.builds(
        Plan,
        conversation=st.sampled_from([None, "a", "b"]),
        steps=st.integers(1, 3),
        days_ago=st.sampled_from([0.1, 5, 20, 60]),
        is_open=st.sampled_from([False, False, True]),
        is_unresolved=st.sampled_from([False, False, True]),
        relation=st.sampled_from(["", "", "parent_run_id", "continued_from", "forked_from"]),
        origin=st.integers(0, 20),
    ),
    min_size=1,
    max_size=9,
)


def plan(**changed: Any) -> Plan:
    values: dict[str, Any] = {
        "conversation": None,
        "steps": 3,
        "days_ago": 50,
        "is_open": False,
        "is_unresolved": False,
        "relation": "",
        "origin": 0,
        **changed,
    }
    return Plan(**values)


async def write(store: StepStore, plans: list[Plan], prefix: str) -> list[str]:
    ids: list[str] = []
    continued: set[str] = set()
    for number, plan in enumerate(plans):
        run_id = f"{prefix}-{number}"
        lineage: dict[str, Any] = {"conversation_id": plan.conversation}
        source = ids[plan.origin % len(ids)] if ids else None
        if (
            source
            and plan.relation
            and not (plan.relation == "continued_from" and source in continued)
        ):
            lineage[plan.relation] = source
            continued |= {source} if plan.relation == "continued_from" else set()
        ended = (NOW - at(0)).total_seconds() - plan.days_ago * DAY
        execution = Execution(execution_id=f"e-{run_id}", branch=f"b-{run_id}")
        script = RunScript(run_id=run_id, result_size=20)
        script.messages.append(request(f"word{number}x{prefix}"))
        await store.commit(execution.commit(script.register(**lineage), now=ended))
        for step in range(1, plan.steps + 1):
            execution.next_task()
            await store.commit(execution.commit(*script.before_tool(step), now=ended))
            await store.commit(execution.commit(*script.after_tool(step), now=ended))
        count = len(script.messages)
        first = 1 if plan.steps == 3 else 0  # a compaction
        last: list[Any] = [script.snapshot(9, count - 1, ranges=((first, count),))]
        if plan.is_unresolved:
            last.append(script.started(9))
        if not plan.is_open:
            last.append(script.event("run_completed", 9))
        execution.next_task()
        await store.commit(execution.commit(*last, now=ended))
        ids.append(run_id)
    return ids


async def seen(store: StepStore, run_id: str) -> dict[str, Any]:
    """What somebody may ask of a run."""
    return {
        "run": await store.get_run(run_id=run_id),
        "events": await store.list_events(run_id=run_id),
        "effects": await store.list_tool_effects(run_id=run_id),
        "newest": await store.latest_snapshot(run_id=run_id, include_interrupted=True),
        "settled": await store.latest_snapshot(run_id=run_id),
        "unresolved": await store.list_unresolved_tool_effects(run_id=run_id),
    }


async def found(store: StepStore, plans: list[Plan], prefix: str, numbers: list[int]) -> None:
    """What the conversations of these runs said is found, what a compaction took out as well."""
    for number in numbers:
        if plans[number].conversation is None:
            continue
        query = HistoryQuery(
            text=f"word{number}x{prefix}", conversation_id=plans[number].conversation
        )
        answer = await search_history(SnapshotHistorySource(store), query)
        assert f"word{number}x{prefix}" in answer.text, number
