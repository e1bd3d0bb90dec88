"""Keyword search without an index."""

import pytest

from stores.memory import InMemoryStepStore
from tests.stores.keyword_conformance import KeywordConformance


class TestScanningKeywords(KeywordConformance):
    @pytest.fixture
    def store(self) -> InMemoryStepStore:
        return InMemoryStepStore()
