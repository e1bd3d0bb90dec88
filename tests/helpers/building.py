"""One agent as two builds have it: the newer one has a tool more, and so other activities."""

from pydantic_ai import Agent, Tool
from temporalio import activity

from tests.helpers.script import make_agent


def agent_of(build: str, *also: str) -> Agent[None, str]:
    """The agent; `where` and the tools of `also` say which build ran them, and on which queue."""

    async def where() -> str:
        return f"{build} on {activity.info().task_queue}"

    tools = [Tool(where, name=name, metadata={"effect": "read"}) for name in ("where", *also)]
    return make_agent("script", tools=tools)


ONE = agent_of("one")
TWO = agent_of("two", "new")
