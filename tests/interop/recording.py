"""The recorded database of the harness; `record_reference.py` makes it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bson import json_util

RECORDING = Path(__file__).parent / "reference_database.json"

EXTERNAL = "large"
"""The run whose messages have content in the harness's media store."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Documents by collection, and what the harness's own reads gave of them."""

    collections: dict[str, list[dict[str, Any]]]
    reads: dict[str, Any]


def load_recording() -> Recording:
    """Read the file."""
    recorded = json.loads(RECORDING.read_text(encoding="utf-8"))
    collections = json_util.loads(json.dumps(recorded["collections"]))
    return Recording(collections=collections, reads=recorded["reads"])


def recorded_rows(collection: str) -> int:
    """How many rows the recording has."""
    return len(load_recording().collections[collection])


def recorded_snapshots(run_id: str) -> int:
    """How many of a run."""
    return sum(each["run_id"] == run_id for each in load_recording().collections["snapshots"])
