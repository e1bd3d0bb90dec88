import pytest

from stores.memory import InMemoryStepStore
from stores.protocols import StepStore
from tests.stores.conformance import StepStoreConformance
from tests.stores.conversation_conformance import ConversationConformance
from tests.stores.size_conformance import SizeConformance


class TestInMemoryStepStore(StepStoreConformance, SizeConformance):
    @pytest.fixture
    def store(self) -> StepStore:
        return InMemoryStepStore()


class TestInMemoryConversations(ConversationConformance):
    @pytest.fixture
    def store(self) -> StepStore:
        return InMemoryStepStore()
