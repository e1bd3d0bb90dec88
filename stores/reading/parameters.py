"""What a reader may ask for, checked before anything is read.

The same models check the query of an HTTP request and the arguments of a model's tool.
"""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from stores.conversation_records import ArchivedFilter

LARGEST_POSITION = 2**31 - 1
"""No conversation has as many turns, and every database can compare it."""

_PUBLIC_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

CURSORS = ("around_turn_public_id", "before_position", "after_position")


def _as_public_id(value: str) -> str:
    """The id as it is stored: in small letters.

    Raises:
        ValueError: it is no UUID in its usual form.
    """
    lowered = value.lower()
    if not _PUBLIC_ID.fullmatch(lowered):
        message = "it is no UUID such as 01900000-0000-7000-8000-000000000070"
        raise ValueError(message)
    return lowered


PublicId = Annotated[
    str, AfterValidator(_as_public_id), Field(json_schema_extra={"format": "uuid"})
]
Limit = Annotated[int, Field(ge=1, le=50, description="most rows of the page")]


class _Parameters(BaseModel):
    """Frozen; a name that it does not know is refused, since it may be a mistyped one."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SearchParameters(_Parameters):
    """A keyword search in the conversations of a workspace."""

    query: str = Field(
        description="keywords, all of which one field must hold; 1 to 1024 bytes of UTF-8"
    )
    archived: ArchivedFilter = Field(
        default="exclude", description="whether archived conversations are searched"
    )
    include_auxiliary: bool = Field(
        default=False, description="search side and subagent conversations, too"
    )
    limit: Limit = 20
    after: str | None = Field(
        default=None, description="`pagination.next_after` of the page before"
    )


class HistoryParameters(_Parameters):
    """A window of a conversation's turns, and what one of them has done so far."""

    limit: Limit = 20
    around_turn_public_id: PublicId | None = Field(
        default=None, description="the turn in the middle of the window"
    )
    before_position: Annotated[int, Field(ge=0, le=LARGEST_POSITION)] | None = Field(
        default=None, description="only turns before this position"
    )
    after_position: Annotated[int, Field(ge=-1, le=LARGEST_POSITION)] | None = Field(
        default=None, description="only turns after this position; -1 begins at the first"
    )
    include_execution: bool = Field(
        default=False, description="add what the turn around, or the newest one, has done"
    )
    execution_before: str | None = Field(
        default=None, description="`execution.pagination.next_before` of the page before"
    )
    execution_prefix: str | None = Field(
        default=None, description="one of `branches`: read the delegated run behind it"
    )

    @field_validator("before_position", "after_position")
    @classmethod
    def _check_one_cursor(cls, value: int | None, info: ValidationInfo) -> int | None:
        others = [name for name in CURSORS if info.data.get(name) is not None]
        if value is not None and others:
            message = f"it cannot be combined with {others[0]}; give one of {', '.join(CURSORS)}"
            raise ValueError(message)
        return value


class PublicIdQuestion(_Parameters):
    """Which conversation."""

    conversation_public_id: PublicId
