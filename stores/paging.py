"""Cursors of the run listing: where a page ended, bound to the filters it was made with."""

import base64
import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from stores.errors import InvalidCursorError
from stores.records import RunPage, RunRecord

MAX_PAGE_SIZE = 1000
"""Runs in one answer: about a megabyte, which a terminal and an HTTP client still take."""

DEFAULT_PAGE_SIZE = 50
"""Runs in one answer when nobody says otherwise: a screen."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def microseconds(time: datetime) -> int:
    """Microseconds since 1970 UTC: exact, and in the order of time."""
    return (time - _EPOCH) // _MICROSECOND


def time_at(value: int) -> datetime:
    """The time that `microseconds` gave, in UTC."""
    return _EPOCH + value * _MICROSECOND


@dataclass(frozen=True, kw_only=True)
class RunCursor:
    """The last run of a page: the next page starts behind it."""

    started_at: datetime
    run_id: str


def check_page_size(limit: int) -> int:
    """Return `limit` when a page may have that many runs.

    Raises:
        ValueError: it may not. Not retryable.
    """
    if not 1 <= limit <= MAX_PAGE_SIZE:
        msg = f"limit {limit!r} is not between 1 and {MAX_PAGE_SIZE}"
        raise ValueError(msg)
    return limit


def given(**filters: str | None) -> dict[str, str]:
    """The filters that are set."""
    return {name: value for name, value in filters.items() if value is not None}


def page_of(runs: list[RunRecord], *, limit: int, filters: dict[str, str]) -> RunPage:
    """The page with the first `limit` of these runs; one more among them says that it goes on."""
    page = runs[:limit]
    if len(runs) <= limit:
        return RunPage(runs=page)
    last = RunCursor(started_at=page[-1].started_at, run_id=page[-1].run_id)
    return RunPage(runs=page, after=encode_cursor(last, filters))


def encode_cursor(cursor: RunCursor, filters: dict[str, str]) -> str:
    """The cursor as text that is safe in an address."""
    parts = [microseconds(cursor.started_at), cursor.run_id, _fingerprint(filters)]
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode()


def decode_cursor(text: str, filters: dict[str, str]) -> RunCursor:
    """The cursor that `encode_cursor` made for the same filters.

    Raises:
        InvalidCursorError: it was not made so. Not retryable.
    """
    try:
        started_at, run_id, fingerprint = json.loads(base64.urlsafe_b64decode(text))
        cursor = RunCursor(started_at=time_at(started_at), run_id=run_id)
    except (ValueError, TypeError, OverflowError) as error:
        msg = f"cursor {text!r} was not made by this listing; start again without one"
        raise InvalidCursorError(msg) from error
    if fingerprint != _fingerprint(filters):
        msg = f"cursor {text!r} was made with other filters; keep them or start without a cursor"
        raise InvalidCursorError(msg)
    return cursor


def _fingerprint(filters: dict[str, str]) -> str:
    text = json.dumps(sorted(filters.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
