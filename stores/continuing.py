"""From where a run can be continued or forked, and what stands in the way.

There is no mechanism of its own: the messages go to `Agent.run(message_history=...)`, or to the
workflow `agent_run`, which asks here before it writes anything.
"""

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    ToolCallPart,
    ToolReturnPart,
)

from stores.answers import is_decided, is_made_up, with_answers
from stores.errors import DamagedSnapshotError, UnresolvedEffectsError
from stores.protocols import StepStore
from stores.records import (
    UNRESOLVED,
    ContinuableSnapshot,
    RunRecord,
    SnapshotSummary,
    ToolEffectRecord,
)
from stores.rows import holds_continuation

LISTED_SNAPSHOTS = 20
"""Snapshots that an error names: enough to choose from, and a run may have thousands."""


@dataclass(frozen=True, kw_only=True)
class StartingPoint:
    """A snapshot to go on from.

    `unresolved` are the tool effects of its run which that would cross: nobody knows whether they
    happened, and the history holds no answer of theirs. `decided` are those of which somebody has
    said so since.
    """

    snapshot: ContinuableSnapshot
    unresolved: tuple[ToolEffectRecord, ...]
    decided: tuple[ToolEffectRecord, ...] = ()

    @property
    def messages(self) -> list[ModelMessage]:
        """The history, with what was decided as its tools' answers."""
        return with_answers(self.snapshot.messages, self.decided, until=self.snapshot.sequence)

    def check_unresolved(self) -> None:
        """Return when nothing is crossed.

        Raises:
            UnresolvedEffectsError: something is; the message lists it. Not retryable.
        """
        if self.unresolved:
            raise UnresolvedEffectsError(
                self.snapshot.run_id,
                self.snapshot.sequence,
                tuple(describe_effect(each) for each in self.unresolved),
            )


async def continue_run(
    store: StepStore, *, run_id: str, include_interrupted: bool = False
) -> list[ModelMessage]:
    """The messages of the run's newest snapshot, for `Agent.run(message_history=...)`.

    With what somebody has decided since on calls of unknown outcome, as their answers. Look at
    `list_unresolved_tool_effects` before you take an interrupted one.

    Args:
        store: bound to the run's workspace.
        run_id: the run to continue.
        include_interrupted: also a history with unanswered calls.

    Raises:
        LookupError: there is no such snapshot. Not retryable.
        DamagedSnapshotError: it cannot be read; the message names another one. Not retryable.
    """
    point = await find_starting_point(store, run_id=run_id, include_interrupted=include_interrupted)
    return point.messages


async def fork_run(
    store: StepStore,
    *,
    run_id: str,
    include_interrupted: bool = False,
    at_snapshot: int | None = None,
    at_step: int | None = None,
) -> list[ModelMessage]:
    """As `continue_run`, for a run of its own that branches off, from any snapshot.

    Args:
        store: bound to the run's workspace.
        run_id: the run to branch off from.
        include_interrupted: also a history with unanswered calls.
        at_snapshot: the `sequence` of a snapshot; the newest by default.
        at_step: the newest snapshot of this step.

    Raises:
        LookupError: there is no such snapshot; the message names those there are. Not retryable.
        DamagedSnapshotError: it cannot be read; the message names another one. Not retryable.
    """
    point = await find_starting_point(
        store,
        run_id=run_id,
        include_interrupted=include_interrupted,
        at_snapshot=at_snapshot,
        at_step=at_step,
    )
    return point.messages


async def find_starting_point(
    store: StepStore,
    *,
    run_id: str,
    include_interrupted: bool = False,
    at_snapshot: int | None = None,
    at_step: int | None = None,
) -> StartingPoint:
    """Where `fork_run` with these arguments begins, and what it would cross.

    From the newest snapshot all that is unresolved in the run is crossed; from one that was named,
    what started before it. A call that waits to be approved has not happened, and crosses nothing.

    Raises:
        LookupError, DamagedSnapshotError: as `fork_run`.
    """
    snapshot = await _chosen(
        store,
        run_id,
        include_interrupted=include_interrupted,
        at_snapshot=at_snapshot,
        at_step=at_step,
    )
    effects = await store.list_tool_effects(run_id=run_id)
    earlier = [each for each in effects if each.sequence <= snapshot.sequence]
    is_newest = at_snapshot is None and at_step is None
    answered = _answered(snapshot.messages, earlier)
    crossed = [
        each
        for each in (effects if is_newest else earlier)
        if each.sequence not in answered and not each.awaits_approval
    ]
    return StartingPoint(
        snapshot=snapshot,
        unresolved=tuple(each for each in crossed if each.status in UNRESOLVED),
        decided=tuple(each for each in crossed if is_decided(each)),
    )


async def find_continuation(store: StepStore, *, run_id: str) -> RunRecord | None:
    """The run that continues this one, `None` while it may be continued."""
    for run in await store.list_runs(continued_from=run_id):
        saved = await store.list_snapshot_summaries(run_id=run.run_id)
        if holds_continuation(run, has_snapshots=bool(saved)):
            return run
    return None


def pending_calls(messages: Sequence[ModelMessage]) -> list[ToolCallPart]:
    """The calls that going on without a prompt would execute: those of a last response.

    A batch of which some returned is not among them: the core closes the others out.
    """
    last = messages[-1] if messages else None
    if not isinstance(last, ModelResponse):
        return []
    return [part for part in last.parts if isinstance(part, ToolCallPart)]


def describe_effect(effect: ToolEffectRecord) -> str:
    """One line: tool, call id, step, status, since when."""
    step = "no step" if effect.step_index is None else f"step {effect.step_index}"
    since = effect.started_at.isoformat(timespec="seconds")
    return (
        f"{effect.tool_name} (call {effect.tool_call_id!r}) of {step}, {effect.status}, "
        f"since {since}"
    )


async def _chosen(
    store: StepStore,
    run_id: str,
    *,
    include_interrupted: bool,
    at_snapshot: int | None,
    at_step: int | None,
) -> ContinuableSnapshot:
    if at_snapshot is None and at_step is None:
        return await _newest(store, run_id, include_interrupted=include_interrupted)
    if at_snapshot is not None and at_step is not None:
        msg = "at_snapshot and at_step exclude each other; name one place"
        raise ValueError(msg)
    summaries = await store.list_snapshot_summaries(run_id=run_id)
    named = [each for each in summaries if at_snapshot in {None, each.sequence}]
    named = [each for each in named if at_step in {None, each.step_index}]
    fitting = [each for each in named if include_interrupted or each.state == "complete"]
    if not fitting:
        place = f"snapshot {at_snapshot}" if at_step is None else f"snapshot of step {at_step}"
        problem = (
            f"its {place} is interrupted: it holds calls without an answer"
            if named
            else f"it has no {place}"
        )
        raise LookupError(_cannot(run_id, problem, summaries))
    sequence = fitting[-1].sequence
    loading = store.find_snapshot(run_id=run_id, sequence=sequence)
    snapshot = await _loaded(loading, store, include_interrupted=include_interrupted)
    if snapshot is None:  # pruned since
        raise LookupError(_cannot(run_id, f"its snapshot {sequence} is gone", summaries))
    return snapshot


async def _newest(
    store: StepStore, run_id: str, *, include_interrupted: bool
) -> ContinuableSnapshot:
    loading = store.latest_snapshot(run_id=run_id, include_interrupted=include_interrupted)
    snapshot = await _loaded(loading, store, include_interrupted=include_interrupted)
    if snapshot is None:
        kind = "snapshot" if include_interrupted else "complete snapshot"
        summaries = await store.list_snapshot_summaries(run_id=run_id)
        problem = f"this workspace has no {kind} of it"
        raise LookupError(_cannot(run_id, problem, summaries))
    return snapshot


async def _loaded(
    loading: Awaitable[ContinuableSnapshot | None], store: StepStore, *, include_interrupted: bool
) -> ContinuableSnapshot | None:
    """The snapshot; of a damaged one the error says which other one can be read."""
    try:
        return await loading
    except DamagedSnapshotError as error:
        remedy = await _remedy(store, error, include_interrupted=include_interrupted)
        raise DamagedSnapshotError(error.run_id, error.sequence, error.problem, remedy) from error


async def _remedy(
    store: StepStore, damage: DamagedSnapshotError, *, include_interrupted: bool
) -> str:
    summaries = await store.list_snapshot_summaries(run_id=damage.run_id)
    others = [
        each
        for each in reversed(summaries)
        if each.sequence != damage.sequence and (include_interrupted or each.state == "complete")
    ]
    for other in others[:LISTED_SNAPSHOTS]:
        try:
            await store.find_snapshot(run_id=damage.run_id, sequence=other.sequence)
        except DamagedSnapshotError:
            continue
        return (
            f"Its {_described(other)} can be read: fork the run with at_snapshot={other.sequence} "
            f"(`perdure fork {damage.run_id} --at-snapshot {other.sequence}`)"
        )
    return "No other one that fits can be read; `perdure snapshots` lists them"


def _cannot(run_id: str, problem: str, summaries: Sequence[SnapshotSummary]) -> str:
    """What was tried, what was found, and which snapshots there are."""
    newest = [_described(each) for each in summaries[-LISTED_SNAPSHOTS:]]
    there = f"It has {', '.join(newest)}" if newest else "It has none"
    if len(summaries) > len(newest):
        there += f" and {len(summaries) - len(newest)} older ones"
    return (
        f"run {run_id!r} cannot be continued or forked: {problem}. {there}; `perdure snapshots` "
        "lists them, and include_interrupted allows interrupted ones"
    )


def _described(summary: SnapshotSummary) -> str:
    return f"snapshot {summary.sequence} (step {summary.step_index}, {summary.state})"


def _answered(messages: Sequence[ModelMessage], effects: Iterable[ToolEffectRecord]) -> set[int]:
    """The sequences of those effects whose calls the history answers.

    Providers use call ids again, so calls of one id are paired with effects of it from the newest
    back. A return that the core made up for a call that was cut off is no answer.
    """
    outcomes: dict[str, list[bool]] = {}
    for message in messages:
        for part in message.parts:
            if isinstance(message, ModelResponse) and isinstance(part, ToolCallPart):
                outcomes.setdefault(part.tool_call_id, []).append(False)
            elif isinstance(message, ModelRequest) and _is_answer(part):
                calls = outcomes.get(str(part.tool_call_id))
                if calls:
                    calls[-1] = True
    found: set[int] = set()
    for effect in sorted(effects, key=lambda each: each.sequence, reverse=True):
        calls = outcomes.get(effect.tool_call_id)
        if calls and calls.pop():
            found.add(effect.sequence)
    return found


def _is_answer(part: ModelRequestPart | ModelResponsePart) -> TypeGuard[ToolReturnPart]:
    return isinstance(part, ToolReturnPart) and not is_made_up(part)
