"""A run that goes as a whole, and somebody who continues or forks it at that very moment."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
import pytest_asyncio

from stores.commits import Commit, CommitResult
from stores.conversation_records import ConversationSpec
from stores.erasing import Erasure
from stores.errors import OriginRemovedError
from stores.mongo.claiming import Claimer
from stores.mongo.departing import Departing
from stores.mongo.erasing import Eraser
from stores.mongo.removing import RunToRemove
from stores.mongo.steps import MongoStepStore
from stores.retention_policies import Retained, RetentionPolicy
from tests.stores.retained import DAY, NOW, Plan, plan, seen, write
from tests.stores.writer import Execution, RunScript, at

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

POLICY = RetentionPolicy(runs_days=15)

ORIGINS = ["continued_from", "forked_from"]


@pytest_asyncio.fixture
async def store(mongodb_uri: str, prepared_database: str) -> AsyncGenerator[MongoStepStore]:
    workspace_id = f"w-{uuid4().hex[:8]}"
    store = MongoStepStore(
        db_url=mongodb_uri, database=prepared_database, workspace_id=workspace_id
    )
    yield store
    await store.aclose()


async def retain(store: MongoStepStore) -> Retained:
    return await store.retain(POLICY, temporal_keeps=timedelta(days=1), now=NOW, is_dry=False)


async def written(store: MongoStepStore, *plans: Plan) -> list[str]:
    return await write(store, list(plans), uuid4().hex[:8])


def begun(run_id: str, **values: object) -> Commit:
    """What a workflow commits first that has read the history of another run."""
    execution = Execution(execution_id=f"e-{run_id}", branch=f"b-{run_id}")
    script = RunScript(run_id=run_id)
    register = script.register(from_snapshot=3, **values)
    return execution.commit(register, script.event("run_started", 0), now=100 * DAY)


def after(owner: type[Any], name: str, then: Callable[[], Awaitable[object]]) -> Any:
    """The method itself, and then, the first time, something else before its caller goes on."""
    method = getattr(owner, name)
    waiting = [then]

    async def both(self: Any, *args: Any, **options: Any) -> Any:
        answer = await method(self, *args, **options)
        if waiting:
            await waiting.pop()()
        return answer

    return mock.patch.object(owner, name, both)


@pytest.mark.parametrize("origin", ORIGINS)
async def test_a_run_stays_that_is_begun_with_after_somebody_looked(
    store: MongoStepStore, origin: str
) -> None:
    first, second = await written(store, plan(), plan())
    before = await seen(store, first)
    answers: list[CommitResult] = []

    async def begin() -> None:
        answers.append(await store.commit(begun(f"next-of-{first}", **{origin: first})))

    with after(Departing, "layers", begin):
        done = await retain(store)

    assert [each.refused() for each in answers] == [()]
    assert done.runs == 1
    assert await store.get_run(run_id=second) is None
    assert await seen(store, first) == before
    again = begun(f"other-of-{first}", forked_from=first)  # it was claimed, and is free again
    assert (await store.commit(again)).refused() == ()


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize("moment", [(Claimer, "claim"), (MongoStepStore, "retain")])
async def test_nothing_begins_with_a_run_that_is_claimed_or_gone(
    store: MongoStepStore, origin: str, moment: tuple[type[Any], str]
) -> None:
    (first,) = await written(store, plan())
    answers: list[CommitResult] = []

    async def begin() -> None:
        answers.append(await store.commit(begun(f"next-of-{first}", **{origin: first})))

    with after(*moment, begin):
        done = await retain(store)

    refused = answers[0].refused()
    assert {each.error_type for each in refused} == {OriginRemovedError.__name__}
    assert len(refused) == 2
    assert repr(first) in str(refused[0].error)
    assert done.runs == 1
    assert await store.list_runs() == []


async def test_what_needs_one_that_stays_after_all_stays_too(store: MongoStepStore) -> None:
    chain = [plan(steps=1), plan(steps=1, relation="continued_from", origin=0)]
    first, second = await written(store, *chain)

    async def begin() -> None:
        await store.commit(begun(f"next-of-{second}", continued_from=second))

    with after(Departing, "layers", begin):
        assert (await retain(store)).runs == 0
    left = [each.run_id for each in await store.list_runs()]
    assert left == [first, second, f"next-of-{second}"]


async def test_a_delegate_keeps_its_family_when_it_is_forked(store: MongoStepStore) -> None:
    family = [plan(steps=1), plan(steps=1, relation="parent_run_id", origin=0)]
    parent, delegate = await written(store, *family)

    async def begin() -> None:
        await store.commit(begun(f"next-of-{delegate}", forked_from=delegate))

    with after(Departing, "layers", begin):
        assert (await retain(store)).runs == 0
    left = [each.run_id for each in await store.list_runs()]
    assert left == [parent, delegate, f"next-of-{delegate}"]


async def test_a_conversation_stays_that_goes_on_after_somebody_looked(
    store: MongoStepStore,
) -> None:
    await store.conversations.open("a", ConversationSpec(agent="x"), now=at(0))
    await store.conversations.open("b", ConversationSpec(agent="x"), now=at(0))
    first, _ = await written(store, plan(conversation="a"), plan(conversation="b"))

    async def go_on() -> None:
        await store.commit(begun(f"young-{first}", conversation_id="a"))

    with after(Departing, "layers", go_on):
        done = await retain(store)

    assert (done.runs, done.conversations) == (1, 1)
    assert {each.run_id for each in await store.list_runs()} == {first, f"young-{first}"}
    assert await store.conversations.find("a") is not None
    assert await store.conversations.find("b") is None


async def test_a_run_that_comes_into_a_conversation_while_it_goes_stays(
    store: MongoStepStore,
) -> None:
    first, _ = await written(store, plan(conversation="a"), plan(conversation="a"))

    async def go_on() -> None:
        await store.commit(begun(f"young-{first}", conversation_id="a"))

    with after(Claimer, "claim", go_on):
        await retain(store)

    assert await store.get_run(run_id=first) is None
    assert [each.run_id for each in await store.list_runs()] == [f"young-{first}"]


async def test_an_attempt_that_was_cut_off_after_a_claim_is_made_again(
    store: MongoStepStore,
) -> None:
    (first,) = await written(store, plan())

    async def stop() -> None:
        raise asyncio.CancelledError

    with after(Claimer, "claim", stop), pytest.raises(asyncio.CancelledError):
        await retain(store)
    assert await store.get_run(run_id=first) is not None
    assert (await retain(store)).runs == 1
    assert (await retain(store)).is_nothing


async def test_of_many_that_begin_while_runs_go_none_points_nowhere(
    store: MongoStepStore, mongodb_uri: str, prepared_database: str
) -> None:
    ids = await written(store, *(plan(steps=1) for _ in range(12)))
    other = MongoStepStore(
        db_url=mongodb_uri, database=prepared_database, workspace_id=store.workspace_id
    )

    async def begin(number: int, run_id: str) -> CommitResult:
        return await other.commit(begun(f"next-{number}-{run_id}", forked_from=run_id))

    began, done = await asyncio.gather(
        asyncio.gather(*(begin(number, each) for number in range(3) for each in ids)),
        retain(store),
    )
    await other.aclose()
    left = {each.run_id: each for each in await store.list_runs()}
    heirs = [each for each in left.values() if each.forked_from]
    assert all(each.forked_from in left for each in heirs)
    assert len(heirs) == sum(not each.refused() for each in began)
    assert done.runs == len(ids) - sum(each in left for each in ids)


async def erase(store: MongoStepStore, before: Callable[[], Awaitable[int]]) -> None:
    async def heard(_: Sequence[RunToRemove]) -> int:
        return await before()

    eraser: Eraser = store.eraser(
        namespace="default",
        before=heard,
        workflow_of=lambda _, conversation_id: conversation_id,
        grace=timedelta(0),
    )
    await eraser.erase(Erasure(conversation_id="a"), now=NOW)


async def test_nothing_begins_with_what_is_being_erased(store: MongoStepStore) -> None:
    (first,) = await written(store, plan(conversation="a"))
    answers: list[CommitResult] = []

    async def begin() -> int:
        answers.append(await store.commit(begun(f"next-of-{first}", forked_from=first)))
        return 0

    await erase(store, begin)
    assert {each.error_type for each in answers[0].refused()} == {OriginRemovedError.__name__}
    assert await store.list_runs() == []


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_what_could_not_be_erased_may_be_begun_with(
    store: MongoStepStore, error: type[BaseException]
) -> None:
    (first,) = await written(store, plan(conversation="a"))

    async def refuse() -> int:
        raise error

    with pytest.raises(error):
        await erase(store, refuse)
    assert (await store.commit(begun(f"next-of-{first}", forked_from=first))).refused() == ()
