"""An agent whose deps are made on the worker, of what its run's input says."""

import asyncio
from dataclasses import dataclass, field

from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.models.function import FunctionModel

from tests.helpers.script import follow
from workflows.durable import durable


class Customer(BaseModel):
    """What is submitted."""

    name: str
    notes: str = ""


@dataclass
class Session:
    """A live object that no payload could hold."""

    customer: Customer
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


async def open_session(customer: Customer) -> Session:
    """The factory."""
    return Session(customer)


GREETER = Agent(
    FunctionModel(follow),
    name="greeter",
    deps_type=Session,
    capabilities=[*durable(deps_factory=open_session)],
)


@GREETER.tool(metadata={"effect": "read"})
async def greet(ctx: RunContext[Session]) -> str:
    """Greet the customer."""
    async with ctx.deps.lock:
        return f"{ctx.deps.customer.name}, {len(ctx.deps.customer.notes)}"
