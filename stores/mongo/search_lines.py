"""What excerpts show of messages: read and parsed once, and kept for the searches that follow.

A digest names the text of a message for good, and its workspace with it. So what is kept is never
out of date, and only a log that still has the digest leads to it.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage

from stores.digests import load_message, load_messages
from stores.mongo.search_texts import SearchTexts
from stores.search.identity import without_summary
from stores.search.rendering import Line, lines_of
from stores.threads import in_thread_if

MOST_CHARACTERS = 16 * 1024 * 1024
"""Of all lines that a process keeps: what some hundred searches show."""

_LONG_BODIES = 200_000
"""Characters of messages whose parsing takes long enough for a thread."""

Lines = Sequence[Line]


class KeptLines:
    """The lines of the messages that a process showed last, by digest; the newest at the end."""

    def __init__(self, most_characters: int = MOST_CHARACTERS) -> None:
        self._most = most_characters
        self._lines: OrderedDict[str, Lines] = OrderedDict()
        self._characters = 0

    def of(self, digests: Collection[str]) -> dict[str, Lines]:
        """Those of these messages that are kept."""
        found = {each: self._lines[each] for each in digests if each in self._lines}
        for each in found:
            self._lines.move_to_end(each)
        return found

    def keep(self, lines: Mapping[str, Lines]) -> None:
        """Keep them, and let go of what was shown longest ago."""
        for digest, each in lines.items():
            if digest not in self._lines:
                self._characters += _characters(each)
            self._lines[digest] = each
        while self._characters > self._most:
            _, gone = self._lines.popitem(last=False)
            self._characters -= _characters(gone)


def _characters(lines: Lines) -> int:
    return sum(len(each.text) for each in lines)


class SearchLines:
    """The lines of one workspace's messages, by digest."""

    def __init__(self, texts: SearchTexts, kept: KeptLines) -> None:
        self._texts = texts
        self._kept = kept

    async def load(self, digests: Collection[str]) -> dict[str, Lines]:
        """The lines of these messages; what is not there, damaged or a summary is left out.

        Raises:
            pymongo.errors.PyMongoError: MongoDB failed.
            StoreError: the media store is away, or refuses.
        """
        found = self._kept.of(digests)
        missing = [each for each in digests if each not in found]
        if not missing:
            return found
        texts = await self._texts.load(missing)
        size = sum(map(len, texts.values()))
        loaded = await in_thread_if(size > _LONG_BODIES, lambda: _lines_in(texts))
        self._kept.keep(loaded)
        return found | loaded


def _lines_in(texts: Mapping[str, str]) -> dict[str, Lines]:
    messages: Sequence[ModelMessage | None]
    try:
        messages = load_messages(texts.values())
    except ValidationError:
        messages = [_loaded_or_none(text) for text in texts.values()]
    searched = [each and without_summary(each) for each in messages]
    return {
        digest: lines_of(each)
        for digest, each in zip(texts, searched, strict=True)
        if each is not None
    }


def _loaded_or_none(text: str) -> ModelMessage | None:
    try:
        return load_message(text)
    except ValidationError:
        return None
