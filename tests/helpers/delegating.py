"""Agents that delegate: `lead` to `script`, `head` to `lead`, `mirror` to itself."""

from datetime import timedelta
from typing import Any

from pydantic_ai import Agent
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityConfig

from tests.helpers.greeter import GREETER
from tests.helpers.script import Call, make_agent, script
from tests.helpers.user_agents import SCRIPT_IN_PRODUCTION
from workflows.conversation_search import ConversationSearch
from workflows.delegates import delegate
from workflows.session_history import SessionHistory

ANYTHING = "Follows a script."

QUICK = ActivityConfig(
    heartbeat_timeout=timedelta(seconds=2),
    retry_policy=RetryPolicy(
        initial_interval=timedelta(milliseconds=100),
        backoff_coefficient=1,
        maximum_attempts=3,
    ),
)
"""A lost worker is noticed in 2 s, and a tool that fails has failed within another second."""

SCRIPT = make_agent("script", activities=QUICK)

LEAD = make_agent(
    "lead",
    tools=[
        delegate("script", description=ANYTHING),
        delegate(
            SCRIPT, name="tell", description=ANYTHING, on_failure="tell", conversation="shared"
        ),
    ],
    activities=QUICK,
)
HEAD = make_agent("head", tools=[delegate(LEAD, description=ANYTHING)], activities=QUICK)
MIRROR = make_agent("mirror", tools=[delegate("mirror", description=ANYTHING)], activities=QUICK)

AGENTS = [SCRIPT, LEAD, HEAD, MIRROR]

IN_PRODUCTION: list[Agent[Any, Any]] = [
    SCRIPT_IN_PRODUCTION,
    make_agent("lead", tools=[delegate("script", description=ANYTHING)]),
    GREETER,
    make_agent("finder", also=[ConversationSearch()]),
    make_agent("clerk", also=[SessionHistory()]),
]
"""With the timeouts and retries that agents have by default."""


def asking(*prompts: str, tool: str = "ask_script", before: int = 0, after: int = 0) -> str:
    """A script of `before` echo steps, one of parallel delegations, and `after` more echo steps."""
    echo: list[Call] = [("echo", {"text": "x"})]
    calls: list[Call] = [(tool, {"prompt": prompt}) for prompt in prompts]
    return script([*[echo] * before, calls, *[echo] * after], final="led")


def waiting(path: Any, marker: Any) -> str:
    """A script whose tool makes the file `marker` and waits for the file `path`."""
    return script([[("wait_for", {"path": str(path), "marker": str(marker)})]])
