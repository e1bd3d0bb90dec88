"""Principals, tokens and grants: what every `AccessStore` must do."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from stores.access import TOKEN_PREFIX, AccessStore, Caller, ReadingRights, token_digest
from stores.errors import InvalidIdentifierError, PrincipalConflictError, PrincipalNotFoundError
from stores.memory import InMemoryStepStore
from stores.mongo.steps import MongoStepStore
from stores.protocols import StepStore
from tests.stores.watching import Watcher, explained

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(days=1)


class AccessConformance(ABC):
    @pytest.fixture
    @abstractmethod
    def store(self) -> StepStore:
        """An empty store."""

    @pytest.fixture
    def access(self, store: StepStore) -> AccessStore:
        return store.conversations.access

    async def test_a_principal_is_added_once_and_stays_of_its_kind(
        self, access: AccessStore
    ) -> None:
        added = await access.add_principal("ann", "human", now=NOW)
        assert await access.add_principal("ann", "human", now=LATER) == added
        await access.add_principal("a bot", "agent", now=NOW)
        assert [each.principal_id for each in await access.list_principals()] == ["a bot", "ann"]
        with pytest.raises(PrincipalConflictError, match="there already, as human"):
            await access.add_principal("ann", "agent", now=NOW)
        with pytest.raises(InvalidIdentifierError):
            await access.add_principal("", "human", now=NOW)
        assert await access.find_principal("bob") is None

    async def test_nobody_who_is_not_known_gets_anything(self, access: AccessStore) -> None:
        for attempt in (
            access.add_token("bob", now=NOW),
            access.grant("bob", "w", now=NOW),
            access.revoke("bob"),
            access.revoke_tokens("bob"),
        ):
            with pytest.raises(PrincipalNotFoundError, match="no principal 'bob'"):
                await attempt
        assert await access.rights("bob", "w") is None
        assert await access.rights(None, "w") is None

    async def test_a_token_is_known_by_its_hash_until_it_expires_or_is_revoked(
        self, access: AccessStore
    ) -> None:
        await access.add_principal("ann", "human", now=NOW)
        await access.add_principal("bob", "human", now=NOW)
        first, kept = await access.add_token("ann", now=NOW, expires_at=LATER)
        second, _ = await access.add_token("ann", now=LATER)
        others, _ = await access.add_token("bob", now=NOW)
        assert first.startswith(TOKEN_PREFIX)
        assert (kept.digest, kept.token_id) == (token_digest(first), token_digest(first)[:12])

        async def bearer_of(token: str, *, now: datetime) -> str | None:
            caller = await access.bearer_in(token, "nowhere", now=now)
            return None if caller is None else caller.principal_id

        assert await bearer_of(first, now=NOW) == "ann"
        assert await bearer_of(first, now=LATER) is None
        assert await bearer_of(second, now=LATER + timedelta(days=900)) == "ann"
        assert await bearer_of(second + "x", now=NOW) is None
        assert await bearer_of("\ud800", now=NOW) is None
        assert [each.created_at for each in await access.list_tokens("ann")] == [NOW, LATER]

        assert await access.revoke_tokens("bob", kept.token_id) == []  # it is not Bob's
        assert await access.revoke_tokens("ann", kept.token_id) == [kept]
        assert await bearer_of(first, now=NOW) is None
        assert len(await access.revoke_tokens("ann")) == 1
        assert await access.list_tokens("ann") == []
        assert await bearer_of(others, now=NOW) == "bob"

    async def test_rights_are_what_was_granted_and_not_revoked(self, access: AccessStore) -> None:
        await access.add_principal("ann", "agent", now=NOW)
        assert await access.rights("ann", "w") is None
        await access.grant("ann", "w", conversation_id="c", now=NOW)
        await access.grant("ann", "w", conversation_id="d", now=NOW)
        await access.grant("ann", "other", now=NOW)
        own = ReadingRights(
            principal_id="ann",
            workspace_id="w",
            reach="own",
            conversation_ids=frozenset({"c", "d"}),
        )
        assert await access.rights("ann", "w") == own
        named = [(e.workspace_id, e.conversation_id) for e in await access.list_grants("ann")]
        assert named == [("other", None), ("w", None), ("w", "c"), ("w", "d")]

        grants = await access.grant("ann", "w", now=LATER)
        assert [each.reach for each in grants if each.conversation_id is None] == ["all"]
        await access.grant("ann", "w", conversation_id="e", now=NOW)  # takes no reach back
        assert (await access.rights("ann", "w") or own).reach == "all"
        await access.grant("ann", "w", reach="own", now=LATER)
        await access.revoke("ann", "w", "c")
        rights = await access.rights("ann", "w")
        assert rights is not None
        assert rights.reach == "own"
        assert rights.conversation_ids == {"d", "e"}
        assert await access.revoke("ann", "w", "c") == []
        assert len(await access.revoke("ann", "w")) == 3
        assert await access.rights("ann", "w") is None
        assert await access.rights("ann", "other") is not None
        await access.revoke("ann")
        assert await access.list_grants("ann") == []
        with pytest.raises(InvalidIdentifierError):
            await access.grant("ann", "w", conversation_id="", now=NOW)

    async def test_a_caller_comes_with_its_rights_in_the_workspace_that_it_names(
        self, store: StepStore, access: AccessStore
    ) -> None:
        places = {
            each: await store.for_workspace(each).conversations.workspace_public_id(now=NOW)
            for each in ("v", "w")
        }
        await access.add_principal("ann", "human", now=NOW)
        await access.add_principal("bob", "human", now=NOW)
        token, _ = await access.add_token("ann", now=NOW)
        await access.grant("ann", "w", conversation_id="c", now=NOW)
        await access.grant("ann", "w", conversation_id="d", now=NOW)
        await access.grant("bob", "w", now=NOW)
        await access.grant("bob", "v", now=NOW)
        for place, expected in (
            (places["w"], await access.rights("ann", "w")),
            (places["v"], None),  # another's workspace
            ("w", None),  # no public id
        ):
            found = Caller(principal_id="ann", rights=expected)
            assert await access.bearer_in(token, place, now=NOW) == found
            assert await access.principal_in("ann", place) == found
        assert await access.principal_in("eve", places["w"]) is None
        bob = await access.principal_in("bob", places["v"])
        assert bob == Caller(principal_id="bob", rights=await access.rights("bob", "v"))
        await access.revoke("ann")
        nothing = Caller(principal_id="ann", rights=None)
        assert await access.bearer_in(token, places["w"], now=NOW) == nothing

    async def test_a_workspace_is_found_by_its_public_id(
        self, store: StepStore, access: AccessStore
    ) -> None:
        public_id = await store.for_workspace("w").conversations.workspace_public_id(now=NOW)
        assert await access.find_workspace(public_id) == "w"
        assert await access.find_workspace("w") is None


class TestInMemoryAccess(AccessConformance):
    @pytest.fixture
    def store(self) -> StepStore:
        return InMemoryStepStore()


@pytest.fixture
async def mongo(mongodb_uri: str, mongodb_database: str) -> AsyncIterator[MongoStepStore]:
    """An empty database."""
    store = MongoStepStore(db_url=mongodb_uri, database=mongodb_database)
    yield store
    await store.aclose()


@pytest.mark.integration
class TestMongoAccess(AccessConformance):
    @pytest.fixture
    def store(self, mongo: MongoStepStore) -> StepStore:
        return mongo

    async def test_a_caller_is_one_question_that_scans_nothing(
        self, mongodb_uri: str, mongodb_database: str
    ) -> None:
        watcher = Watcher(mongodb_database)
        async with AsyncMongoClient[Any](mongodb_uri, event_listeners=[watcher]) as client:
            store = MongoStepStore(client=client, database=mongodb_database)
            await store.initialise()
            access = store.conversations.access
            place = await store.conversations.workspace_public_id(now=NOW)
            for each in ("ann", "bob"):
                await access.add_principal(each, "human", now=NOW)
                await access.grant(each, "default", now=NOW)
            token, _ = await access.add_token("ann", now=NOW)
            watcher.commands.clear()
            assert await access.bearer_in(token, place, now=NOW) is not None
            assert await access.principal_in("bob", place) is not None
            assert watcher.names() == ["aggregate", "aggregate"]
            # The server gives no account of a join that is unwound.
            bare = [{**each, "pipeline": each["pipeline"][:-1]} for each in watcher.commands]
            accounts = await explained(client, mongodb_database, bare)
        for _, account in accounts:
            assert "COLLSCAN" not in str(account)
            lookups = [each for each in account["stages"] if "$lookup" in each]
            assert [each["indexesUsed"] for each in lookups] == [
                ["workspaces_public_v1"],
                ["access_grants_principal_v1"],
            ]
            assert [each["totalDocsExamined"] for each in lookups] == [1, 1]
