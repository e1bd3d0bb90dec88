"""Whole runs go many at once: with the outcome of one at a time, and wherever that is cut off."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymongo import AsyncMongoClient

from stores.conversation_records import ConversationSpec
from stores.mongo import departing, removing, retaining
from stores.mongo.indexes import COLLECTIONS
from stores.mongo.steps import MongoStepStore
from stores.retention_policies import Retained, RetentionPolicy
from tests.stores.retained import NOW, PLANS, Plan, found, plan, seen, write
from tests.stores.writer import at

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

POLICY = RetentionPolicy(runs_days=15)

ORIGINS = ("parent_run_id", "continued_from", "forked_from")


async def retain(store: MongoStepStore) -> Retained:
    return await store.retain(POLICY, temporal_keeps=timedelta(days=1), now=NOW, is_dry=False)


async def written(uri: str, database: str, plans: list[Plan], prefix: str) -> MongoStepStore:
    """The same runs in another workspace, with heads of their conversations."""
    store = MongoStepStore(db_url=uri, database=database, workspace_id=f"w-{prefix}")
    for each in sorted({each.conversation for each in plans if each.conversation}):
        await store.conversations.open(each, ConversationSpec(agent="x"), now=at(0))
    await write(store, plans, prefix)
    return store


async def left_of(uri: str, database: str, prefix: str) -> dict[str, Any]:
    """Rows of a workspace by collection, and its runs and the heads by id."""
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        mine = {"workspace_id": f"w-{prefix}"}
        rows = {
            each: await client[database][each].count_documents(mine)
            for each in COLLECTIONS
            if each != "keyword_lanes"
        }
        runs = [each["_id"] async for each in client[database]["runs"].find(mine, {"_id": 1})]
        heads = client[database]["conversations"].find(mine, {"conversation_id": 1, "state": 1})
        logs = await client[database]["search_log"].distinct("run_id", mine)
        return {
            "rows": {name: number for name, number in rows.items() if number},
            "runs": sorted(each.removeprefix(prefix) for each in runs),
            "heads": sorted([(each["conversation_id"], each["state"]) async for each in heads]),
            "logs": sorted(each.removeprefix(prefix) for each in logs),
        }


@settings(max_examples=8, deadline=None)
@given(plans=PLANS)
def test_many_at_once_leave_what_one_at_a_time_leaves(
    mongodb_uri: str, prepared_database: str, plans: list[Plan]
) -> None:
    async def outcome(units: int, runs: int) -> tuple[Retained, dict[str, Any]]:
        prefix = uuid4().hex[:8]
        store = await written(mongodb_uri, prepared_database, plans, prefix)
        try:
            with (
                mock.patch.object(retaining, "UNITS_AT_ONCE", units),
                mock.patch.object(removing, "_BATCH", runs),
                mock.patch.object(departing, "_RUNS_AT_ONCE", runs),
            ):
                done = await retain(store)
        finally:
            await store.aclose()
        return done, await left_of(mongodb_uri, prepared_database, prefix)

    async def check() -> None:
        one_done, one = await outcome(1, 1)
        for units, runs in ((3, 2), (1000, 500)):
            done, left = await outcome(units, runs)
            assert left == one
            assert done.runs == one_done.runs

    asyncio.run(check())


class _CutOffError(Exception):
    """What a killed process would not even raise."""


@settings(max_examples=10, deadline=None)
@given(plans=PLANS, last=st.integers(0, 40))
def test_it_may_be_cut_off_within_a_batch_and_nothing_points_nowhere(
    mongodb_uri: str, prepared_database: str, plans: list[Plan], last: int
) -> None:
    calls = count()
    delete = removing.Remover._delete  # pyright: ignore[reportPrivateUsage]
    delete_of_runs = removing.delete_of_runs

    def count_call() -> None:
        if next(calls) == last:
            raise _CutOffError

    async def some_delete(self: removing.Remover, collection: str, query: Any) -> None:
        count_call()
        await delete(self, collection, query)

    async def some_delete_of_runs(*args: Any, **options: Any) -> int:
        count_call()
        return await delete_of_runs(*args, **options)

    async def check() -> None:
        prefix = uuid4().hex[:8]
        store = await written(mongodb_uri, prepared_database, plans, prefix)
        try:
            names = [f"{prefix}-{number}" for number in range(len(plans))]
            before = {each: await seen(store, each) for each in names}
            with (
                mock.patch.object(removing.Remover, "_delete", some_delete),
                mock.patch.object(removing, "delete_of_runs", some_delete_of_runs),
            ):
                try:
                    await retain(store)
                except _CutOffError:
                    await check_lineage(store, names)
            await retain(store)
            await check_lineage(store, names)
            await store.sweep(grace=timedelta(0), is_dry=False)
            left = [n for n, each in enumerate(names) if await store.get_run(run_id=each)]
            for number in left:
                assert await seen(store, names[number]) == before[names[number]]
            await found(store, plans, prefix, left)
            assert (await retain(store)).is_nothing
        finally:
            await store.aclose()
        other = uuid4().hex[:8]
        uncut = await written(mongodb_uri, prepared_database, plans, other)
        await retain(uncut)
        await uncut.sweep(grace=timedelta(0), is_dry=False)
        await uncut.aclose()
        assert await left_of(mongodb_uri, prepared_database, prefix) == await left_of(
            mongodb_uri, prepared_database, other
        )

    asyncio.run(check())


async def check_lineage(store: MongoStepStore, names: Sequence[str]) -> None:
    for each in names:
        run = await store.get_run(run_id=each)
        for origin in ORIGINS if run else ():
            named = getattr(run, origin)
            assert named is None or await store.get_run(run_id=named) is not None, (each, origin)


async def test_a_chain_of_runs_goes_in_one_page(mongodb_uri: str, prepared_database: str) -> None:
    prefix = uuid4().hex[:8]
    plans = [
        plan(relation="continued_from" if number else "", origin=number - 1, steps=1)
        for number in range(6)
    ]
    store = await written(mongodb_uri, prepared_database, plans, prefix)
    try:
        told: list[Retained] = []
        done = await store.retain(
            POLICY, temporal_keeps=timedelta(days=1), now=NOW, is_dry=False, tell=told.append
        )
        assert done.runs == 6
        assert [each.runs for each in told] == [6]
    finally:
        await store.aclose()
