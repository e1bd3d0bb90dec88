"""What every conversation of the sweep says, and the agent that answers it as scripted."""

import re
from collections.abc import AsyncIterator, Sequence

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models.function import (
    AgentInfo,
    DeltaToolCall,
    DeltaToolCalls,
    FunctionModel,
)

from cli.sweep.script import AGENTS, MODEL, SOON, Call, Scene, look, mark
from workflows.durable import durable
from workflows.effects import effect

TALKER = "talker"

TALK: dict[str, Sequence[Sequence[Call]]] = {
    "one": ((("mark", SOON),),),
    "two": ((("look", SOON), ("mark", SOON)),),
    "three": (),
}
"""By message, which is its own id, the steps of the answer; then a text that names it.

The last two are said at once, so one waits; between them the workflow continues as new.
"""

RECYCLE_TURNS = 2


def reply_to(message: str, memory: int) -> str:
    """The answer; it tells how many turns the model was shown."""
    return f"This is the answer to {message} of {memory} turns"


async def _speak(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    said, done = _newest(messages)
    if Scene.plan is not None:
        await Scene.plan.meet(f"model:{said[-1]}:{done}")
    steps = TALK[said[-1]]
    if done == len(steps):
        for word in re.findall(r"\S+\s*", reply_to(said[-1], len(said))):
            yield word
        return
    for index, (tool, seconds) in enumerate(steps[done]):
        call_id = f"call-{said[-1]}-{index}"
        arguments = f'{{"seconds": {seconds}}}'
        yield {index: DeltaToolCall(name=tool, json_args=arguments, tool_call_id=call_id)}


def _newest(messages: list[ModelMessage]) -> tuple[list[str], int]:
    """What was said, and how many responses came since."""
    said: list[str] = []
    done = 0
    for message in messages:
        if isinstance(message, ModelResponse):
            done += 1
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart):
                said.append(str(part.content))
                done = 0
    return said, done


async def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """The same where nobody streams."""
    parts: list[ModelResponsePart] = []
    async for each in _speak(messages, info):
        if isinstance(each, str):
            parts.append(TextPart(each))
            continue
        for call in each.values():
            name, arguments = call.name or "", call.json_args
            parts.append(ToolCallPart(name, arguments, tool_call_id=call.tool_call_id or ""))
    return ModelResponse(parts)


def _made() -> Agent[None, str]:
    agent = Agent(
        FunctionModel(_answer, stream_function=_speak, model_name="script"),
        name=TALKER,
        capabilities=[*durable(activities=MODEL)],
        deps_type=type(None),
    )
    agent.tool(metadata=effect("read"))(look)
    agent.tool(metadata=effect("idempotent"))(mark)
    return agent


SERVED = [*AGENTS, _made()]
"""What a worker of either sweep serves."""
