"""What both sides search: one conversation, cut from the sources of installed packages."""

import json
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

PACKAGES = Path(json.__file__).parents[1]
"""Python's own library: the same on every machine with that Python."""

MESSAGES_OF_RUN = 20
WINDOW = 40
START = datetime(2026, 1, 1, tzinfo=UTC)

Run = list[list[ModelMessage]]
"""A run: the history of each of its snapshots."""


def texts() -> Iterator[str]:
    """Paragraphs of about 450 characters, without an end."""
    while True:
        for path in sorted(PACKAGES.glob("*.py")):
            source = path.read_text(errors="replace")
            for start in range(0, len(source), 450):
                yield source[start : start + 450]


def runs_of(messages: int, shape: str) -> Iterator[Run]:
    """Runs of 20 messages: `flat` saves each once, `steps` after each step, `window` with the last
    40 of the conversation before it.
    """
    source = texts()
    said: list[ModelMessage] = []
    for number in range(messages // MESSAGES_OF_RUN):
        own = [_message(next(source), number, index) for index in range(MESSAGES_OF_RUN)]
        inherited = said[-WINDOW:] if shape == "window" else []
        ends = [MESSAGES_OF_RUN] if shape == "flat" else range(2, MESSAGES_OF_RUN + 1, 2)
        yield [[*inherited, *own[:end]] for end in ends]
        said = [*said[-WINDOW:], *own]


def _message(text: str, number: int, index: int) -> ModelMessage:
    at = START + timedelta(minutes=number, seconds=index)
    if index == 0:
        return ModelRequest(parts=[UserPromptPart(text, timestamp=at)], timestamp=at)
    call = f"call-{index}"
    if index % 2:
        parts: list[ModelResponsePart] = [
            TextPart(text[:200]),
            ToolCallPart("read", {"text": text[200:]}, call),
        ]
        return ModelResponse(parts=parts, timestamp=at)
    returned = ToolReturnPart("read", text, f"call-{index - 1}", timestamp=at)
    return ModelRequest(parts=[returned], timestamp=at)


def queries(messages: int, count: int) -> list[str]:
    """Of one to three words each, which occur."""
    dice = random.Random(7)  # noqa: S311 - no secret
    source = texts()
    words = [
        re.findall(r"[a-z_]{4,}", next(source)) or ["self"] for _ in range(min(messages, 5000))
    ]
    return [
        " ".join(dice.choice(dice.choice(words)) for _ in range(1 + number % 3))
        for number in range(count)
    ]


def dump(history: list[ModelMessage]) -> str:
    """As JSON, for the process of the other side."""
    return ModelMessagesTypeAdapter.dump_json(history).decode()
