"""Whether a MongoDB server is fit for Perdure."""

from collections.abc import Mapping
from typing import Any

from stores.mongo.client import Client

OLDEST_VERSION = (6, 0)
"""The oldest that is tested, and the oldest whose partial indexes and transactions suffice."""

_WRITING = frozenset({"find", "insert", "update", "remove"})
"""Actions that a worker needs on the database."""


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


def privilege_problem(connection_status: Mapping[str, Any], database: str) -> str | None:
    """What the user may not do, as far as `connectionStatus` with privileges tells."""
    info = connection_status["authInfo"]
    if not info["authenticatedUsers"]:
        return None
    allowed: set[str] = set()
    for privilege in info["authenticatedUserPrivileges"]:
        resource = privilege["resource"]
        if resource.get("anyResource") or resource.get("db") in {"", database}:
            allowed.update(privilege["actions"])
    missing = sorted(_WRITING - allowed)
    if not missing:
        return None
    user = info["authenticatedUsers"][0]["user"]
    return (
        f"user {user!r} lacks {', '.join(missing)} on database {database!r}; grant it the role "
        "`readWrite` there"
    )


async def check_server(client: Client, database: str) -> list[str]:
    """Problems of the server in words, each with its repair; empty when it is fit.

    Errors are the driver's: of reaching it, and of user and password.
    """
    hello = await client.admin.command("hello")
    build_info = await client.admin.command("buildInfo")
    status = await client.admin.command("connectionStatus", showPrivileges=True)
    problems = (
        topology_problem(hello),
        version_problem(build_info),
        privilege_problem(status, database),
    )
    return [each for each in problems if each is not None]
