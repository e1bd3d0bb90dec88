"""Continuing a plain run: what the store gives is a message history like any other."""

from collections.abc import Awaitable, Callable

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import FunctionModel

from stores.continuing import continue_run, fork_run
from stores.memory import InMemoryStepStore
from tests.helpers.script import follow
from workflows.persistence import StepPersistence


@pytest.mark.spec("SP-30")
@pytest.mark.parametrize("go_on_from", [continue_run, fork_run])
async def test_a_stored_history_goes_in_as_the_message_history(
    go_on_from: Callable[..., Awaitable[list[ModelMessage]]],
) -> None:
    store = InMemoryStepStore()
    agent = Agent(FunctionModel(follow))
    prompt = '{"steps": [], "final": "first"}'
    await agent.run(prompt, capabilities=[StepPersistence(store=store, run_id="run")])

    history = await go_on_from(store, run_id="run")
    result = await agent.run(prompt, message_history=history)

    assert result.all_messages()[: len(history)] == history
    assert result.new_messages() == result.all_messages()[len(history) :]
