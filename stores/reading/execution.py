"""What a turn's run has done so far, as a bounded page of rounds."""

import asyncio
import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import ModelMessage

from stores.errors import DamagedSnapshotError
from stores.protocols import StepStore
from stores.reading.budget import PREVIEW_CHARACTERS, TextBudget
from stores.reading.pages import CallView, ExecutionPagination, ExecutionView, RoundView
from stores.reading.parameters import HistoryParameters
from stores.reading.refusals import NotFoundError, ParameterInvalidError
from stores.reading.rounds import Call, Round, rounds_of
from stores.reading.task_keys import Branch, branch_steps, branches_of, call_key, within
from stores.reading.window import SelectedVariant
from stores.records import RunRecord, ToolEffectRecord
from stores.turn_histories import own_messages

MOST_ROUNDS = 20
"""Of one page."""

_LONGEST_CURSOR = 100

_OVER = frozenset({"failed", "cancelled"})


@dataclass(frozen=True, kw_only=True)
class Execution:
    """A page of rounds, oldest first, their texts whole."""

    selected: SelectedVariant
    run: RunRecord
    prefix: str | None
    rounds: Sequence[Round]
    next_before: str | None
    attention: str
    failure: str

    def view(self, budget: TextBudget) -> ExecutionView:
        """The page with as much of its texts as the budget allows, the newest first."""
        previews = _Previews(budget)
        told: dict[str, Any] = previews.among(
            attention_reason=self.attention, failure_reason=self.failure
        )
        newest_first = [_round_view(e, self.prefix, previews) for e in reversed(self.rounds)]
        variant, turn = self.selected.variant, self.selected.turn
        if self.run.details_pruned_at is not None:
            told["details_pruned_at"] = self.run.details_pruned_at
        return ExecutionView(
            turn_public_id=turn.record.public_id,
            variant_public_id=variant.public_id,
            active=variant.number == turn.record.active_variant,
            status=variant.status,
            run_public_id=run_public_id(self.run),
            run_status=self.run.state,
            rounds=list(reversed(newest_first)),
            pagination=ExecutionPagination(
                next_before=self.next_before, has_older=self.next_before is not None
            ),
            truncated=previews.is_cut,
            **told,
        )


class _Previews:
    """Texts of an execution, cut; and whether any was."""

    def __init__(self, budget: TextBudget) -> None:
        self._budget = budget
        self.is_cut = False

    def of(self, text: str) -> str:
        shown = self._budget.take(text, at_most=PREVIEW_CHARACTERS)
        self.is_cut |= shown != text
        return shown

    def among(self, **texts: str) -> dict[str, str]:
        """Those that there are; one that is cut to nothing is empty."""
        return {name: self.of(text) for name, text in texts.items() if text}


def _round_view(found: Round, prefix: str | None, previews: _Previews) -> RoundView:
    texts = previews.among(text=found.text, error=found.error)
    return RoundView(
        key=within(prefix, str(found.step_index)),
        status=found.status,
        started_at=found.started_at,
        ended_at=found.ended_at,
        call_count=found.call_count,
        calls=[_call_view(each, prefix, previews) for each in found.calls],
        branches=[within(prefix, each) for each in found.branches],
        **texts,
    )


def _call_view(call: Call, prefix: str | None, previews: _Previews) -> CallView:
    return CallView(
        key=within(prefix, call.key),
        tool_name=call.tool_name,
        status=call.status,
        started_at=call.started_at,
        ended_at=call.ended_at,
        **previews.among(output=call.output, error=call.error),
    )


async def read_execution(
    store: StepStore, selected: SelectedVariant, parameters: HistoryParameters
) -> Execution | None:
    """What the variant's run has done; `None`: it has no run, or not yet.

    Raises:
        NotFoundError: the run has no such branch.
        ParameterInvalidError: the cursor is not one of this run and branch.
    """
    run = await store.get_run(run_id=selected.variant.run_id)
    if run is None:
        return None
    prefix = parameters.execution_prefix
    if run.details_pruned_at is not None:
        return _execution(selected, run, prefix, rounds=[], next_before=None, attention="")
    main = shown = await _read(store, run)
    for step in _steps(prefix):
        if step not in shown.branches:
            raise _no_branch()
        shown = await _read(store, shown.branches[step].run)
    place = _Place(run_ids=(run.run_id, shown.run.run_id))
    before = parameters.execution_before
    rounds = await _rounds(store, shown)
    if before is not None:
        bound = place.open(before)
        rounds = [each for each in rounds if each.step_index < bound]
    page = rounds[-MOST_ROUNDS:]
    return _execution(
        selected,
        run,
        prefix,
        rounds=page,
        next_before=place.seal(page[0].step_index) if len(rounds) > len(page) else None,
        attention=_attention(shown) or _attention(main),
    )


def _execution(
    selected: SelectedVariant,
    run: RunRecord,
    prefix: str | None,
    *,
    rounds: Sequence[Round],
    next_before: str | None,
    attention: str,
) -> Execution:
    failure = run.error or selected.variant.error or ""
    return Execution(
        selected=selected,
        run=run,
        prefix=prefix,
        rounds=rounds,
        next_before=next_before,
        attention=attention,
        failure=failure if run.state in _OVER else "",
    )


@dataclass(frozen=True, kw_only=True)
class _Ledger:
    """A run, its calls, and the delegated runs behind them."""

    run: RunRecord
    effects: Sequence[ToolEffectRecord]
    branches: dict[str, Branch]


async def _read(store: StepStore, run: RunRecord) -> _Ledger:
    effects, children = await asyncio.gather(
        store.list_tool_effects(run_id=run.run_id),
        store.list_runs(parent_run_id=run.run_id),
    )
    branches = branches_of(run.run_id, children, [call_key(each) for each in effects])
    return _Ledger(run=run, effects=effects, branches=branches)


async def _rounds(store: StepStore, ledger: _Ledger) -> list[Round]:
    run = ledger.run
    events, messages = await asyncio.gather(
        store.list_events(run_id=run.run_id), _own_messages(store, run.run_id)
    )
    return rounds_of(run, events, ledger.effects, messages, ledger.branches.values())


async def _own_messages(store: StepStore, run_id: str) -> list[ModelMessage]:
    """What the run itself said, as its newest snapshot has it; nothing where that is damaged."""
    try:
        snapshot = await store.latest_snapshot(run_id=run_id, include_interrupted=True)
    except DamagedSnapshotError:
        return []
    return [] if snapshot is None else own_messages(snapshot.messages, run_id)


def _steps(prefix: str | None) -> tuple[str, ...]:
    if prefix is None:
        return ()
    steps = branch_steps(prefix)
    if steps is None:
        raise _no_branch()
    return steps


def _no_branch() -> NotFoundError:
    message = "the execution has no such branch; `branches` of its rounds are those that it has"
    return NotFoundError(message, parameter="execution_prefix")


def _attention(ledger: _Ledger) -> str:
    """What the run waits for from a person, where it does."""
    waiting = [
        f"call {branch.key} has a delegated run that needs attention"
        for branch in ledger.branches.values()
        if branch.run.state == "needs_attention"
    ]
    if ledger.run.state == "needs_attention":
        waiting = [words for each in ledger.effects if (words := _waits(each))] + waiting
    return "; ".join(waiting)


def _waits(effect: ToolEffectRecord) -> str | None:
    call = f"call {call_key(effect)} of tool {effect.tool_name!r}"
    if effect.awaits_approval:
        return f"{call} waits for approval"
    if effect.status == "unknown":
        return f"{call} waits for a decision: nobody knows whether it happened"
    return None


def run_public_id(run: RunRecord) -> str:
    """The run's public id; of a run from before there were any, one made of its id."""
    kept: str | None = getattr(run, "public_id", None)
    if kept is not None:
        return kept
    digits = hashlib.sha256(f"{run.workspace_id}\x00{run.run_id}".encode()).hexdigest()
    # Version 8 of RFC 9562: made in a way of one's own.
    parts = (digits[:8], digits[8:12], f"8{digits[13:16]}", f"8{digits[17:20]}", digits[20:32])
    return "-".join(parts)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Cursors of one thread of rounds: a step, and which runs it is of."""

    run_ids: tuple[str, str]

    @property
    def _fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.run_ids).encode()).hexdigest()[:16]

    def seal(self, step_index: int) -> str:
        """The cursor of the rounds before a step."""
        text = json.dumps([step_index, self._fingerprint])
        return base64.urlsafe_b64encode(text.encode()).decode()

    def open(self, cursor: str) -> int:
        """The step.

        Raises:
            ParameterInvalidError: `seal` did not make the cursor for these runs.
        """
        message = (
            "it is no cursor of this execution; send `execution.pagination.next_before` with the "
            "turn in `around_turn_public_id` and the same `execution_prefix`, or none"
        )
        if len(cursor) > _LONGEST_CURSOR:
            raise ParameterInvalidError(message, parameter="execution_before")
        try:
            step_index, fingerprint = json.loads(base64.urlsafe_b64decode(cursor))
            is_ours = fingerprint == self._fingerprint and cursor == self.seal(step_index)
        except (ValueError, TypeError) as error:
            raise ParameterInvalidError(message, parameter="execution_before") from error
        if not is_ours or not isinstance(step_index, int):
            raise ParameterInvalidError(message, parameter="execution_before")
        return step_index
