"""What retention takes out, and above all what it never does."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from stores.conversation_records import ConversationSpec
from stores.errors import StoreConfigurationError
from stores.mongo import retaining
from stores.mongo.removing import delete_of_runs
from stores.mongo.steps import MongoStepStore
from stores.ranges import union
from stores.retention_policies import (
    Retained,
    RetentionPolicy,
    expendable,
    load_policies,
    policy_for,
)
from stores.rows import SnapshotRow
from tests.stores.retained import NOW, PLANS, Plan, found, plan, seen, write
from tests.stores.writer import at

TEMPORAL_KEEPS = timedelta(days=1)

RANGES = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 6)).map(lambda each: (each[0], sum(each))),
    max_size=3,
).map(tuple)
POLICIES = st.builds(
    RetentionPolicy,
    snapshots=st.integers(1, 3),
    settled=st.sampled_from(["newest", "all"]),
    originals=st.booleans(),
)


def row(sequence: int, state: Any, ranges: tuple[tuple[int, int], ...]) -> SnapshotRow:
    return SnapshotRow(
        workspace_id="default",
        run_id="run-1",
        branch="b",
        number=sequence,
        sequence=sequence,
        key=str(sequence),
        digest="",
        at=at(sequence),
        step_index=sequence,
        state=state,
        ranges=ranges,
    )


@given(POLICIES, st.lists(st.tuples(st.sampled_from(["complete", "interrupted"]), RANGES)))
def test_what_a_run_is_continued_from_stays_and_what_compaction_took_out(
    policy: RetentionPolicy, made: list[tuple[Any, tuple[tuple[int, int], ...]]]
) -> None:
    rows = [row(number, *each) for number, each in enumerate(made)]
    gone = expendable(rows, policy)
    kept = [each for each in rows if each not in gone]
    complete = [each for each in rows if each.state == "complete"]

    assert rows[-1:] == kept[-1:]
    assert [each for each in kept if each.state == "complete"][-1:] == complete[-1:]
    assert policy.snapshots is not None
    assert all(each in kept for each in rows[-policy.snapshots :])
    if policy.settled == "all":
        assert all(each in kept for each in complete)
    if policy.originals:
        named = [union([each for row in rows_ for each in row.ranges]) for rows_ in (rows, kept)]
        assert named[0] == named[1]
    assert expendable(kept, policy) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": {"runs_days": 3, "details_days": 7}}', "gone before their details"),
        ('{"a": {"originals": true}}', "name those"),
        ('{"a": {"snapshots": 0}}', "a.snapshots"),
        ('{"a": {"runs_days": -1}}', "a.runs_days"),
        ('{"a": {"keep": 1}}', "a.keep"),
        ("{", "no JSON"),
        ("file:/no/such/file", "cannot be read"),
    ],
)
def test_a_policy_that_is_none_or_contradicts_itself_is_refused(text: str, words: str) -> None:
    with pytest.raises(StoreConfigurationError, match=words):
        load_policies(text)


def test_a_workspace_has_its_own_policy_or_that_of_all() -> None:
    policies = load_policies('{"a": {"snapshots": 1}, "*": {"snapshots": 2}}')

    assert [getattr(policy_for(policies, each), "snapshots", None) for each in "ab"] == [1, 2]
    assert policy_for(load_policies(""), "a") is None


def _policy(
    details: float | None, whole: float | None, newest: int | None, *, originals: bool
) -> RetentionPolicy:
    said: dict[str, Any] = {"details_days": details, "runs_days": whole}
    said |= {"snapshots": newest, "originals": originals} if newest else {}
    return RetentionPolicy.model_validate(said)


ANY_POLICIES = st.builds(
    _policy,
    st.sampled_from([None, 3, 10]),
    st.sampled_from([None, 15, 40]),
    st.sampled_from([None, 1, 2]),
    originals=st.booleans(),
)


async def check(uri: str, database: str, plans: list[Plan], policy: RetentionPolicy) -> None:
    prefix = uuid4().hex[:8]
    store = MongoStepStore(db_url=uri, database=database, workspace_id=f"w-{prefix}")
    try:
        ids = await write(store, plans, prefix)
        await found(store, plans, prefix, list(range(len(ids))))
        before = {each: await seen(store, each) for each in ids}
        saved = {each: await store.list_snapshots(run_id=each) for each in ids}
        done = await retain(store, policy)
        await store.sweep(grace=timedelta(0), is_dry=False)
        left = [each for each, run_id in enumerate(ids) if await store.get_run(run_id=run_id)]
        for number, run_id in enumerate(ids):
            was, plan = before[run_id], plans[number]
            if number not in left:
                assert not plan.is_open
                assert not plan.is_unresolved
                assert policy.runs_days is not None
                assert plan.days_ago > policy.runs_days
                continue
            now = await seen(store, run_id)
            for name in ("newest", "settled", "unresolved"):
                assert now[name] == was[name], (run_id, name)
            kept = await store.list_snapshots(run_id=run_id)
            assert kept == [each for each in saved[run_id] if each in kept]
            if policy.snapshots is None:
                assert kept == saved[run_id]
            run = now["run"]
            for origin in (run.parent_run_id, run.continued_from, run.forked_from):
                assert origin is None or await store.get_run(run_id=origin) is not None
            if plan.is_open or plan.is_unresolved or plan.days_ago < 1:
                assert now == was
            if run.details_pruned_at is None:
                assert (now["events"], now["effects"]) == (was["events"], was["effects"])
            else:
                assert (now["events"], now["effects"]) == ([], [])
                assert policy.details_days is not None
                assert plan.days_ago > policy.details_days
            for summary in await store.list_snapshot_summaries(run_id=run_id):
                assert await store.find_snapshot(run_id=run_id, sequence=summary.sequence)
        await found(store, plans, prefix, left)
        again = await retain(store, policy)
        assert again.is_nothing, (done, again)
    finally:
        await store.aclose()


async def retain(store: MongoStepStore, policy: RetentionPolicy, **options: Any) -> Retained:
    given_: dict[str, Any] = {
        "temporal_keeps": TEMPORAL_KEEPS,
        "now": NOW,
        "is_dry": False,
        **options,
    }
    return await store.retain(policy, **given_)


@pytest.mark.integration
@settings(max_examples=12, deadline=None)
@given(plans=PLANS, policy=ANY_POLICIES)
def test_nothing_goes_that_somebody_needs(
    mongodb_uri: str, prepared_database: str, plans: list[Plan], policy: RetentionPolicy
) -> None:
    asyncio.run(check(mongodb_uri, prepared_database, plans, policy))


@pytest_asyncio.fixture
async def store(mongodb_uri: str, prepared_database: str) -> AsyncGenerator[MongoStepStore]:
    workspace_id = f"w-{uuid4().hex[:8]}"
    store = MongoStepStore(
        db_url=mongodb_uri, database=prepared_database, workspace_id=workspace_id
    )
    yield store
    await store.aclose()


@pytest.mark.integration
async def test_details_go_with_a_mark_and_what_was_said_stays(store: MongoStepStore) -> None:
    (run_id,) = await write(store, [plan(conversation="a")], uuid4().hex[:8])
    policy = RetentionPolicy(details_days=30, snapshots=1, originals=False)
    planned = await retain(store, policy, is_dry=True)
    assert (planned.detailed, planned.snapshots, planned.rows) == (1, 3, 0)
    assert len(await store.list_events(run_id=run_id)) > 5

    done = await retain(store, policy)

    run = await store.get_run(run_id=run_id)
    assert run is not None
    assert run.details_pruned_at == NOW
    assert await store.list_events(run_id=run_id) == []
    assert len(await store.list_snapshots(run_id=run_id)) == 1
    assert done.rows > 5


@pytest.mark.integration
async def test_details_go_in_one_step_with_the_mark_or_not_at_all(
    store: MongoStepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_id,) = await write(store, [plan(conversation="a")], uuid4().hex[:8])
    before = await seen(store, run_id)
    deleted: list[str] = []

    async def cut_off(database: Any, collection: str, *args: Any, **options: Any) -> int:
        if deleted:
            raise _StopError
        deleted.append(collection)
        return await delete_of_runs(database, collection, *args, **options)

    policy = RetentionPolicy(details_days=30)
    with monkeypatch.context() as patched:
        patched.setattr(retaining, "delete_of_runs", cut_off)
        with pytest.raises(_StopError):
            await retain(store, policy)
    assert deleted == ["events"]
    assert await seen(store, run_id) == before

    assert (await retain(store, policy)).detailed == 1
    after = await seen(store, run_id)
    assert (after["events"], after["effects"]) == ([], [])
    assert after["run"].details_pruned_at == NOW


@pytest.mark.integration
async def test_a_conversation_goes_as_a_whole_and_not_while_any_of_it_is_young(
    store: MongoStepStore,
) -> None:
    prefix = uuid4().hex[:8]
    ids = await write(
        store,
        [
            plan(conversation="a"),
            plan(conversation="a", days_ago=41),
            plan(conversation="b"),
            plan(conversation="b", days_ago=20),
            plan(relation="parent_run_id", origin=0, conversation="child"),
        ],
        prefix,
    )
    await store.conversations.open("a", ConversationSpec(agent="x"), now=at(0))
    policy = RetentionPolicy(runs_days=40)

    assert (await retain(store, policy, is_dry=True)).runs == 2
    done = await retain(store, policy)

    assert (done.runs, done.conversations) == (3, 1)
    assert [each.run_id for each in await store.list_runs()] == ids[2:4]
    assert await store.conversations.find("a") is None


class _StopError(Exception):
    """What a signal would do."""


@pytest.mark.integration
async def test_it_may_be_stopped_after_any_page_and_begun_again(
    store: MongoStepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stores.mongo.retaining.RUNS_AT_ONCE", 2)
    await write(store, [plan(steps=1) for _ in range(5)], uuid4().hex[:8])
    policy = RetentionPolicy(details_days=30)
    told: list[Retained] = []

    def stop(so_far: Retained) -> None:
        told.append(so_far)
        raise _StopError

    with pytest.raises(_StopError):
        await retain(store, policy, tell=stop)
    assert (told[0].looked_at, told[0].detailed) == (2, 2)
    assert (await retain(store, policy)).detailed == 3
    assert (await retain(store, policy)).is_nothing
