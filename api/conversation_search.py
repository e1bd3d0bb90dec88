"""`GET .../conversation_search`: keyword search in the conversations of a workspace."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from api.authentication import CurrentCaller
from api.errors import RESPONSES
from api.questions import PREFIX, OpenLibrary, WorkspaceId, refuse_repeats
from stores.reading.pages import SearchPage
from stores.reading.parameters import SearchParameters
from stores.reading.searching import Search

router = APIRouter()


@router.get(
    PREFIX + "/conversation_search",
    response_model=SearchPage,
    responses=RESPONSES,
    dependencies=[Depends(refuse_repeats)],
)
async def search_conversations(
    library: OpenLibrary,
    caller: CurrentCaller,
    workspace_public_id: WorkspaceId,  # noqa: ARG001 - checked here; the caller's rights are in it
    parameters: Annotated[SearchParameters, Query()],
) -> Response:
    """Search titles, and what users and agents said, by keywords.

    All keywords have to be in one field. Newest turns first.
    """
    search = Search.of(parameters)
    reader = library.reader_with(caller.rights)
    page = await reader.search(search)
    return Response(page.to_json(), media_type="application/json")
