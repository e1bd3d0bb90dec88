"""The agent `assistant`: the model that `PERDURE_MODEL` names, with two harmless tools."""

import ast
import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from decimal import Decimal, DecimalException, localcontext
from math import isfinite
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic_ai import Agent, ModelRetry, ModelSettings, RunContext, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse, infer_model

from workflows.durable import durable

INSTRUCTIONS = Path(__file__).with_suffix(".md").read_text()

LONGEST_EXPRESSION = 200
"""Characters. Nobody's arithmetic is longer, and it bounds the depth of what is parsed."""


class EnvironmentModel(Model):
    """The model that `PERDURE_MODEL` names, looked up and built anew for each request.

    That happens where the request is made: in the activity. So a worker starts without a model and
    without a key, workflow code never builds a client, and no client outlives its event loop.
    """

    @property
    def model_name(self) -> str:
        """Not the named model's: workflow code reads it, and must not read the environment."""
        return "PERDURE_MODEL"

    @property
    def system(self) -> str:
        """As `model_name`, of the provider."""
        return "environment"

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Ask the model.

        Raises:
            UserError: there is no such model, or its key is missing. Not retryable.
            ModelAPIError: the provider failed or refused.
        """
        async with await _named_model() as model:
            return await model.request(messages, model_settings, model_request_parameters)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Ask the model and stream its answer; raises what `request` raises."""
        async with (
            await _named_model() as model,
            model.request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as response,
        ):
            yield response


async def _named_model() -> Model:
    name = os.environ.get("PERDURE_MODEL")
    if not name:
        message = (
            "the assistant was asked and has no model: PERDURE_MODEL is not set where the worker"
            " runs. Set it to a pydantic-ai model such as openai:gpt-5, and its provider's key, or"
            " use a small model on this machine: perdure dev --local-model"
        )
        raise UserError(message)
    # In a thread: a provider's first use imports its SDK, which takes a second or more.
    return await asyncio.to_thread(infer_model, name)


agent = Agent(
    EnvironmentModel(),
    name="assistant",
    instructions=INSTRUCTIONS,
    # Temporal repeats failed requests. A client that repeats them too would multiply the attempts.
    model_settings=ModelSettings(max_retries=0),
    capabilities=[*durable()],
)


@agent.tool_plain(metadata={"effect": "read"})
def current_time(time_zone: str = "UTC") -> str:
    """Tell the date and time.

    Args:
        time_zone: an IANA name, such as Europe/Oslo.
    """
    try:
        zone = ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        message = f"there is no time zone {time_zone!r}; give an IANA name such as Europe/Oslo"
        raise ModelRetry(message) from error
    now = datetime.now(zone)  # noqa: TID251 - the clock is what is asked for, in an activity
    return now.isoformat(timespec="seconds")


@agent.tool_plain(metadata={"effect": "read"})
def calculate(expression: str) -> str:
    """Calculate, to 28 digits.

    Args:
        expression: numbers with + - * / ** and parentheses, such as (3 + 4) * 0.5.
    """
    try:
        # Decimals of a fixed precision have bounded size and cost, whatever the exponents.
        with localcontext(prec=28):
            return str(_value(_parsed(expression)))
    except (SyntaxError, ValueError, DecimalException) as error:
        message = (
            f"cannot calculate {expression[:LONGEST_EXPRESSION]!r} ({type(error).__name__}). Use"
            f" numbers, + - * / ** and parentheses, in at most {LONGEST_EXPRESSION} characters"
        )
        raise ModelRetry(message) from error


def _parsed(expression: str) -> ast.expr:
    if len(expression) > LONGEST_EXPRESSION:
        message = f"{len(expression)} characters are too many"
        raise ValueError(message)
    return ast.parse(expression.strip(), mode="eval").body


_BINARY: dict[type[ast.operator], Callable[[Decimal, Decimal], Decimal]] = {
    ast.Add: Decimal.__add__,
    ast.Sub: Decimal.__sub__,
    ast.Mult: Decimal.__mul__,
    ast.Div: Decimal.__truediv__,
    ast.Pow: Decimal.__pow__,
}


def _value(node: ast.expr) -> Decimal:
    match node:
        case ast.BinOp(left, op, right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left), _value(right))
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand)
        case ast.Constant(int() | float() as number) if isfinite(number):
            return Decimal(str(number))
        case _:
            message = f"{ast.unparse(node)!r} is not arithmetic"
            raise ValueError(message)
