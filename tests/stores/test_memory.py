import pytest

from stores.memory import InMemoryStepStore
from stores.protocols import StepStore
from tests.stores.conformance import StepStoreConformance
from tests.stores.conversation_conformance import ConversationConformance


class TestInMemoryStepStore(StepStoreConformance):
    @pytest.fixture
    def store(self) -> StepStore:
        return InMemoryStepStore()


class TestInMemoryConversations(ConversationConformance):
    @pytest.fixture
    def store(self) -> StepStore:
        return InMemoryStepStore()
