"""Whether a database is fit for use, and what makes it so."""

from collections.abc import Iterable

from stores.errors import StoreConfigurationError
from stores.mongo.client import MongoConnection
from stores.mongo.failures import store_errors
from stores.mongo.indexes import check_indexes, create_indexes
from stores.mongo.keyword_reindexing import begin_keywords
from stores.mongo.reindexing import begin_index
from stores.mongo.server import INITIALISING, WORKING, check_server


async def initialise_database(connection: MongoConnection) -> list[str]:
    """See `StepStore.initialise`."""
    with store_errors("prepare the database", connection.where):
        await _check_server(connection, INITIALISING)
        done = await create_indexes(connection.database)
        return [
            *done,
            *await begin_index(connection.database),
            *await begin_keywords(connection.database),
        ]


async def verify_database(connection: MongoConnection) -> None:
    """See `StepStore.verify`."""
    with store_errors("check the database", connection.where):
        await _check_server(connection, WORKING)
        problems = await check_indexes(connection.database)
    _raise_problems(connection, problems)


async def _check_server(connection: MongoConnection, needed: Iterable[str]) -> None:
    database = connection.database
    _raise_problems(connection, await check_server(database.client, database.name, needed))


def _raise_problems(connection: MongoConnection, problems: list[str]) -> None:
    if problems:
        msg = f"MongoDB at {connection.where} is unfit: {'; '.join(problems)}"
        raise StoreConfigurationError(msg)
