"""Whether a MongoDB server is fit for Perdure."""

from collections.abc import Iterable, Mapping
from typing import Any

from stores.mongo.client import Client
from stores.mongo.indexes import COLLECTIONS

OLDEST_VERSION = (6, 0)
"""The oldest that is tested, and the oldest whose partial indexes and transactions suffice."""

WORKING = frozenset({"find", "insert", "listIndexes", "remove", "update"})
"""Actions that a worker needs on the database. `changeStream` besides spares readers of live text
their polling."""

INITIALISING = WORKING | {"createCollection", "createIndex", "dropIndex", "listCollections"}
"""Actions that `perdure init` needs."""


def version_problem(build_info: Mapping[str, Any]) -> str | None:
    """What is wrong with the version in an answer to `buildInfo`; `None` when nothing is."""
    version = tuple(build_info["versionArray"][:2])
    if version >= OLDEST_VERSION:
        return None
    needed = ".".join(map(str, OLDEST_VERSION))
    return f"it is version {build_info['version']}; upgrade it to {needed} or later"


def topology_problem(hello: Mapping[str, Any]) -> str | None:
    """What is wrong with the topology in an answer to `hello`; `None` when nothing is."""
    if "setName" in hello or hello.get("msg") == "isdbgrid":
        return None
    return (
        "it is a standalone server, which has no transactions; start mongod with `--replSet rs0` "
        "and run `rs.initiate()` once"
    )


def privilege_problem(
    connection_status: Mapping[str, Any], database: str, needed: Iterable[str] = WORKING
) -> str | None:
    """What the user may not do, as far as `connectionStatus` with privileges tells."""
    info = connection_status["authInfo"]
    if not info["authenticatedUsers"]:
        return None
    missing = [
        f"{action}{_in_words(lacking)}"
        for action in sorted(needed)
        if (lacking := _lacking(info["authenticatedUserPrivileges"], action, database))
    ]
    if not missing:
        return None
    user = info["authenticatedUsers"][0]["user"]
    return (
        f"user {user!r} lacks {', '.join(missing)} on database {database!r}; grant it the role "
        "`readWrite` there"
    )


def _lacking(
    privileges: Iterable[Mapping[str, Any]], action: str, database: str
) -> tuple[str, ...]:
    """The collections on which nothing grants the action."""
    granted: set[str] = set()
    for privilege in privileges:
        resource = privilege["resource"]
        if action not in privilege["actions"]:
            continue
        if resource.get("anyResource"):
            return ()
        if resource.get("db") in {"", database}:
            granted.add(resource.get("collection", ""))
    return () if "" in granted else tuple(each for each in COLLECTIONS if each not in granted)


def _in_words(collections: tuple[str, ...]) -> str:
    return "" if len(collections) == len(COLLECTIONS) else f" (in {', '.join(collections)})"


async def check_server(client: Client, database: str, needed: Iterable[str] = WORKING) -> list[str]:
    """Problems of the server in words, each with its repair; empty when it is fit.

    Errors are the driver's: of reaching it, and of user and password.
    """
    hello = await client.admin.command("hello")
    build_info = await client.admin.command("buildInfo")
    status = await client.admin.command("connectionStatus", showPrivileges=True)
    problems = (
        topology_problem(hello),
        version_problem(build_info),
        privilege_problem(status, database, needed),
    )
    return [each for each in problems if each is not None]
