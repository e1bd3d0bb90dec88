"""Principals, tokens and grants on MongoDB: one document each, under a key of its own."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import datetime

from pymongo import ReturnDocument
from pymongo.asynchronous.collection import AsyncCollection

from stores.access import (
    AccessStore,
    AccessToken,
    Caller,
    Grant,
    Principal,
    ReadingRights,
    token_digest,
)
from stores.mongo.client import MongoConnection
from stores.mongo.documents import Document
from stores.mongo.failures import store_errors
from stores.paging import microseconds, time_at

PRINCIPALS = "principals"
TOKENS = "access_tokens"
GRANTS = "access_grants"

_TIMES = ("created_at", "expires_at")
_OF_TOKENS = ("principal_id", *_TIMES)


class MongoAccess(AccessStore):
    """`AccessStore` on MongoDB; writes wait for the majority, reads go to the primary."""

    def __init__(self, connection: MongoConnection) -> None:
        self._connection = connection

    async def find_workspace(self, public_id: str) -> str | None:
        """See `AccessStore`."""
        found = await self._find("workspaces", {"public_id": public_id})
        return found[0]["_id"] if found else None

    async def find_principal(self, principal_id: str) -> Principal | None:
        """See `AccessStore`."""
        found = await self._find(PRINCIPALS, {"_id": principal_id})
        return _principal(found[0]) if found else None

    async def list_principals(self) -> list[Principal]:
        """See `AccessStore`."""
        return [_principal(each) for each in await self._find(PRINCIPALS, {}, sort=["_id"])]

    async def insert_principal(self, principal: Principal) -> Principal:
        """See `AccessStore`."""
        with self._errors(PRINCIPALS, is_write=True):
            kept = await self._collection(PRINCIPALS).find_one_and_update(
                {"_id": principal.principal_id},
                {"$setOnInsert": _document(principal, "principal_id")},
                upsert=True,
                return_document=ReturnDocument.AFTER,
            )
        return _principal(kept or {})  # there is one, by `upsert`

    async def find_token(self, digest: str) -> AccessToken | None:
        """See `AccessStore`."""
        found = await self._find(TOKENS, {"_id": digest})
        return _token(found[0]) if found else None

    async def list_tokens(self, principal_id: str) -> list[AccessToken]:
        """See `AccessStore`."""
        mine = {"principal_id": principal_id}
        return [_token(e) for e in await self._find(TOKENS, mine, sort=["created_at", "_id"])]

    async def put_token(self, token: AccessToken) -> None:
        """See `AccessStore`."""
        await self._put(TOKENS, {**_document(token, "digest"), "_id": token.digest})

    async def delete_tokens(self, principal_id: str, digests: Sequence[str]) -> None:
        """See `AccessStore`."""
        await self._delete(TOKENS, {"_id": {"$in": list(digests)}, "principal_id": principal_id})

    async def list_grants(self, principal_id: str, workspace_id: str | None = None) -> list[Grant]:
        """See `AccessStore`."""
        mine = {"principal_id": principal_id}
        if workspace_id is not None:
            mine["workspace_id"] = workspace_id
        order = ["workspace_id", "conversation_id"]  # one that is missing sorts first
        return [_grant(each) for each in await self._find(GRANTS, mine, sort=order)]

    async def put_grant(self, grant: Grant) -> None:
        """See `AccessStore`."""
        await self._put(GRANTS, {**_document(grant), "_id": _grant_key(grant)})

    async def delete_grants(self, grants: Sequence[Grant]) -> None:
        """See `AccessStore`."""
        await self._delete(GRANTS, {"_id": {"$in": [_grant_key(each) for each in grants]}})

    async def bearer_in(
        self, token: str, workspace_public_id: str, *, now: datetime
    ) -> Caller | None:
        """See `AccessStore`."""
        rows = await self._in_workspace(
            TOKENS, token_digest(token), "principal_id", workspace_public_id
        )
        if not rows or not _token(rows[0]).is_valid(now):
            return None
        return _caller(rows[0]["principal_id"], rows)

    async def principal_in(self, principal_id: str, workspace_public_id: str) -> Caller | None:
        """See `AccessStore`."""
        rows = await self._in_workspace(PRINCIPALS, principal_id, "_id", workspace_public_id)
        return _caller(principal_id, rows) if rows else None

    async def _in_workspace(
        self, name: str, key: str, principal: str, workspace_public_id: str
    ) -> list[Document]:
        """A document, once for each grant of its principal there: one question for three."""
        is_there = {"$expr": {"$eq": ["$workspace_id", {"$first": "$$workspaces._id"}]}}
        pipeline: list[Document] = [
            {"$match": {"_id": key}},
            {
                "$lookup": {
                    "from": "workspaces",
                    "pipeline": [{"$match": {"public_id": workspace_public_id}}],
                    "as": "workspaces",
                }
            },
            {
                "$lookup": {
                    "from": GRANTS,
                    "localField": principal,
                    "foreignField": "principal_id",
                    "let": {"workspaces": "$workspaces"},
                    "pipeline": [{"$match": is_there}],
                    "as": "grant",
                }
            },
            {"$unwind": {"path": "$grant", "preserveNullAndEmptyArrays": True}},
        ]
        with self._errors(name, is_write=False):
            found = await self._collection(name).aggregate(pipeline)
            return await found.to_list()

    def _collection(self, name: str) -> AsyncCollection[Document]:
        return self._connection.database[name]

    def _errors(self, name: str, *, is_write: bool) -> AbstractContextManager[None]:
        attempt = f"{'write' if is_write else 'read'} {name}"
        return store_errors(attempt, self._connection.where)

    async def _find(
        self, name: str, query: Document, *, sort: Sequence[str] = ()
    ) -> list[Document]:
        order = [(each, 1) for each in sort] or None
        with self._errors(name, is_write=False):
            return await self._collection(name).find(query, sort=order).to_list()

    async def _put(self, name: str, document: Document) -> None:
        with self._errors(name, is_write=True):
            await self._collection(name).replace_one(
                {"_id": document["_id"]}, document, upsert=True
            )

    async def _delete(self, name: str, query: Document) -> None:
        with self._errors(name, is_write=True):
            await self._collection(name).delete_many(query)


def _caller(principal_id: str, rows: Sequence[Document]) -> Caller:
    grants = [_grant(each["grant"]) for each in rows if "grant" in each]
    workspaces = rows[0]["workspaces"]
    rights = ReadingRights.of(principal_id, workspaces[0]["_id"], grants) if workspaces else None
    return Caller(principal_id=principal_id, rights=rights)


def _document(record: Principal | AccessToken | Grant, *without: str) -> Document:
    """The record's fields that are set, times in microseconds, without those that `_id` is."""
    return {
        name: microseconds(value) if isinstance(value, datetime) else value
        for name, value in asdict(record).items()
        if value is not None and name not in without
    }


def _fields(document: Document) -> Document:
    found = {name: value for name, value in document.items() if name != "_id"}
    return found | {name: time_at(found[name]) for name in _TIMES if name in found}


def _principal(document: Document) -> Principal:
    return Principal(principal_id=document["_id"], **_fields(document))


def _token(document: Document) -> AccessToken:
    found = _fields(document)
    return AccessToken(
        digest=document["_id"], **{name: found[name] for name in _OF_TOKENS if name in found}
    )


def _grant(document: Document) -> Grant:
    return Grant(**_fields(document))


def _grant_key(grant: Grant) -> Document:
    return {
        "principal_id": grant.principal_id,
        "workspace_id": grant.workspace_id,
        "conversation_id": grant.conversation_id,
    }
