"""A process that does a run's operations and commits them: run it twice, in unlike surroundings.

`python -m tests.helpers.same_operations MONGODB_URI DATABASE` prints a JSON object: the verdict on
the commit, the digest of each operation, and what became of each when only keys decide.
"""

import asyncio
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel

from stores.commits import Commit, CommitPosition, CommitResult
from stores.digests import operation_digest
from stores.memory import InMemoryStepStore
from stores.opening import open_step_store
from stores.operations import RegisterRun, Write
from tests.helpers.script import follow, script
from workflows.durable import durable
from workflows.persistence import StepPersistence

POSITION = CommitPosition(
    execution_id="execution",
    branch="execution",
    branch_time=datetime(2026, 1, 1, tzinfo=UTC),
    number=1,
    history_length=3,
    queued_at=datetime(2026, 1, 1, tzinfo=UTC),
)

PROMPT = script(
    [
        [("gather", {"words": ["a", "b", "c", "d", "e"], "more": {"y": 1, "x": [2, {"w": 3}]}})],
        [("fail", {"words": ["z"]})],
    ]
)


class RecordingStore(InMemoryStepStore):
    """A store that also keeps what it was asked to write."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Write] = []

    async def commit(self, commit: Commit) -> CommitResult:
        self.operations += commit.operations
        return await super().commit(commit)


async def operations_of_a_run() -> tuple[Write, ...]:
    """What a run with a successful and a failing tool call writes, all of it in one piece."""
    store = RecordingStore()
    recorder = StepPersistence[None](store=store, run_id="run", capture_frontier=True)
    agent = Agent(FunctionModel(follow), name="same", capabilities=[*durable(recorder)])

    @agent.tool_plain(metadata={"effect": "read"})
    def gather(words: list[str], more: dict[str, Any]) -> dict[str, Any]:
        return {"words": words, "more": more, "at": [1.5, None, True]}

    @agent.tool_plain(metadata={"effect": "read"})
    def fail(words: frozenset[str]) -> str:
        message = f"no luck with {words!r} at {id(words)}"
        raise RuntimeError(message)

    try:
        await agent.run(PROMPT)
    except RuntimeError:
        return tuple(
            each.model_copy(update={"registration_id": "drawn"})
            if isinstance(each, RegisterRun)
            else each
            for each in store.operations
        )
    raise AssertionError


async def main(mongodb_uri: str, database: str) -> None:
    """Commit the operations, and say what became of them."""
    operations = await operations_of_a_run()
    store = open_step_store("mongodb", db_url=mongodb_uri, database=database)
    commit = Commit(operations=operations, now=datetime.now(UTC), position=POSITION)
    result = await store.commit(commit)
    by_key = Commit(operations=operations, now=datetime.now(UTC), branch=POSITION.branch)
    again = await store.commit(by_key)
    await store.aclose()
    digests = {f"{each.kind} {each.key}": operation_digest(each) for each in operations}
    outcomes = [asdict(each) for each in again.outcomes]
    print(json.dumps({"verdict": result.verdict, "digests": digests, "outcomes": outcomes}))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
