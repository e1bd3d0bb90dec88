"""Order safety: whatever order commits come in, the store holds what the plain sequence leaves.

Lost tasks, retries, late writes, duplicates and resets on the one hand; on the other a store that
got the surviving path's commits alone, each once and in order. Times are compared too. Stamps of
messages are not: what a lost task has put on stays until the next save.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, event, example, given, settings

from stores.commits import Commit, CommitResult
from stores.errors import IdempotencyConflictError
from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from stores.operations import RegisterRun
from stores.protocols import StepStore
from stores.records import RunBranch
from tests.stores.deliveries import WRITTEN, Story, decided_before_a_repeat, stories
from tests.stores.paths import RUNS, Delivery
from tests.stores.writer import at, text_of

INTERLEAVINGS = int(os.environ.get("PERDURE_TEST_INTERLEAVINGS", "500"))
"""On the memory store; MongoDB gets a fifth."""

ALL_RUNS = (*RUNS, "run-3")

NO_DATABASE = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])

VERDICTS = {"apply", "suppress", "supersede", "adopt", "stale", "conflict"}
DISPOSITIONS = {"operation suppressed", "operation superseding", "operation refused"}
CIRCUMSTANCES = {
    "continue as new",
    "fallback",
    "from outside",
    "reset",
    "reset of an execution before",
    "reset to before the start",
    "reset with a pending commit",
    "resolved from outside",
    "several commits in a lost task",
}


async def deliver(stores: Sequence[StepStore], sent: Sequence[Delivery]) -> list[CommitResult]:
    """What the stores answer, each of which takes two commits in turn."""
    answers: list[CommitResult] = []
    for index, delivery in enumerate(sent):
        commit = replace(delivery.commit, now=at(index))
        try:
            answers.append(await stores[index // 2 % len(stores)].commit(commit))
        except IdempotencyConflictError:
            answers.append(CommitResult(verdict="conflict"))
    return answers


def first_times(
    sent: Sequence[Delivery], answers: Sequence[CommitResult]
) -> dict[Hashable, datetime]:
    """When each thing was first written that a store may since have been told again."""
    times: dict[Hashable, datetime] = {}
    for index, (delivery, answer) in enumerate(zip(sent, answers, strict=True)):
        if answer.verdict in WRITTEN:
            refused = {each.index for each in answer.refused()}
            for place, identity in enumerate(delivery.identities()):
                if place not in refused:
                    times.setdefault(identity, at(index))
    return times


def timed(delivery: Delivery, times: dict[Hashable, datetime]) -> Commit:
    """The commit, each operation at the time that its row must have."""
    operations = [
        each.model_copy(
            update={"started_at" if isinstance(each, RegisterRun) else "at": times.get(identity)}
        )
        if identity is not None
        else each
        for each, identity in zip(delivery.commit.operations, delivery.identities(), strict=True)
    ]
    return replace(delivery.commit, operations=tuple(operations))


async def read(store: StepStore, run_id: str) -> dict[str, Any]:
    """All that can be read of a run."""
    run = await store.get_run(run_id=run_id)
    snapshots = await store.list_snapshots(run_id=run_id)
    latest = await store.latest_snapshot(run_id=run_id)
    return {
        "run": run and replace(run, branches=()),
        "branches": set(run.branches) if run else set[RunBranch](),
        "events": await store.list_events(run_id=run_id),
        "effects": await store.list_tool_effects(run_id=run_id),
        "unresolved": await store.list_unresolved_tool_effects(run_id=run_id),
        "snapshots": [replace(each, messages=[]) for each in snapshots],
        "texts": [[text_of(message) for message in each.messages] for each in snapshots],
        "latest": latest and replace(latest, messages=[]),
        "summaries": await store.list_snapshot_summaries(run_id=run_id),
    }


async def check(story: Story) -> list[CommitResult]:
    """The answers of a store that holds in the end what the plain sequence leaves."""
    store, plain = InMemoryStepStore(), InMemoryStepStore()
    answers = await deliver([store], story.sent)
    times = first_times(story.sent, answers)
    expected = [await plain.commit(timed(each, times)) for each in story.plain(answers)]
    assert {each.verdict for each in expected} <= {"apply", "adopt"}
    for run_id in ALL_RUNS:
        held, wanted = await read(store, run_id), await read(plain, run_id)
        # Beside those of the path: a lost task may have been the run's first on its execution.
        assert held.pop("branches") >= wanted.pop("branches")
        assert held == wanted
    head = await store.find_commit_head(execution_id=story.path.place.execution_id)
    assert head is not None
    assert (head.number, head.branch) == (story.path.place.number, story.path.place.branch)
    return answers


def count(seen: Counter[str], story: Story, answers: Sequence[CommitResult]) -> None:
    for answer in answers:
        seen[answer.verdict] += 1
        seen.update(f"operation {each.disposition}" for each in answer.outcomes)
    seen.update(story.seen)
    for circumstance in (*{each.verdict for each in answers}, *+story.seen):
        event(circumstance)


def check_that_it_bites(seen: Counter[str], wanted: set[str]) -> None:
    """Nothing of what a store can meet or answer was left out."""
    print(dict(seen.most_common()))  # noqa: T201 - shown with -s, and when the test fails
    assert wanted - set(+seen) == set()


@pytest.mark.timeout(0)
@pytest.mark.spec("SP-19", "SP-20", "SP-21", "SP-22")
def test_any_order_leaves_what_the_plain_sequence_leaves() -> None:
    seen: Counter[str] = Counter()

    @given(stories())
    @example(decided_before_a_repeat())
    @settings(NO_DATABASE, max_examples=INTERLEAVINGS)
    def run(story: Story) -> None:
        count(seen, story, asyncio.run(check(story)))

    run()
    check_that_it_bites(seen, VERDICTS | DISPOSITIONS | CIRCUMSTANCES)


def renamed(delivery: Delivery, name: str) -> Delivery:
    """Of runs and executions that no other story has in the same database."""
    commit = delivery.commit
    operations = tuple(
        each.model_copy(update={"run_id": f"{each.run_id}-{name}"}) for each in commit.operations
    )
    position = commit.position
    if position is not None:
        execution_id, branch = f"{position.execution_id}-{name}", f"{position.branch}-{name}"
        position = replace(position, execution_id=execution_id, branch=branch)
    return replace(delivery, commit=replace(commit, operations=operations, position=position))


@pytest.mark.integration
@pytest.mark.timeout(0)
@pytest.mark.spec("SP-19", "SP-20", "SP-21", "SP-22")
def test_mongodb_answers_and_holds_the_same_as_memory(
    mongodb_uri: str, prepared_database: str
) -> None:
    seen: Counter[str] = Counter()
    # As from two workers: what one remembers of the execution is outdated by the other.
    workers = [MongoStepStore(db_url=mongodb_uri, database=prepared_database) for _ in "ab"]

    async def compare(story: Story) -> list[CommitResult]:
        name = uuid4().hex
        sent = [renamed(each, name) for each in story.sent]
        memory = InMemoryStepStore()
        answers = await deliver(workers, sent)
        assert answers == await deliver([memory], sent)
        for run_id in (f"{each}-{name}" for each in ALL_RUNS):
            assert await read(workers[0], run_id) == await read(memory, run_id)
        execution_id = f"{story.path.place.execution_id}-{name}"
        stores: list[StepStore] = [*workers, memory]
        heads = [await each.find_commit_head(execution_id=execution_id) for each in stores]
        assert heads[0] == heads[1] == heads[2]
        return answers

    with asyncio.Runner() as runner:

        @given(stories())
        @example(decided_before_a_repeat())
        @settings(NO_DATABASE, max_examples=max(INTERLEAVINGS // 5, 1))
        def run(story: Story) -> None:
            count(seen, story, runner.run(compare(story)))

        try:
            run()
        finally:
            for worker in workers:
                runner.run(worker.aclose())
    check_that_it_bites(seen, VERDICTS | DISPOSITIONS)
