"""What a workflow asks of its store along one path through its life."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from pydantic_ai.messages import ModelRequest, UserPromptPart

from stores.commits import Commit, CommitPosition
from stores.digests import operation_digest
from stores.operations import (
    AppendEvent,
    FinishToolEffect,
    Operation,
    PositionedMessage,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
)
from tests.stores.writer import START, at

RUNS = ("run-1", "run-2")


@dataclass(frozen=True)
class Step:
    """Something that a run does; `content` is which of two things it says of it."""

    kind: str
    run: int
    content: int


STEP_KINDS = (
    *("event", "start", "start", "finish", "finish", "settle"),
    *("save", "save", "compact", "end", "again", "clash"),
)


@dataclass(kw_only=True)
class RunPath:
    """One run: what it has said so far. Copied often, so it holds plain values only."""

    run_id: str
    sequence: int = 0
    saves: int = 0
    statuses: list[str] = field(default_factory=list[str])
    """Of the effects, in the order of their starts."""
    arguments: list[int] = field(default_factory=list[int])
    """Of the effects."""
    log: list[str] = field(default_factory=list[str])
    """Texts of the messages, by position."""
    history: list[int] = field(default_factory=list[int])
    said: list[Operation] = field(default_factory=list[Operation])
    """On this branch: its keys are the branch's own."""
    is_registered: bool = False

    def copy(self) -> "RunPath":
        """The same, free to go elsewhere."""
        return RunPath(
            run_id=self.run_id,
            sequence=self.sequence,
            saves=self.saves,
            statuses=[*self.statuses],
            arguments=[*self.arguments],
            log=[*self.log],
            history=[*self.history],
            said=[*self.said],
            is_registered=self.is_registered,
        )

    def operations(self, step: Step) -> list[Operation]:
        """What the step asks of the store; a first one registers the run."""
        told: list[Operation] = []
        if not self.is_registered:
            self.is_registered = True
            told = [self._register(), self._event("run_started")]
        told.append(getattr(self, f"_{step.kind}")(step.content))
        self.said += told
        return told

    def arguments_of(self, operation: Operation) -> int | None:
        """Of the call whose end this is: another call's equal end is another end."""
        if isinstance(operation, FinishToolEffect):
            return self.arguments[operation.step_index or 0]
        return None

    def _place(self) -> dict[str, object]:
        self.sequence += 1
        return {"run_id": self.run_id, "sequence": self.sequence}

    def _register(self) -> Operation:
        return RegisterRun.model_validate(
            {**self._place(), "registration_id": f"registration-of-{self.run_id}"}
        )

    def _event(self, kind: str | int, **values: object) -> Operation:
        if isinstance(kind, int):
            return self._event("model_request_started", tool_name=f"tool-{kind}")
        place = self._place()
        key = f"{self.sequence}/{kind}"
        return AppendEvent.model_validate(
            {**place, "key": key, "event": kind, "step_index": self.sequence, **values}
        )

    def _end(self, content: int) -> Operation:
        return self._event(
            ("run_completed", "run_failed")[content],
            error="cancelled" if content else None,
            usage={"requests": self.sequence},
        )

    def _start(self, content: int) -> Operation:
        self.statuses.append("started")
        self.arguments.append(content)
        return StartToolEffect.model_validate(
            {**self._effect(len(self.statuses) - 1), "arguments": f'"{content}"'}
        )

    def _effect(self, number: int) -> dict[str, object]:
        call = {"tool_call_id": f"call-{number}", "tool_name": "look_up"}
        return {**self._place(), **call, "step_index": number, "call_index": 0}

    def _finish(self, content: int) -> Operation:
        """Completed or unknown: the first call in flight."""
        return self._finished("started", ("completed", "unknown")[content], 0, content)

    def _settle(self, content: int) -> Operation:
        """Resolved or failed: the first call of which nobody knows."""
        return self._finished("unknown", ("resolved", "failed")[content], 1, content)

    def _finished(self, found: str, status: str, ordinal: int, content: int) -> Operation:
        if found not in self.statuses:
            return self._event(content)
        number = self.statuses.index(found)
        self.statuses[number] = status
        return FinishToolEffect.model_validate(
            {**self._effect(number), "status": status, "ordinal": ordinal}
        )

    def _save(self, content: int) -> Operation:
        """One more message; the last one is sent again, for it has been stamped since."""
        stamped = self.history[-1:]
        self.history.append(self._add(content))
        return self._snapshot([*stamped, self.history[-1]])

    def _compact(self, content: int) -> Operation:
        """A new message in place of all but the last."""
        self.history = [self._add(content), *self.history[-1:]]
        return self._snapshot(self.history)

    def _add(self, content: int) -> int:
        # Few texts: the same message lies at several positions, and of both runs.
        self.log.append(f"message {content}")
        return len(self.log) - 1

    def _snapshot(self, sent: list[int]) -> Operation:
        place = self._place()
        self.saves += 1
        return SaveSnapshot.model_validate(
            {
                **place,
                "key": f"{self.saves}/{self.sequence}",
                "step_index": self.sequence,
                "state": "complete",
                "ranges": tuple((each, each + 1) for each in self.history),
                "entries": tuple(self._message(each) for each in sent),
            }
        )

    def _message(self, position: int) -> PositionedMessage:
        # Its time differs each time, as do all stamps that the core sets.
        part = UserPromptPart(self.log[position], timestamp=START)
        message = ModelRequest(parts=[part], run_id=self.run_id, timestamp=at(self.sequence))
        return PositionedMessage(position=position, message=message)

    def _again(self, content: int) -> Operation:
        """What an earlier commit or operation has said already: suppressed."""
        earlier = self._earlier(content)
        if earlier is None:
            return self._event(content)
        return earlier.model_copy(update=self._place())

    def _clash(self, content: int) -> Operation:
        """The key of an earlier operation with another content: refused."""
        earlier = self._earlier(content)
        match earlier:
            case None | RegisterRun():  # a thief would take all the rest of the run with it
                return self._event(content)
            case AppendEvent():
                change: dict[str, object] = {"tool_name": "another"}
            case SaveSnapshot():
                change = {"step_index": 99}
            case StartToolEffect():
                change = {"arguments": '"another"'}
            case FinishToolEffect():
                change = {"error_type": "AnotherError"}
        return earlier.model_copy(update={**self._place(), **change})

    def _earlier(self, content: int) -> Operation | None:
        """Of this branch the newest, or one from the middle."""
        return self.said[(-1, len(self.said) // 2)[content]] if self.said else None


@dataclass(kw_only=True)
class Place:
    """Where an execution stands. The times are of workflow tasks and activity attempts."""

    execution_id: str
    branch: str
    number: int = 0
    history_length: int = 3
    queued_at: float = 0

    def position(self, *, started_at: float | None = None) -> CommitPosition:
        """Of the newest commit; `started_at` is a regular activity's."""
        return CommitPosition(
            execution_id=self.execution_id,
            branch=self.branch,
            branch_time=at(self.queued_at if started_at is None else started_at),
            number=self.number,
            history_length=self.history_length,
            queued_at=at(self.queued_at),
        )


StartedEffect = tuple[str, int, str]
"""Run, step and branch of a start."""


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A commit on its way to a store.

    `calls` has, for each end of a call, the call's arguments. `of_effect`: from outside it is said
    of this effect, and goes with it.
    """

    commit: Commit
    calls: tuple[int | None, ...]
    of_effect: StartedEffect | None = None

    def __str__(self) -> str:
        """One line."""
        place = self.commit.position
        told = [f"{each.run_id} {each.kind} {each.key}" for each in self.commit.operations]
        if place is None:
            return f"outside: {told}"
        fence = f"{place.history_length}+{place.queued_at - START}"
        return f"{place.branch} number {place.number} fence {fence}: {told}"

    def identities(self) -> list[Hashable]:
        """What each operation says, and where: said again there, it keeps its first time.

        One without a key says something new each time: `None`.
        """
        commit = self.commit
        branch = commit.position.branch if commit.position else commit.branch
        return [
            (each.run_id, each.kind)
            if isinstance(each, RegisterRun)
            else each.key
            and (each.run_id, each.kind, each.key, operation_digest(each), branch, call)
            for each, call in zip(commit.operations, self.calls, strict=True)
        ]


@dataclass(kw_only=True)
class Path:
    """What happened: runs, the execution, and the commits that must be in the store."""

    place: Place
    runs: tuple[RunPath, ...]
    held: list[tuple[int, Delivery]] = field(default_factory=list[tuple[int, Delivery]])
    """The commits, each with how many deliveries came before it."""
    pending: Delivery | None = None
    """A regular commit that the history holds as scheduled."""

    @classmethod
    def begin(cls) -> "Path":
        """Nothing has happened yet."""
        place = Place(execution_id="execution-1", branch="branch-1")
        return cls(place=place, runs=tuple(RunPath(run_id=each) for each in RUNS))

    def copy(self) -> "Path":
        """The same, free to go elsewhere."""
        place = Place(**vars(self.place))
        runs = tuple(each.copy() for each in self.runs)
        return Path(place=place, runs=runs, held=[*self.held], pending=self.pending)

    def move(self, *, branch: str, execution_id: str | None = None) -> None:
        """Go on in another branch, or in another execution."""
        if execution_id is not None:
            self.place = Place(execution_id=execution_id, branch=branch)
        self.place.branch = branch
        for run in self.runs:
            run.said.clear()

    def commit(self, steps: list[Step]) -> Delivery:
        """The next commit, with what these steps ask for."""
        self.place.number += 1
        operations: list[Operation] = []
        calls: list[int | None] = []
        for step in steps:
            told = self.runs[step.run].operations(step)
            operations += told
            calls += [self.runs[step.run].arguments_of(each) for each in told]
        position = self.place.position()
        commit = Commit(operations=tuple(operations), now=START, position=position)
        return Delivery(commit=commit, calls=tuple(calls))

    def started_effects(self) -> set[StartedEffect]:
        """The effects that were started on this path."""
        return {
            (each.run_id, each.step_index, delivery.commit.position.branch)
            for _, delivery in self.held
            for each in delivery.commit.operations
            if isinstance(each, StartToolEffect)
            and each.step_index is not None
            and delivery.commit.position is not None
        }
