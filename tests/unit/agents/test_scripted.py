from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, FunctionModel

from agents.scripted import agent, answer


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DEMO_PAUSE_SECONDS", "0")


def calls_of(messages: list[ModelMessage]) -> list[list[ToolCallPart]]:
    """The tool calls of each response that has any."""
    responses = [message for message in messages if isinstance(message, ModelResponse)]
    calls = [
        [part for part in response.parts if isinstance(part, ToolCallPart)]
        for response in responses
    ]
    return [each for each in calls if each]


async def effects_of_tools() -> dict[str, str]:
    """What each tool declares, as a model is told of it."""
    effects: dict[str, str] = {}

    def look(_: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        for tool in info.function_tools:
            effects[tool.name] = (tool.metadata or {})["effect"]
        return ModelResponse([TextPart("seen")])

    with agent.override(model=FunctionModel(look)):
        await agent.run("Show your tools.")
    return effects


async def test_an_order_takes_six_steps_of_which_one_is_parallel() -> None:
    result = await agent.run("3 brass lamps to Oslo")

    assert [[call.tool_name for call in calls] for calls in calls_of(result.all_messages())] == [
        ["find_item"],
        ["check_stock", "quote_shipping", "find_discount"],
        ["reserve_stock"],
        ["charge_card"],
        ["book_courier"],
        ["send_confirmation"],
    ]


async def test_the_order_is_read_from_the_prompt() -> None:
    result = await agent.run("3 brass lamps to Oslo.")

    [[find], [_, quote, _], *_] = calls_of(result.all_messages())
    assert find.args_as_dict() == {"name": "brass lamps"}
    assert quote.args_as_dict() == {"city": "Oslo", "quantity": 3}


@pytest.mark.parametrize("prompt", ["", "12", "hello\nworld", "to Rome", "1 x to ", "9" * 5000])
async def test_any_prompt_is_an_order(prompt: str) -> None:
    result = await agent.run(prompt)

    assert result.output.startswith(f"Order for {prompt!r} is on its way")


async def test_equal_prompts_are_answered_equally_and_others_are_not() -> None:
    first, again, other = [
        (await agent.run(prompt)).output
        for prompt in ("2 chairs to Rome", "2 chairs to Rome", "2 tables to Rome")
    ]

    assert first == again
    assert first != other


async def test_a_further_turn_is_an_order_of_its_own() -> None:
    first = await agent.run("2 chairs to Rome")

    second = await agent.run("1 lamp to Oslo", message_history=first.all_messages())

    assert second.output == (await agent.run("1 lamp to Oslo")).output
    ids = [call.tool_call_id for calls in calls_of(second.all_messages()) for call in calls]
    assert len(ids) == len(set(ids)) == 16


async def test_when_a_result_is_lost_only_the_missing_call_is_made_again() -> None:
    result = await agent.run("2 chairs to Rome")
    history = result.all_messages()[:5]
    returned = history[-1]
    assert isinstance(returned, ModelRequest)
    info = AgentInfo(
        function_tools=[],
        allow_text_output=True,
        output_tools=[],
        model_settings=None,
        model_request_parameters=ModelRequestParameters(),
        instructions=None,
    )

    lost = replace(returned, parts=[returned.parts[0], returned.parts[2]])

    response = answer([*history[:-1], lost], info)
    assert [call.tool_name for call in response.tool_calls] == ["quote_shipping"]


async def test_each_run_of_a_tool_body_is_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERDURE_DEMO_EFFECTS_FILE", str(tmp_path / "effects"))

    await agent.run("2 chairs to Rome")
    await agent.run("2 chairs to Rome")

    counted = Counter((tmp_path / "effects").read_text().split())
    assert counted == dict.fromkeys(await effects_of_tools(), 2)


@pytest.mark.spec("SP-43")
async def test_every_tool_declares_its_effect() -> None:
    effects = await effects_of_tools()

    assert Counter(effects.values()) == {"read": 4, "idempotent": 4}
