"""A window of a conversation's turns as its reader gets it."""

from stores.access import ReadingRights
from stores.conversation_records import Turn
from stores.conversation_rows import ConversationRows
from stores.protocols import StepStore
from stores.reading.budget import TextBudget
from stores.reading.execution import Execution, read_execution
from stores.reading.pages import ConversationView, HistoryPage, TurnView
from stores.reading.parameters import HistoryParameters
from stores.reading.turns import view_of
from stores.reading.window import TurnWindow, read_window


async def read_history(
    store: StepStore,
    rights: ReadingRights,
    conversation_public_id: str,
    parameters: HistoryParameters,
) -> HistoryPage:
    """The window that is asked for, with 12,000 characters of text at most.

    The turns are of one moment; what a run has done is read behind it.

    Args:
        store: of the workspace.
        rights: of the reader in it, as they are now.
        conversation_public_id: which conversation.
        parameters: which turns.

    Raises:
        NotFoundError: no such conversation, turn or branch that the reader may read.
        ParameterInvalidError: the cursor of the execution is not one of it.
        StoreUnavailableError: retryable.
    """

    async def work(rows: ConversationRows) -> TurnWindow:
        return await read_window(rows, rights, conversation_public_id, parameters)

    window = await store.conversations.read("read a conversation", work)
    execution = None
    if window.selected is not None and window.selected.is_readable:
        execution = await read_execution(store, window.selected, parameters)
    return _page(window, execution, is_asked=parameters.include_execution)


def _page(window: TurnWindow, execution: Execution | None, *, is_asked: bool) -> HistoryPage:
    """The page. Text goes to the first of the turns, then to what it did, then to the others.

    Where no execution is asked for, that is the order of the turns alone.
    """
    budget = TextBudget()
    first = {_place(each): view_of(each, budget) for each in window.by_need[:1]}
    shown = execution.view(budget) if execution else None
    views = first | {_place(each): view_of(each, budget) for each in window.by_need[1:]}
    turns = [views[_place(each)] for each in window.turns]
    page = HistoryPage(
        conversation=ConversationView(public_id=window.head.public_id, title=window.head.title),
        turns=turns,
        pagination=window.pagination,
        truncated=_is_truncated(turns) or (shown is not None and shown.truncated),
    )
    # Set only where it was asked for: what is not set is absent.
    return page.model_copy(update={"execution": shown}) if is_asked else page


def _place(turn: Turn) -> int:
    return turn.record.position


def _is_truncated(turns: list[TurnView]) -> bool:
    return any(each.truncated for each in turns)
