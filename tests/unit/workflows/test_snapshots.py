"""When a plain run saves its history, and what of it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability, Hooks
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import RunContext

from stores.memory import InMemoryStepStore
from stores.records import ContinuableSnapshot
from tests.helpers.eventually import eventually
from workflows.persistence import StepPersistence

OVERLOADED = ModelHTTPError(503, "model", "overloaded")


@pytest.fixture
def store() -> InMemoryStepStore:
    return InMemoryStepStore()


def persisted(store: InMemoryStepStore, **options: Any) -> StepPersistence[Any]:
    return StepPersistence(store=store, run_id="run", **options)


def scripted(*answers: list[str] | str | Exception) -> FunctionModel:
    """Its n-th response: calls of these tools, a text, or an error."""

    def respond(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(each, ModelResponse) for each in messages)
        answer = answers[turn]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return ModelResponse(parts=[TextPart(answer)])
        return ModelResponse(
            parts=[ToolCallPart(name, {}, tool_call_id=f"{turn}-{name}") for name in answer]
        )

    return FunctionModel(respond)


def agent_of(
    store: InMemoryStepStore, model: Any, *others: AbstractCapability[Any], **options: Any
) -> Agent[None, str]:
    agent = Agent(model, capabilities=[persisted(store, **options), *others])

    @agent.tool_plain
    async def good() -> str:
        return "done"

    @agent.tool_plain
    async def bad() -> str:
        async def sibling_has_ended() -> bool:
            effects = await store.list_tool_effects(run_id="run")
            return all(each.status == "completed" for each in effects if each.tool_name == "good")

        await eventually(sibling_has_ended)
        message = "no luck"
        raise ValueError(message)

    return agent


async def saved(store: InMemoryStepStore) -> list[tuple[int, str, int]]:
    """Step, state and length of each snapshot."""
    listed = await store.list_snapshots(run_id="run")
    return [(each.step_index, each.state, len(each.messages)) for each in listed]


async def kinds(store: InMemoryStepStore) -> list[str]:
    return [each.kind for each in await store.list_events(run_id="run")]


# At boundaries


@pytest.mark.spec("SP-8", "SP-22", "SP-24", "SP-31", "SP-127")
async def test_each_settled_batch_is_saved_with_its_results_before_the_next_request(
    store: InMemoryStepStore,
) -> None:
    at_requests: list[list[tuple[int, str, int]]] = []
    hooks = Hooks[Any]()

    @hooks.on.before_model_request
    async def look(_: Any, request_context: ModelRequestContext) -> ModelRequestContext:
        at_requests.append(await saved(store))
        return request_context

    model = scripted(["good"], ["good"], "end")
    result = await agent_of(store, model, hooks).run("go")
    assert at_requests == [[], [(1, "complete", 3)], [(1, "complete", 3), (2, "complete", 5)]]
    history = result.all_messages()
    listed = await store.list_snapshots(run_id="run")
    assert [each.messages for each in listed] == [history[:3], history[:5], history]
    keys = [each.idempotency_key for each in listed]
    assert keys == ["0:1:complete", "1:2:complete", "2:3:complete"]


@pytest.mark.spec("SP-32")
async def test_the_closing_response_of_a_stream_is_saved_at_the_end(
    store: InMemoryStepStore,
) -> None:
    async def stream(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str]:
        yield f"heard {len(messages)}"

    agent = Agent(FunctionModel(stream_function=stream), capabilities=[persisted(store)])
    async with agent.run_stream("go") as result:
        assert await result.get_output() == "heard 1"
        assert await saved(store) == []
    assert await saved(store) == [(1, "complete", 2)]
    latest = await store.latest_snapshot(run_id="run")
    assert latest is not None
    assert latest.messages == result.all_messages()
    assert (await kinds(store))[-1] == "run_completed"


@pytest.mark.spec("SP-124")
async def test_a_history_that_is_saved_already_is_not_saved_again_at_the_end(
    store: InMemoryStepStore,
) -> None:
    await agent_of(store, scripted("end")).run("go")
    assert await saved(store) == [(1, "complete", 2)]
    assert (await store.list_events(run_id="run"))[-1].step_index == 1


@dataclass
class Rewriting(AbstractCapability[Any]):
    """Changes the last message of the final history, or drops the first."""

    drops: bool = False

    async def after_run(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - the hook's signature
        *,
        result: AgentRunResult[Any],
    ) -> AgentRunResult[Any]:
        messages = result.all_messages()
        if self.drops:
            del messages[0]
        else:
            messages[-1] = ModelResponse(parts=[TextPart("redacted")])
        return result


@pytest.mark.spec("SP-107", "SP-108", "SP-113", "SP-124")
@pytest.mark.parametrize("drops", [False, True])
async def test_a_final_history_that_somebody_rewrites_is_saved_as_it_is_then(
    store: InMemoryStepStore,
    drops: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """After-hooks run in reverse order: the recorder stands first, so it comes last."""
    result = await agent_of(store, scripted("end"), Rewriting(drops=drops)).run("go")
    listed = await store.list_snapshots(run_id="run")
    assert [each.step_index for each in listed] == [1, 1]
    assert listed[1].messages == result.all_messages()
    assert listed[1].messages != listed[0].messages
    assert len(listed[1].messages) == (1 if drops else 2)


@pytest.mark.spec("SP-108")
async def test_a_recorder_that_stands_last_does_not_see_the_rewriting(
    store: InMemoryStepStore,
) -> None:
    agent = Agent(scripted("end"), capabilities=[Rewriting(), persisted(store)])
    await agent.run("go")
    assert await saved(store) == [(1, "complete", 2)]


@pytest.mark.spec("SP-109")
async def test_what_is_done_to_a_message_later_does_not_reach_its_snapshot(
    store: InMemoryStepStore,
) -> None:
    seen: list[ContinuableSnapshot] = []
    agent = agent_of(store, scripted(["good"], "end"))

    @agent.instructions
    async def spoil(ctx: RunContext[None]) -> str:
        if len(ctx.messages) > 1:
            seen.extend(await store.list_snapshots(run_id="run"))
            part = ctx.messages[0].parts[0]
            assert isinstance(part, UserPromptPart)
            part.content = "spoilt"
        return "be brief"

    await agent.run("go")
    (before, *_) = await store.list_snapshots(run_id="run")
    assert before.messages[0].parts[0] == seen[0].messages[0].parts[0]
    assert isinstance(before.messages[0].parts[0], UserPromptPart)
    assert before.messages[0].parts[0].content == "go"


# At a failure


@pytest.mark.spec("SP-33", "SP-125", "SP-126")
async def test_a_request_that_fails_after_a_settled_step_leaves_a_complete_history(
    store: InMemoryStepStore,
) -> None:
    with pytest.raises(ModelHTTPError):
        await agent_of(store, scripted(["good"], OVERLOADED)).run("go")
    assert await saved(store) == [(1, "complete", 3), (2, "complete", 3)]
    latest = await store.latest_snapshot(run_id="run")
    assert latest is not None
    (answer,) = latest.messages[-1].parts
    assert isinstance(answer, ToolReturnPart)
    assert (await kinds(store))[-2:] == ["model_request_failed", "run_failed"]
    failed, ended = (await store.list_events(run_id="run"))[-2:]
    assert failed.error == ended.error == repr(OVERLOADED)
    record = await store.get_run(run_id="run")
    assert record is not None
    assert record.state == "failed"


@pytest.mark.spec("SP-33", "SP-112", "SP-125", "SP-129", "SP-130")
async def test_a_tool_that_fails_leaves_every_completed_step_and_an_interrupted_history(
    store: InMemoryStepStore,
) -> None:
    with pytest.raises(ValueError, match="no luck"):
        await agent_of(store, scripted(["good"], ["good", "bad"])).run("go")
    states = await saved(store)
    assert [each[:2] for each in states] == [(1, "complete"), (2, "interrupted")]
    newest = await store.latest_snapshot(run_id="run", include_interrupted=True)
    assert newest is not None
    assert [part.part_kind for part in newest.messages[3].parts] == ["tool-call", "tool-call"]
    settled = await store.latest_snapshot(run_id="run")
    assert settled is not None
    assert newest.messages[:2] == settled.messages[:2]
    effects = await store.list_tool_effects(run_id="run")
    assert [(each.tool_name, each.status) for each in effects] == [
        ("good", "completed"),
        ("good", "completed"),
        ("bad", "failed"),
    ]
    assert effects[2].effect_summary == effects[2].error == "ValueError('no luck')"
    failed, ended = (await store.list_events(run_id="run"))[-2:]
    assert (failed.kind, failed.step_index) == ("tool_call_failed", 2)
    assert (ended.kind, ended.step_index) == ("run_failed", 2)
    assert failed.error == ended.error == "ValueError('no luck')"


@pytest.mark.spec("SP-113", "SP-125")
async def test_a_first_request_that_fails_leaves_nothing_but_its_prompt(
    store: InMemoryStepStore,
) -> None:
    with pytest.raises(ModelHTTPError):
        await agent_of(store, scripted(OVERLOADED)).run("go")
    assert await saved(store) == []
    assert await kinds(store) == [
        "run_started",
        "model_request_started",
        "model_request_failed",
        "run_failed",
    ]


@pytest.mark.spec("SP-103", "SP-104", "SP-113")
async def test_a_first_request_that_fails_keeps_its_prompt_with_the_frontier(
    store: InMemoryStepStore,
) -> None:
    with pytest.raises(ModelHTTPError):
        await agent_of(store, scripted(OVERLOADED), capture_frontier=True).run("go")
    assert await saved(store) == [(1, "complete", 1)] * 2
    latest = await store.latest_snapshot(run_id="run")
    assert latest is not None
    (prompt,) = latest.messages
    assert isinstance(prompt, ModelRequest)
    assert [part.content for part in prompt.parts if isinstance(part, UserPromptPart)] == ["go"]


@pytest.mark.spec("SP-126")
async def test_a_request_that_another_model_answers_leaves_no_failure_and_no_snapshot_of_it(
    store: InMemoryStepStore,
) -> None:
    model = FallbackModel(scripted(OVERLOADED), scripted("end"))
    await agent_of(store, model).run("go")
    assert await saved(store) == [(1, "complete", 2)]
    assert "model_request_failed" not in await kinds(store)


@pytest.mark.spec("SP-126")
async def test_a_request_that_a_hook_answers_is_a_failure_of_the_request_alone(
    store: InMemoryStepStore,
) -> None:
    hooks = Hooks[Any]()

    @hooks.on.model_request_error
    async def answer(_: Any, **__: Any) -> ModelResponse:
        return ModelResponse(parts=[TextPart("sorry")])

    agent = Agent(scripted(OVERLOADED), capabilities=[hooks, persisted(store)])
    assert (await agent.run("go")).output == "sorry"
    assert await saved(store) == [(1, "complete", 2)]
    found = await kinds(store)
    assert "model_request_failed" in found
    assert found[-1] == "run_completed"
