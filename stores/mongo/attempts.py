"""Attempts of tool calls on MongoDB: one document a call and round, changed by revision.

No transaction: a call's gate is one document. The first attempt costs one insert, its end one
update; only what meets an earlier attempt reads first.
"""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import DuplicateKeyError

from stores.attempts import (
    AttemptEnd,
    Entry,
    ToolAttempt,
    ToolCallPlace,
    ToolGate,
    entered,
    judge_entry,
    left,
    opened,
    order_of,
)
from stores.mongo.client import MAJORITY, MongoConnection
from stores.mongo.documents import ended_update, gate_document, gate_id, tool_gate
from stores.mongo.failures import store_errors
from stores.records import EffectPolicy
from stores.redaction import NO_REDACTION, Redaction

ATTEMPTS = "tool_attempts"


class MongoAttempts:
    """`AttemptStore` on MongoDB; writes wait for the majority."""

    def __init__(
        self,
        connection: MongoConnection,
        *,
        workspace_id: str,
        redaction: Redaction = NO_REDACTION,
    ) -> None:
        self._connection = connection
        self._redaction = redaction
        self._workspace_id = workspace_id

    async def enter(
        self, place: ToolCallPlace, attempt: ToolAttempt, *, tool_name: str, policy: EffectPolicy
    ) -> Entry:
        """See `AttemptStore.enter`."""
        gate = opened(place, attempt, tool_name=tool_name, workspace_id=self._workspace_id)
        with self._errors("record an attempt", place):
            try:
                await self._gates.insert_one(gate_document(gate))
            except DuplicateKeyError:
                return await self._enter_again(place, attempt, policy)
        return Entry(verdict="run", gate=gate)

    async def _enter_again(
        self, place: ToolCallPlace, attempt: ToolAttempt, policy: EffectPolicy
    ) -> Entry:
        while True:  # ends: each time that a replacement is refused, another attempt got through
            gate = await self._get(place)
            verdict = judge_entry(gate, attempt, policy)
            if verdict != "run" or gate.newest.token == attempt.token:
                return Entry(verdict=verdict, gate=self._unsealed(gate))
            moved = entered(gate, attempt)
            if await self._replace(gate, moved):
                return Entry(verdict="run", gate=moved)

    async def leave(self, place: ToolCallPlace, token: str, end: AttemptEnd) -> bool:
        """See `AttemptStore.leave`."""
        end = self._redaction.attempt_end(self._workspace_id, end)
        with self._errors("record how an attempt ended", place):
            query = {**self._at(place), "newest": token}
            query["attempts"] = {"$elemMatch": {"token": token, "outcome": "entered"}}
            ended = await self._gates.update_one(query, ended_update(end))
            if ended.matched_count:
                return True
            while True:  # ends: as above
                gate = await self._find(place)
                if gate is None:
                    return False
                moved = left(gate, token, end)
                if moved == gate or await self._replace(gate, moved):
                    return gate.newest.token == token

    async def find_gate(self, place: ToolCallPlace) -> ToolGate | None:
        """See `AttemptStore.find_gate`."""
        with self._errors("read the attempts of a call", place):
            found = await self._find(place)
        return None if found is None else self._unsealed(found)

    def _unsealed(self, gate: ToolGate) -> ToolGate:
        """With the result as it was: a later attempt of the call takes it for its own."""
        if gate.result is None:
            return gate
        return replace(gate, result=self._redaction.unsealed(gate.result))

    async def list_gates(self, *, run_id: str) -> list[ToolGate]:
        """See `AttemptStore.list_gates`."""
        query = {"run_id": run_id, "workspace_id": self._workspace_id}
        with store_errors(f"read the attempts of run {run_id!r}", self._connection.where):
            found = await self._gates.find(query, {"result": False}).to_list()
        return sorted(map(tool_gate, found), key=order_of)

    @property
    def _gates(self) -> AsyncCollection[dict[str, Any]]:
        return self._connection.database.get_collection(ATTEMPTS, write_concern=MAJORITY)

    def _errors(self, attempt: str, place: ToolCallPlace) -> AbstractContextManager[None]:
        call = f"call {place.step_index}/{place.call_index} of run {place.run_id!r}"
        return store_errors(f"{attempt}: {call}", self._connection.where)

    async def _find(self, place: ToolCallPlace) -> ToolGate | None:
        found = await self._gates.find_one(self._at(place))
        return None if found is None else tool_gate(found)

    def _at(self, place: ToolCallPlace) -> dict[str, Any]:
        """The query for a call's gate; its run finds the shard."""
        return {"_id": gate_id(self._workspace_id, place), "run_id": place.run_id}

    async def _get(self, place: ToolCallPlace) -> ToolGate:
        gate = await self._find(place)
        while gate is None:  # pragma: no cover - nothing deletes a gate while its call runs
            gate = await self._find(place)
        return gate

    async def _replace(self, gate: ToolGate, moved: ToolGate) -> bool:
        query = {**self._at(gate.place), "revision": gate.revision}
        replaced = await self._gates.replace_one(query, gate_document(moved))
        return bool(replaced.matched_count)
