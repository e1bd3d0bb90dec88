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

    def reads_without(self, *run_ids: str) -> dict[str, Any]:
        """The reads of all other runs."""
        return {
            "runs": [each for each in self.reads["runs"] if each["run_id"] not in run_ids],
            "of_runs": {
                run_id: reads
                for run_id, reads in self.reads["of_runs"].items()
                if run_id not in run_ids
            },
        }


def load_recording() -> Recording:
    """Read the file."""
    recorded = json.loads(RECORDING.read_text(encoding="utf-8"))
    collections = json_util.loads(json.dumps(recorded["collections"]))
    return Recording(collections=collections, reads=recorded["reads"])


def recorded_rows(collection: str) -> int:
    """How many rows of the recording can be imported."""
    documents = load_recording().collections[collection]
    return sum(each["run_id"] != EXTERNAL for each in documents)
