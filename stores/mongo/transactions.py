"""Transactions that repeat what may be repeated, for a bounded time."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from pymongo import ReadPreference
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import NetworkTimeout, PyMongoError, ServerSelectionTimeoutError
from pymongo.read_concern import ReadConcern

from stores.mongo.client import MAJORITY, Client, Database
from stores.mongo.documents import Document
from stores.mongo.failures import WRITE_CONFLICT, code_of
from stores.mongo.forsaken import end_forsaken_transactions

Result = TypeVar("Result")

TRANSACTION_TIMEOUT_SECONDS = 5.0
"""For all attempts together: writers of one run meet for milliseconds, an election takes seconds;
what lasts longer is an outage, and the caller decides how to wait for that."""

ABORT_TIMEOUT_SECONDS = 0.5
"""A transaction that is left open blocks the next writer for up to a minute, so even a cancelled
caller waits this long to close it."""

BLOCKED_AFTER_SECONDS = 0.5
"""Of conflicts, until a writer suspects that the other one is gone. Live ones take milliseconds."""

LONGEST_PAUSE_SECONDS = 0.02
"""Between attempts, at random: two writers that met do not meet again."""


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """The session of an open transaction, and where its rows are."""

    session: AsyncClientSession
    database: Database
    workspace_id: str

    async def find(
        self,
        collection: str,
        query: Document,
        *,
        sort: list[tuple[str, int]] | None = None,
        limit: int = 0,
    ) -> list[Document]:
        """The matching documents as this transaction sees them."""
        cursor = self.database[collection].find(query, session=self.session, limit=limit, sort=sort)
        return await cursor.to_list()


async def run_transaction(
    client: Client, work: Callable[[AsyncClientSession], Awaitable[Result]]
) -> Result:
    """Do `work` in one transaction and commit it.

    `work` may run several times, each time in a new transaction: when another writer got in between
    or the primary changed. A commit whose outcome is unknown is committed again.

    Raises:
        pymongo.errors.PyMongoError: the last attempt's, after `TRANSACTION_TIMEOUT_SECONDS`.
    """
    began_at = asyncio.get_running_loop().time()
    deadline = began_at + TRANSACTION_TIMEOUT_SECONDS
    suspicious_at = began_at + BLOCKED_AFTER_SECONDS
    async with client.start_session(causal_consistency=False) as session:
        while True:
            try:
                return await _attempt(session, work, deadline)
            except PyMongoError as error:
                if not _may_repeat(error, "TransientTransactionError", deadline):
                    raise
                is_conflict = code_of(error) == WRITE_CONFLICT
            now = asyncio.get_running_loop().time()
            if is_conflict and now >= suspicious_at:
                suspicious_at = now + BLOCKED_AFTER_SECONDS
                await end_forsaken_transactions(client)
            await _pause()


async def try_transaction(
    client: Client, work: Callable[[AsyncClientSession], Awaitable[Result]]
) -> Result:
    """Do `work` in one transaction and commit it, or raise what came in between.

    Raises:
        pymongo.errors.PyMongoError: the transaction was aborted, or is not known to be.
    """
    deadline = asyncio.get_running_loop().time() + TRANSACTION_TIMEOUT_SECONDS
    async with client.start_session(causal_consistency=False) as session:
        return await _attempt(session, work, deadline)


async def _attempt(
    session: AsyncClientSession,
    work: Callable[[AsyncClientSession], Awaitable[Result]],
    deadline: float,
) -> Result:
    # Bounded from outside: with its own timeout the driver looks for a lost server all the time.
    try:
        async with asyncio.timeout_at(deadline):
            await session.start_transaction(
                read_concern=ReadConcern("snapshot"),
                write_concern=MAJORITY,
                read_preference=ReadPreference.PRIMARY,
            )
            result = await work(session)
            await _commit(session, deadline)
    except TimeoutError as error:
        await _abort(session)
        msg = f"no answer within {TRANSACTION_TIMEOUT_SECONDS:.0f} s"
        raise NetworkTimeout(msg) from error
    except BaseException:
        await _abort(session)
        raise
    return result


async def _commit(session: AsyncClientSession, deadline: float) -> None:
    while True:
        try:
            return await session.commit_transaction()
        except PyMongoError as error:
            if not _may_repeat(error, "UnknownTransactionCommitResult", deadline):
                raise
        await _pause()


async def _abort(session: AsyncClientSession) -> None:
    if not session.in_transaction:
        return
    is_away = not session.client.topology_description.has_writable_server()
    with suppress(TimeoutError):
        # Of a server that is away only the driver's own state is left to close.
        async with asyncio.timeout(0 if is_away else ABORT_TIMEOUT_SECONDS):
            await session.abort_transaction()


def _may_repeat(error: PyMongoError, label: str, deadline: float) -> bool:
    is_away = isinstance(error, ServerSelectionTimeoutError)
    is_late = asyncio.get_running_loop().time() >= deadline
    return error.has_error_label(label) and not is_away and not is_late


async def _pause() -> None:
    await asyncio.sleep(random.uniform(0, LONGEST_PAUSE_SECONDS))  # noqa: S311, TID251 - no workflow here, no secret
