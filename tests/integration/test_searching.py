"""A run that searches what its conversation said, in workflows as production runs them."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai.messages import ToolReturnPart
from temporalio.client import Client
from temporalio.exceptions import ApplicationError

from activities.searching import SearchHistoryRequest, SearchHistoryResult
from stores.mongo.steps import MongoStepStore
from tests.helpers.script import Call, make_agent, script
from tests.helpers.workers import count_scheduled_activities, replay, running_worker
from workflows.agent_run import AgentRunWorkflow
from workflows.agent_run_models import AgentRunInput
from workflows.conversation_search import ConversationSearch
from workflows.names import SEARCH_ACTIVITY

pytestmark = pytest.mark.integration

AGENT = make_agent("finder", also=[ConversationSearch()])


async def run(client: Client, queue: str, run_id: str, prompt: str, **values: Any) -> Any:
    handle = await client.start_workflow(
        AgentRunWorkflow.run,
        AgentRunInput(agent="finder", prompt=prompt, **values),
        id=run_id,
        task_queue=queue,
    )
    await handle.result()
    return handle


async def found(store: MongoStepStore, run_id: str) -> list[str]:
    snapshot = await store.latest_snapshot(run_id=run_id)
    assert snapshot is not None
    parts = (part for message in snapshot.messages for part in message.parts)
    return [
        str(part.content)
        for part in parts
        if isinstance(part, ToolReturnPart) and part.tool_name == SEARCH_ACTIVITY
    ]


@pytest.mark.spec("CS-1", "CS-5", "CS-6", "CS-41", "CS-63")
async def test_a_run_finds_what_was_said_and_a_replay_does_not_search_again(
    temporal: Client, mongo: MongoStepStore, task_queue: str
) -> None:
    async with running_worker(temporal, mongo, [AGENT], task_queue):
        words = script([[("echo", {"text": "the vault is number 7413"})]], final="noted")
        said = await run(temporal, task_queue, f"{task_queue}-a", words, conversation_id="talk")
        other = script([], final="vault 9999 of another tenant")
        await run(
            temporal, task_queue, f"{task_queue}-b", other,
            conversation_id="talk", workspace_id="tenant",
        )  # fmt: skip
        steps: list[list[Call]] = [
            [("echo", {"text": "zirconium"})],
            [(SEARCH_ACTIVITY, {"query": "vault number"})],
            [(SEARCH_ACTIVITY, {"query": "zirconium"}), (SEARCH_ACTIVITY, {"query": "?!"})],
        ]
        asked = await run(
            temporal, task_queue, f"{task_queue}-c", script(steps), conversation_id="talk"
        )
        vault, *rest = await found(mongo, asked.id)
        assert "Tool [echo]: the vault is number 7413" in vault
        assert f"run: {said.id} | conversation: talk" in vault
        assert "9999" not in vault
        assert any("Tool [echo]: zirconium" in each for each in rest)
        assert any("has no word to search for" in each for each in rest)
        request = SearchHistoryRequest(query="vault", conversation_id="talk", context_lines=0)
        answer = await temporal.execute_activity(
            SEARCH_ACTIVITY,
            request,
            id=f"{task_queue}-standalone",
            task_queue=task_queue,
            start_to_close_timeout=timedelta(seconds=20),
            result_type=SearchHistoryResult,
        )
        assert said.id in {each.run_id for each in answer.matches}
        assert (answer.runs, answer.skipped, answer.note) == (2, 0, None)
        with pytest.raises(Exception, match="failed") as refused:
            await temporal.execute_activity(
                SEARCH_ACTIVITY,
                request.model_copy(update={"max_matches": -1}),
                id=f"{task_queue}-refused",
                task_queue=task_queue,
                start_to_close_timeout=timedelta(seconds=20),
            )
        cause = refused.value.__cause__
        assert isinstance(cause, ApplicationError)
        assert cause.type == "InvalidQueryError"
    # Nothing that could answer is there any more: what the run heard is in its history.
    history = await replay(asked, [AGENT])
    assert count_scheduled_activities(history)[SEARCH_ACTIVITY] == 3
