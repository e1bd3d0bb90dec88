"""An agent whose model speaks word by word, as its prompt says.

The prompt is JSON: `{"steps": ["Let me look."], "final": "It is so.", "pause": 0.01}`. Each step is
a text and a call of `note`; then comes the final text. At word number `stop_at` of the final text
the model touches the file `marker` and `how` fails or hangs, unless the file was there before.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Literal

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
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel

from workflows.durable import durable


def speech(
    final: str,
    *,
    steps: Sequence[str] = (),
    pause: float = 0.0,
    stop_at: int = -1,
    marker: Path | None = None,
    how: Literal["fail", "hang"] = "fail",
) -> str:
    """The prompt that makes the model say that."""
    return json.dumps(
        {
            "steps": list(steps),
            "final": final,
            "pause": pause,
            "stop_at": stop_at,
            "marker": str(marker),
            "how": how,
        }
    )


def words(text: str) -> list[str]:
    """The deltas that a text comes in."""
    return re.findall(r"\S+\s*", text)


async def speak(messages: list[ModelMessage], _: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
    """The model."""
    plan: dict[str, Any] = {}
    done = 0
    for message in messages:
        if isinstance(message, ModelResponse):
            done += 1
            continue
        for part in message.parts:
            if isinstance(part, UserPromptPart) and isinstance(part.content, str):
                plan, done = json.loads(part.content), 0
    if done < len(plan["steps"]):
        async for word in _said(plan["steps"][done], plan, stop_at=-1):
            yield word
        turn = sum(isinstance(message, ModelRequest) for message in messages)
        yield {0: DeltaToolCall(name="note", json_args="{}", tool_call_id=f"call-{turn}")}
        return
    async for word in _said(plan["final"], plan, stop_at=plan["stop_at"]):
        yield word


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """The same where nobody streams."""
    parts: list[ModelResponsePart] = []
    text = ""
    async for each in speak(messages, info):
        if isinstance(each, str):
            text += each
            continue
        call = each[0]
        assert isinstance(call, DeltaToolCall)
        parts.append(ToolCallPart(call.name or "", "{}", tool_call_id=call.tool_call_id or ""))
    return ModelResponse(parts=[TextPart(text), *parts])


SPEAKING = FunctionModel(answer, stream_function=speak)


async def _said(text: str, plan: dict[str, Any], *, stop_at: int) -> AsyncIterator[str]:
    for number, word in enumerate(words(text)):
        if number == stop_at and not Path(plan["marker"]).exists():
            Path(plan["marker"]).touch()
            if plan["how"] == "hang":
                await asyncio.Event().wait()
            message = "lost the connection"
            raise RuntimeError(message)
        await asyncio.sleep(plan["pause"])
        yield word


def make_speaker(
    name: str = "speaker", *, model: Model | None = None, **options: Any
) -> Agent[None, str]:
    """An agent of that name; `options` go to `durable`."""
    agent = Agent(model or SPEAKING, name=name, capabilities=durable(**options))

    @agent.tool_plain(metadata={"effect": "read"})
    async def note() -> str:
        """Do nothing."""
        return "noted"

    return agent
