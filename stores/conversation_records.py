"""What is kept of a conversation: its head, its turns, the variants of their answers.

Times are aware and UTC. A `public_id` is a UUIDv7, made where the thing is first stored; those of
turns ascend with their positions.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from stores.identifiers import DEFAULT_WORKSPACE

ConversationKind = Literal["main", "side", "subagent"]
ConversationState = Literal["open", "closed", "deleted"]
TitleSource = Literal["none", "generated", "manual"]
MidTurnPolicy = Literal["enqueue", "reject", "steer", "interrupt"]
"""What becomes of a message that arrives while a turn runs."""

TurnKind = Literal["message", "compaction"]
TurnRole = Literal["user", "agent"]
TurnStatus = Literal["running", "completed", "failed", "cancelled"]
VariantStatus = Literal["pending", "running", "completed", "failed", "cancelled"]
ArchivedFilter = Literal["exclude", "include", "only"]

UNFINISHED: frozenset[VariantStatus] = frozenset({"pending", "running"})


@dataclass(frozen=True, kw_only=True)
class ConversationRecord:
    """The head of a conversation: what it is called, how it goes on, no message of it.

    `revision` counts changes of the content, `naming_version` those of the name, `path_revision`
    those of what the model gets to see of earlier turns: another variant, a hidden turn.
    """

    conversation_id: str
    public_id: str
    workspace_id: str = DEFAULT_WORKSPACE
    agent: str
    created_at: datetime
    updated_at: datetime
    kind: ConversationKind = "main"
    state: ConversationState = "open"
    revision: int = 0
    title: str = ""
    subtitle: str = ""
    tags: tuple[str, ...] = ()
    title_source: TitleSource = "none"
    naming_version: int = 0
    named_revision: int = 0
    naming_tokens: int = 0
    is_archived: bool = False
    max_turns: int = 20
    max_tokens: int | None = None
    principal: str | None = None
    settings: str = "{}"
    """JSON: how its turns are run, as whoever began it chose."""
    path_revision: int = 0
    turn_count: int = 0
    """Turns so far, inherited ones among them: the position of the next one."""
    order_count: int = 0
    """Answers that were asked for so far: the place in the queue of the next one."""
    last_turn_public_id: str | None = None
    forked_from: str | None = None
    forked_at: int | None = None
    """Position of the last turn that was inherited."""


@dataclass(frozen=True, kw_only=True)
class TurnRecord:
    """One message of a user with everything that answers it.

    An inherited turn has its words in the conversation that `source_conversation_id` names, at the
    same position; status, selection and visibility are its own.
    """

    conversation_id: str
    position: int
    public_id: str
    message_id: str
    prompt: str
    created_at: datetime
    workspace_id: str = DEFAULT_WORKSPACE
    kind: TurnKind = "message"
    role: TurnRole = "user"
    status: TurnStatus = "running"
    principal: str | None = None
    steers: tuple[str, ...] = ()
    active_variant: int = 1
    variant_count: int = 1
    is_hidden: bool = False
    """A member's choice; a member can undo it."""
    is_concealed: bool = False
    """Set by policy, and undone only there."""
    is_tombstone: bool = False
    """Deleted: the position stays, the text is gone."""
    source_conversation_id: str | None = None
    source_variant_count: int = 0
    """Variants up to this number are those of the source."""
    sealed_prompt: str | None = None
    """Where the prompt is masked and there is a key: the prompt as it was, encrypted, in base64."""

    @property
    def is_visible(self) -> bool:
        """Whether it may be read at all; summaries of a compaction never are."""
        is_away = self.is_hidden or self.is_concealed or self.is_tombstone
        return self.kind == "message" and not is_away

    @property
    def is_inherited(self) -> bool:
        """Whether it came with a fork."""
        return self.source_conversation_id is not None


@dataclass(frozen=True, kw_only=True)
class VariantRecord:
    """One answer to a turn: the run that gives it, and what it said.

    `order` is its place among all answers that were asked for in the conversation, `path_revision`
    what its run saw of earlier turns.
    """

    conversation_id: str
    position: int
    number: int
    public_id: str
    run_id: str
    order: int
    created_at: datetime
    workspace_id: str = DEFAULT_WORKSPACE
    status: VariantStatus = "pending"
    content: str | None = None
    steers: tuple[str, ...] = ()
    error: str | None = None
    path_revision: int = 0
    ended_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class MessageReceipt:
    """Which answer a client's message led to: the same message is journaled once."""

    conversation_id: str
    message_id: str
    text_digest: str
    position: int
    number: int
    workspace_id: str = DEFAULT_WORKSPACE
    is_steer: bool = False


@dataclass(frozen=True, kw_only=True)
class ConversationSpec:
    """How a conversation is begun; one that exists keeps what it has."""

    agent: str
    kind: ConversationKind = "main"
    max_turns: int = 20
    max_tokens: int | None = None
    principal: str | None = None
    settings: str = "{}"


@dataclass(frozen=True, kw_only=True)
class SubmittedMessage:
    """What a client says, under the id that it gave."""

    message_id: str
    text: str
    principal: str | None = None
    sealed_text: str | None = None
    """See `TurnRecord.sealed_prompt`."""


@dataclass(frozen=True, kw_only=True)
class TurnText:
    """What a run says of its turn; `None`: it has no answer."""

    prompt: str
    steers: tuple[str, ...] = ()
    content: str | None = None


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A turn with its variants, words included wherever they are kept."""

    record: TurnRecord
    variants: tuple[VariantRecord, ...]

    @property
    def active(self) -> VariantRecord | None:
        """The selected answer; `None` where it was removed."""
        number = self.record.active_variant
        return next((each for each in self.variants if each.number == number), None)


@dataclass(frozen=True, kw_only=True)
class RemovedConversation:
    """What a deletion of a conversation, or of one turn, removed: by the names of collections."""

    conversation_id: str
    counts: dict[str, int]
