"""Principals and their rights in this process's memory: the verified fake."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stores.access import AccessStore, AccessToken, Grant, Principal

GrantKey = tuple[str, str, str]
"""Principal, workspace, conversation; the last is empty for a membership."""


@dataclass
class AccessTables:
    """The rows, by their keys."""

    principals: dict[str, Principal] = field(default_factory=dict[str, Principal])
    tokens: dict[str, AccessToken] = field(default_factory=dict[str, AccessToken])
    grants: dict[GrantKey, Grant] = field(default_factory=dict[GrantKey, Grant])


class InMemoryAccess(AccessStore):
    """`AccessStore` in memory."""

    def __init__(self, tables: AccessTables, workspaces: Callable[[], Mapping[str, str]]) -> None:
        """Bind it to its rows.

        Args:
            tables: shared by all objects of one store.
            workspaces: gives the public ids by workspace, as they are now.
        """
        self._tables = tables
        self._workspaces = workspaces

    async def find_workspace(self, public_id: str) -> str | None:
        """See `AccessStore`."""
        return next((key for key, value in self._workspaces().items() if value == public_id), None)

    async def find_principal(self, principal_id: str) -> Principal | None:
        """See `AccessStore`."""
        return self._tables.principals.get(principal_id)

    async def list_principals(self) -> list[Principal]:
        """See `AccessStore`."""
        return [self._tables.principals[key] for key in sorted(self._tables.principals)]

    async def insert_principal(self, principal: Principal) -> Principal:
        """See `AccessStore`."""
        return self._tables.principals.setdefault(principal.principal_id, principal)

    async def find_token(self, digest: str) -> AccessToken | None:
        """See `AccessStore`."""
        return self._tables.tokens.get(digest)

    async def list_tokens(self, principal_id: str) -> list[AccessToken]:
        """See `AccessStore`."""
        mine = [e for e in self._tables.tokens.values() if e.principal_id == principal_id]
        return sorted(mine, key=lambda each: (each.created_at, each.digest))

    async def put_token(self, token: AccessToken) -> None:
        """See `AccessStore`."""
        self._tables.tokens[token.digest] = token

    async def delete_tokens(self, principal_id: str, digests: Sequence[str]) -> None:
        """See `AccessStore`."""
        for each in digests:
            if (found := self._tables.tokens.get(each)) and found.principal_id == principal_id:
                del self._tables.tokens[each]

    async def list_grants(self, principal_id: str, workspace_id: str | None = None) -> list[Grant]:
        """See `AccessStore`."""
        return [
            self._tables.grants[key]
            for key in sorted(self._tables.grants)
            if key[0] == principal_id and workspace_id in {None, key[1]}
        ]

    async def put_grant(self, grant: Grant) -> None:
        """See `AccessStore`."""
        self._tables.grants[_key_of(grant)] = grant

    async def delete_grants(self, grants: Sequence[Grant]) -> None:
        """See `AccessStore`."""
        for each in grants:
            self._tables.grants.pop(_key_of(each), None)


def _key_of(grant: Grant) -> GrantKey:
    return (grant.principal_id, grant.workspace_id, grant.conversation_id or "")
