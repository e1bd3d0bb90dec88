"""Which messages of a run its log holds already, so that a snapshot sends only the new ones."""

import operator
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
)

from stores.histories import Range, positions_in, ranges_of
from stores.operations import PositionedMessage


@dataclass(slots=True)
class _Known:
    """A message that the log holds: the object (kept alive, its `id` is a key) and stamps."""

    message: ModelMessage
    position: int
    stamps: tuple[object, ...]


class Transcript:
    """Positions of one run's messages in its log.

    A message is recognised as the same object, else by equal content. The core stamps a request
    only when it is sent, after it was saved at the step before; such a message keeps its position
    and is sent again. Messages that leave the history keep their positions in the log, for the
    snapshots that hold them, and are forgotten here.
    """

    def __init__(self, next_position: int = 0) -> None:
        self._next_position = next_position
        self._history: list[ModelMessage] = []
        self._known: dict[int, _Known] = {}

    @classmethod
    def of(
        cls, messages: Sequence[ModelMessage], ranges: Sequence[Range], next_position: int
    ) -> "Transcript":
        """The transcript of a run whose newest snapshot has these messages and ranges.

        Raises:
            ValueError: they do not fit together.
        """
        transcript = cls(next_position)
        transcript._history = list(messages)
        transcript._known = {
            id(message): _Known(message, position, _stamps(message))
            for message, position in zip(messages, positions_in(ranges), strict=True)
        }
        return transcript

    @property
    def next_position(self) -> int:
        """The position that the next new message takes."""
        return self._next_position

    def plan(
        self, messages: Sequence[ModelMessage]
    ) -> tuple[tuple[Range, ...], tuple[PositionedMessage, ...]]:
        """Ranges for a history, and the messages that the log lacks or holds without their stamps.

        Costs one pass of identity checks over what was saved before, plus the new messages.
        """
        kept = self._unchanged_prefix(messages)
        known = self._known if kept else {}
        # Of a history that only grew all that is known is here: nothing is left for others to find.
        former = {} if kept else self._known
        # Places of messages that are here themselves are not for others of equal content.
        here = (former.get(id(message)) for message in messages)
        used = {each.position for each in here if each is not None}
        finder = _Finder(former.values())
        entries: list[PositionedMessage] = []
        for message in messages[kept:]:
            found = self._known.get(id(message)) or finder.find(message, used)
            stamps = _stamps(message)
            position = found.position if found else self._next_position
            if found is None:
                self._next_position += 1
            if found is None or found.stamps != stamps:
                entries.append(PositionedMessage(position=position, message=message))
            used.add(position)
            known[id(message)] = _Known(message, position, stamps)
        self._known = known
        self._history = list(messages)
        return ranges_of(known[id(message)].position for message in messages), tuple(entries)

    def equals(self, messages: Sequence[ModelMessage]) -> bool:
        """Whether the newest saved history has exactly these messages, stamps included."""
        return len(messages) == len(self._history) and self._unchanged(messages)

    def holds(self, messages: Sequence[ModelMessage]) -> bool:
        """Whether the newest saved history has these messages; the last one may lack its stamps.

        A run that goes on from that history has the last request stamped again when it is sent.
        """
        if not self._history or len(messages) != len(self._history):
            return False
        saved, last = self._history[-1], messages[-1]
        is_last_alike = saved is last or _same_content(saved, last)
        return is_last_alike and self._unchanged(messages[:-1])

    def _unchanged(self, messages: Sequence[ModelMessage]) -> bool:
        return all(
            (saved is message or _same_content(saved, message))
            and self._known[id(saved)].stamps == _stamps(message)
            for saved, message in zip(self._history, messages, strict=False)
        )

    def _unchanged_prefix(self, messages: Sequence[ModelMessage]) -> int:
        """Messages of the saved history that the new one begins with and that cannot have changed.

        All but the last, which may have been stamped since; none when the history was rewritten.
        """
        saved = len(self._history)
        is_continued = len(messages) >= saved and all(map(operator.is_, self._history, messages))
        return saved - 1 if saved and is_continued else 0


class _Finder:
    """Finds a message of the log by content; indexed at the first question."""

    def __init__(self, known: Iterable[_Known]) -> None:
        self._all = known
        self._alike: dict[Hashable, deque[_Known]] | None = None

    def find(self, message: ModelMessage, used: set[int]) -> _Known | None:
        """One with equal content whose position is not among the `used` ones."""
        if self._alike is None:
            self._alike = {}
            for each in self._all:
                self._alike.setdefault(_likeness(each.message), deque()).append(each)
        alike = self._alike.get(_likeness(message), deque[_Known]())
        while alike and alike[0].position in used:
            alike.popleft()
        unused = (each for each in alike if each.position not in used)
        return next((each for each in unused if _same_content(each.message, message)), None)


def is_settled(messages: Iterable[ModelMessage]) -> bool:
    """Whether a provider accepts the history as it is: every call answered, every answer asked for.

    Every tool call has exactly one later result; every result answers a call that is open there.
    Retry feedback that names no tool answers no call. Kinds are compared, not types: `isinstance`
    is slow in the workflow sandbox, and a history is long.
    """
    open_calls: set[str] = set()
    for message in messages:
        if message.kind == "response":
            if open_calls:
                return False
            calls = [part.tool_call_id for part in message.parts if part.part_kind == "tool-call"]
            open_calls = set(calls)
            if len(open_calls) != len(calls):
                return False
            continue
        for part in message.parts:
            call_id = _answered_call(part)
            if call_id is None:
                continue
            if call_id not in open_calls:
                return False
            open_calls.remove(call_id)
    return not open_calls


def _answered_call(part: ModelRequestPart) -> str | None:
    """Id of the call that a part answers; older histories hold retries as `retry-prompt`."""
    if part.part_kind == "tool-return" or (
        part.part_kind == "retry-prompt" and part.tool_name is not None
    ):
        return part.tool_call_id
    return None


def _stamps(message: ModelMessage) -> tuple[object, ...]:
    instructions = message.instructions if isinstance(message, ModelRequest) else None
    return (message.timestamp, message.run_id, message.conversation_id, instructions)


def _likeness(message: ModelMessage) -> Hashable:
    """Equal for messages of equal content, and seldom for others; costs little."""
    return (type(message), *((part.part_kind, _words(part)) for part in message.parts))


def _words(part: ModelRequestPart | ModelResponsePart) -> str | None:
    content = getattr(part, "content", None)
    return content if isinstance(content, str) else getattr(part, "tool_call_id", None)


def _same_content(one: ModelMessage, other: ModelMessage) -> bool:
    if isinstance(one, ModelRequest):
        return (
            isinstance(other, ModelRequest)
            and one.parts == other.parts
            and one.metadata == other.metadata
        )
    return (
        isinstance(other, ModelResponse)
        and one.parts == other.parts
        and one.usage == other.usage
        and one.metadata == other.metadata
    )
