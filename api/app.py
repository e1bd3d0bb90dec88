"""The HTTP service: reading conversations, and nothing else. It needs MongoDB alone."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from fastapi import FastAPI

from api import conversation_search, history
from api.authentication import Authenticator, JwtVerifier
from api.errors import add_error_handlers
from stores.protocols import StepStore
from stores.reading.reader import Library

_DESCRIPTION = """\
Search and read conversations: what was said, and what runs have done so far.

Read only. Workspace and conversation access of the caller apply as they are at the moment; what may
not be read is as what does not exist. Text is text: render it as such, never as HTML."""


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the service's clock, unless it is given one


def create_app(
    store: StepStore,
    *,
    verifier: JwtVerifier | None = None,
    clock: Callable[[], datetime] = _now,
    closes_store: bool = False,
) -> FastAPI:
    """The service over a store.

    Args:
        store: of any workspace.
        verifier: of JWTs; without one only Perdure's own tokens count.
        clock: tells when a token expires.
        closes_store: with the service.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:  # noqa: ARG001 - the framework's form
        yield
        if closes_store:
            await store.aclose()

    app = FastAPI(
        title="Perdure: conversation history",
        version="1",
        description=_DESCRIPTION,
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.library = Library(store=store)
    app.state.authenticator = Authenticator(
        access=store.conversations.access, clock=clock, verifier=verifier
    )
    add_error_handlers(app)
    app.include_router(conversation_search.router)
    app.include_router(history.router)
    return app
