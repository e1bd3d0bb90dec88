"""Conversations as rows, and a client of the history API in the loop of the test."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2

from api.app import create_app
from api.authentication import JwtVerifier
from stores.access import Reach
from stores.conversation_records import (
    ConversationKind,
    ConversationRecord,
    TurnKind,
    TurnRecord,
    TurnStatus,
    VariantRecord,
    VariantStatus,
)
from stores.conversation_rows import ConversationRows, turn_run_id
from stores.protocols import StepStore
from stores.public_ids import new_public_id

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Said:
    """A turn, as it is to be stored."""

    prompt: str = "hello"
    steers: tuple[str, ...] = ()
    content: str | None = "hi"
    status: TurnStatus = "completed"
    kind: TurnKind = "message"
    is_hidden: bool = False
    is_concealed: bool = False
    is_tombstone: bool = False
    others: tuple[VariantStatus, ...] = ()
    """Statuses of further answers, none of which is active."""

    @property
    def is_read(self) -> bool:
        """Whether any reader may get it."""
        gone = self.is_hidden or self.is_concealed or self.is_tombstone
        return self.kind == "message" and not gone


async def put_conversation(
    store: StepStore,
    conversation_id: str,
    said: Sequence[Said],
    *,
    title: str = "",
    principal: str | None = None,
    kind: ConversationKind = "main",
    is_archived: bool = False,
    now: datetime = NOW,
) -> ConversationRecord:
    """Store a conversation with these turns."""
    turns, variants = _rows_of(store.workspace_id, conversation_id, said, now)
    head = ConversationRecord(
        conversation_id=conversation_id,
        workspace_id=store.workspace_id,
        public_id=new_public_id(now),
        agent="conversation",
        title=title,
        kind=kind,
        is_archived=is_archived,
        principal=principal,
        created_at=now,
        updated_at=now,
        turn_count=len(said),
        last_turn_public_id=turns[-1].public_id if turns else None,
    )

    async def work(rows: ConversationRows) -> None:
        if await rows.find_workspace_id() is None:
            await rows.put_workspace_id(new_public_id(now))
        await rows.put_conversation(head)
        await rows.put_turns(turns)
        await rows.put_variants(variants)

    await store.conversations.transact("put a conversation", work)
    return head


def _rows_of(
    workspace_id: str, conversation_id: str, said: Sequence[Said], now: datetime
) -> tuple[list[TurnRecord], list[VariantRecord]]:
    turns: list[TurnRecord] = []
    variants: list[VariantRecord] = []
    last: str | None = None
    for position, each in enumerate(said):
        last = new_public_id(now, after=last)
        turns.append(
            TurnRecord(
                conversation_id=conversation_id,
                workspace_id=workspace_id,
                position=position,
                public_id=last,
                message_id=f"m{position}",
                prompt=each.prompt,
                steers=each.steers,
                created_at=now + timedelta(seconds=position),
                kind=each.kind,
                status=each.status,
                is_hidden=each.is_hidden,
                is_concealed=each.is_concealed,
                is_tombstone=each.is_tombstone,
                variant_count=1 + len(each.others),
            )
        )
        for number, status in enumerate((each.status, *each.others), start=1):
            content = f"another {position}" if number > 1 else each.content
            variants.append(
                VariantRecord(
                    conversation_id=conversation_id,
                    workspace_id=workspace_id,
                    position=position,
                    number=number,
                    public_id=new_public_id(now),
                    run_id=turn_run_id(workspace_id, conversation_id, f"m{position}", number),
                    order=position * 10 + number,
                    created_at=now,
                    status=status,
                    content=content if status == "completed" else None,
                    steers=each.steers,
                )
            )
    return turns, variants


async def admit(
    store: StepStore, principal_id: str, *, reach: Reach | None = "all", now: datetime = NOW
) -> str:
    """A principal of the store's workspace with a token, which is returned; `None`: no member."""
    access = store.conversations.access
    await access.add_principal(principal_id, "human", now=now)
    if reach is not None:
        await access.grant(principal_id, store.workspace_id, reach=reach, now=now)
    token, _ = await access.add_token(principal_id, now=now)
    return token


@dataclass(frozen=True, kw_only=True)
class Api:
    """Asks the service as one caller."""

    client: httpx2.AsyncClient
    workspace: str
    token: str | None

    async def get(self, path: str, **parameters: Any) -> httpx2.Response:
        """Ask within the workspace; a list is a parameter that is given several times."""
        return await self.client.get(
            f"/agent_api/v1/workspaces/{self.workspace}/{path}",
            params={name: value for name, value in parameters.items() if value is not None},
            headers={"Authorization": f"Bearer {self.token}"} if self.token else {},
        )

    async def history(self, conversation: str, **parameters: Any) -> httpx2.Response:
        """Read a conversation by its public id."""
        return await self.get(f"conversations/{conversation}/history", **parameters)

    async def search(self, **parameters: Any) -> httpx2.Response:
        """Search."""
        return await self.get("conversation_search", **parameters)


@asynccontextmanager
async def opened_api(
    store: StepStore, token: str | None, *, verifier: JwtVerifier | None = None
) -> AsyncGenerator[Api]:
    """The service over a store, asked within the store's workspace."""
    app = create_app(store, verifier=verifier, clock=lambda: NOW)
    workspace = await store.conversations.workspace_public_id(now=NOW)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://api") as client:
        yield Api(client=client, workspace=workspace, token=token)


def parameter_of(response: httpx2.Response) -> tuple[int, str, str | None]:
    """Status, code and parameter of an error."""
    error = response.json()["error"]
    assert sorted(error) == ["code", "message", "parameter"]
    return response.status_code, error["code"], error["parameter"]
