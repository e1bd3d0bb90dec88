from collections.abc import AsyncIterator
from typing import Any

import pytest
from pymongo import MongoClient

from stores.mongo.indexes import COLLECTIONS
from stores.mongo.steps import MongoStepStore
from tests.stores.conformance import StepStoreConformance
from tests.stores.conversation_conformance import ConversationConformance
from tests.stores.step_media_conformance import StepMediaConformance

pytestmark = pytest.mark.integration


@pytest.fixture
async def store(mongodb_uri: str, prepared_database: str) -> AsyncIterator[MongoStepStore]:
    """An empty store in the prepared database."""
    store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
    yield store
    await store.aclose()
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        for collection in COLLECTIONS:
            client[prepared_database][collection].delete_many({})


class TestMongoStepStore(StepStoreConformance, StepMediaConformance):
    @pytest.fixture
    def store(self, store: MongoStepStore) -> MongoStepStore:
        return store


class TestMongoConversations(ConversationConformance):
    @pytest.fixture
    def store(self, store: MongoStepStore) -> MongoStepStore:
        return store
