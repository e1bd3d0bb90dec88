"""What both endpoints take from a request, each thing once and checked."""

from typing import Annotated

from fastapi import Depends, Path, Request

from stores.reading.parameters import PublicId
from stores.reading.reader import Library
from stores.reading.refusals import ParameterInvalidError

PREFIX = "/agent_api/v1/workspaces/{workspace_public_id}"


async def refuse_repeats(request: Request) -> None:
    """Refuse a parameter that is there twice: which one counts is nobody's to guess.

    Raises:
        ParameterInvalidError: names it.
    """
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if names.count(name) > 1:
            message = "it is given more than once; give it once"
            raise ParameterInvalidError(message, parameter=name)


async def _library(request: Request) -> Library:
    library: Library = request.app.state.library
    return library


OpenLibrary = Annotated[Library, Depends(_library)]
WorkspaceId = Annotated[PublicId, Path(alias="workspace_public_id")]
ConversationId = Annotated[PublicId, Path(alias="conversation_public_id")]
