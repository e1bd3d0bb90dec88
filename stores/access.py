"""Who may read which conversations: principals, tokens, grants.

A principal is a human or an agent; what it may read follows from its grants alone, so both have the
same contract. Rights are read for each question, never kept: what is revoked is gone at once.
"""

import hashlib
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from stores.conversation_records import ConversationRecord
from stores.errors import PrincipalConflictError, PrincipalNotFoundError
from stores.identifiers import check_identifier

PrincipalKind = Literal["human", "agent"]

Reach = Literal["all", "own"]
"""Of a membership: every conversation of the workspace, or those that the principal began and
those that it was granted."""

TOKEN_PREFIX = "perdure_"  # noqa: S105 - tells ours from others, for scanners of leaked secrets
_TOKEN_BYTES = 32
_TOKEN_ID_LENGTH = 12


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Who reads."""

    principal_id: str
    kind: PrincipalKind
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class AccessToken:
    """A bearer token of a principal, by its SHA-256: the token itself is nowhere."""

    digest: str
    principal_id: str
    created_at: datetime
    expires_at: datetime | None = None

    @property
    def token_id(self) -> str:
        """What names it to a person."""
        return self.digest[:_TOKEN_ID_LENGTH]

    def is_valid(self, now: datetime) -> bool:
        """Whether it has not expired."""
        return self.expires_at is None or now < self.expires_at


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Membership in a workspace, or with `conversation_id` access to one conversation of it."""

    principal_id: str
    workspace_id: str
    created_at: datetime
    conversation_id: str | None = None
    reach: Reach = "all"


@dataclass(frozen=True, kw_only=True)
class ReadingRights:
    """What a principal may read of a workspace whose member it is, now."""

    principal_id: str
    workspace_id: str
    reach: Reach = "all"
    conversation_ids: frozenset[str] = frozenset()
    """Granted one by one."""

    @classmethod
    def of(
        cls, principal_id: str, workspace_id: str, grants: Sequence[Grant]
    ) -> "ReadingRights | None":
        """What its grants in the workspace come to; `None`: it is no member."""
        membership = next((each for each in grants if each.conversation_id is None), None)
        if membership is None:
            return None
        return cls(
            principal_id=principal_id,
            workspace_id=workspace_id,
            reach=membership.reach,
            conversation_ids=frozenset(e.conversation_id for e in grants if e.conversation_id),
        )

    def allow(self, head: ConversationRecord) -> bool:
        """Whether the conversation may be read. A deleted one may not, by anybody."""
        if head.workspace_id != self.workspace_id or head.state == "deleted":
            return False
        return (
            self.reach == "all"
            or head.principal == self.principal_id
            or head.conversation_id in self.conversation_ids
        )


@dataclass(frozen=True, kw_only=True)
class Caller:
    """A known principal that asks within a workspace.

    `rights` is `None` where it is no member, or there is no such workspace.
    """

    principal_id: str
    rights: ReadingRights | None


def new_token() -> str:
    """A token with 256 random bits, which nobody can guess: so a plain hash of it is enough."""
    return TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)


def token_digest(token: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


class AccessStore(ABC):
    """Principals of the whole deployment, and what they may read; bound to no workspace.

    Every `put` and `delete` may be repeated. `StoreUnavailableError` (retryable) is an outage.
    """

    @abstractmethod
    async def find_workspace(self, public_id: str) -> str | None:
        """The id of the workspace with that public id."""

    @abstractmethod
    async def find_principal(self, principal_id: str) -> Principal | None:
        """The principal."""

    @abstractmethod
    async def list_principals(self) -> list[Principal]:
        """All of them, by id."""

    @abstractmethod
    async def insert_principal(self, principal: Principal) -> Principal:
        """Keep it, where there is none of that id; return the one that is kept."""

    @abstractmethod
    async def find_token(self, digest: str) -> AccessToken | None:
        """The token with that digest, also when it has expired."""

    @abstractmethod
    async def list_tokens(self, principal_id: str) -> list[AccessToken]:
        """The principal's, by the time they were made."""

    @abstractmethod
    async def put_token(self, token: AccessToken) -> None:
        """Keep it."""

    @abstractmethod
    async def delete_tokens(self, principal_id: str, digests: Sequence[str]) -> None:
        """Remove these."""

    @abstractmethod
    async def list_grants(self, principal_id: str, workspace_id: str | None = None) -> list[Grant]:
        """The principal's, by workspace and conversation, the membership first."""

    @abstractmethod
    async def put_grant(self, grant: Grant) -> None:
        """Keep it; it takes the place of an older one for the same thing."""

    @abstractmethod
    async def delete_grants(self, grants: Sequence[Grant]) -> None:
        """Remove these."""

    async def rights(self, principal_id: str | None, workspace_id: str) -> ReadingRights | None:
        """What the principal may read of the workspace; `None`: it is no member."""
        if principal_id is None:
            return None
        grants = await self.list_grants(principal_id, workspace_id)
        return ReadingRights.of(principal_id, workspace_id, grants)

    async def bearer_in(
        self, token: str, workspace_public_id: str, *, now: datetime
    ) -> Caller | None:
        """Whose token it is, and its rights; `None`: nobody's, or it has expired."""
        found = await self.find_token(token_digest(token))
        if found is None or not found.is_valid(now):
            return None
        return await self._caller(found.principal_id, workspace_public_id)

    async def principal_in(self, principal_id: str, workspace_public_id: str) -> Caller | None:
        """The principal and its rights; `None`: there is no such principal."""
        if await self.find_principal(principal_id) is None:
            return None
        return await self._caller(principal_id, workspace_public_id)

    async def _caller(self, principal_id: str, workspace_public_id: str) -> Caller:
        workspace_id = await self.find_workspace(workspace_public_id)
        if workspace_id is None:
            return Caller(principal_id=principal_id, rights=None)
        rights = await self.rights(principal_id, workspace_id)
        return Caller(principal_id=principal_id, rights=rights)

    async def add_principal(
        self, principal_id: str, kind: PrincipalKind, *, now: datetime
    ) -> Principal:
        """A principal, without any right. Repeats: the first one stays.

        Raises:
            InvalidIdentifierError: the id is malformed.
            PrincipalConflictError: there is one of the other kind.
        """
        check_identifier("principal_id", principal_id)
        wanted = Principal(principal_id=principal_id, kind=kind, created_at=now)
        kept = await self.insert_principal(wanted)
        if kept.kind != kind:
            raise PrincipalConflictError(principal_id, kept.kind)
        return kept

    async def known_principal(self, principal_id: str) -> Principal:
        """The principal.

        Raises:
            PrincipalNotFoundError: there is none.
        """
        found = await self.find_principal(principal_id)
        if found is None:
            raise PrincipalNotFoundError(principal_id)
        return found

    async def add_token(
        self, principal_id: str, *, now: datetime, expires_at: datetime | None = None
    ) -> tuple[str, AccessToken]:
        """A new token, told this once, and what is kept of it.

        Raises:
            PrincipalNotFoundError: there is no such principal.
        """
        await self.known_principal(principal_id)
        token = new_token()
        kept = AccessToken(
            digest=token_digest(token),
            principal_id=principal_id,
            created_at=now,
            expires_at=expires_at,
        )
        await self.put_token(kept)
        return token, kept

    async def grant(
        self,
        principal_id: str,
        workspace_id: str,
        *,
        conversation_id: str | None = None,
        reach: Reach = "all",
        now: datetime,
    ) -> list[Grant]:
        """Let the principal read; with a conversation it becomes a member of reach `own` at least.

        Raises:
            PrincipalNotFoundError: there is no such principal. InvalidIdentifierError.
        """
        await self.known_principal(principal_id)
        check_identifier("workspace_id", workspace_id)
        membership = Grant(
            principal_id=principal_id,
            workspace_id=workspace_id,
            created_at=now,
            reach="own" if conversation_id else reach,
        )
        if conversation_id is None:
            await self.put_grant(membership)
            return await self.list_grants(principal_id, workspace_id)
        check_identifier("conversation_id", conversation_id)
        if await self.rights(principal_id, workspace_id) is None:
            await self.put_grant(membership)
        await self.put_grant(
            Grant(
                principal_id=principal_id,
                workspace_id=workspace_id,
                conversation_id=conversation_id,
                created_at=now,
            )
        )
        return await self.list_grants(principal_id, workspace_id)

    async def revoke(
        self,
        principal_id: str,
        workspace_id: str | None = None,
        conversation_id: str | None = None,
    ) -> list[Grant]:
        """Take grants away: one conversation's, all of a workspace, or all; return what went.

        Raises:
            PrincipalNotFoundError: there is no such principal.
        """
        await self.known_principal(principal_id)
        gone = [
            each
            for each in await self.list_grants(principal_id, workspace_id)
            if conversation_id is None or each.conversation_id == conversation_id
        ]
        await self.delete_grants(gone)
        return gone

    async def revoke_tokens(
        self, principal_id: str, token_id: str | None = None
    ) -> list[AccessToken]:
        """Take tokens away: those whose id begins so, or all; return what went.

        Raises:
            PrincipalNotFoundError: there is no such principal.
        """
        await self.known_principal(principal_id)
        gone = [
            each
            for each in await self.list_tokens(principal_id)
            if token_id is None or each.token_id == token_id
        ]
        await self.delete_tokens(principal_id, [each.digest for each in gone])
        return gone
