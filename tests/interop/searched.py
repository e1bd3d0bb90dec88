"""A conversation that both sides search: several runs, windows, repeats, scripts, tools."""

import random
from datetime import UTC, datetime

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

CONVERSATION = "sea"
START = datetime(2026, 3, 1, tzinfo=UTC)
MATCHES = 50

_WORDS = [
    "whale",
    "seal",
    "user_id",
    "Running",
    "runs",
    "C++",
    "north-west",
    "北京大学",
    "naïve",
    "42",
    "the",
    "a",
    "of",
    "tide",
]

QUERIES = [
    "whale",
    "user_id",
    "user",
    "running",
    "北京大学",
    "the whale of 42",
    "C++ tide seal",
    "none",
]


def runs() -> list[list[list[ModelMessage]]]:
    """Of each run the histories of its snapshots, the same in every process."""
    dice = random.Random(23)  # noqa: S311 - no secret

    def said() -> str:
        return " ".join(dice.choices(_WORDS, k=dice.randint(2, 9))) + f" n{dice.randrange(10**6)}"

    told: list[list[list[ModelMessage]]] = []
    last: list[ModelMessage] = []
    for number in range(4):
        history = list(last) if number % 2 else []
        snapshots: list[list[ModelMessage]] = []
        for step in range(5):
            call = f"{number}-{step}"
            history = [
                *history,
                ModelRequest(parts=[UserPromptPart(said(), timestamp=START)]),
                ModelResponse(
                    parts=[TextPart(said()), ToolCallPart("look", {"at": said()}, call)],
                    timestamp=START,
                ),
                ModelRequest(parts=[ToolReturnPart("look", said(), call, timestamp=START)]),
                ModelResponse(parts=[TextPart(said())], timestamp=START),
            ]
            history = history[-12:]
            snapshots.append(history)
        told.append(snapshots)
        last = history
    return told
