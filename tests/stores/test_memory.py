import pytest

from stores.memory import InMemoryStepStore
from stores.protocols import StepStore
from tests.stores.conformance import StepStoreConformance


class TestInMemoryStepStore(StepStoreConformance):
    @pytest.fixture
    def store(self) -> StepStore:
        return InMemoryStepStore()
