"""Commits of different runs that are written in one transaction: as if each had been alone."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from pymongo import AsyncMongoClient

from stores.commits import Commit, CommitResult
from stores.mongo.steps import MongoStepStore
from tests.stores.watching import Document, Watcher
from tests.stores.writer import Execution, RunScript, new_run

pytestmark = pytest.mark.integration

RUNS = 12
STEPS = 3

Written = tuple[Execution, RunScript]


@pytest.fixture
def watcher(prepared_database: str) -> Watcher:
    return Watcher(prepared_database)


@pytest.fixture
async def store(
    mongodb_uri: str, prepared_database: str, watcher: Watcher
) -> AsyncIterator[MongoStepStore]:
    async with AsyncMongoClient[Document](mongodb_uri, event_listeners=[watcher]) as client:
        store = MongoStepStore(client=client, database=prepared_database)
        yield store
        await store.aclose()


async def registered(store: MongoStepStore, name: str) -> list[Written]:
    runs = [new_run(f"{name}-{number}") for number in range(RUNS)]
    for execution, script in runs:
        await store.commit(execution.commit(script.register(), script.event("run_started", 0)))
    return runs


async def at_once(store: MongoStepStore, commits: list[Commit]) -> list[CommitResult]:
    return await asyncio.gather(*(store.commit(each) for each in commits))


def next_commits(runs: list[Written], step: int, *, is_after: bool) -> list[Commit]:
    commits: list[Commit] = []
    for execution, script in runs:
        operations = script.after_tool(step) if is_after else script.before_tool(step)
        commits.append(execution.commit(*operations))
    return commits


async def content(store: MongoStepStore, run_id: str, name: str) -> list[str]:
    """All that a run's readers get, without the name that tells it from others."""
    run = await store.get_run(run_id=run_id)
    assert run is not None
    found: list[object] = [
        run.state,
        *await store.list_events(run_id=run_id),
        await store.latest_snapshot(run_id=run_id),
        *await store.list_tool_effects(run_id=run_id),
    ]
    return [repr(each).replace(name, "") for each in found]


async def test_runs_written_together_hold_what_they_hold_alone(
    store: MongoStepStore, watcher: Watcher
) -> None:
    together, alone = await registered(store, "together"), await registered(store, "alone")
    watcher.commands.clear()
    for step in range(1, STEPS + 1):
        for is_after in (False, True):
            answers = await at_once(store, next_commits(together, step, is_after=is_after))
            assert {each.verdict for each in answers} == {"apply"}
    transactions = watcher.names().count("commitTransaction")
    assert transactions < RUNS * STEPS  # half of one each
    for step in range(1, STEPS + 1):
        for is_after in (False, True):
            for commit in next_commits(alone, step, is_after=is_after):
                await store.commit(commit)
    for (_, one), (_, other) in zip(together, alone, strict=True):
        assert await content(store, one.run_id, "together") == await content(
            store, other.run_id, "alone"
        )


async def test_runs_of_two_workspaces_are_written_together_and_seen_apart(
    store: MongoStepStore, watcher: Watcher
) -> None:
    other = store.for_workspace("other")
    ours, theirs = await registered(store, "ours"), await registered(other, "theirs")
    watcher.commands.clear()
    await asyncio.gather(
        at_once(store, next_commits(ours, 1, is_after=False)),
        at_once(other, next_commits(theirs, 1, is_after=False)),
    )
    assert watcher.names().count("commitTransaction") < RUNS
    for _, script in ours:
        assert len(await store.list_tool_effects(run_id=script.run_id)) == 1
        assert await other.get_run(run_id=script.run_id) is None
    for _, script in theirs:
        assert len(await other.list_tool_effects(run_id=script.run_id)) == 1
        assert await store.get_run(run_id=script.run_id) is None


async def test_one_that_another_process_has_written_keeps_none_from_being_written(
    store: MongoStepStore, mongodb_uri: str, prepared_database: str
) -> None:
    runs = await registered(store, "written")
    commits = next_commits(runs, 1, is_after=False)
    elsewhere = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
    await elsewhere.commit(commits[5])
    await elsewhere.aclose()
    answers = await at_once(store, commits)
    expected = ["suppress" if number == 5 else "apply" for number in range(RUNS)]
    assert [each.verdict for each in answers] == expected
    for _, script in runs:
        assert len(await store.list_tool_effects(run_id=script.run_id)) == 1


async def test_one_commit_sent_twice_at_once_is_written_once(store: MongoStepStore) -> None:
    runs = await registered(store, "twice")
    commits = next_commits(runs, 1, is_after=False)
    answers = await at_once(store, [each for each in commits for _ in range(2)])
    assert sorted(each.verdict for each in answers) == ["apply"] * RUNS + ["suppress"] * RUNS
    for _, script in runs:
        assert len(await store.list_tool_effects(run_id=script.run_id)) == 1


async def test_who_gives_up_keeps_none_of_the_others_from_being_written(
    store: MongoStepStore,
) -> None:
    runs = await registered(store, "given-up")
    commits = next_commits(runs, 1, is_after=False)
    tasks = [asyncio.create_task(store.commit(each)) for each in commits]
    await asyncio.sleep(0)
    for task in tasks[:3]:
        task.cancel()
    answers = await asyncio.gather(*tasks[3:])
    assert {each.verdict for each in answers} == {"apply"}
    again = await at_once(store, commits[:3])
    assert {each.verdict for each in again} <= {"apply", "suppress"}
    for _, script in runs:
        assert len(await store.list_tool_effects(run_id=script.run_id)) == 1
