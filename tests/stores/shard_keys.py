"""Whether what is sent to MongoDB names the keys by which the operators' guide shards."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pymongo import monitoring

from tests.architecture.source_tree import ROOT

Document = Mapping[str, Any]

GUIDE = ROOT / "docs" / "operations.md"

_STATEMENTS = {"update": "updates", "delete": "deletes"}


def guided_keys() -> dict[str, tuple[str, ...]]:
    """By collection, the fields of its shard key, from the commands in the guide."""
    found: dict[str, tuple[str, ...]] = {}
    for collection, key in re.findall(
        r'^sh\.shardCollection\("perdure\.(\w+)", \{ (.*?) \}\)$', GUIDE.read_text(), re.MULTILINE
    ):
        found[collection] = tuple(re.findall(r"(\w+):", key))
    return found


class Auditor(monitoring.CommandListener):
    """Counts commands that leave the shard key out, of every client made after it was registered.

    Inert but between `begin` and `end`.
    """

    def __init__(self) -> None:
        self._keys = guided_keys()
        self._found: Counter[str] | None = None
        self.seen = 0

    def begin(self) -> None:
        self._found = Counter()

    def end(self) -> Counter[str]:
        """What was left out since `begin`, in words."""
        found, self._found = self._found or Counter(), None
        return found

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if self._found is None or event.database_name in {"admin", "config", "local"}:
            return
        command = dict(event.command)
        name = event.command_name
        collection = str(command.get(name))
        key = self._keys.get(collection)
        if key is None:
            return
        self.seen += 1
        for query in _queries(name, command):
            if not all(_names(query, each) for each in key):
                self._found[f"{name} {collection} by {', '.join(sorted(_fields(query)))}"] += 1

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Not of interest."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Not of interest."""


def _queries(name: str, command: Document) -> Iterator[Document]:
    """What each statement of a command says of the documents that it is about."""
    if name == "find":
        yield command.get("filter", {})
    elif name in {"count", "distinct"}:
        yield command.get("query", {})
    elif name == "aggregate":
        stages: Sequence[Document] = command["pipeline"]
        yield stages[0].get("$match", {}) if stages else {}
    elif name == "insert":
        yield from command["documents"]
    elif name in _STATEMENTS:
        for statement in command[_STATEMENTS[name]]:
            yield statement["q"]
    elif name == "findAndModify":
        yield command["query"]


def _names(query: Document, field: str) -> bool:
    """Whether a query gives a value of the field, or several."""
    if any(_names(each, field) for each in _parts(query)):
        return True
    if field not in query:
        return False
    value = query[field]
    if not isinstance(value, Mapping):
        return True
    operators = {each for each in cast("Document", value) if each.startswith("$")}
    return not operators or bool(operators & {"$eq", "$in"})


def _fields(query: Document) -> set[str]:
    found = {each for each in query if not each.startswith("$")}
    for part in _parts(query):
        found |= _fields(part)
    return found


def _parts(query: Document) -> Sequence[Document]:
    return cast("Sequence[Document]", query.get("$and", ()))


AUDITOR = Auditor()
monitoring.register(AUDITOR)
