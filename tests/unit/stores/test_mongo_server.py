"""What is said of a server and of the driver's errors, without either."""

from typing import Any

import pytest
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    DocumentTooLarge,
    DuplicateKeyError,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from stores.errors import StoreConfigurationError, StoreError, StoreUnavailableError
from stores.mongo.failures import code_of, is_duplicate, store_errors
from stores.mongo.indexes import COLLECTIONS
from stores.mongo.server import privilege_problem, topology_problem, version_problem


@pytest.mark.parametrize(
    ("version", "array", "problem"),
    [
        ("6.0.0", [6, 0, 0, 0], None),
        ("6.0.5", [6, 0, 5, 0], None),
        ("8.2.1", [8, 2, 1, 0], None),
        ("10.0.0", [10, 0, 0, 0], None),
        ("5.3.2", [5, 3, 2, 0], "it is version 5.3.2; upgrade it to 6.0 or later"),
        ("4.4.29", [4, 4, 29, 0], "it is version 4.4.29; upgrade it to 6.0 or later"),
    ],
)
def test_versions(version: str, array: list[int], problem: str | None) -> None:
    assert version_problem({"version": version, "versionArray": array}) == problem


def test_topologies() -> None:
    assert topology_problem({"setName": "rs0"}) is None
    assert topology_problem({"msg": "isdbgrid"}) is None
    standalone = topology_problem({"isWritablePrimary": True})
    assert standalone is not None
    assert "standalone" in standalone
    assert "rs.initiate()" in standalone


def _status(*privileges: dict[str, Any], users: tuple[str, ...] = ("ann",)) -> dict[str, Any]:
    return {
        "authInfo": {
            "authenticatedUsers": [{"user": each, "db": "admin"} for each in users],
            "authenticatedUserPrivileges": list(privileges),
        }
    }


ALL = ["find", "insert", "update", "remove", "createIndex", "listIndexes"]


@pytest.mark.parametrize(
    ("status", "missing"),
    [
        (_status(users=()), None),
        (_status({"resource": {"db": "d", "collection": ""}, "actions": ALL}), None),
        (_status({"resource": {"db": "", "collection": ""}, "actions": ALL}), None),
        (_status({"resource": {"anyResource": True}, "actions": ALL}), None),
        (
            _status(
                {"resource": {"db": "d", "collection": ""}, "actions": ["find"]},
                {"resource": {"db": "other", "collection": ""}, "actions": ALL},
                {"resource": {"cluster": True}, "actions": ["inprog"]},
            ),
            "user 'ann' lacks insert, listIndexes, remove, update on database 'd'",
        ),
        (
            _status(
                *(
                    {"resource": {"db": "d", "collection": name}, "actions": ALL}
                    for name in COLLECTIONS
                    if name != "turns"
                ),
                {"resource": {"db": "d", "collection": "turns"}, "actions": ["find"]},
            ),
            "user 'ann' lacks insert (in turns), listIndexes (in turns), remove (in turns)",
        ),
    ],
)
def test_privileges(status: dict[str, Any], missing: str | None) -> None:
    problem = privilege_problem(status, "d")
    if missing is None:
        assert problem is None
    else:
        assert problem is not None
        assert missing in problem


AWAY, UNFIT, BROKEN = StoreUnavailableError, StoreConfigurationError, StoreError


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ServerSelectionTimeoutError("none, Topology Description: <long>"), AWAY, "none; retry"),
        (AutoReconnect("gone"), AWAY, "gone"),
        (AutoReconnect("SSL: certificate verify failed: Hostname mismatch"), AWAY, "tlsCAFile"),
        (OperationFailure("conflict", 112), AWAY, "away or busy"),
        (OperationFailure("stepped down, full error: {'ok': 0}", 189), AWAY, "down; retry"),
        (OperationFailure("not authorized", 13), UNFIT, "user and password"),
        (OperationFailure("Authentication failed.", 18), UNFIT, "are wrong"),
        (OperationFailure("Transaction numbers", 20), UNFIT, "replica set"),
        (ConfigurationError("no such option"), UNFIT, "connection string"),
        (OperationFailure("odd", 9999), BROKEN, "MongoDB failed: OperationFailure: odd"),
        (DocumentTooLarge("17 MB"), BROKEN, "larger than MongoDB's 16 MiB"),
    ],
)
def test_an_error_of_the_driver_becomes_one_of_the_store(
    error: Exception, kind: type[StoreError], words: str
) -> None:
    where = "host:1, database 'd'"
    with pytest.raises(StoreError) as raised, store_errors("commit 3 of 'r'", where):
        raise error
    assert type(raised.value) is kind
    assert str(raised.value).startswith("commit 3 of 'r' on host:1, database 'd'")
    assert words in str(raised.value)
    assert raised.value.__cause__ is error


def test_the_code_of_a_bulk_write_is_that_of_its_first_failure() -> None:
    failed = BulkWriteError({"writeErrors": [{"code": 11000}]})
    assert code_of(failed) == 11000
    assert is_duplicate(failed)
    assert code_of(BulkWriteError({"writeErrors": []})) == 65
    assert is_duplicate(DuplicateKeyError("dup", 11000))
    assert not is_duplicate(PyMongoError("other"))
    assert not is_duplicate(ValueError())
