"""What the conformance classes have in common."""

from abc import ABC, abstractmethod

import pytest

from stores.protocols import StepStore


class StepStoreTests(ABC):
    """Subclasses bring the store."""

    @pytest.fixture
    @abstractmethod
    def store(self) -> StepStore:
        """An empty store of the default workspace."""
