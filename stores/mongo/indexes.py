"""The indexes: which there are, how they are made, and whether they are there.

A name carries a version: an index that has to change gets a new name, so that old and new workers
can run side by side. Almost all are partial over `live`: what was superseded or abandoned costs no
read anything. Keys begin with what a cluster would shard by (`run_id`, or the workspace).
"""

from collections.abc import Iterator
from itertools import combinations

from pymongo.errors import OperationFailure

from stores.errors import StoreConfigurationError
from stores.mongo.client import Database
from stores.mongo.documents import Document
from stores.mongo.failures import DUPLICATE_KEY
from stores.mongo.index import LIVE as _LIVE
from stores.mongo.index import Index

_COMPARED = ("key", "partialFilterExpression", "unique", "expireAfterSeconds")
"""What tells one index from another; the server adds options of its own."""

_NAMESPACE_EXISTS = 48

_SUPERSEDED: Document = {"mark": "superseded"}
_UNRESOLVED: Document = {"unresolved": True}
_LOGGED: Document = {"sequence": {"$exists": True}}


RUN_FILTERS: dict[str, str] = {
    "conversation": "conversation_id",
    "parent": "parent_run_id",
    "agent": "agent_name",
    "state": "state",
}
"""What lists of runs can be narrowed by: the word in an index's name, and the field."""


def _of_runs() -> Iterator[Index]:
    """One for each combination of filters: a page costs what it shows, however rare its runs are.

    A run is written to them when it is registered, and to half of them when its state changes.
    """
    for count in range(len(RUN_FILTERS) + 1):
        for words in combinations(RUN_FILTERS, count):
            filters = (RUN_FILTERS[each] for each in words)
            yield Index(
                name=f"runs_{'_'.join(words) or 'started'}_v1",
                collection="runs",
                fields=("workspace_id", *filters, "started_at", "_id"),
            )


def _of_run_origin(name: str, origin: str) -> Index:
    """What came of a run, of few runs any."""
    only: Document = {"live": True, origin: {"$exists": True}}
    fields = ("workspace_id", origin, "started_at", "_id")
    return Index(name=name, collection="runs", fields=fields, only=only)


def _of_keyed(collection: str) -> tuple[Index, ...]:
    """What events and snapshots have in common."""
    return (
        Index(
            name=f"{collection}_key_v1",
            collection=collection,
            fields=("run_id", "branch", "key", "workspace_id"),
            only={"live": True, "key": {"$exists": True}},
            is_unique=True,
        ),
        Index(
            name=f"{collection}_order_v1",
            collection=collection,
            fields=("run_id", "sequence", "_id"),
        ),
        Index(name=f"{collection}_commit_v1", collection=collection, fields=("branch", "number")),
        Index(
            name=f"{collection}_superseded_v1",
            collection=collection,
            fields=("run_id", "branch", "key"),
            only=_SUPERSEDED,
        ),
    )


def _of_marked(collection: str, *fields: str) -> Index:
    """Rows that no longer count, which only a removal looks for; there are few."""
    name, only = f"{collection}_dead_v1", {"live": False}
    return Index(name=name, collection=collection, fields=fields, only=only)


def _of_conversations() -> Iterator[Index]:
    """Heads by activity, turns by position, the queue of answers by order."""
    conversation = ("workspace_id", "conversation_id")
    for name, collection, fields in (
        ("conversations_activity_v1", "conversations", ("workspace_id", "updated_at", "public_id")),
        (
            "conversations_archived_v1",
            "conversations",
            ("workspace_id", "is_archived", "updated_at", "public_id"),
        ),
        ("conversations_public_v1", "conversations", ("workspace_id", "public_id")),
        ("turns_position_v1", "turns", (*conversation, "position")),
        ("turns_public_v1", "turns", (*conversation, "public_id")),
        ("variants_number_v1", "variants", (*conversation, "position", "number")),
        ("variants_run_v1", "variants", ("run_id", "workspace_id")),
    ):
        yield Index(name=name, collection=collection, fields=fields)
    yield Index(
        name="turns_source_v1",
        collection="turns",
        fields=("workspace_id", "source_conversation_id", "position"),
        only={"source_conversation_id": {"$exists": True}},
    )
    yield Index(
        name="variants_unfinished_v1",
        collection="variants",
        fields=(*conversation, "order"),
        only={"is_unfinished": True},
    )
    yield Index(
        name="workspaces_public_v1",
        collection="workspaces",
        fields=("public_id",),
        only={"public_id": {"$exists": True}},
    )
    yield Index(
        name="access_tokens_principal_v1",
        collection="access_tokens",
        fields=("principal_id", "created_at"),
        only={"principal_id": {"$exists": True}},
    )
    yield Index(
        name="access_grants_principal_v1",
        collection="access_grants",
        fields=("principal_id", "workspace_id", "conversation_id"),
        only={"principal_id": {"$exists": True}},
    )
    yield Index(
        name="access_grants_place_v1",
        collection="access_grants",
        fields=conversation,
        only={"principal_id": {"$exists": True}},
    )
    yield Index(
        name="conversation_messages_conversation_v1",
        collection="conversation_messages",
        fields=conversation,
        only={"conversation_id": {"$exists": True}},
    )


def _of_keywords() -> Iterator[Index]:
    """Rows by lexeme in the order of results, by lane in the order of commits, and what waits."""
    for name, fields, only in (
        ("lexemes", ("lexemes", "order_id"), _LIVE),
        ("lane", ("lane", "sequence"), {"lane": {"$exists": True}}),
        ("pending", ("conversation_id",), {"pending": True}),
    ):
        yield Index(
            name=f"keyword_rows_{name}_v1",
            collection="keyword_rows",
            fields=("workspace_id", *fields),
            only=only,
        )


INDEXES: tuple[Index, ...] = (
    *_of_runs(),
    _of_run_origin("runs_continued_v1", "continued_from"),
    _of_run_origin("runs_forked_v1", "forked_from"),
    Index(
        name="runs_execution_v1",
        collection="runs",
        fields=("branches.execution_id",),
        only={"branches.execution_id": {"$exists": True}},  # marked runs have gone on, too
    ),
    Index(
        name="runs_ended_v1",
        collection="runs",
        fields=("workspace_id", "ended_at", "_id"),
        only={"live": True, "ended_at": {"$exists": True}},
    ),
    Index(name="runs_commit_v1", collection="runs", fields=("branch", "number")),
    _of_marked("runs", "workspace_id", "conversation_id"),
    *(
        _of_marked(each, "run_id", "workspace_id")
        for each in ("events", "snapshots", "positions", "tool_effects")
    ),
    *_of_keyed("events"),
    *_of_keyed("snapshots"),
    Index(
        name="snapshots_unindexed_v1",
        collection="snapshots",
        fields=("workspace_id", "conversation_id", "run_id"),
        only={"unindexed": True},
    ),
    Index(
        name="snapshots_state_v1",
        collection="snapshots",
        fields=("run_id", "state", "sequence", "_id"),
    ),
    Index(
        name="snapshots_marked_v1",
        collection="snapshots",
        fields=("run_id", "branch", "key"),
        only={"mark": {"$exists": True}},
    ),
    Index(
        name="snapshots_leftover_v1",
        collection="snapshots",
        fields=("run_id", "workspace_id", "pruned_at"),
        only={"pruned_at": {"$exists": True}},
    ),
    Index(
        name="positions_position_v1",
        collection="positions",
        fields=("run_id", "position", "workspace_id"),
        is_unique=True,
    ),
    Index(
        name="positions_message_v1",
        collection="positions",
        fields=("message",),
        only={"message": {"$exists": True}},  # marked positions keep their messages, too
    ),
    Index(name="positions_commit_v1", collection="positions", fields=("branch", "number")),
    Index(
        name="tool_effects_identity_v1",
        collection="tool_effects",
        fields=("run_id", "effect_key", "branch", "workspace_id"),
        is_unique=True,
    ),
    Index(
        name="tool_effects_order_v1",
        collection="tool_effects",
        fields=("run_id", "sequence", "_id"),
    ),
    Index(
        name="tool_effects_call_v1",
        collection="tool_effects",
        fields=("run_id", "tool_call_id", "sequence", "_id"),
    ),
    Index(
        name="tool_effects_unresolved_v1",
        collection="tool_effects",
        fields=("workspace_id", "started_at", "_id"),
        only=_UNRESOLVED,
    ),
    Index(
        name="tool_effects_unresolved_run_v1",
        collection="tool_effects",
        fields=("run_id", "sequence", "_id"),
        only=_UNRESOLVED,
    ),
    Index(
        name="tool_effects_commit_v1",
        collection="tool_effects",
        fields=("transitions.branch", "transitions.number"),
    ),
    Index(
        name="tool_effects_superseded_v1",
        collection="tool_effects",
        fields=("run_id", "branch", "effect_key"),
        only=_SUPERSEDED,
    ),
    *_of_conversations(),
    Index(
        name="messages_media_v1",
        collection="messages",
        fields=("media",),
        only={"media": {"$exists": True}},
    ),
    Index(
        name="media_files_v1",
        collection="media",
        fields=("files_id",),
        only={"files_id": {"$exists": True}},
    ),
    Index(
        name="media_chunks_files_v1",
        collection="media_chunks",
        fields=("files_id", "n"),
        only={"files_id": {"$exists": True}},
        is_unique=True,
    ),
    Index(
        name="search_log_sequence_v1",
        collection="search_log",
        fields=("workspace_id", "conversation_id", "sequence"),
        only=_LOGGED,
        is_unique=True,
    ),
    Index(
        name="search_log_hashes_v1",
        collection="search_log",
        fields=("workspace_id", "conversation_id", "hashes"),
        only=_LOGGED,
    ),
    Index(
        name="search_log_messages_v1",
        collection="search_log",
        fields=("messages",),
        only={"messages": {"$exists": True}},
    ),
    Index(
        name="search_segments_last_v1",
        collection="search_segments",
        fields=("workspace_id", "conversation_id", "last"),
        only={"last": {"$exists": True}},
        is_unique=True,
    ),
    *_of_keywords(),
    Index(
        name="tool_attempts_run_v1",
        collection="tool_attempts",
        fields=("run_id", "workspace_id"),
        only={"run_id": {"$exists": True}},
    ),
    Index(
        name="stream_chunks_order_v1",
        collection="stream_chunks",
        fields=("run_id", "request", "first"),
        only={"run_id": {"$exists": True}},
    ),
    Index(
        name="stream_chunks_expiry_v1",
        collection="stream_chunks",
        fields=("expires_at",),
        only={"expires_at": {"$exists": True}},
        expires=True,
    ),
    Index(
        name="payload_chunks_touched_v1",
        collection="payload_chunks",
        fields=("touched_at",),
        only={"touched_at": {"$exists": True}},
    ),
)
"""All indexes besides `_id`, which alone serves `commit_heads`, `erasures`, `keyword_lanes`,
`keyword_state`, `messages`, `principals` and `payload_manifests`."""

COLLECTIONS: tuple[str, ...] = (
    "access_grants",
    "access_tokens",
    "commit_heads",
    "conversation_messages",
    "conversations",
    "erasures",
    "events",
    "keyword_lanes",
    "keyword_rows",
    "keyword_state",
    "media",
    "media_chunks",
    "messages",
    "payload_chunks",
    "payload_manifests",
    "positions",
    "principals",
    "runs",
    "search_log",
    "search_segments",
    "snapshots",
    "stream_chunks",
    "tool_attempts",
    "tool_effects",
    "turns",
    "variants",
    "workspaces",
)
"""Made beforehand, so that no transaction has to make one."""


async def create_indexes(database: Database) -> list[str]:
    """Make what is missing and repair what differs; a line for each thing that was done.

    An index of one of our names with other options is dropped and made again. Building one on a
    large collection takes time and holds no writer up.

    Raises:
        StoreConfigurationError: stored rows break a unique index. Other errors are the driver's.
    """
    done: list[str] = []
    present = set(await database.list_collection_names())
    for collection in COLLECTIONS:
        if collection not in present:
            await _create_collection(database, collection)
            done.append(f"made collection {collection}")
        done += await _create_indexes_of(database, collection)
    return done


async def check_indexes(database: Database) -> list[str]:
    """Problems in words, each with its repair; empty when all indexes are as they should be."""
    problems: list[str] = []
    for collection in COLLECTIONS:
        found = await _found_in(database, collection)
        for index in _indexes_of(collection):
            if index.name not in found:
                problems.append(f"index {index.name} is missing; run `perdure init`")
            elif found[index.name] != index.specification:
                problems.append(
                    f"index {index.name} has other options than this version needs; "
                    "run `perdure init`"
                )
    return problems


def _indexes_of(collection: str) -> list[Index]:
    return [each for each in INDEXES if each.collection == collection]


async def _found_in(database: Database, collection: str) -> dict[str, Document]:
    """The collection's indexes by name, each as `Index.specification` describes one."""
    information = await database[collection].index_information()
    return {
        name: {option: found[option] for option in _COMPARED if found.get(option) is not None}
        for name, found in information.items()
    }


async def _create_collection(database: Database, collection: str) -> None:
    try:
        await database.create_collection(collection, check_exists=False)
    except OperationFailure as error:
        if error.code != _NAMESPACE_EXISTS:  # somebody else was faster
            raise


async def _create_indexes_of(database: Database, collection: str) -> list[str]:
    found = await _found_in(database, collection)
    wrong = [each for each in _indexes_of(collection) if found.get(each.name) != each.specification]
    for index in wrong:
        if index.name in found:
            await database[collection].drop_index(index.name)
    if wrong:
        try:
            await database[collection].create_indexes([each.model for each in wrong])
        except OperationFailure as error:
            if error.code != DUPLICATE_KEY:
                raise
            msg = (
                f"cannot make the unique indexes of {collection}: stored rows break one of them: "
                f"{error}. Remove the duplicates, then run `perdure init` again"
            )
            raise StoreConfigurationError(msg) from error
    return [
        f"{'repaired' if index.name in found else 'made'} index {index.name}" for index in wrong
    ]
