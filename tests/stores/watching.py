"""Looking at what a client sends to MongoDB, and at how the server would go about it."""

from collections.abc import Iterator
from typing import Any, cast

import bson
from pymongo import AsyncMongoClient
from pymongo.monitoring import (
    CommandFailedEvent,
    CommandListener,
    CommandStartedEvent,
    CommandSucceededEvent,
)

Document = dict[str, Any]

_OF_THE_SESSION = frozenset(
    {"lsid", "txnNumber", "startTransaction", "autocommit", "writeConcern", "readConcern"}
    | {"$clusterTime", "$db", "maxTimeMS", "$readPreference", "ordered"}
)


class Watcher(CommandListener):
    """Keeps the commands that a client sends to one database."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.commands: list[Document] = []

    def started(self, event: CommandStartedEvent) -> None:
        is_ours = event.database_name == self.database
        if is_ours or event.command_name in {"commitTransaction", "abortTransaction"}:
            self.commands.append(dict(event.command))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Not of interest."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Not of interest."""

    def names(self) -> list[str]:
        return [next(iter(each)) for each in self.commands]

    def size(self) -> int:
        """Bytes of all commands, without their sessions."""
        bare = ({k: v for k, v in c.items() if k not in _OF_THE_SESSION} for c in self.commands)
        return sum(len(bson.encode(each)) for each in bare)


async def explained(
    client: AsyncMongoClient[Document], database: str, commands: list[Document]
) -> list[tuple[Document, Document]]:
    """Each query among the commands with the server's account of running it."""
    accounts: list[tuple[Document, Document]] = []
    for command in commands:
        for query in _queries(command):
            account = await client[database].command("explain", query, verbosity="executionStats")
            accounts.append((query, account))
    return accounts


def _queries(command: Document) -> Iterator[Document]:
    bare = {key: value for key, value in command.items() if key not in _OF_THE_SESSION}
    name = next(iter(bare))
    if name in {"find", "aggregate", "distinct"}:
        yield bare
    elif name in {"update", "delete"}:
        statements = f"{name}s"
        for statement in bare[statements]:
            yield {name: bare[name], statements: [statement]}


def stages(account: Document) -> list[str]:
    """The names of all stages that were run."""
    run = _statistics(account)["executionStages"]
    return [str(each["stage"]) for each in _documents(run) if isinstance(each.get("stage"), str)]


def work(account: Document) -> tuple[int, int, int]:
    """Keys and documents examined, and documents returned, by the query itself."""
    statistics = _statistics(account)
    return (
        statistics["totalKeysExamined"],
        statistics["totalDocsExamined"],
        statistics["nReturned"],
    )


def _statistics(account: Document) -> Document:
    """Of a pipeline, those of the query that it begins with."""
    holders = (each for each in _documents(account) if "executionStats" in each)
    return cast("Document", next(holders)["executionStats"])


def _documents(value: object) -> Iterator[Document]:
    """A document and all that are in it."""
    if isinstance(value, list):
        for each in cast("list[object]", value):
            yield from _documents(each)
    elif isinstance(value, dict):
        document = cast("Document", value)
        yield document
        for each in document.values():
            yield from _documents(each)
