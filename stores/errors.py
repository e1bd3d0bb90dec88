"""What can go wrong in a store: one tree, so that a caller can catch one kind or all.

Each error carries its data as attributes; `retryable` says whether the same call may succeed later
without anybody changing anything.
"""

from typing import ClassVar


class StoreError(Exception):
    """A store could not do what it was asked."""

    retryable: ClassVar[bool] = False


class StoreUnavailableError(StoreError):
    """No server could be reached, or it could not take a write now. Retryable."""

    retryable = True


class StoreConfigurationError(StoreError):
    """The database is not fit for use: say what was found and which step repairs it."""


class InvalidIdentifierError(StoreError, ValueError):
    """An id is empty, too long or holds characters that no id may hold."""

    def __init__(self, kind: str, value: object, problem: str) -> None:
        self.kind = kind
        self.value = value
        self.problem = problem
        super().__init__(kind, value, problem)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"{self.kind} {self.value!r} {self.problem}; it must be 1 to 200 characters without "
            "control characters, lone surrogates or outer white space"
        )


class RunIdTakenError(StoreError, ValueError):
    """A run id belongs to another registration already.

    The words are the same whether that run is in the caller's workspace or in another one.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(run_id)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"run_id {self.run_id!r} is taken: a run is registered once, by one registration. "
            "Choose another run_id; to group runs of one dialogue pass conversation_id"
        )


class AlreadyContinuedError(StoreError):
    """Another run continues this one already: two would answer one history in two ways."""

    def __init__(self, run_id: str, continued_by: str) -> None:
        self.run_id = run_id
        self.continued_by = continued_by
        super().__init__(run_id, continued_by)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"run {self.run_id!r} is continued by run {self.continued_by!r} already, and one run "
            f"is continued once. Continue {self.continued_by!r}, or fork {self.run_id!r}"
        )


class OriginRemovedError(StoreError):
    """The run that this one begins with is being removed, or has been since it was read."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(run_id)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"nothing can be continued or forked from run {self.run_id!r} any more: retention or "
            "an erasure removes it as a whole. Begin a new run"
        )


class UnresolvedEffectsError(StoreError):
    """A history would go on past tool calls of which nobody knows whether they happened."""

    def __init__(self, run_id: str, sequence: int, effects: tuple[str, ...]) -> None:
        self.run_id = run_id
        self.sequence = sequence
        self.effects = effects
        """Each in words: tool, call id, step, status, since when."""
        super().__init__(run_id, sequence, effects)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"going on from snapshot {self.sequence} of run {self.run_id!r} would cross "
            f"{len(self.effects)} unresolved tool effects: {'; '.join(self.effects)}. Whether they "
            "happened is not known, and they may happen again. Find out, then accept them with "
            f"accept_unresolved; `perdure effects {self.run_id}` has their arguments"
        )


class IdempotencyConflictError(StoreError):
    """A key that was applied came again with other content; the first row is untouched."""

    def __init__(self, boundary: str, run_id: str, key: str) -> None:
        self.boundary = boundary
        self.run_id = run_id
        self.key = key
        super().__init__(boundary, run_id, key)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"{self.boundary} of run {self.run_id!r}: key {self.key!r} was applied before with "
            "other content; the first row was kept. Equal keys must carry equal content"
        )


class DamagedSnapshotError(StoreError, ValueError):
    """A stored snapshot cannot be put together again from its messages."""

    def __init__(self, run_id: str, sequence: int, problem: str, remedy: str | None = None) -> None:
        self.run_id = run_id
        self.sequence = sequence
        self.problem = problem
        self.remedy = remedy
        super().__init__(run_id, sequence, problem, remedy)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        remedy = f". {self.remedy}" if self.remedy else ""
        return f"snapshot {self.sequence} of run {self.run_id!r} is damaged: {self.problem}{remedy}"


class MessageTooLargeError(StoreError):
    """A message is larger than a store can hold in one piece."""

    def __init__(self, run_id: str, position: int, size_bytes: int, limit_bytes: int) -> None:
        self.run_id = run_id
        self.position = position
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(run_id, position, size_bytes, limit_bytes)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"message {self.position} of run {self.run_id!r} has {self.size_bytes} bytes, and at "
            f"most {self.limit_bytes} can be stored; let the tool return a reference instead"
        )


class RunNotFoundError(StoreError, LookupError):
    """A workspace has no run of that id; the answer is the same when another workspace has one."""

    def __init__(self, run_id: str, workspace_id: str) -> None:
        self.run_id = run_id
        self.workspace_id = workspace_id
        super().__init__(run_id, workspace_id)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"workspace {self.workspace_id!r} has no run {self.run_id!r}; check the id, or wait "
            "until its worker has registered it"
        )


class InvalidOffsetError(StoreError, ValueError):
    """An offset was not given by a stream of this run."""

    def __init__(self, offset: str) -> None:
        self.offset = offset
        super().__init__(offset)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"{self.offset[:80]!r} is no offset of a stream; pass the offset of an event that was "
            "read, or none to begin at the start"
        )


class InvalidCursorError(StoreError, ValueError):
    """A page cursor was not made by an earlier page of this listing."""


class MediaNotFoundError(StoreError, FileNotFoundError):
    """A media store has no blob under this URI, in this workspace."""

    def __init__(self, uri: str, problem: str) -> None:
        self.uri = uri
        self.problem = problem
        super().__init__(uri, problem)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"media {self.uri} {self.problem}; put the blob back from a backup, or name the media "
            "store that holds it"
        )


class DamagedMediaError(StoreError, ValueError):
    """A blob's bytes are not those that its address was made of."""

    def __init__(self, uri: str, problem: str) -> None:
        self.uri = uri
        self.problem = problem
        super().__init__(uri, problem)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return f"media {self.uri} is damaged: {self.problem}; restore the blob from a backup"


class MediaFormatError(StoreError, ValueError):
    """A URI or a marker of media has a form that this version does not know."""


class MediaKeyError(StoreConfigurationError, ValueError):
    """A `key_strategy` gave a path that leaves the media store."""


class DecidedResultTooLargeError(StoreError, ValueError):
    """The result that somebody decided on for a call of a run that is over is too large to keep."""

    def __init__(self, run_id: str, size_bytes: int, limit_bytes: int) -> None:
        self.run_id = run_id
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(run_id, size_bytes, limit_bytes)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"the result for a call of run {self.run_id!r} has {self.size_bytes} bytes as JSON; "
            f"the ledger keeps {self.limit_bytes} for the run that continues it. Nothing was "
            "recorded: say it shorter, or give a reference"
        )


class DamagedPayloadError(StoreError):
    """A payload that is kept outside Temporal's history cannot be put together again."""

    def __init__(self, workflow_id: str, chunk: str, problem: str) -> None:
        self.workflow_id = workflow_id
        self.chunk = chunk
        self.problem = problem
        super().__init__(workflow_id, chunk, problem)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"a payload of workflow {self.workflow_id!r} cannot be read: chunk {self.chunk} "
            f"{self.problem}. Restore the collections payload_chunks and payload_manifests, or "
            "point PERDURE_MONGODB_URI and PERDURE_MONGODB_DATABASE at the database that has them"
        )


class UnknownPayloadKeyError(StoreError):
    """A payload is encrypted with a key that this process does not have."""

    def __init__(self, key_id: str, known: tuple[str, ...]) -> None:
        self.key_id = key_id
        self.known = known
        super().__init__(key_id, known)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        known = ", ".join(map(repr, self.known)) or "none"
        return (
            f"payload key {self.key_id!r} is not known here (known are: {known}); add it to "
            "PERDURE_PAYLOAD_KEYS, where keys stay as long as histories need them"
        )


class RedactionError(StoreError):
    """What is to be stored could not be redacted, so it is not stored."""


class UnsealedError(StoreError):
    """What was kept encrypted beside a run cannot be read with the key that its name says."""

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        super().__init__(key_id)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"what was sealed with payload key {self.key_id!r} does not open with the key of that "
            "id here; give PERDURE_PAYLOAD_KEYS the secret that it had"
        )


class ExportFileError(StoreError, ValueError):
    """A file cannot be imported: it is no export, of a newer version, cut, or was changed."""

    def __init__(self, path: object, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(path, problem)

    def __str__(self) -> str:
        """What was tried, on which file, what was found."""
        return f"{str(self.path)!r} {self.problem}. Nothing was imported"


class ImportRefusedError(StoreError, ValueError):
    """An export does not go into this store as it is. Nothing was written."""


class ConversationError(StoreError):
    """A conversation cannot do what it was asked. The message names it and says why."""

    def __init__(self, conversation_id: str, problem: str) -> None:
        self.conversation_id = conversation_id
        self.problem = problem
        super().__init__(conversation_id, problem)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return f"conversation {self.conversation_id!r}: {self.problem}"


class ConversationNotFoundError(ConversationError, LookupError):
    """This workspace has no such conversation; one of another workspace is as one that is not."""


class ConversationClosedError(ConversationError):
    """It was closed or deleted, and takes no more messages."""


class ConversationConflict(ConversationError, ValueError):  # noqa: N818 - the seed's name
    """Somebody else changed the conversation since it was read, or deleted it."""


class TurnNotFoundError(ConversationError, LookupError):
    """The conversation has no such turn or variant."""


class TurnStateError(ConversationError):
    """The turn is in a state in which that cannot be done: it runs, or has no such answer."""


class MessageIdTakenError(ConversationError, ValueError):
    """Another text was said under this message id."""


class PrincipalNotFoundError(StoreError, LookupError):
    """Nobody of that id was added."""

    def __init__(self, principal_id: str) -> None:
        self.principal_id = principal_id
        super().__init__(principal_id)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"there is no principal {self.principal_id!r}; `perdure access list` shows those that "
            "there are, `perdure access add-principal` adds one"
        )


class PrincipalConflictError(StoreError, ValueError):
    """The id is that of a principal of the other kind."""

    def __init__(self, principal_id: str, kind: str) -> None:
        self.principal_id = principal_id
        self.kind = kind
        super().__init__(principal_id, kind)

    def __str__(self) -> str:
        """What was tried, on which id, what was found, what to do."""
        return (
            f"principal {self.principal_id!r} is there already, as {self.kind}; a principal stays "
            "of its kind. Choose another id"
        )
