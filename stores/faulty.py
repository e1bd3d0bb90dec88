"""Faults on purpose: a step store that is slow, fails or dies at named calls.

It wraps any store, which knows nothing of it, so that a test can put a crash exactly between a
write and its report. Nothing of production refers to it.
"""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict

from stores.attempts import AttemptStore, ToolCallPlace
from stores.commits import Commit, CommitResult
from stores.conversations import ConversationStore
from stores.errors import StoreError, StoreUnavailableError
from stores.operations import AppendEvent, Write
from stores.protocols import StepStore
from stores.streaming import StreamStore

_LOOK_SECONDS = 0.01
"""Between two looks for the file that a `wait` waits for."""


class Fault(BaseModel):
    """One thing that goes wrong, once, at the first call that it fits.

    Args:
        name: of the fault, and of the file that says it has happened.
        action: `delay` by `seconds`; `fail` as if MongoDB were away; `kill` this process with
            SIGKILL; `freeze` it with SIGSTOP, and go on when somebody thaws it; `wait` until the
            file `until` exists, without one for ever; `note` that it has come to this; `repeat`
            the call once `until` exists, long after its caller heard of the first one.
        when: `before` the call is made, or `after` it was done and before its caller hears of it.
        method: the store's method, its attempts' (`enter`, `leave`), its streams' (`append`), or
            what else meets the plan.
        run_id: only a commit that holds an operation of this run, or an attempt of its calls.
        spares: no operation or attempt of this run, such as the parent of the one that is meant.
        holds: only a commit that holds such a boundary (`register_run`) or event (`run_completed`).
        key: only if that operation has this key.
        call: only an attempt of the call at this step and call index: `2/0`.
        outlives_caller: the call goes on, fault and all, when its caller is cancelled by a timeout:
            what a server does with a request that it has received.
        then_fails: afterwards the caller is told that the store is away.
        alters: the call is made with other content than its caller gave.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    action: Literal["delay", "fail", "freeze", "kill", "note", "repeat", "wait"]
    when: Literal["before", "after"] = "before"
    method: str = "commit"
    run_id: str | None = None
    spares: str | None = None
    holds: str | None = None
    key: str | None = None
    call: str | None = None
    seconds: float = 0
    until: Path | None = None
    outlives_caller: bool = False
    then_fails: bool = False
    alters: bool = False

    def fits(self, method: str, arguments: tuple[object, ...]) -> bool:
        """Whether this call is one that the fault is about."""
        if method != self.method:
            return False
        if {self.run_id, self.spares, self.holds, self.key, self.call} == {None}:
            return True
        return any(
            self._is_at(each)
            if isinstance(each, ToolCallPlace)
            else isinstance(each, Commit) and any(map(self._is_about, each.operations))
            for each in arguments
        )

    def _is_about(self, operation: Write) -> bool:
        names = {operation.kind, *([operation.event] if isinstance(operation, AppendEvent) else [])}
        return (
            self._is_of(operation.run_id)
            and self.holds in {None, *names}
            and self.key in {None, operation.key}
        )

    def _is_at(self, place: ToolCallPlace) -> bool:
        call = f"{place.step_index}/{place.call_index}"
        return self._is_of(place.run_id) and self.call in {None, call}

    def _is_of(self, run_id: str) -> bool:
        return self.run_id in {None, run_id} and run_id != self.spares


class FaultPlan(BaseModel):
    """Faults, and the directory that notes which of them have fired.

    The directory must exist. It is shared by the processes of a test, so that a fault which kills a
    worker does not kill the next one too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    directory: Path
    faults: tuple[Fault, ...] = ()

    def has_fired(self, name: str) -> bool:
        """Whether the fault of that name has happened, or begun to, in whatever process."""
        return (self.directory / name).exists()

    def claim(self, method: str, arguments: tuple[object, ...]) -> Fault | None:
        """The fault that strikes this call, and from now on no other."""
        for fault in self.faults:
            if fault.fits(method, arguments):
                try:
                    (self.directory / f"{fault.name}.claimed").touch(exist_ok=False)
                except FileExistsError:
                    continue
                return fault
        return None

    async def meet(self, method: str, *arguments: object) -> None:
        """Let a fault happen in something that is no call of the store, such as a tool's body."""
        fault = self.claim(method, arguments)
        if fault is not None:
            await self._happen(fault, arguments)

    def meet_at_once(self, method: str, *arguments: object) -> None:
        """As `meet`, where nothing may be awaited: in workflow code. Only `kill` and `freeze`."""
        fault = self.claim(method, arguments)
        if fault is not None:
            self._write(fault.name, "{}")
            self._signal(fault)

    async def strike(
        self, fault: Fault, call: Callable[..., Awaitable[Any]], arguments: tuple[object, ...]
    ) -> Any:  # noqa: ANN401 - what the call returns
        """Make the call, with the fault before or after it; note what the store answered."""
        if fault.alters and fault.action != "repeat":
            arguments = tuple(map(_altered, arguments))
        if fault.when == "before":
            await self._happen(fault, arguments)
            self._fail(fault)
            return await self._answered(fault, call, arguments)
        result = await call(*arguments)
        await self._happen(fault, arguments)
        self._fail(fault)
        return result

    async def repeat(
        self, fault: Fault, call: Callable[..., Awaitable[Any]], arguments: tuple[object, ...]
    ) -> None:
        """Make a call again that was made long ago."""
        await self._until(fault)
        if fault.alters:
            arguments = tuple(map(_altered, arguments))
        with suppress(StoreError):  # nobody waits for it
            await self._answered(fault, call, arguments)

    def answer(self, name: str) -> str | None:
        """What the store said to the late call of that fault: a verdict or an error's type."""
        path = self.directory / f"{name}.answer"
        return path.read_text() if path.exists() else None

    def occasion(self, name: str) -> dict[str, Any]:
        """Where a fault has struck: run, length of the history, call."""
        found: dict[str, Any] = json.loads((self.directory / name).read_text() or "{}")
        return found

    async def _answered(
        self, fault: Fault, call: Callable[..., Awaitable[Any]], arguments: tuple[object, ...]
    ) -> Any:  # noqa: ANN401 - what the call returns
        try:
            result = await call(*arguments)
        except StoreError as error:
            self._write(f"{fault.name}.answer", type(error).__name__)
            raise
        answer = result.verdict if isinstance(result, CommitResult) else str(result)
        self._write(f"{fault.name}.answer", answer)
        return result

    async def _happen(self, fault: Fault, arguments: tuple[object, ...]) -> None:
        self._write(fault.name, json.dumps(_occasion(arguments)))
        match fault.action:
            case "delay":
                await asyncio.sleep(fault.seconds)  # noqa: TID251 - being late is the point
            case "fail":
                raise _away(fault)
            case "kill" | "freeze":
                self._signal(fault)
            case "wait":
                await self._until(fault)
            case "note" | "repeat":
                pass

    @staticmethod
    def _signal(fault: Fault) -> None:
        number = signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP
        os.kill(os.getpid(), number)

    async def _until(self, fault: Fault) -> None:
        while fault.until is None or not fault.until.exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(_LOOK_SECONDS)  # noqa: TID251 - no event tells us

    def _fail(self, fault: Fault) -> None:
        if fault.then_fails:
            raise _away(fault)

    def _write(self, name: str, text: str) -> None:
        """Whole or not at all: somebody looks for the file all the time."""
        new = self.directory / f"{name}.{os.getpid()}.new"
        new.write_text(text)
        new.replace(self.directory / name)


def _away(fault: Fault) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"fault {fault.name!r}: the store is away, {fault.when} {fault.method}"
    )


def _occasion(arguments: tuple[object, ...]) -> dict[str, object]:
    for each in arguments:
        if isinstance(each, Commit) and each.position:
            run_ids = [operation.run_id for operation in each.operations]
            return {
                "run_id": run_ids[0] if run_ids else None,
                "execution_id": each.position.execution_id,
                "number": each.position.number,
                "history_length": each.position.history_length,
            }
        if isinstance(each, ToolCallPlace):
            tokens = [getattr(other, "token", other) for other in arguments[1:2]]
            return {"run_id": each.run_id, "token": tokens[0] if tokens else None}
    return {}


def _altered(argument: object) -> object:
    """A commit of which the last operation is missing, or whose only one says something else."""
    if not isinstance(argument, Commit):
        return argument
    *others, last = argument.operations
    if others:
        return replace(argument, operations=tuple(others))
    return replace(argument, operations=(last.model_copy(update={"run_id": f"{last.run_id}-x"}),))


def with_faults(store: StepStore, plan: FaultPlan) -> StepStore:
    """The store, with the plan's faults in its calls."""
    return cast("StepStore", _FaultyStepStore(store, plan))


class _FaultyStepStore:
    """Passes everything on; what is asynchronous may be struck."""

    def __init__(self, store: Any, plan: FaultPlan) -> None:  # noqa: ANN401 - a part of it, too
        self._store = store
        self._plan = plan
        self._outliving: set[asyncio.Future[Any]] = set()

    def for_workspace(self, workspace_id: str) -> StepStore:
        return with_faults(self._store.for_workspace(workspace_id), self._plan)

    @property
    def attempts(self) -> AttemptStore:
        return cast("AttemptStore", _FaultyStepStore(self._store.attempts, self._plan))

    @property
    def streams(self) -> StreamStore:
        return cast("StreamStore", _FaultyStepStore(self._store.streams, self._plan))

    @property
    def conversations(self) -> ConversationStore:
        return cast("ConversationStore", _FaultyStepStore(self._store.conversations, self._plan))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        attribute = getattr(self._store, name)
        if not iscoroutinefunction(attribute):
            return attribute

        @wraps(attribute)
        async def call(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401 - the store's signature
            fault = self._plan.claim(name, args)
            done = partial(attribute, **keywords)
            return await (done(*args) if fault is None else self._strike(fault, done, args))

        return call

    async def _strike(
        self, fault: Fault, call: Callable[..., Awaitable[Any]], arguments: tuple[object, ...]
    ) -> Any:  # noqa: ANN401 - what the call returns
        struck = asyncio.ensure_future(self._plan.strike(fault, call, arguments))
        if fault.action == "repeat":
            self._outlive(asyncio.ensure_future(self._plan.repeat(fault, call, arguments)))
        if not fault.outlives_caller:
            return await struck
        self._outlive(struck)
        return await asyncio.shield(struck)

    def _outlive(self, future: "asyncio.Future[Any]") -> None:
        self._outliving.add(future)
        future.add_done_callback(self._outliving.discard)
