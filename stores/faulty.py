"""Faults on purpose: a step store that is slow, fails or dies at named calls.

It wraps any store, which knows nothing of it, so that a test can put a crash exactly between a
write and its report. Nothing of production refers to it.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict

from stores.attempts import AttemptStore
from stores.commits import Commit
from stores.conversations import ConversationStore
from stores.errors import StoreUnavailableError
from stores.operations import AppendEvent, Write
from stores.protocols import StepStore

_LOOK_SECONDS = 0.01
"""Between two looks for the file that a `wait` waits for."""


class Fault(BaseModel):
    """One thing that goes wrong, once, at the first call that it fits.

    Args:
        name: of the fault, and of the file that says it has happened.
        action: `delay` by `seconds`; `fail` as if MongoDB were away; `kill` this process with
            SIGKILL; `wait` until the file `until` exists, without one for ever.
        when: `before` the call is made, or `after` it was done and before its caller hears of it.
        method: the store's method, or its attempts': `enter`, `leave`.
        run_id: only a commit that holds an operation of this run.
        holds: only a commit that holds such a boundary (`register_run`) or event (`run_completed`).
        outlives_caller: the call goes on, fault and all, when its caller is cancelled by a timeout:
            what a server does with a request that it has received.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    action: Literal["delay", "fail", "kill", "wait"]
    when: Literal["before", "after"] = "before"
    method: str = "commit"
    run_id: str | None = None
    holds: str | None = None
    seconds: float = 0
    until: Path | None = None
    outlives_caller: bool = False

    def fits(self, method: str, arguments: tuple[object, ...]) -> bool:
        """Whether this call is one that the fault is about."""
        if method != self.method:
            return False
        if self.run_id is None and self.holds is None:
            return True
        commits = (each for each in arguments if isinstance(each, Commit))
        return any(self._is_about(each) for commit in commits for each in commit.operations)

    def _is_about(self, operation: Write) -> bool:
        names = {operation.kind, *([operation.event] if isinstance(operation, AppendEvent) else [])}
        return self.run_id in {None, operation.run_id} and self.holds in {None, *names}


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

    async def strike(self, fault: Fault, call: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - what the call returns
        """Make the call, with the fault before or after it."""
        if fault.when == "before":
            await self._happen(fault)
            return await call()
        result = await call()
        await self._happen(fault)
        return result

    async def _happen(self, fault: Fault) -> None:
        (self.directory / fault.name).touch()
        match fault.action:
            case "delay":
                await asyncio.sleep(fault.seconds)  # noqa: TID251 - being late is the point
            case "fail":
                message = f"fault {fault.name!r}: the store is away, {fault.when} {fault.method}"
                raise StoreUnavailableError(message)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "wait":
                while fault.until is None or not fault.until.exists():  # noqa: ASYNC110 - another process makes it
                    await asyncio.sleep(_LOOK_SECONDS)  # noqa: TID251 - no event tells us


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
    def conversations(self) -> ConversationStore:
        return cast("ConversationStore", _FaultyStepStore(self._store.conversations, self._plan))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        attribute = getattr(self._store, name)
        if not iscoroutinefunction(attribute):
            return attribute

        @wraps(attribute)
        async def call(*args: Any, **keywords: Any) -> Any:  # noqa: ANN401 - the store's signature
            fault = self._plan.claim(name, args)
            done = partial(attribute, *args, **keywords)
            return await (done() if fault is None else self._strike(fault, done))

        return call

    async def _strike(self, fault: Fault, call: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - what the call returns
        struck = asyncio.ensure_future(self._plan.strike(fault, call))
        if not fault.outlives_caller:
            return await struck
        self._outliving.add(struck)
        struck.add_done_callback(self._outliving.discard)
        return await asyncio.shield(struck)
