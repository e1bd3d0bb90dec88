"""The guide shards every large collection by a key that its unique indexes begin with."""

from stores.mongo.indexes import COLLECTIONS, INDEXES
from tests.stores.shard_keys import Auditor, guided_keys

UNSHARDED = {
    *("workspaces", "erasures", "keyword_lanes", "keyword_state"),
    *("principals", "access_grants", "access_tokens"),
}
"""Some documents for each tenant, each reader, and each erasure."""


def test_the_guide_has_a_command_for_every_collection() -> None:
    assert set(guided_keys()) == set(COLLECTIONS) - UNSHARDED


def test_every_unique_index_begins_with_the_shard_key() -> None:
    keys = guided_keys()
    unique = [each for each in INDEXES if each.is_unique]
    assert unique
    for index in unique:
        key = keys[index.collection]
        assert index.fields[: len(key)] == key, index.name


def test_an_audit_finds_a_statement_without_the_key() -> None:
    class Event:
        database_name = "d"

        def __init__(self, **command: object) -> None:
            self.command = command
            self.command_name = next(iter(command))

    auditor = Auditor()
    auditor.begin()
    for event in (
        Event(find="events", filter={"run_id": "r", "live": True}),
        Event(find="events", filter={"$and": [{"run_id": {"$in": ["r"]}}]}),
        Event(find="events", filter={"run_id": {"$gt": "r"}}),
        Event(insert="turns", documents=[{"workspace_id": "w", "conversation_id": "c"}]),
        Event(update="turns", updates=[{"q": {"_id": 1, "workspace_id": "w"}, "u": {}}]),
        Event(delete="messages", deletes=[{"q": {"owner": 1}, "limit": 0}]),
        Event(aggregate="snapshots", pipeline=[{"$match": {"live": True}}]),
        Event(count="media", query={"_id": "d"}),
    ):
        auditor.started(event)  # type: ignore[arg-type]
    assert auditor.end() == {
        "find events by run_id": 1,
        "update turns by _id, workspace_id": 1,
        "delete messages by owner": 1,
        "aggregate snapshots by live": 1,
    }
