"""`perdure import-harness` as an operator runs it."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import MongoClient

from stores.mongo.steps import MongoStepStore
from tests.interop.recording import load_recording, recorded_rows
from tests.interop.reference import INHERITED, ROOT

pytestmark = pytest.mark.integration

NOWHERE = "mongodb://127.0.0.1:1/"

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(mongodb_uri: str, prepared_database: str, source: str) -> Command:
    """Runs the command on the recorded source; what is given later counts."""
    settings = {"MONGODB_URI": mongodb_uri, "MONGODB_DATABASE": prepared_database}

    def run(*options: str, **changed: str) -> subprocess.CompletedProcess[str]:
        named = {f"PERDURE_{name.upper()}": text for name, text in {**settings, **changed}.items()}
        place = ("--uri", mongodb_uri, "--database", source)
        return subprocess.run(
            [sys.executable, "-m", "cli.main", "import-harness", *place, *options],
            cwd=ROOT,
            env={**INHERITED, **named},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


@pytest.fixture
def without_media(mongodb_uri: str, source: str) -> None:
    """The source, and its media store elsewhere."""
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        client[source]["media"].delete_many({})


async def test_an_import_says_what_it_did(command: Command, mongo: MongoStepStore) -> None:
    done, again = command(), command()

    assert (done.returncode, again.returncode) == (0, 0), done.stderr
    assert [line.split() for line in done.stdout.splitlines()][1:] == [
        ["runs", "5", "0", "0"],
        ["events", str(recorded_rows("events")), "0", "0"],
        ["snapshots", str(recorded_rows("snapshots")), "0", "0"],
        ["tool", "effects", str(recorded_rows("tool_effects")), "0", "0"],
    ]
    assert again.stdout.splitlines()[1].split() == ["runs", "0", "5", "0"]
    assert len(await mongo.list_runs()) == 5


@pytest.mark.usefixtures("without_media")
async def test_a_dry_run_says_what_it_would_do(command: Command, mongo: MongoStepStore) -> None:
    planned = command("--dry-run")

    assert planned.returncode == 1  # the source has a run that cannot be imported
    assert "would import" in planned.stdout
    assert planned.stdout.splitlines()[1].split() == ["runs", "4", "0", "1"]
    assert await mongo.list_runs() == []


@pytest.mark.usefixtures("mongo", "without_media")
def test_what_was_left_out_is_listed_and_fails_the_command(command: Command) -> None:
    printed, document = command(), command("--json")

    assert (printed.returncode, document.returncode) == (1, 1)
    assert "external" in printed.stdout
    report = json.loads(document.stdout)
    assert report["runs"] == {"imported": 0, "unchanged": 4, "left_out": 1}
    assert report["problem_count"] == len(report["problems"]) >= 2
    assert {each["run_id"] for each in report["problems"]} == {"large"}
    snapshots = {str(each["_id"]) for each in load_recording().collections["snapshots"]}
    assert {each["document"] for each in report["problems"]} <= snapshots


async def test_runs_go_to_the_workspace_that_is_named(
    command: Command, mongo: MongoStepStore
) -> None:
    command("--workspace", "acme")

    assert await mongo.list_runs() == []
    assert len(await mongo.for_workspace("acme").list_runs()) == 5


REFUSED: dict[str, tuple[tuple[str, str], int, str]] = {
    "missing": (("--database", "nobody-has-this"), 3, "no collection at all"),
    "malformed": (("--database", "a b"), 2, "correct the name"),
    "unnamed": (("--database", ""), 2, "the name of the database"),
    "no connection string": (("--uri", "http://localhost"), 2, "correct the connection string"),
    "unknown media": (("--media", "tape:1"), 2, "names no media store"),
    "away": (("--uri", NOWHERE), 4, "127.0.0.1:1"),
    "with a password": (("--uri", "mongodb://me:hidden@127.0.0.1:1/"), 4, "127.0.0.1:1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_source_that_is_none_is_refused(command: Command, name: str) -> None:
    options, code, words = REFUSED[name]

    refused = command(*options)

    assert (refused.returncode, refused.stdout) == (code, "")
    assert words in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "hidden" not in refused.stderr


def test_a_database_of_our_own_is_refused(command: Command, prepared_database: str) -> None:
    refused = command("--database", prepared_database)

    assert refused.returncode == 3
    assert "database of Perdure's own" in refused.stderr


def test_a_store_without_indexes_is_refused_before_anything_is_read(command: Command) -> None:
    refused = command(mongodb_database="test_never_made")

    assert refused.returncode == 1
    assert "perdure init" in refused.stderr
