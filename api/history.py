"""`GET .../history`: a window of a conversation, and what its runs have done."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from api.authentication import CurrentCaller
from api.errors import RESPONSES
from api.questions import PREFIX, ConversationId, OpenLibrary, WorkspaceId, refuse_repeats
from stores.reading.pages import HistoryPage
from stores.reading.parameters import HistoryParameters

router = APIRouter()


@router.get(
    PREFIX + "/conversations/{conversation_public_id}/history",
    response_model=HistoryPage,
    responses=RESPONSES,
    dependencies=[Depends(refuse_repeats)],
)
async def read_conversation(
    library: OpenLibrary,
    caller: CurrentCaller,
    workspace_public_id: WorkspaceId,  # noqa: ARG001 - checked here; the caller's rights are in it
    conversation_public_id: ConversationId,
    parameters: Annotated[HistoryParameters, Query()],
) -> Response:
    """Read turns around one, before or after a position, or the newest ones."""
    reader = library.reader_with(caller.rights)
    page = await reader.read(conversation_public_id, parameters)
    return Response(page.to_json(), media_type="application/json")
