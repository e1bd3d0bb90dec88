"""Record a database that the reference wrote: `python -m tests.interop.record_reference`.

The file holds the collections as MongoDB's extended JSON, and what the reference's own reads gave.
Make it anew when `requirements/reference.in` names another version.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from bson import json_util
from pymongo import MongoClient

from cli.servers import LocalServers
from tests.interop.recording import RECORDING
from tests.interop.reference import harness_side

DATABASE = "harness"


def dump(uri: str) -> dict[str, list[dict[str, Any]]]:
    """All collections of the database."""
    with MongoClient[dict[str, Any]](uri) as client:
        names = client[DATABASE].list_collection_names()
        return {
            name: list(client[DATABASE][name].find(sort=[("_id", 1)])) for name in sorted(names)
        }


def main() -> None:
    """Start a MongoDB, let the reference write, keep what it wrote."""
    with tempfile.TemporaryDirectory() as data_dir:
        servers = LocalServers(Path(data_dir), search_attributes=())
        asyncio.run(servers.start())
        try:
            uri = servers.addresses.mongodb_uri
            reads = harness_side("write", uri, DATABASE)
            collections = json.loads(json_util.dumps(dump(uri)))
        finally:
            asyncio.run(servers.kill())
    text = json.dumps({"reads": reads, "collections": collections}, indent=1, ensure_ascii=False)
    RECORDING.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
