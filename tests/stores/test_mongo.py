from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from stores.mongo.indexes import COLLECTIONS
from stores.mongo.steps import MongoStepStore
from tests.stores.conformance import StepStoreConformance
from tests.stores.conversation_conformance import ConversationConformance
from tests.stores.shard_keys import AUDITOR
from tests.stores.step_media_conformance import StepMediaConformance

pytestmark = pytest.mark.integration

_LOST = "live, number, workspace_id"

ACROSS_RUNS = {
    # Lists of a workspace.
    *(
        f"find runs by {', '.join(sorted({*filters, 'live', 'workspace_id'}))}"
        for filters in (
            *((), ("started_at",), ("state",), ("agent_name",), ("agent_name", "state")),
            *(("conversation_id",), ("parent_run_id",), ("conversation_id", "parent_run_id")),
            *(("continued_from",), ("forked_from",)),
        )
    ),
    "find tool_effects by unresolved, workspace_id",
    "find conversations by live, workspace_id",
    "find conversations by ",  # whether there is any, of which keyword rows have to be made
    "find conversations by is_archived, live, workspace_id",
    "find turns by folded, is_visible, live, workspace_id",
    "find variants by folded, live, workspace_id",
    # Which forks inherited turns of a conversation that is deleted, and whose runs it holds.
    "distinct turns by source_conversation_id, workspace_id",
    "find runs by _id, conversation_id, live, workspace_id",
    "find runs by _id, branches.execution_id, workspace_id",  # that the same executions served
    "distinct search_log by messages, workspace_id",  # that logged what a deleted turn said
    # Searches: of all conversations, and what the index lacks.
    "find search_log by is_merged, sequence, workspace_id",
    "find search_segments by last, workspace_id",
    "find snapshots by unindexed, workspace_id",
    "aggregate snapshots by conversation_id, unindexed, workspace_id",
    # What a lost task or a reset has written, and the runs that go on from there.
    f"find events by branch, {_LOST}",
    *(
        f"aggregate {collection} by branch, {_LOST}"
        for collection in ("events", "positions", "runs", "snapshots")
    ),
    "find tool_effects by live, transitions, workspace_id",
    "find runs by branches.execution_id, workspace_id",
}
"""Reads that no shard key can narrow, since they are about more than one run or conversation. Each
is answered by an index on every shard. There is no write among them."""


@pytest.fixture
async def store(mongodb_uri: str, prepared_database: str) -> AsyncIterator[MongoStepStore]:
    """An empty store in the prepared database."""
    store = MongoStepStore(db_url=mongodb_uri, database=prepared_database)
    yield store
    await store.aclose()
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        for collection in COLLECTIONS:
            client[prepared_database][collection].delete_many({})


class _NamesShardKeys:
    @pytest.fixture(autouse=True)
    def every_statement_names_its_shard_key(self, store: MongoStepStore) -> Iterator[None]:
        """But for reads across runs: checked over everything that a store can do."""
        assert store is not None  # made before, and emptied after it
        AUDITOR.begin()
        yield
        assert set(AUDITOR.end()) <= ACROSS_RUNS


class TestMongoStepStore(_NamesShardKeys, StepStoreConformance, StepMediaConformance):
    @pytest.fixture
    def store(self, store: MongoStepStore) -> MongoStepStore:
        return store


class TestMongoConversations(_NamesShardKeys, ConversationConformance):
    @pytest.fixture
    def store(self, store: MongoStepStore) -> MongoStepStore:
        return store
