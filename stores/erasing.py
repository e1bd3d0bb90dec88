"""What an erasure is asked for, and the receipt that it leaves."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Erasure:
    """What to erase: a conversation, or for `None` the whole workspace.

    With `keeps_inherited` turns that forks have inherited stay for them; without it a conversation
    that has forks is refused.
    """

    conversation_id: str | None = None
    keeps_inherited: bool = False

    @property
    def kind(self) -> Literal["conversation", "workspace"]:
        """Which of the two."""
        return "workspace" if self.conversation_id is None else "conversation"


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What was removed, by kind and count, and no word of what it was.

    Attributes:
        workspace_id: whose it was.
        kind: of what was erased.
        conversation_id: of a conversation.
        begun_at: of the first attempt.
        finished_at: of the last one; `None` while there is more to do.
        counts: rows by collection, blobs of another media store (`media_files`), Temporal's
            executions (`executions`). All attempts together.
        pending: what was written so lately that somebody may be about to name it; another attempt,
            or `perdure gc`, removes it later.
    """

    workspace_id: str
    kind: Literal["conversation", "workspace"]
    conversation_id: str | None = None
    begun_at: datetime
    finished_at: datetime | None = None
    counts: dict[str, int] = field(default_factory=dict[str, int])
    pending: dict[str, int] = field(default_factory=dict[str, int])
