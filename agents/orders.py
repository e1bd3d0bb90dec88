"""The agent `orders`: has each line of its prompt handled by a delegate, all at the same time.

The delegates are runs of the agent `scripted`; no model and no key are needed.
"""

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from agents.scripted import agent as scripted
from workflows.delegates import delegate
from workflows.durable import durable


def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """What a model would: one delegation for each line, then what all of them have said."""
    newest = messages[-1].parts
    said = [str(part.content) for part in newest if isinstance(part, ToolReturnPart)]
    if said:
        return ModelResponse(parts=[TextPart("\n".join(said))])
    prompts = [str(part.content) for part in newest if isinstance(part, UserPromptPart)]
    lines = [line.strip() for prompt in prompts for line in prompt.splitlines() if line.strip()]
    calls = [
        ToolCallPart("ask_scripted", {"prompt": line}, tool_call_id=f"order-{len(messages)}-{n}")
        for n, line in enumerate(lines)
    ]
    if not calls:
        return ModelResponse(parts=[TextPart("There is no order.")])
    return ModelResponse(parts=calls)


agent = Agent(
    FunctionModel(answer, model_name="orders"),
    name="orders",
    tools=[delegate(scripted, description="Handles one order, such as 3 brass lamps to Oslo.")],
    capabilities=[*durable()],
)
