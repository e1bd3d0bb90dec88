"""The agent `scripted`: handles one order, with no model and no key. For the demo and for tests.

It is written as any agent is; only its model is a function. Try it without Temporal, too:
`agent.run_sync("3 brass lamps to Oslo")`.
"""

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

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

from workflows.durable import durable

_QUANTITY = re.compile(r"\d{1,4}(?=\s)")

_DEFAULT_PAUSE_SECONDS = 2.0
"""Long enough to be seen in a timeline, short enough to wait for."""


# --- the model ---


def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """What a model would: the next calls of the plan, or, when all have returned, the last word.

    A function of the messages alone, so it answers the same after a crash, a retry or a fork.
    """
    prompt, returned, turn = _newest_turn(messages)
    for calls in _plan(prompt, returned):
        missing = [name for name in calls if name not in returned]
        if missing:
            return ModelResponse(
                parts=[
                    ToolCallPart(name, calls[name], tool_call_id=f"{name}-{turn}")
                    for name in missing
                ]
            )
    tracking = returned["book_courier"]["tracking"]
    total = returned["charge_card"]["charged_eur"]
    summary = f"Order for {prompt!r} is on its way: {total:.2f} EUR charged, tracking {tracking}."
    return ModelResponse(parts=[TextPart(summary)])


def _newest_turn(messages: Sequence[ModelMessage]) -> tuple[str, Mapping[str, Any], int]:
    """The newest prompt, what each tool has returned since, and how many prompts there were."""
    prompt, returned, turn = "", dict[str, Any](), 0
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, UserPromptPart):
            prompt, returned, turn = _text(part), {}, turn + 1
        elif isinstance(part, ToolReturnPart):
            returned[part.tool_name] = part.content
    return prompt, returned, turn


def _text(part: UserPromptPart) -> str:
    if isinstance(part.content, str):
        return part.content
    return " ".join(content for content in part.content if isinstance(content, str))


def _plan(prompt: str, returned: Mapping[str, Any]) -> Iterator[dict[str, dict[str, Any]]]:
    """Each step's calls: tool to arguments. A step needs what the steps before it have returned."""
    goods, _, city = prompt.strip().removesuffix(".").partition(" to ")
    counted = _QUANTITY.match(goods)
    quantity = int(counted[0]) if counted else 1
    city = city.strip() or "the shop"
    yield {"find_item": {"name": goods[counted.end() :].strip() if counted else goods}}
    sku, price = returned["find_item"]["sku"], returned["find_item"]["price_eur"]
    yield {
        "check_stock": {"sku": sku, "quantity": quantity},
        "quote_shipping": {"city": city, "quantity": quantity},
        "find_discount": {"quantity": quantity},
    }
    yield {"reserve_stock": {"sku": sku, "quantity": quantity}}
    reservation = returned["reserve_stock"]["reservation"]
    share = 1 - returned["find_discount"]["percent"] / 100
    total = round(quantity * price * share + returned["quote_shipping"]["price_eur"], 2)
    yield {"charge_card": {"reservation": reservation, "amount_eur": total}}
    yield {"book_courier": {"reservation": reservation, "city": city}}
    yield {"send_confirmation": {"tracking": returned["book_courier"]["tracking"]}}


agent = Agent(
    FunctionModel(answer, model_name="scripted"),
    name="scripted",
    capabilities=[*durable()],
)


# --- the tools ---


@agent.tool_plain(metadata={"effect": "read"})
def find_item(name: str) -> dict[str, Any]:
    """Look an item up in the catalogue."""
    _count("find_item")
    return {"sku": f"SKU-{_number(name, 10_000):04}", "price_eur": 5 + _number(name, 9_000) / 100}


@agent.tool_plain(metadata={"effect": "read"})
def check_stock(sku: str, quantity: int) -> dict[str, Any]:
    """Ask the warehouse how many pieces it has."""
    _count("check_stock")
    return {"in_stock": quantity + _number(sku, 100)}


@agent.tool_plain(metadata={"effect": "read"})
def quote_shipping(city: str, quantity: int) -> dict[str, Any]:
    """Ask the courier for a price."""
    _count("quote_shipping")
    return {"price_eur": 4 + quantity + _number(city, 500) / 100}


@agent.tool_plain(metadata={"effect": "read"})
def find_discount(quantity: int) -> dict[str, Any]:
    """Look up the discount: one percent a piece, ten at most."""
    _count("find_discount")
    return {"percent": min(quantity, 10)}


@agent.tool_plain(metadata={"effect": "idempotent"})
def reserve_stock(sku: str, quantity: int) -> dict[str, Any]:
    """Put the pieces aside. The same request has the same reservation."""
    _count("reserve_stock")
    return {"reservation": f"R-{_number(f'{sku} {quantity}', 100_000):05}"}


@agent.tool_plain(metadata={"effect": "idempotent"})
async def charge_card(reservation: str, amount_eur: float) -> dict[str, Any]:
    """Charge the customer once for a reservation, however often it is asked.

    Slow, as payments are: it takes `PERDURE_DEMO_PAUSE_SECONDS`. The demo kills the worker here.
    """
    _count("charge_card")
    pause = float(os.environ.get("PERDURE_DEMO_PAUSE_SECONDS", _DEFAULT_PAUSE_SECONDS))
    await asyncio.sleep(pause)  # noqa: TID251 - a tool runs in an activity, not in the workflow
    return {"receipt": f"C-{reservation}", "charged_eur": amount_eur}


@agent.tool_plain(metadata={"effect": "idempotent"})
def book_courier(reservation: str, city: str) -> dict[str, Any]:
    """Have the reservation fetched and delivered."""
    _count("book_courier")
    return {"tracking": f"T-{_number(f'{reservation} {city}', 1_000_000):06}"}


@agent.tool_plain(metadata={"effect": "idempotent"})
def send_confirmation(tracking: str) -> dict[str, Any]:
    """Tell the customer; the same tracking number is told once."""
    _count("send_confirmation")
    return {"sent": tracking}


def _number(text: str, below: int) -> int:
    """A number that follows from the text, in every process: this shop has no database."""
    return crc32(text.encode()) % below


def _count(tool: str) -> None:
    """Append the name to `PERDURE_DEMO_EFFECTS_FILE`, if set: one line for each time a body ran."""
    path = os.environ.get("PERDURE_DEMO_EFFECTS_FILE")
    if path:
        with Path(path).open("a") as file:
            file.write(f"{tool}\n")
