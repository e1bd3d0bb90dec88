"""The sandbox that workers run workflows in: as strict as the SDK's, and entered less often."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, WorkflowFailureError
from temporalio.converter import (
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
)
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker, WorkflowInstance
from temporalio.worker.workflow_sandbox._restrictions import RestrictedWorkflowAccessError

from converter import DATA_CONVERTER
from sandbox import ContextFreeSandboxRunner, workflow_runner
from tests.helpers.sandboxed_workflows import (
    LOCAL_ACTIVITIES,
    ClockWorkflow,
    LocalActivitiesWorkflow,
    repeat,
)

pytestmark = pytest.mark.integration

WITHIN = timedelta(seconds=20)


class PlainCodec(PayloadCodec):
    """Turns payloads around."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [Payload(metadata=each.metadata, data=each.data[::-1]) for each in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self.encode(payloads)


class ContextualCodec(PlainCodec, WithSerializationContext):
    """Wants to know what its payloads are for."""

    def with_context(self, context: SerializationContext) -> "ContextualCodec":  # noqa: ARG002
        return self


async def execute(client: Client, task_queue: str, run: Callable[..., Any]) -> Any:
    """The result of a workflow under a worker's sandbox."""
    async with Worker(
        client,
        task_queue=task_queue,
        workflows=[ClockWorkflow, LocalActivitiesWorkflow],
        activities=[repeat],
        workflow_runner=workflow_runner(client.data_converter),
        workflow_failure_exception_types=[RestrictedWorkflowAccessError],
    ):
        return await client.execute_workflow(
            run, id=uuid4().hex, task_queue=task_queue, execution_timeout=WITHIN
        )


async def test_a_clock_read_in_a_workflow_is_refused(temporal: Client, task_queue: str) -> None:
    with pytest.raises(WorkflowFailureError) as failure:
        await execute(temporal, task_queue, ClockWorkflow.run)

    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == RestrictedWorkflowAccessError.__name__
    assert "time.time" in cause.message


async def test_the_sandbox_is_entered_once_for_each_activation(
    temporal: Client, task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails where a new version of the SDK asks the sandbox in another way."""
    codes: list[str] = []
    sandbox = import_module("temporalio.worker.workflow_sandbox._runner")._Instance
    enter = sandbox._run_code

    def counted(instance: object, code: str, **extra: Any) -> None:
        codes.append(code)
        enter(instance, code, **extra)

    monkeypatch.setattr(sandbox, "_run_code", counted)
    assert await execute(temporal, task_queue, LocalActivitiesWorkflow.run) == "word"

    run = [code for code in codes if "activate" in code]
    made = [code for code in codes if "__temporal_workflow_class" in code]
    assert len(run) >= LOCAL_ACTIVITIES
    assert len(codes) == len(run) + len(made)


def test_the_sdk_asks_for_contexts_as_it_did_when_the_sandbox_was_written() -> None:
    """When this fails, read the SDK's converter again and compare with `sandbox`."""
    converter: type = import_module("temporalio.worker._workflow")._CommandAwareDataConverter
    members: dict[str, object] = dict(vars(converter))
    asks = {
        name: set(value.__code__.co_names) & set(vars(WorkflowInstance))
        for name, value in members.items()
        if inspect.isfunction(value) and "__" not in name
    }

    encoding = ("encode_payload", "encode_reference_payload", "external_store_payload")
    decoding = ("decode_payload", "decode_reference_payload", "external_retrieve_payload")
    known: dict[str, set[str]] = {f"_{each}_sequence": set() for each in (*encoding, *decoding)}
    known["_external_store_payload_sequence"] = {"get_external_store_context"}
    known["_get_current_dc"] = {"get_serialization_context"}
    assert asks == known


@pytest.mark.parametrize(
    ("codec", "is_free"), [(None, True), (PlainCodec(), True), (ContextualCodec(), False)]
)
def test_only_a_codec_that_asks_for_contexts_gets_the_dearer_sandbox(
    codec: PayloadCodec | None, *, is_free: bool
) -> None:
    runner = workflow_runner(replace(DATA_CONVERTER, payload_codec=codec))
    assert isinstance(runner, ContextFreeSandboxRunner) == is_free


async def test_a_codec_without_a_context_sees_every_payload(
    temporal: Client, task_queue: str
) -> None:
    config = temporal.config()
    config["data_converter"] = replace(DATA_CONVERTER, payload_codec=PlainCodec())

    assert await execute(Client(**config), task_queue, LocalActivitiesWorkflow.run) == "word"
