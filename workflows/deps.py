"""Deps by reference: JSON in the run's input, live objects on the worker.

An agent with a `deps_factory` gets what that makes, in each of its activities. Its workflow holds a
`DepsReference`, and so do the inputs of its activities, instead of a copy each. The value itself is
where it was submitted: in the first event of the run's execution.
"""

import asyncio
import hashlib
import inspect
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, PrivateAttr, TypeAdapter
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

CACHED_VALUES = 64
"""Values that a worker remembers: those of the runs that it works on at a time."""


class DepsReference(BaseModel):
    """The deps of a run, by the agent that they are for and the digest of their JSON.

    Frozen: histories hold it. Code that runs in the workflow (dynamic instructions, hooks, tools
    with `temporal: False`) finds one in `ctx.deps`; its `value` is what was submitted, validated.
    """

    model_config = ConfigDict(frozen=True)

    agent: str
    digest: str
    _value: Any = PrivateAttr(default=None)

    @property
    def value(self) -> Any:  # noqa: ANN401 - whatever the factory takes
        """What was submitted, as the factory takes it. Only in the workflow."""
        return self._value

    @classmethod
    def to(cls, agent: str, submitted: object, value: object) -> "DepsReference":
        """A reference to what was submitted as JSON and validated to `value`."""
        reference = cls(agent=agent, digest=digest_of(submitted))
        reference._value = value
        return reference


def digest_of(submitted: object) -> str:
    """SHA-256 (hex) over canonical JSON."""
    text = json.dumps(submitted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class DepsFactory:
    """What makes an agent's deps, and the type of what it takes."""

    build: Callable[[Any], Any]
    input_type: Any

    @classmethod
    def of(cls, build: Callable[[Any], Any]) -> "DepsFactory":
        """Read the type from the annotation of the factory's first parameter.

        Raises:
            ValueError: it has no parameter, or no annotation.
        """
        parameters = list(inspect.signature(build, eval_str=True).parameters.values())
        if not parameters or parameters[0].annotation is inspect.Parameter.empty:
            message = (
                f"deps_factory {build!r} needs one parameter with an annotation: it says what the "
                "deps of a run's input have to be, as in `def make(settings: Settings) -> Deps`"
            )
            raise ValueError(message)
        return cls(build=build, input_type=parameters[0].annotation)

    def validated(self, submitted: object) -> Any:  # noqa: ANN401 - of `input_type`
        """What the factory takes, of JSON.

        Raises:
            pydantic.ValidationError: it does not fit.
        """
        return TypeAdapter[Any](self.input_type).validate_python(submitted)

    async def live(self, submitted: object) -> Any:  # noqa: ANN401 - whatever it makes
        """What the factory makes of JSON; made anew at each call."""
        made = self.build(self.validated(submitted))
        return await made if inspect.isawaitable(made) else made


FindFactory = Callable[[str], DepsFactory | None]


class DepsInterceptor(Interceptor):
    """Gives activities live deps in place of references.

    Args:
        find_factory: an agent's factory, by its name.
        input_type: of the workflow whose input holds the deps, in its field `deps`.
    """

    def __init__(self, find_factory: FindFactory, input_type: type[BaseModel]) -> None:
        self._find_factory = find_factory
        self._values = _SubmittedDeps(input_type)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Wrap the chain."""
        return _DepsInbound(next, self._find_factory, self._values)


class _DepsInbound(ActivityInboundInterceptor):
    def __init__(
        self,
        next: ActivityInboundInterceptor,  # noqa: A002 - the SDK's name
        find_factory: FindFactory,
        values: "_SubmittedDeps",
    ) -> None:
        super().__init__(next)
        self._find_factory = find_factory
        self._values = values

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        if any(isinstance(each, DepsReference) for each in input.args):
            input.args = [
                await self._live(each) if isinstance(each, DepsReference) else each
                for each in input.args
            ]
        return await super().execute_activity(input)

    async def _live(self, reference: DepsReference) -> object:
        factory = self._find_factory(reference.agent)
        if factory is None:
            message = (
                f"agent {reference.agent!r} has no deps_factory on this worker, and its run was "
                "started with one; give it back, or reset the run to its start"
            )
            raise ApplicationError(message, type="InvalidDepsError", non_retryable=True)
        return await factory.live(await self._values.find(reference.digest))


class _SubmittedDeps:
    """Deps as they were submitted, remembered by their digests."""

    def __init__(self, input_type: type[BaseModel]) -> None:
        self._input_type = input_type
        self._known: OrderedDict[str, object] = OrderedDict()
        self._reading = asyncio.Lock()

    async def find(self, digest: str) -> object:
        """The deps of the run that this activity is for.

        Raises:
            ApplicationError: the input holds other deps. Not retryable.
            temporalio.service.RPCError: Temporal does not answer.
        """
        async with self._reading:  # calls side by side read them once
            if digest not in self._known:
                self._known[digest] = await self._read(digest)
            self._known.move_to_end(digest)
            while len(self._known) > CACHED_VALUES:
                self._known.popitem(last=False)
            return self._known[digest]

    async def _read(self, digest: str) -> object:
        """Read the first event of this activity's execution, which holds the input."""
        info, client = activity.info(), activity.client()
        request = GetWorkflowExecutionHistoryRequest(
            namespace=client.namespace,
            execution=WorkflowExecution(
                workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or ""
            ),
            maximum_page_size=1,
        )
        page = await client.workflow_service.get_workflow_execution_history(request)
        started = page.history.events[0].workflow_execution_started_event_attributes
        decoded = await client.data_converter.decode(started.input.payloads, [self._input_type])
        submitted: object = getattr(decoded[0], "deps", None)
        if digest_of(submitted) != digest:
            message = (
                f"run {info.workflow_id!r}: the deps in its input are not those that activity "
                f"{info.activity_type!r} was scheduled for (digest {digest[:12]})"
            )
            raise ApplicationError(message, type="InvalidDepsError", non_retryable=True)
        return submitted
