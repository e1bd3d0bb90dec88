"""What a run left behind, as `perdure chaos` compares it."""

from cli.sweep.traces import (
    STAMPS,
    Trail,
    content_of,
    operations_of,
    path_of,
    stored_and_replayed,
    trail_of,
)

__all__ = [
    "STAMPS",
    "Trail",
    "content_of",
    "operations_of",
    "path_of",
    "stored_and_replayed",
    "trail_of",
]
