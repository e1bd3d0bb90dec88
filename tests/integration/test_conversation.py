"""The workflow `conversation` on a real Temporal server: everything that a conversation is for."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import uuid4

import pytest
import pytest_asyncio
from temporalio.client import Client

from stores.memory import InMemoryStepStore
from tests.helpers.chatting import EchoModel
from tests.helpers.conversing import ConversationSuite
from tests.helpers.workers import running_worker
from workflows.durable_conversation import DurableConversation

pytestmark = pytest.mark.integration


@dataclass
class DurableTalking:
    client: Client
    store: InMemoryStepStore
    task_queue: str
    echo: EchoModel

    def begin(self, *, max_turns: int = 20) -> DurableConversation:
        return DurableConversation.connect(
            self.client,
            agent="conversation",
            conversation_id=f"c-{uuid4().hex}",
            max_turns=max_turns,
            task_queue=self.task_queue,
        )


@pytest_asyncio.fixture
async def talk(
    temporal: Client, memory: InMemoryStepStore, task_queue: str
) -> AsyncIterator[DurableTalking]:
    echo = EchoModel()
    async with running_worker(temporal, memory, [echo.agent()], task_queue):
        yield DurableTalking(temporal, memory, task_queue, echo)


class TestDurableConversation(ConversationSuite):
    @pytest.fixture
    def talking(self, talk: DurableTalking) -> DurableTalking:
        return talk
