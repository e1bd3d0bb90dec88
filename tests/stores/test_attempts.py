import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from stores.attempts import (
    MAX_ATTEMPTS_KEPT,
    AttemptEnd,
    AttemptOutcome,
    AttemptStore,
    Entry,
    ToolAttempt,
    ToolCallPlace,
)
from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from stores.records import EffectPolicy

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PLACE = ToolCallPlace(run_id="run", branch="branch", step_index=2, call_index=0)


def attempt(second: int) -> ToolAttempt:
    return ToolAttempt(
        token=f"token-{second}", worker=f"worker-{second}", started_at=NOON + timedelta(0, second)
    )


def end(
    outcome: AttemptOutcome = "completed", result: bytes | None = None, error: str | None = None
) -> AttemptEnd:
    return AttemptEnd(outcome=outcome, ended_at=NOON, result=result, error=error)


class AttemptConformance(ABC):
    @pytest.fixture
    @abstractmethod
    def attempts(self) -> AttemptStore:
        """An empty store."""

    @pytest.fixture
    @abstractmethod
    def elsewhere(self) -> AttemptStore:
        """The same store, bound to another workspace."""

    @pytest.fixture
    @abstractmethod
    def again(self) -> AttemptStore:
        """The same store and workspace, asked for once more."""

    @staticmethod
    async def enter(
        attempts: AttemptStore,
        second: int,
        policy: EffectPolicy = "once",
        place: ToolCallPlace = PLACE,
    ) -> Entry:
        return await attempts.enter(place, attempt(second), tool_name="pay", policy=policy)

    async def test_first_attempt_runs(self, attempts: AttemptStore) -> None:
        entry = await self.enter(attempts, 1)
        assert entry.verdict == "run"
        assert entry.gate == await attempts.find_gate(PLACE)
        assert entry.gate.attempts == (attempt(1),)

    @pytest.mark.parametrize("policy", ["read", "idempotent", "once"])
    async def test_recorded_result_is_given_back_under_every_policy(
        self, attempts: AttemptStore, policy: EffectPolicy
    ) -> None:
        await self.enter(attempts, 1, policy)
        assert await attempts.leave(PLACE, "token-1", end(result=b"\x00result"))
        entry = await self.enter(attempts, 2, policy)
        assert (entry.verdict, entry.gate.result) == ("recorded", b"\x00result")

    @pytest.mark.parametrize(
        ("policy", "verdict"), [("read", "run"), ("idempotent", "run"), ("once", "unknown")]
    )
    async def test_attempt_that_never_ended_stops_only_once(
        self, attempts: AttemptStore, policy: EffectPolicy, verdict: str
    ) -> None:
        await self.enter(attempts, 1, policy)
        entry = await self.enter(attempts, 2, policy)
        assert entry.verdict == verdict
        assert len(entry.gate.attempts) == (2 if verdict == "run" else 1)

    @pytest.mark.parametrize(
        ("policy", "verdict"), [("read", "run"), ("idempotent", "run"), ("once", "recorded")]
    )
    async def test_recorded_error_is_final_for_once_alone(
        self, attempts: AttemptStore, policy: EffectPolicy, verdict: str
    ) -> None:
        await self.enter(attempts, 1, policy)
        await attempts.leave(PLACE, "token-1", end("failed", error="no"))
        entry = await self.enter(attempts, 2, policy)
        assert entry.verdict == verdict
        assert entry.gate.attempts[0].error == "no"

    async def test_cancelled_attempt_of_a_once_tool_leaves_the_outcome_unknown(
        self, attempts: AttemptStore
    ) -> None:
        await self.enter(attempts, 1)
        await attempts.leave(PLACE, "token-1", end("cancelled"))
        assert (await self.enter(attempts, 2)).verdict == "unknown"

    async def test_same_attempt_may_ask_again(self, attempts: AttemptStore) -> None:
        await self.enter(attempts, 1)
        entry = await self.enter(attempts, 1)
        assert (entry.verdict, len(entry.gate.attempts)) == ("run", 1)

    @pytest.mark.parametrize("policy", ["read", "once"])
    async def test_attempt_that_began_before_the_newest_is_stale(
        self, attempts: AttemptStore, policy: EffectPolicy
    ) -> None:
        await self.enter(attempts, 2, policy)
        entry = await self.enter(attempts, 1, policy)
        assert entry.verdict == "stale"
        assert entry.gate.attempts == (attempt(2),)

    async def test_late_end_changes_nothing_and_is_counted(self, attempts: AttemptStore) -> None:
        await self.enter(attempts, 1, "read")
        await self.enter(attempts, 2, "read")
        await attempts.leave(PLACE, "token-2", end(result=b"two"))
        assert not await attempts.leave(PLACE, "token-1", end(result=b"one"))
        gate = await attempts.find_gate(PLACE)
        assert gate is not None
        assert (gate.result, gate.late_writes) == (b"two", 1)
        assert [each.outcome for each in gate.attempts] == ["entered", "completed"]

    async def test_first_end_of_an_attempt_stays(self, attempts: AttemptStore) -> None:
        await self.enter(attempts, 1)
        await attempts.leave(PLACE, "token-1", end(result=b"first"))
        assert await attempts.leave(PLACE, "token-1", end("failed", error="second"))
        gate = await attempts.find_gate(PLACE)
        assert gate is not None
        assert (gate.result, gate.newest.outcome, gate.late_writes) == (b"first", "completed", 0)

    async def test_end_of_a_call_that_never_began_is_late(self, attempts: AttemptStore) -> None:
        assert not await attempts.leave(PLACE, "token-1", end())
        assert await attempts.find_gate(PLACE) is None

    async def test_attempts_are_numbered_and_the_oldest_are_dropped(
        self, attempts: AttemptStore
    ) -> None:
        for second in range(MAX_ATTEMPTS_KEPT + 2):
            await self.enter(attempts, second, "read")
        gate = await attempts.find_gate(PLACE)
        assert gate is not None
        assert [gate.attempts[0].number, gate.newest.number] == [3, MAX_ATTEMPTS_KEPT + 2]
        assert len(gate.attempts) == MAX_ATTEMPTS_KEPT

    @pytest.mark.parametrize("policy", ["read", "once"])
    async def test_attempts_that_ask_at_once_get_in_in_order_or_not_at_all(
        self, attempts: AttemptStore, policy: EffectPolicy
    ) -> None:
        entries = await asyncio.gather(*(self.enter(attempts, each, policy) for each in range(8)))
        verdicts = [each.verdict for each in entries]
        gate = await attempts.find_gate(PLACE)
        assert gate is not None
        assert verdicts.count("run") == len(gate.attempts)
        if policy == "once":
            assert verdicts.count("run") == 1
        else:
            assert verdicts[-1] == "run"
            starts = [each.started_at for each in gate.attempts]
            assert starts == sorted(starts)

    async def test_another_round_begins_anew(self, attempts: AttemptStore) -> None:
        await self.enter(attempts, 1)
        again = ToolCallPlace(run_id="run", branch="branch", step_index=2, call_index=0, round=1)
        assert (await self.enter(attempts, 2, place=again)).verdict == "run"

    async def test_gates_of_a_run_are_listed_in_order_without_results(
        self, attempts: AttemptStore
    ) -> None:
        places = [
            ToolCallPlace(run_id="run", branch="branch", step_index=step, call_index=call)
            for step, call in ((10, 0), (2, 1), (2, 0))
        ]
        other = ToolCallPlace(run_id="other", branch="branch", step_index=1, call_index=0)
        for place in (*places, other):
            await self.enter(attempts, 1, place=place)
            await attempts.leave(place, "token-1", end(result=b"result"))
        gates = await attempts.list_gates(run_id="run")
        assert [each.place for each in gates] == places[::-1]
        assert {each.result for each in gates} == {None}

    async def test_another_workspace_sees_nothing(
        self, attempts: AttemptStore, elsewhere: AttemptStore
    ) -> None:
        await self.enter(attempts, 1)
        assert await elsewhere.find_gate(PLACE) is None
        assert await elsewhere.list_gates(run_id="run") == []
        assert not await elsewhere.leave(PLACE, "token-1", end())
        assert (await self.enter(elsewhere, 2)).verdict == "run"

    async def test_attempts_are_seen_whoever_asked_for_the_workspace(
        self, attempts: AttemptStore, again: AttemptStore
    ) -> None:
        await self.enter(again, 1)
        assert (await self.enter(attempts, 2)).verdict == "unknown"
        assert await attempts.list_gates(run_id=PLACE.run_id) == await again.list_gates(
            run_id=PLACE.run_id
        )


class TestInMemoryAttempts(AttemptConformance):
    @pytest.fixture
    def store(self) -> InMemoryStepStore:
        return InMemoryStepStore()

    @pytest.fixture
    def attempts(self, store: InMemoryStepStore) -> AttemptStore:
        return store.attempts

    @pytest.fixture
    def elsewhere(self, store: InMemoryStepStore) -> AttemptStore:
        return store.for_workspace("elsewhere").attempts

    @pytest.fixture
    def again(self, store: InMemoryStepStore) -> AttemptStore:
        return store.for_workspace(store.workspace_id).attempts


@pytest.mark.integration
class TestMongoAttempts(AttemptConformance):
    @pytest.fixture
    async def store(
        self, mongodb_uri: str, prepared_database: str
    ) -> AsyncIterator[MongoStepStore]:
        store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
        yield store
        await store.aclose()
        with MongoClient[dict[str, Any]](mongodb_uri) as client:
            client[prepared_database]["tool_attempts"].delete_many({})

    @pytest.fixture
    def attempts(self, store: MongoStepStore) -> AttemptStore:
        return store.attempts

    @pytest.fixture
    def elsewhere(self, store: MongoStepStore) -> AttemptStore:
        return store.for_workspace("elsewhere").attempts

    @pytest.fixture
    def again(self, store: MongoStepStore) -> AttemptStore:
        return store.for_workspace(store.workspace_id).attempts
