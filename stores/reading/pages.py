"""The envelopes of the answers. What a turn does not have is absent, never null."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from stores.conversation_records import TurnKind, TurnRole, TurnStatus, VariantStatus
from stores.reading.refusals import ErrorCode
from stores.records import RunState

Uuid = Annotated[str, Field(json_schema_extra={"format": "uuid"})]
SearchField = Literal["title", "prompt", "content", "steers"]

CallStatus = Literal["started", "awaiting_approval", "completed", "failed", "unknown", "resolved"]
"""As the ledger has it; `awaiting_approval` has not run, and does when somebody approves it."""

RoundStatus = Literal["running", "completed", "failed", "cancelled"]


class _Envelope(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> str:
        """The envelope as text, without what was not set."""
        return self.model_dump_json(exclude_unset=True)


class KeywordMatch(_Envelope):
    """A field that holds all keywords; of a title, turn, variant and position are null."""

    conversation_public_id: Uuid
    title: str
    turn_public_id: Uuid | None
    variant_public_id: Uuid | None
    position: int | None
    field: SearchField
    inherited: bool
    excerpt: str
    truncated: bool


class SearchPagination(_Envelope):
    """Where the next page begins; null: there is none."""

    next_after: str | None


class SearchPage(_Envelope):
    """Answer to a search."""

    matches: Sequence[KeywordMatch]
    pagination: SearchPagination


class TurnView(_Envelope):
    """A turn, as its active variant has it; `truncated`: some of its text was left out."""

    public_id: Uuid
    position: int
    kind: TurnKind
    role: TurnRole
    status: TurnStatus
    created_at: datetime
    truncated: bool
    prompt: str = ""
    steers: str = ""
    content: str = ""


class ConversationView(_Envelope):
    """Which conversation it is."""

    public_id: Uuid
    title: str


class HistoryPagination(_Envelope):
    """What to ask for next; the positions are null where there is nothing to go on from."""

    before_position: int | None
    after_position: int | None
    has_older: bool
    has_newer: bool


class CallView(_Envelope):
    """A tool call; `output` and `error` are previews."""

    key: str
    tool_name: str
    status: CallStatus
    started_at: datetime
    ended_at: datetime | None
    output: str = ""
    error: str = ""


class RoundView(_Envelope):
    """A model request and the calls that its response made."""

    key: str
    status: RoundStatus
    started_at: datetime
    ended_at: datetime | None
    text: str = ""
    error: str = ""
    call_count: int
    calls: Sequence[CallView]
    branches: Sequence[str]
    """Keys of calls behind which a delegated run is; one is an `execution_prefix`."""


class ExecutionPagination(_Envelope):
    """Where older rounds are."""

    next_before: str | None
    has_older: bool


class ExecutionView(_Envelope):
    """What a turn's run has done so far."""

    turn_public_id: Uuid
    variant_public_id: Uuid
    active: bool
    status: VariantStatus
    run_public_id: Uuid
    run_status: RunState
    rounds: Sequence[RoundView]
    pagination: ExecutionPagination
    truncated: bool
    attention_reason: str = ""
    failure_reason: str = ""
    details_pruned_at: datetime | None = None


class HistoryPage(_Envelope):
    """Answer to a reading."""

    conversation: ConversationView
    turns: Sequence[TurnView]
    pagination: HistoryPagination
    truncated: bool
    execution: ExecutionView | None = None


class ErrorView(_Envelope):
    """What was wrong, and with which parameter, where it was one."""

    code: ErrorCode
    message: str
    parameter: str | None


class ErrorPage(_Envelope):
    """Answer to a question that cannot be answered."""

    error: ErrorView
