"""Streaming outside the history: a model activity that tells readers what the model says.

The workflow knows nothing of it but a mark in the lineage header, so a run that streams has the
commands of one that does not.
"""

import copy
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponseStreamEvent,
    NativeToolCallPart,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from activities.streaming import DEFAULT_LIFETIME, StreamWriter, current_stream
from stores.protocols import StepStore
from stores.streaming import StreamTake
from workflows.lineage import Lineage, current_scope


class StreamInterceptor(Interceptor):
    """Gives model activities of runs that stream a writer.

    Args:
        store: the worker's; the text goes to the workspace of each run.
        lifetime: how long it is kept.
    """

    def __init__(self, store: StepStore, *, lifetime: timedelta = DEFAULT_LIFETIME) -> None:
        self._store = store
        self._lifetime = lifetime

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Wrap the chain."""
        return _StreamInbound(next, self._store, self._lifetime)


class _StreamInbound(ActivityInboundInterceptor):
    def __init__(
        self,
        next: ActivityInboundInterceptor,  # noqa: A002 - the SDK's name
        store: StepStore,
        lifetime: timedelta,
    ) -> None:
        super().__init__(next)
        self._store = store
        self._lifetime = lifetime

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002, ANN401 - the SDK's
        scope = current_scope.get()
        take = _take(scope.lineage) if scope else None
        if scope is None or take is None:
            return await super().execute_activity(input)
        store = self._store.for_workspace(scope.lineage.workspace_id)
        writer = StreamWriter(
            store.streams, take, lifetime=self._lifetime, redactor=store.redaction.redactor
        )
        token = current_stream.set(writer)
        is_whole = False
        try:
            result = await super().execute_activity(input)
            is_whole = True
        finally:
            current_stream.reset(token)
            writer.close(is_whole=is_whole)
        return result


def _take(lineage: Lineage) -> StreamTake | None:
    """This attempt; `None` when it asks no model, or its run does not stream."""
    info = activity.info()
    if lineage.run_id is None or lineage.request is None or info.workflow_run_id is None:
        return None
    return StreamTake(
        run_id=lineage.run_id,
        branch=info.workflow_run_id,
        request=lineage.request,
        part=lineage.request_part,
        attempt=info.attempt,
        started_at=info.started_time,
    )


def streamed(model: Model) -> Model | None:
    """The model as one that tells what it says; `None` where nobody listens."""
    writer = current_stream.get()
    return None if writer is None else StreamedModel(model, writer)


class StreamedModel(WrapperModel):
    """Answers a request by streaming it, and writes each delta on the way.

    A model that cannot stream is asked as ever, and its text is one delta. Of a `FallbackModel`
    each model streams by itself, so that one that fails in the middle is followed by the next.
    """

    def __init__(self, wrapped: Model, writer: StreamWriter) -> None:
        super().__init__(wrapped)
        self._writer = writer
        self._has_text = False
        """Since the last mark."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """The whole response."""
        arguments = (messages, model_settings, model_request_parameters)
        if isinstance(self.wrapped, FallbackModel):
            models = copy.copy(self.wrapped)
            models.models = [StreamedModel(each, self._writer) for each in models.models]
            return await models.request(*arguments)
        self._writer.restart()
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(self.wrapped.request_stream(*arguments))
            except (NotImplementedError, AssertionError):  # the latter by a `FunctionModel`
                return self._tell_whole(await self.wrapped.request(*arguments))
            async for event in response:
                self._tell(event)
            self._tell_end(response.get())
        return response.get()  # again, for what closing the stream filled in

    def _tell(self, event: ModelResponseStreamEvent) -> None:
        match event:
            case PartStartEvent(part=TextPart(content=text)):
                self._tell_text(text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                self._tell_text(text)
            case PartStartEvent(part=ToolCallPart() | NativeToolCallPart()):
                self._mark()
            case _:
                pass

    def _tell_whole(self, response: ModelResponse) -> ModelResponse:
        for part in response.parts:
            self._tell(PartStartEvent(index=0, part=part))
        self._tell_end(response)
        return response

    def _tell_end(self, response: ModelResponse) -> None:
        if response.tool_calls:
            self._mark()

    def _tell_text(self, text: str) -> None:
        if text:
            self._writer.write("text", text)
            self._has_text = True

    def _mark(self) -> None:
        """Text in front of a call is not of the reply."""
        if self._has_text:
            self._writer.write("step_text")
            self._has_text = False
