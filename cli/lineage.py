"""Runs that other runs delegated: how their parents stand, and how they stand themselves."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from cli.connections import describing_client
from cli.failures import UnreachableError
from cli.output import moment, print_table

if TYPE_CHECKING:
    from settings import Settings
    from stores.protocols import StepStore
    from stores.records import RunPage, RunRecord

GONE = "gone"
"""Of a parent that neither the store nor Temporal knows."""

UNKNOWN = "unknown: Temporal does not answer"
"""Of a run whose end only Temporal could tell."""

NOT_THERE = frozenset({GONE, "terminated", "timed_out"})
"""Of a parent that could not tell its end, nor wait for that of its delegates."""


@dataclass(frozen=True, kw_only=True)
class Delegated:
    """A run that another one delegated; `state` is joined of the store's and Temporal's."""

    record: "RunRecord"
    state: str

    def as_document(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {**asdict(self.record), "joined_state": self.state}


async def list_delegates(
    settings: "Settings", store: "StepStore", run_id: str
) -> Sequence[Delegated]:
    """The runs that this one delegated, in the order of their starts."""
    records = await store.list_runs(parent_run_id=run_id)
    states = await _states(settings, {each.run_id: each for each in records})
    return [Delegated(record=each, state=states[each.run_id]) for each in records]


async def parent_states(
    settings: "Settings", store: "StepStore", parent_run_ids: Iterable[str]
) -> dict[str, str]:
    """The state of each of these runs, `GONE` where nobody knows it."""
    parents = list(dict.fromkeys(parent_run_ids))
    records = await asyncio.gather(*(store.get_run(run_id=each) for each in parents))
    return await _states(settings, dict(zip(parents, records, strict=True)))


async def page_orphans(
    settings: "Settings", store: "StepStore", wanted: dict[str, Any]
) -> "RunPage":
    """A page of the runs whose parent is `NOT_THERE`: all others are read and left out.

    Args:
        settings: where Temporal is.
        store: of the runs.
        wanted: arguments of `page_runs`.

    Raises:
        UnreachableError: Temporal does not answer, and only it knows of some parent.
    """
    from stores.paging import MAX_PAGE_SIZE, given, page_of  # noqa: PLC0415 - slow to load

    limit, after = wanted["limit"], wanted["after"]
    filters = {name: value for name, value in wanted.items() if name not in {"limit", "after"}}
    found: list[RunRecord] = []
    states: dict[str, str] = {}
    while True:
        page = await store.page_runs(limit=MAX_PAGE_SIZE, after=after, **filters)
        found += await _orphans(settings, store, page.runs, states)
        if len(found) > limit:  # the cursor stands behind the last that is shown
            return page_of(found[: limit + 1], limit=limit, filters=given(**filters))
        if page.after is None or len(found) == limit:
            return replace(page, runs=found)
        after = page.after


async def _orphans(
    settings: "Settings", store: "StepStore", runs: "Sequence[RunRecord]", states: dict[str, str]
) -> "list[RunRecord]":
    """Those of these runs; `states` of parents are kept from page to page."""
    parents = {each.parent_run_id for each in runs if each.parent_run_id}
    states |= await parent_states(settings, store, sorted(parents - states.keys()))
    if UNKNOWN in states.values():
        message = "whether a parent was terminated is for Temporal to say, and it does not answer"
        raise UnreachableError(message)
    return [each for each in runs if each.parent_run_id and states[each.parent_run_id] in NOT_THERE]


async def _states(
    settings: "Settings", records: "Mapping[str, RunRecord | None]"
) -> dict[str, str]:
    """States by run id; Temporal is asked where a run has not told its end itself."""
    states = {run_id: each.state for run_id, each in records.items() if each and each.ended_at}
    others = records.keys() - states.keys()
    if not others:
        return {**states}
    from cli.executions import find_executions, joined_state  # noqa: PLC0415 - slow to load

    try:
        executions = await find_executions(await describing_client(settings), others)
    except UnreachableError:
        return {**states, **dict.fromkeys(others, UNKNOWN)}
    joined: dict[str, str] = {**states}
    for run_id in others:
        record, execution = records[run_id], executions[run_id]
        joined[run_id] = joined_state(record, execution) if record or execution else GONE
    return joined


def print_delegates(delegates: Sequence[Delegated], *, title: str) -> None:
    """Print the runs that a run delegated."""
    print_table(
        ("run", "state", "agent", "started", "ended", "conversation", "error"),
        [
            (
                *(each.record.run_id, each.state, each.record.agent_name),
                *(moment(each.record.started_at), moment(each.record.ended_at)),
                *(each.record.conversation_id, each.record.error),
            )
            for each in delegates
        ],
        title=title,
    )
