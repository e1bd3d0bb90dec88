"""Commits in the order in which they reach a store, with all that can go wrong on their way."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from stores.commits import Commit, CommitResult
from stores.operations import AppendEvent, FinishToolEffect, Operation
from tests.stores.paths import STEP_KINDS, Delivery, Path, StartedEffect, Step
from tests.stores.writer import START, at

STEPS = st.lists(
    st.builds(Step, st.sampled_from(STEP_KINDS), st.sampled_from([0, 0, 0, 1]), st.integers(0, 1)),
    max_size=3,
)
ATTEMPT = st.lists(STEPS, min_size=1, max_size=3)
"""The commits of one attempt of a workflow task."""

TASK = st.tuples(
    st.sampled_from(["go on", "go on", "reset", "continue as new"]),
    st.lists(ATTEMPT, min_size=1, max_size=3),
)


OUTSIDE = ["keyed", "unkeyed", "clashing", "own run", "resolved", "resolved", "resolved"]


WRITTEN = {"apply", "supersede", "adopt"}
"""Verdicts on commits of which something is in the store afterwards."""


class Story:
    """What was sent to the store, and the path that survived."""

    def __init__(self) -> None:
        self.path = Path.begin()
        self.sent: list[Delivery] = []
        self.asides: list[tuple[int, Delivery]] = []
        """From outside the workflow, whatever becomes of it."""
        self.seen: Counter[str] = Counter()
        """How often each circumstance occurs."""
        self.clock = 0

    def __repr__(self) -> str:
        """One line for each delivery, as hypothesis shows it."""
        return "\n".join(["sent:", *map(str, self.sent), "plain:", *map(str, self.plain())])

    def plain(self, answers: Sequence[CommitResult] = ()) -> list[Delivery]:
        """The surviving commits, and what came from outside, in order.

        Args:
            answers: what the store said to each delivery. A commit that it held already when the
                reported delivery came was written with an earlier one, and stands in its place.
        """
        starts = self.path.started_effects()
        asides = [each for each in self.asides if each[1].of_effect in {None, *starts}]
        held = [(self._written(index, answers), each) for index, each in self.path.held]
        entries = sorted([*held, *asides], key=lambda entry: entry[0])
        return [delivery for _, delivery in entries]

    def _written(self, index: int, answers: Sequence[CommitResult]) -> int:
        """Which delivery wrote what this one brought: suppressed is only what wrote the head."""
        if not answers or answers[index].verdict != "suppress":
            return index
        return max(
            each
            for each in range(index)
            if answers[each].verdict in WRITTEN and self.sent[each].commit.position is not None
        )


class Narrator:
    """Makes a story up, as hypothesis draws."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._story = Story()
        self._late: list[Delivery] = []
        """Sent once and still under way, for as long as it takes."""
        self._checkpoints: list[Path] = [self._story.path.copy()]
        self._branches = 1

    def story(self) -> Story:
        """Workflow tasks one after the other."""
        for what, attempts in self._draw(st.lists(TASK, min_size=1, max_size=6)):
            if what == "reset":
                self._reset()
            self._send_pending()
            if what == "continue as new" and self._story.path.runs[0].is_registered:
                self._continue_as_new()
                # Executions are known to follow each other by the runs that they share.
                for attempt in attempts:
                    attempt[0].insert(0, Step("event", 0, 0))
            self._task(attempts)
        self._send_pending()
        return self._story

    def _chance(self, one_in: int) -> bool:
        return self._draw(st.integers(0, one_in - 1)) == one_in - 1

    def _tick(self) -> int:
        self._story.clock += 1
        return self._story.clock

    def _new_branch(self) -> str:
        self._branches += 1
        return f"branch-{self._branches}"

    # --- executions ---

    def _reset(self) -> None:
        """A later branch goes on from the end of an earlier task, or from before the first."""
        left = self._story.path.place.execution_id
        tasks = self._draw(st.integers(0, len(self._checkpoints) - 1))
        del self._checkpoints[len(self._checkpoints) - tasks :]
        path = self._story.path = self._checkpoints[-1].copy()
        path.move(branch=self._new_branch())
        self._story.seen["reset"] += 1
        self._story.seen["reset to before the start"] += not path.place.number
        self._story.seen["reset of an execution before"] += path.place.execution_id != left
        self._story.seen["reset with a pending commit"] += path.pending is not None

    def _continue_as_new(self) -> None:
        branch = self._new_branch()
        self._story.path.move(branch=branch, execution_id=f"execution-of-{branch}")
        self._story.seen["continue as new"] += 1
        self._checkpoints.append(self._story.path.copy())

    # --- a task ---

    def _task(self, attempts: list[list[list[Step]]]) -> None:
        begin = self._story.path
        begin.place.history_length += 5
        for attempt in attempts[:-1]:
            self._story.path = begin.copy()
            self._begin_attempt()
            self._lose(attempt)
            begin.place.history_length += 3 * self._chance(2)  # else only the time differs
        self._story.path = begin
        self._begin_attempt()
        for steps in attempts[-1][:-1]:
            self._keep(steps, is_last=False)
        self._keep(attempts[-1][-1], is_last=True)
        self._checkpoints.append(self._story.path.copy())

    def _begin_attempt(self) -> None:
        self._story.path.place.queued_at = self._tick()

    def _lose(self, attempt: list[list[Step]]) -> None:
        """Some of the commits arrive, the next one perhaps much later, and none is reported."""
        arriving = self._draw(st.integers(0, len(attempt)))
        for index, steps in enumerate(attempt[: arriving + 1]):
            delivery = self._story.path.commit(steps)
            if index < arriving:
                self._send(delivery)
            else:
                self._late.append(delivery)
        self._story.seen["several commits in a lost task"] += arriving > 1

    def _keep(self, steps: list[Step], *, is_last: bool) -> None:
        """A commit that is reported."""
        path = self._story.path
        delivery = path.commit(steps)
        if not self._chance(3):
            self._hold(delivery)
            self._send(delivery)
            self._contradict(delivery)
            return
        # The local attempt was late, or its answer was lost: a regular one follows.
        self._story.seen["fallback"] += 1
        if self._chance(2):
            self._send(delivery)
        else:
            self._late.append(delivery)
        if is_last and self._chance(2):
            path.pending = delivery
            self._checkpoints.append(path.copy())
            if not self._chance(3):
                return  # perhaps a reset comes first
        self._send_regular(delivery)

    def _send_pending(self) -> None:
        if self._story.path.pending is not None:
            self._send_regular(self._story.path.pending)

    def _send_regular(self, delivery: Delivery) -> None:
        """The activity's own branch and time, and the input as it was."""
        path = self._story.path
        path.pending = None
        position = delivery.commit.position
        assert position is not None
        started = replace(position, branch=path.place.branch, branch_time=at(self._tick()))
        delivery = replace(delivery, commit=replace(delivery.commit, position=started))
        self._hold(delivery)
        self._send(delivery)

    def _hold(self, delivery: Delivery) -> None:
        self._story.path.held.append((len(self._story.sent), delivery))

    def _contradict(self, delivery: Delivery) -> None:
        """Another content under the same number and fence, which no working journal asks for."""
        if self._chance(8):
            other = _event("run-1", key="contradiction", sequence=4000)
            commit = replace(delivery.commit, operations=(other,))
            self._story.sent.append(Delivery(commit=commit, calls=(None,)))

    # --- deliveries ---

    def _send(self, delivery: Delivery) -> None:
        """Send it; in between comes what was sent before, and what others write."""
        self._story.sent.append(delivery)
        if self._chance(3):
            under_way = [each for each in self._story.sent if each.commit.position] + self._late
            self._story.sent.append(self._draw(st.sampled_from(under_way)))
        if self._chance(4):
            self._write_from_outside()

    def _write_from_outside(self) -> None:
        """Writes without a position: each key decides alone, and no task or reset takes them."""
        number, of_effect = len(self._story.sent), None
        operation: Operation = _event("run-1", key=f"outside-{number}", sequence=5000 + number)
        match self._draw(st.sampled_from(OUTSIDE)):
            case "unkeyed":
                operation = operation.model_copy(update={"key": None, "at": at(number)})
            case "own run":
                operation = _event("run-3", key=f"outside-{number}", sequence=None)
            case "resolved":
                of_effect = self._unknown_effect()
                operation = _resolution(of_effect, number) if of_effect else operation
            case "clashing":
                operation = _event("run-1", key="outside", sequence=5000 + number, step=number)
            case _:
                pass
        commit = Commit(operations=(operation,), now=START, branch="outside")
        delivery = Delivery(commit=commit, calls=(None,), of_effect=of_effect)
        self._story.seen["from outside"] += 1
        for _ in range(1 + self._chance(2)):
            self._story.asides.append((len(self._story.sent), delivery))
            self._story.sent.append(delivery)

    def _unknown_effect(self) -> StartedEffect | None:
        """One of which the reported path does not know what became."""
        run = self._checkpoints[-1].runs[0]
        if "unknown" not in run.statuses:
            return None
        self._story.seen["resolved from outside"] += 1
        step = run.statuses.index("unknown")
        starts = self._checkpoints[-1].started_effects()
        return next((each for each in starts if each[:2] == (run.run_id, step)), None)


def _resolution(effect: StartedEffect, number: int) -> FinishToolEffect:
    """What somebody says of an effect; no task has to be reported for it to count."""
    run_id, step, _ = effect
    return FinishToolEffect(
        run_id=run_id,
        sequence=5000 + number,
        tool_call_id=f"call-{step}",
        tool_name="look_up",
        step_index=step,
        call_index=0,
        status="resolved",
        ordinal=2,
    )


def _event(run_id: str, *, key: str, sequence: int | None, step: int = 0) -> AppendEvent:
    return AppendEvent(
        run_id=run_id, sequence=sequence, key=key, event="model_request_failed", step_index=step
    )


def decided_before_a_repeat() -> Story:
    """A call is settled; somebody decides on it, too; the settlement comes again, as a fallback.

    What stands is what was said first, and a repeat is not said later.
    """
    story = Story()
    path = story.path
    begun = path.commit([Step("start", 0, 0), Step("finish", 0, 1)])
    settled = path.commit([Step("settle", 0, 0)])
    position = settled.commit.position
    assert position is not None
    regular = replace(settled.commit, position=replace(position, branch_time=at(7)))
    path.held += [(0, begun), (3, replace(settled, commit=regular))]
    (effect,) = path.started_effects()
    commit = Commit(operations=(_resolution(effect, 2),), now=START, branch="outside")
    decided = Delivery(commit=commit, calls=(None,), of_effect=effect)
    story.asides.append((2, decided))
    story.sent += [begun, settled, decided, path.held[-1][1]]
    return story


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Runs of a workflow as a store meets them."""
    return Narrator(draw).story()
