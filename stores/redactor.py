"""Masking what must not be stored: the same text always gives the same.

Masked are known values (of environment variables), what patterns match, and what a function of
one's own takes out. What a model and a tool get is never masked.
"""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Sequence
from typing import cast
from urllib.parse import quote, quote_plus

from pydantic import JsonValue, ValidationError
from pydantic_ai.messages import ModelMessage

from stores.digests import load_message, message_text
from stores.errors import RedactionError, StoreConfigurationError

MASK = "[redacted]"

SHORTEST_SECRET = 6
"""Characters. What is shorter is in half of all texts, and would be guessed anyway."""

LONGEST_HELD = 4096
"""Characters of live text that wait for the end of their word."""

Hook = Callable[[str], str]
"""A redactor of somebody's own; it gives the same for the same text, in every process."""

_STRUCTURE = frozenset(
    {
        *("kind", "part_kind", "timestamp", "usage", "state", "finish_reason", "outcome"),
        *("run_id", "conversation_id", "tool_call_id", "tool_name", "tool_kind"),
        *("model_name", "provider_name", "provider_url", "provider_response_id"),
    }
)
"""Fields of messages and their parts that say what the thing is. Within arguments and contents a
field of such a name is content."""

_TEXTUAL = re.compile(r"text/|application/(json|xml|yaml|x-yaml|javascript|.*\+(json|xml))")
"""Media types of files in which text can be looked for."""

_WORD = re.compile(r"[!-~]*\Z")
"""What may still grow into something longer: the last characters, of ASCII and without a space."""


class Redactor:
    """Masks strings, JSON and messages.

    Args:
        secrets: values to mask wherever they stand; as they are, as JSON and as URLs write them.
        patterns: regular expressions; what one matches is masked. They see one string at a time.
        hook: sees what these two have left.

    Raises:
        StoreConfigurationError: a secret is too short, a pattern is none, matches the empty string
            or changes the mask itself, or the hook changes the mask.
    """

    def __init__(
        self, *, secrets: Iterable[str] = (), patterns: Sequence[str] = (), hook: Hook | None = None
    ) -> None:
        self._values = frozenset(secrets)
        if any(len(each) < SHORTEST_SECRET for each in self._values):
            msg = f"a value to redact has less than {SHORTEST_SECRET} characters; name no such one"
            raise StoreConfigurationError(msg)
        spellings = {written for each in self._values for written in _spellings(each)}
        self._spellings = sorted(spellings, key=lambda each: (-len(each), each))
        self._secrets = re.compile("|".join(map(re.escape, self._spellings)) or r"(?!)")
        self._patterns = [_compiled(each) for each in patterns]
        self._hook = hook
        if self.text(MASK) != MASK:
            msg = (
                f"what redacts also changes {MASK!r}, which stands for what was redacted, so "
                "nothing would stay the same; narrow the pattern, or let the hook leave it alone"
            )
            raise StoreConfigurationError(msg)

    def text(self, text: str) -> str:
        """The text with masks.

        Raises:
            RedactionError: the hook failed, or gave something else than text. Not retryable.
        """
        masked = self._secrets.sub(MASK, text)
        for pattern in self._patterns:
            masked = pattern.sub(MASK, masked)
        return masked if self._hook is None else _hooked(self._hook, masked)

    def known(self, text: str) -> str:
        """The text with masks for known values alone."""
        return self._secrets.sub(MASK, text)

    def json_text(self, text: str) -> str:
        """A text that is JSON, if it is any: it stays JSON, whatever a pattern matches."""
        try:
            node: JsonValue = json.loads(text)
        except ValueError:
            return self.text(text)
        masked = self.node(node)
        return text if masked == node else json.dumps(masked, ensure_ascii=False)

    def node(self, node: JsonValue) -> JsonValue:
        """A JSON value with masks in its strings, its names, and for numbers that are secrets."""
        match node:
            case str():
                return self.text(node)
            case dict():
                node = self._file(node)
                return {self.text(name): self.node(value) for name, value in node.items()}
            case list():
                return [self.node(each) for each in node]
            case int() | float() if str(node) in self._values:
                return MASK
            case _:
                return node

    def message(self, message: ModelMessage) -> ModelMessage:
        """The message with masks in all that it says.

        Raises:
            RedactionError: what is left is no message. Not retryable.
        """
        stored = json.loads(message_text(message))
        masked = {
            name: [self._part(each) for each in value] if name == "parts" else self.node(value)
            for name, value in stored.items()
            if name not in _STRUCTURE
        }
        if all(masked[name] == stored[name] for name in masked):
            return message
        try:
            return load_message(json.dumps(stored | masked))
        except ValidationError as error:
            places = sorted({".".join(map(str, each["loc"])) for each in error.errors()})
            msg = (
                f"what redacts has masked a part of a message that says what it is, at {places}; "
                "narrow the pattern or the hook"
            )
            raise RedactionError(msg) from error

    def settled(self, text: str) -> int:
        """How many characters of a text that goes on can be masked without the rest.

        A word waits for its end, and so does the beginning of a secret.
        """
        word = _WORD.search(text)
        end = word.start() if word else len(text)
        for secret in self._spellings:
            first = max(0, len(text) - len(secret) + 1)
            begun = (at for at in range(first, end) if secret.startswith(text[at:]))
            end = min(end, next(begun, end))
        for pattern in (self._secrets, *self._patterns):
            for found in pattern.finditer(text):
                if found.start() < end < found.end():
                    end = found.start()
        return end if len(text) - end <= LONGEST_HELD else len(text)

    def _part(self, part: dict[str, JsonValue]) -> JsonValue:
        masked = dict(part)
        for name, value in part.items():
            if name in _STRUCTURE:
                continue
            is_json = name == "args" and isinstance(value, str)
            masked[name] = self.json_text(str(value)) if is_json else self.node(value)
        return masked

    def _file(self, node: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """The node; if it is a file of text, with masks in that."""
        media_type, data = node.get("media_type"), node.get("data")
        if not isinstance(media_type, str) or not isinstance(data, str):
            return node
        if node.get("kind") != "binary" or not _TEXTUAL.match(media_type):
            return node
        try:
            text = urlsafe_b64decode(data.translate(_URL_SAFE)).decode()
        except (Base64Error, ValueError):
            return node  # it calls itself text and is none
        masked = self.text(text)
        return node if masked == text else {**node, "data": _encoded(masked)}


_URL_SAFE = str.maketrans("+/", "-_")


def _encoded(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode()


def _spellings(secret: str) -> set[str]:
    """The value as texts have it that hold it as JSON, or in a URL."""
    in_json = (json.dumps(secret, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False))
    return {secret, *in_json, quote(secret, safe=""), quote_plus(secret)}


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        msg = f"a pattern to redact is no regular expression: {pattern!r}: {error}"
        raise StoreConfigurationError(msg) from error
    if compiled.search(""):
        msg = f"a pattern to redact matches the empty string: {pattern!r}; narrow it"
        raise StoreConfigurationError(msg)
    return compiled


def _hooked(hook: Hook, text: str) -> str:
    try:
        masked = cast("object", hook(text))
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing may be stored
        # Not its words: they may tell the text.
        msg = f"the redactor of PERDURE_REDACTOR failed: {type(error).__name__}"
        raise RedactionError(msg) from None
    if not isinstance(masked, str):
        msg = f"the redactor of PERDURE_REDACTOR gave {type(masked).__name__}, and has to give text"
        raise RedactionError(msg)
    return masked
