"""What a history lacks of tool calls that somebody decided on after their run was over.

Such a decision is in the ledger alone. The run that goes on from there tells its model, as the
tool's answer; else the model would make the call again.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeGuard, cast

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    ToolCallPart,
    ToolReturnPart,
)

from stores.decisions import RESOLVED_BY
from stores.digests import arguments_digest
from stores.records import ToolEffectRecord

SUMMARY_KEY = "perdure_arguments_summary"
"""Stands for the arguments of a call that only the ledger knows, where it has their beginning."""

_MADE_UP = "pydantic_ai_synthesized_tool_return"
"""In the metadata of a return that the core made up."""


def is_made_up(part: ModelRequestPart | ModelResponsePart) -> TypeGuard[ToolReturnPart]:
    """Whether it is a return that the core made up for a call that was cut off: no answer."""
    if not isinstance(part, ToolReturnPart):
        return False
    metadata: object = part.metadata
    return isinstance(metadata, dict) and _MADE_UP in metadata


def is_decided(effect: ToolEffectRecord) -> bool:
    """Whether somebody said what became of the call, and the ledger kept what the model is told."""
    if effect.status != "resolved":
        return False
    said = effect.resolution
    return effect.error is not None or (said is not None and said.result is not None)


def with_answers(
    messages: Sequence[ModelMessage], decided: Sequence[ToolEffectRecord], *, until: int
) -> list[ModelMessage]:
    """The history with an answer for each of the decided calls, none of which it answers yet.

    A call that the history holds is answered behind it. One that came later, and that only the
    ledger knows, goes to the end with its answer, unless calls wait there.

    Args:
        messages: as they were saved.
        decided: in the order of the run.
        until: the place in that order where the history was saved. A call before it which the
            history does not hold was taken out of it.
    """
    history = list(messages)
    unheard = [each for each in decided if not _answer(history, each) and each.sequence > until]
    last = history[-1] if history else None
    if isinstance(last, ModelResponse) and last.tool_calls:
        return history
    for _, step in groupby(unheard, key=lambda each: each.step_index):
        effects = list(step)
        history += [
            ModelResponse(
                parts=[_call_of(each) for each in effects],
                timestamp=effects[0].started_at,
                metadata={RESOLVED_BY: {"from": "ledger"}},
            ),
            ModelRequest(parts=[_return_of(each) for each in effects]),
        ]
    return history


def _answer(history: list[ModelMessage], effect: ToolEffectRecord) -> bool:
    """Answer the newest call of that id in the history; `False` when it holds none."""
    for index in range(len(history) - 1, -1, -1):
        message = history[index]
        if isinstance(message, ModelRequest):
            parts = [
                _return_of(effect)
                if is_made_up(part) and part.tool_call_id == effect.tool_call_id
                else part
                for part in message.parts
            ]
            if parts != list(message.parts):
                history[index] = replace(message, parts=parts)
                return True
        elif any(call.tool_call_id == effect.tool_call_id for call in message.tool_calls):
            history.insert(index + 1, ModelRequest(parts=[_return_of(effect)]))
            return True
    return False


def _return_of(effect: ToolEffectRecord) -> ToolReturnPart:
    said = effect.resolution or effect.approval
    part = ToolReturnPart(
        effect.tool_name,
        content=effect.error or "",
        tool_call_id=effect.tool_call_id,
        metadata={RESOLVED_BY: {"by": said.by, "why": said.why}} if said else None,
        timestamp=effect.ended_at or effect.started_at,
        outcome="denied" if effect.resolution is None else "failed",
    )
    if effect.resolution is None or effect.resolution.result is None:
        return part
    return replace(part, content=json.loads(effect.resolution.result), outcome="success")


def _call_of(effect: ToolEffectRecord) -> ToolCallPart:
    return ToolCallPart(effect.tool_name, _arguments_of(effect), tool_call_id=effect.tool_call_id)


def _arguments_of(effect: ToolEffectRecord) -> dict[str, Any]:
    """The arguments where the summary is all of them, else what is known of them."""
    summary = effect.arguments_summary or "{}"
    if arguments_digest(summary) == effect.arguments_digest:
        arguments: object = json.loads(summary)
        if isinstance(arguments, dict):
            return cast("dict[str, Any]", arguments)
    return {SUMMARY_KEY: summary}
