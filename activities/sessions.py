"""What agents read of conversations: searching and reading, journaled where a run asks.

Both read with the access that the run's principal has at that moment, and answer as the HTTP
service does, as text. A question that has no answer is answered with the service's error, which a
model can act on.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from temporalio import activity

from activities.errors import as_application_error
from stores.errors import StoreError
from stores.identifiers import DEFAULT_WORKSPACE
from stores.reading.pages import ErrorPage, ErrorView, HistoryPage, SearchPage
from stores.reading.parameters import (
    HistoryParameters,
    PublicIdQuestion,
    SearchParameters,
)
from stores.reading.reader import Library
from stores.reading.refusals import ReadingRefusedError, refusal_of
from stores.reading.searching import Search

Parameters = TypeVar("Parameters", bound=BaseModel)

TOOL_NAMES = {
    "conversation_public_id": "session_id",
    "around_turn_public_id": "around_turn_id",
}
"""Parameters of reading that models know by another name."""


class _SessionRequest(BaseModel):
    """Who asks, told by the run, and what; frozen: recorded histories hold it."""

    model_config = ConfigDict(frozen=True)

    workspace_id: str = DEFAULT_WORKSPACE
    principal: str | None = None
    parameters: dict[str, Any] = {}
    """As the model gave them; checked here, so that a wrong one is answered and not raised."""


class SessionSearchRequest(_SessionRequest):
    """A search; see `SearchParameters`."""


class SessionReadRequest(_SessionRequest):
    """A window of a conversation; see `HistoryParameters`."""

    session_id: str


class SessionResult(BaseModel):
    """The envelope, as JSON text."""

    text: str


class SessionActivities:
    """Searching and reading over a store."""

    def __init__(self, library: Library) -> None:
        self._library = library

    @activity.defn(name="session_search")
    async def session_search(self, request: SessionSearchRequest) -> SessionResult:
        """Search what the principal may read.

        Raises:
            ApplicationError: the store's error; retryable while it is away.
        """
        return SessionResult(text=await search_sessions(self._library, request))

    @activity.defn(name="session_read")
    async def session_read(self, request: SessionReadRequest) -> SessionResult:
        """Read a conversation, if the principal may.

        Raises:
            ApplicationError: the store's error; retryable while it is away.
        """
        return SessionResult(text=await read_session(self._library, request))


async def search_sessions(library: Library, request: SessionSearchRequest) -> str:
    """The envelope of a search, or of what is wrong with it."""

    async def search() -> SearchPage:
        search = Search.of(_checked(SearchParameters, request.parameters))
        reader = await library.reader(request.principal, request.workspace_id)
        return await reader.search(search)

    return await _answer(search)


async def read_session(library: Library, request: SessionReadRequest) -> str:
    """The envelope of a reading, or of what is wrong with it."""

    async def read() -> HistoryPage:
        parameters = _checked(HistoryParameters, request.parameters)
        asked = _checked(PublicIdQuestion, {"conversation_public_id": request.session_id})
        reader = await library.reader(request.principal, request.workspace_id)
        return await reader.read(asked.conversation_public_id, parameters)

    return await _answer(read)


def _checked(kind: type[Parameters], values: dict[str, Any]) -> Parameters:
    """The parameters.

    Raises:
        ParameterInvalidError: one is not what it may be.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise refusal_of(error.errors()[0]) from error


async def _answer(question: Callable[[], Awaitable[SearchPage | HistoryPage]]) -> str:
    try:
        return (await question()).to_json()
    except ReadingRefusedError as error:
        parameter = TOOL_NAMES.get(error.parameter or "", error.parameter)
        message = error.message
        for name, known in TOOL_NAMES.items():
            message = message.replace(name, known)
        view = ErrorView(code=error.code, message=message, parameter=parameter)
        return ErrorPage(error=view).to_json()
    except StoreError as error:
        raise as_application_error(error) from error
