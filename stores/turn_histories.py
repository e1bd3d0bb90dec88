"""What a turn's run is begun with, and what it says when it has ended: read from snapshots."""

from collections.abc import Sequence

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)

from stores.conversation_records import Turn, TurnText, VariantRecord
from stores.protocols import StepStore
from stores.windows import trim_to_recent_turns, trim_to_token_budget, turn_starts


async def history_before(
    store: StepStore,
    conversation_id: str,
    position: int,
    *,
    path_revision: int,
    max_turns: int,
    max_tokens: int | None,
) -> list[ModelMessage]:
    """What a run at this position remembers: completed, visible turns before it, selected answers.

    Normally that is the history of the run before, as it ended, with whatever its agent made of it.
    Where another answer was selected since, or a turn hidden or shown, it is put together anew from
    what each turn's run itself said.

    Args:
        store: of the workspace.
        conversation_id: the conversation.
        position: of the new turn.
        path_revision: of the conversation's head.
        max_turns: of the window, the new turn among them.
        max_tokens: of the window; the new turn is not counted.
    """
    if max_turns == 1:
        return []
    answers = await _answers_before(store, conversation_id, position, count=max_turns - 1)
    if not answers:
        return []
    if answers[-1].path_revision == path_revision:
        messages = await _messages_of(store, answers[-1].run_id)
    else:
        parts = [
            own_messages(await _messages_of(store, each.run_id), each.run_id) for each in answers
        ]
        messages = [message for part in parts for message in part]
    recent = trim_to_recent_turns(messages, max_turns - 1)
    return recent if max_tokens is None else trim_to_token_budget(recent, max_tokens)


async def _answers_before(
    store: StepStore, conversation_id: str, position: int, *, count: int
) -> list[VariantRecord]:
    """Selected answers of the last readable turns, oldest first."""
    found: list[VariantRecord] = []
    before = position
    while len(found) < count:  # ends: at the first turn
        turns = await store.conversations.list_turns(
            conversation_id, before=before, limit=count, newest_first=True
        )
        found += [answer for each in turns if (answer := _remembered(each)) is not None]
        if len(turns) < count:
            break
        before = turns[-1].record.position
    return list(reversed(found[:count]))


def _remembered(turn: Turn) -> VariantRecord | None:
    is_remembered = turn.record.is_visible and turn.record.status == "completed"
    return turn.active if is_remembered else None


async def _messages_of(store: StepStore, run_id: str) -> list[ModelMessage]:
    snapshot = await store.latest_snapshot(run_id=run_id)
    return snapshot.messages if snapshot else []


def own_messages(messages: list[ModelMessage], run_id: str) -> list[ModelMessage]:
    """What a run added to its history: from its own prompt on.

    The core stamps messages with the run that made them; one that goes on in another execution may
    stamp later ones with another id, so what follows the first is all the run's own.
    """
    own = [i for i, message in enumerate(messages) if message.run_id == run_id]
    starts = own or turn_starts(messages)[-1:]
    return messages[starts[0] :] if starts else []


async def text_of_run(store: StepStore, run_id: str) -> TurnText | None:
    """What the run says of its turn; `None` while it has no snapshot."""
    snapshot = await store.latest_snapshot(run_id=run_id, include_interrupted=True)
    return None if snapshot is None else turn_text(own_messages(snapshot.messages, run_id))


def turn_text(messages: Sequence[ModelMessage]) -> TurnText:
    """Prompt, steers and answer in the messages of one run.

    The answer is the text of the last response; of one without text, the arguments of its last
    call, in which structured output comes.
    """
    said = [
        _prompt_text(part)
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]
    responses = [each for each in messages if isinstance(each, ModelResponse)]
    content = _answer_text(responses[-1]) if responses else None
    return TurnText(prompt=said[0] if said else "", steers=tuple(said[1:]), content=content)


def _prompt_text(part: UserPromptPart) -> str:
    if isinstance(part.content, str):
        return part.content
    return "\n".join(each for each in part.content if isinstance(each, str))


def _answer_text(response: ModelResponse) -> str | None:
    texts = [part.content for part in response.parts if isinstance(part, TextPart)]
    if texts:
        return "".join(texts)
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    return calls[-1].args_as_json_str() if calls else None
