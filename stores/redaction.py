"""What a store does with a redactor: it masks what it is given, before it computes any digest.

So a digest tells nothing of what was masked, a commit that comes again is the same commit, and
whoever compares a history with the store applies `Redaction.commit` and compares as ever. What a
run needs as it was, and the store alone has, is sealed with the keys that encrypt payloads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stores.attempts import AttemptEnd
from stores.commits import Commit
from stores.conversation_records import TurnText
from stores.digests import arguments_digest
from stores.errors import UnsealedError
from stores.operations import (
    AnnotateToolEffect,
    AppendEvent,
    EventContext,
    FinishToolEffect,
    MaskedStartToolEffect,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
    Write,
)
from stores.payload_keys import NO_KEYS, Keyring, WrongPayloadKeyError
from stores.records import ContinuableSnapshot, ToolEffectResolution
from stores.redactor import Redactor

_SEAL = b"\0sealed\0"
"""No protocol buffer and no text begins with it."""


@dataclass(frozen=True, kw_only=True)
class Redaction:
    """A redactor, and the keys for what has to be kept as it was.

    Attributes:
        redactor: `None` masks nothing; what was sealed is still read.
        keys: without one for a workspace nothing of it is sealed.
    """

    redactor: Redactor | None = None
    keys: Keyring = NO_KEYS

    # What is masked

    def text(self, text: str) -> str:
        """The text with masks."""
        return text if self.redactor is None else self.redactor.text(text)

    def commit(self, commit: Commit) -> Commit:
        """The commit as it is stored.

        Raises:
            RedactionError: it cannot be masked; nothing is written. Not retryable.
        """
        redactor = self.redactor
        if redactor is None:
            return commit
        operations = tuple(_operation(redactor, each) for each in commit.operations)
        return replace(commit, operations=operations)

    def snapshot(self, snapshot: ContinuableSnapshot) -> ContinuableSnapshot:
        """The same of a snapshot that is saved by itself."""
        redactor = self.redactor
        if redactor is None:
            return snapshot
        return replace(snapshot, messages=[redactor.message(each) for each in snapshot.messages])

    def turn_text(self, text: TurnText | None) -> TurnText | None:
        """The same of what a run says of its turn."""
        if text is None or self.redactor is None:
            return text
        return TurnText(
            prompt=self.text(text.prompt),
            steers=tuple(self.text(each) for each in text.steers),
            content=None if text.content is None else self.text(text.content),
        )

    # What is sealed

    def seal(self, workspace_id: str, data: bytes) -> bytes | None:
        """What is to be kept as it was, encrypted; `None` without a key, or with nothing to hide.

        The same again gives something else.
        """
        key = None if self.redactor is None else self.keys.for_workspace(workspace_id)
        return None if key is None else b"\0".join((_SEAL + key.id.encode(), key.seal(data)))

    def unsealed(self, data: bytes) -> bytes:
        """What was sealed, or the data if nothing was.

        Raises:
            UnknownPayloadKeyError: it was with a key that this process does not have.
            UnsealedError: it was with another one of the same id, or was changed since.
        """
        if not data.startswith(_SEAL):
            return data
        key_id, _, sealed = data[len(_SEAL) :].partition(b"\0")
        key = self.keys.get(key_id.decode(errors="replace"))
        try:
            return key.open(sealed)
        except WrongPayloadKeyError as error:
            raise UnsealedError(key.id) from error

    def attempt_end(self, workspace_id: str, end: AttemptEnd) -> AttemptEnd:
        """How an attempt ended, as it is stored: a later attempt may need the result as it was."""
        if self.redactor is None:
            return end
        sealed = None if end.result is None else self.seal(workspace_id, end.result)
        error = None if end.error is None else self.text(end.error)
        return replace(end, error=error, result=sealed or end.result)


NO_REDACTION = Redaction()


def _operation(redactor: Redactor, operation: Write) -> Write:
    """The operation as it is stored; identifiers stay as they are."""
    changed: dict[str, object]
    match operation:
        case RegisterRun():
            changed = {"metadata": _metadata(redactor, operation.metadata)}
        case AppendEvent():
            changed = {
                "error": _text(redactor, operation.error),
                "context": _context(redactor, operation.context),
            }
        case SaveSnapshot():
            entries = tuple(
                each.model_copy(update={"message": redactor.message(each.message)})
                for each in operation.entries
            )
            changed = {"entries": entries, "context": _context(redactor, operation.context)}
        case StartToolEffect():
            return _start(redactor, operation)
        case FinishToolEffect():
            changed = {
                "error": _text(redactor, operation.error),
                "resolution": _resolution(redactor, operation.resolution),
                **_told(redactor, operation),
            }
        case AnnotateToolEffect():
            changed = _told(redactor, operation)
    return operation.model_copy(update=changed)


def _start(redactor: Redactor, operation: StartToolEffect) -> StartToolEffect:
    """With the digest of what the tool gets: an approval is for that."""
    told = operation.model_copy(update=_told(redactor, operation))
    if operation.arguments is None:
        return told
    masked = redactor.json_text(operation.arguments)
    if masked == operation.arguments:
        return told
    given = arguments_digest(operation.arguments)
    values = dict(told) | {"arguments": masked, "given_digest": given}
    return MaskedStartToolEffect.model_validate(values)


def _told(
    redactor: Redactor, operation: StartToolEffect | FinishToolEffect | AnnotateToolEffect
) -> dict[str, object]:
    return {
        "idempotency_key": _text(redactor, operation.idempotency_key),
        "effect_summary": _text(redactor, operation.effect_summary),
    }


def _text(redactor: Redactor, text: str | None) -> str | None:
    return None if text is None else redactor.text(text)


def _metadata(redactor: Redactor, metadata: Mapping[str, str]) -> dict[str, str]:
    return {name: redactor.json_text(value) for name, value in metadata.items()}


def _context(redactor: Redactor, context: EventContext | None) -> EventContext | None:
    if context is None:
        return None
    return context.model_copy(update={"metadata": _metadata(redactor, context.metadata)})


def _resolution(
    redactor: Redactor, resolution: ToolEffectResolution | None
) -> ToolEffectResolution | None:
    if resolution is None:
        return None
    result = resolution.result
    return replace(
        resolution,
        why=_text(redactor, resolution.why),
        result=None if result is None else redactor.json_text(result),
    )
