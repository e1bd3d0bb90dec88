"""Attempts of tool calls in this process's memory."""

from dataclasses import replace

from stores.attempts import (
    AttemptEnd,
    Entry,
    EntryVerdict,
    ToolAttempt,
    ToolCallPlace,
    ToolGate,
    entered,
    judge_entry,
    left,
    opened,
    order_of,
)
from stores.records import EffectPolicy

Gates = dict[tuple[str, ToolCallPlace], ToolGate]
"""By workspace and place; shared by the objects of all workspaces."""


class InMemoryAttempts:
    """`AttemptStore` in memory. No method pauses, so nothing comes between."""

    def __init__(self, gates: Gates, *, workspace_id: str) -> None:
        self._gates = gates
        self._workspace_id = workspace_id

    async def enter(
        self, place: ToolCallPlace, attempt: ToolAttempt, *, tool_name: str, policy: EffectPolicy
    ) -> Entry:
        """See `AttemptStore.enter`."""
        gate = self._gates.get((self._workspace_id, place))
        if gate is None:
            gate = opened(place, attempt, tool_name=tool_name, workspace_id=self._workspace_id)
            return self._put(gate, "run")
        verdict = judge_entry(gate, attempt, policy)
        if verdict == "run" and gate.newest.token != attempt.token:
            gate = entered(gate, attempt)
        return self._put(gate, verdict)

    def _put(self, gate: ToolGate, verdict: EntryVerdict) -> Entry:
        self._gates[self._workspace_id, gate.place] = gate
        return Entry(verdict=verdict, gate=gate)

    async def leave(self, place: ToolCallPlace, token: str, end: AttemptEnd) -> bool:
        """See `AttemptStore.leave`."""
        gate = self._gates.get((self._workspace_id, place))
        if gate is None:
            return False
        self._gates[self._workspace_id, place] = left(gate, token, end)
        return gate.newest.token == token

    async def find_gate(self, place: ToolCallPlace) -> ToolGate | None:
        """See `AttemptStore.find_gate`."""
        return self._gates.get((self._workspace_id, place))

    async def list_gates(self, *, run_id: str) -> list[ToolGate]:
        """See `AttemptStore.list_gates`."""
        found = [
            replace(gate, result=None)
            for (workspace_id, place), gate in self._gates.items()
            if workspace_id == self._workspace_id and place.run_id == run_id
        ]
        return sorted(found, key=order_of)
