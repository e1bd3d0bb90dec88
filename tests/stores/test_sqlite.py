import asyncio
import os
import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stores.commits import Commit
from stores.errors import (
    DamagedSnapshotError,
    StoreConfigurationError,
    StoreError,
    StoreUnavailableError,
)
from stores.protocols import StepStore
from stores.sqlite import connection as sqlite_connection
from stores.sqlite.steps import SqliteStepStore
from tests.stores.local_conformance import LocalStepStoreConformance
from tests.stores.local_processes import check_what_two_writers_wrote, run_two_writers
from tests.stores.records import effect, event, run_record, snapshot
from tests.stores.step_media_conformance import StepMediaConformance
from tests.stores.writer import Execution, RunScript, at, request, response


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
async def store(database: Path) -> AsyncIterator[SqliteStepStore]:
    store = SqliteStepStore(database=database)
    yield store
    await store.aclose()


@pytest.fixture
def shared(database: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(database, check_same_thread=False)
    yield connection
    connection.close()


class TestSqliteStepStore(LocalStepStoreConformance, StepMediaConformance):
    @pytest.fixture
    def store(self, store: SqliteStepStore) -> StepStore:
        return store


class TestSqliteStepStoreOnASharedConnection(LocalStepStoreConformance, StepMediaConformance):
    @pytest.fixture
    def store(self, shared: sqlite3.Connection) -> StepStore:
        return SqliteStepStore(connection=shared)


async def filled(store: StepStore) -> None:
    """A run with one of everything, and two snapshots."""
    await store.register_run(run_record(metadata={"a": "1"}))
    await store.append_event(event(kind="run_started"))
    await store.record_tool_effect(effect())
    await store.save_snapshot(snapshot([request("a")], "1"))
    await store.save_snapshot(snapshot([request("a"), response("b")], "2", step_index=2))


async def test_nothing_is_opened_before_the_first_call(database: Path) -> None:
    store = SqliteStepStore(database=database)
    store.for_workspace("other")
    assert not database.exists()
    await store.aclose()
    assert not database.exists()


async def test_initialise_says_what_it_made(database: Path, store: SqliteStepStore) -> None:
    made = await store.initialise()
    assert f"made table runs in SQLite {database}" in made
    assert await store.initialise() == []
    again = SqliteStepStore(database=database)
    assert await again.initialise() == []
    await again.aclose()


@pytest.mark.spec("SP-1", "SP-2")
async def test_what_was_written_is_there_for_the_next_process(
    database: Path, store: SqliteStepStore
) -> None:
    await filled(store)
    await store.aclose()
    again = SqliteStepStore(database=database)
    latest = await again.latest_snapshot(run_id="run-1")
    assert latest is not None
    assert latest.messages == [request("a"), response("b")]
    assert (await again.get_run(run_id="run-1")) is not None
    await again.register_run(run_record("next", continued_from="run-1", from_snapshot=4))
    (continuation,) = await again.list_runs(continued_from="run-1")
    assert continuation.from_snapshot == 4
    await again.aclose()


@pytest.mark.spec("SP-47")
async def test_the_journal_is_a_write_ahead_log(store: SqliteStepStore, database: Path) -> None:
    await store.initialise()
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_file_or_a_connection_must_be_named(shared: sqlite3.Connection) -> None:
    with pytest.raises(ValueError, match="exactly one of database= and connection="):
        SqliteStepStore()
    with pytest.raises(ValueError, match="exactly one"):
        SqliteStepStore(database="x.db", connection=shared)


async def test_a_closed_store_says_so(store: SqliteStepStore) -> None:
    await filled(store)
    await store.aclose()
    with pytest.raises(RuntimeError, match="is closed; open another one"):
        await store.list_runs()


async def test_a_store_in_memory_needs_no_file() -> None:
    store = SqliteStepStore(database=":memory:")
    await filled(store)
    assert len(await store.list_events(run_id="run-1")) == 1
    await store.aclose()


# Shared connections


@pytest.mark.spec("SP-49")
async def test_a_shared_connection_is_left_open_and_its_owner_goes_on(
    shared: sqlite3.Connection,
) -> None:
    shared.execute("CREATE TABLE mine (x)")
    store = SqliteStepStore(connection=shared)
    await filled(store)
    shared.execute("INSERT INTO mine VALUES (1)")
    shared.commit()
    await store.aclose()
    assert shared.execute("SELECT x FROM mine").fetchall() == [(1,)]
    assert shared.execute("SELECT count(*) FROM events").fetchone() == (1,)


@pytest.mark.spec("SP-49")
async def test_a_connection_bound_to_its_thread_is_refused(database: Path) -> None:
    bound = sqlite3.connect(database)
    store = SqliteStepStore(connection=bound)
    with pytest.raises(StoreConfigurationError, match="check_same_thread=False"):
        await store.list_runs()
    bound.close()


async def test_a_closed_connection_is_refused(shared: sqlite3.Connection) -> None:
    store = SqliteStepStore(connection=shared)
    await filled(store)
    shared.close()
    with pytest.raises(StoreConfigurationError, match=r"closed database.*must be open"):
        await store.list_runs()


@pytest.mark.spec("SP-50")
async def test_the_owner_of_a_connection_ends_its_transaction_first(
    shared: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStepStore(connection=shared)
    await store.initialise()
    shared.execute("CREATE TABLE mine (x)")
    shared.execute("INSERT INTO mine VALUES (1)")
    writing = asyncio.ensure_future(store.append_event(event()))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(writing), 0.1)
    shared.commit()
    await writing
    shared.execute("INSERT INTO mine VALUES (2)")
    monkeypatch.setattr(sqlite_connection, "BUSY_SECONDS", 0.05)
    with pytest.raises(StoreUnavailableError, match="in a transaction of its owner"):
        await store.append_event(event())
    shared.rollback()
    assert shared.execute("SELECT x FROM mine").fetchall() == [(1,)]
    assert len(await store.list_events(run_id="run-1")) == 1


# Several processes


@pytest.mark.timeout(120)
async def test_two_processes_write_one_file(database: Path) -> None:
    await asyncio.to_thread(run_two_writers, "sqlite", database)
    await check_what_two_writers_wrote("sqlite", database)


async def test_a_writer_that_holds_the_file_for_long_is_named(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "BUSY_SECONDS", 0.05)
    store = SqliteStepStore(database=database)
    await store.initialise()
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match=r"commit.*runs\.db.*locked.*retry"):
        await store.append_event(event())
    assert await store.list_events(run_id="run-1") == []  # readers do not wait
    other.execute("ROLLBACK")
    await store.append_event(event())
    other.close()
    await store.aclose()


async def test_a_file_in_another_mode_is_switched_when_its_writer_is_done(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE other (x)")
    store = SqliteStepStore(database=database)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_connection, "BUSY_SECONDS", 0.05)
        with pytest.raises(StoreUnavailableError, match=r"open the database.*locked"):
            await store.initialise()
    opening = asyncio.ensure_future(store.initialise())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(opening), 0.1)
    other.execute("COMMIT")
    other.close()
    assert "made table runs" in (await opening)[0]
    await store.aclose()


async def test_a_store_does_not_survive_a_fork(
    store: SqliteStepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(store)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(RuntimeError, match=r"was opened in process \d+ and is used in .* -1"):
            await store.list_runs()
    assert len(await store.list_runs()) == 1


# Damage


async def test_a_file_that_is_no_database_is_named(database: Path) -> None:
    database.write_bytes(b"not a database, though long enough to have a header" * 100)
    for attempt in ("initialise", "verify", "list_runs"):
        store = SqliteStepStore(database=database)
        with pytest.raises(StoreConfigurationError, match=f"{re.escape(str(database))}.*damaged"):
            await getattr(store, attempt)()
        await store.aclose()


async def test_a_damaged_page_is_named(database: Path, store: SqliteStepStore) -> None:
    await filled(store)
    for number in range(200):
        await store.append_event(event(number, error="x" * 500))
    await store.aclose()
    content = bytearray(database.read_bytes())
    for page in range(len(content) // 2 // 4096, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    database.write_bytes(content)
    again = SqliteStepStore(database=database)
    with pytest.raises(StoreConfigurationError, match=re.escape(str(database))):
        await again.verify()
    with pytest.raises(StoreConfigurationError, match=f"{re.escape(str(database))}.*damaged"):
        await again.list_events(run_id="run-1")
    await again.aclose()


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    store = SqliteStepStore(database=tmp_path / "none" / "runs.db")
    with pytest.raises(StoreConfigurationError, match=r"none/runs\.db.*make its directory"):
        await store.initialise()


async def test_tables_of_something_else_are_left_alone(
    shared: sqlite3.Connection, database: Path
) -> None:
    shared.execute("CREATE TABLE events (run_id TEXT, kind TEXT)")
    store = SqliteStepStore(database=database)
    with pytest.raises(
        StoreConfigurationError, match=r"table events of .*runs\.db has no .*branch"
    ):
        await store.append_event(event())
    assert shared.execute("SELECT name FROM sqlite_schema").fetchall() == [("events",)]
    await store.aclose()


async def test_a_file_of_an_earlier_version_gains_the_columns_that_it_lacks(
    shared: sqlite3.Connection, database: Path, store: SqliteStepStore
) -> None:
    await filled(store)
    await store.aclose()
    shared.execute("ALTER TABLE events DROP COLUMN error_type")
    for column in ("principal", "continued_from", "forked_from", "from_snapshot", "public_id"):
        shared.execute(f"ALTER TABLE runs DROP COLUMN {column}")
    again = SqliteStepStore(database=database)
    assert [each.split(" in ")[0] for each in await again.initialise()] == [
        "made table runs",
        "made table events",
    ]
    await again.append_event(event(2, error="no"))
    assert len(await again.list_events(run_id="run-1")) == 2
    run = await again.get_run(run_id="run-1")
    assert run is not None
    assert run.public_id is None
    await again.aclose()


@pytest.mark.spec("SP-48")
async def test_snapshots_of_a_file_from_before_states_are_complete(
    shared: sqlite3.Connection, database: Path, store: SqliteStepStore
) -> None:
    await filled(store)
    await store.aclose()
    for (index,) in shared.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'snapshots' "
        "AND sql LIKE '%state%'"
    ).fetchall():
        shared.execute(f"DROP INDEX {index}")
    shared.execute("ALTER TABLE snapshots DROP COLUMN state")
    shared.execute("ALTER TABLE snapshot_idempotency_keys DROP COLUMN state")
    again = SqliteStepStore(database=database)
    assert [each.state for each in await again.list_snapshots(run_id="run-1")] == ["complete"] * 2
    latest = await again.latest_snapshot(run_id="run-1")
    assert latest is not None
    assert latest.messages == [request("a"), response("b")]
    await again.save_snapshot(snapshot([request("c")], "3", state="interrupted"))
    assert await again.latest_snapshot(run_id="run-1") == latest
    plan = shared.execute(
        "EXPLAIN QUERY PLAN SELECT 1 FROM snapshots WHERE workspace_id = 'w' AND run_id = 'r' "
        "AND state = 'complete' ORDER BY sequence DESC"
    ).fetchall()
    assert "state=?" in plan[0][-1]
    await again.aclose()


@pytest.mark.spec("SP-47")
async def test_the_tables_are_those_of_the_seed_and_an_effect_is_one_row(
    shared: sqlite3.Connection, store: SqliteStepStore
) -> None:
    await filled(store)
    await store.record_tool_effect(effect("completed", ended_at=at(3)))
    tables = {name for (name,) in shared.execute("SELECT name FROM sqlite_schema")}
    assert {"runs", "events", "snapshots", "snapshot_idempotency_keys", "tool_effects"} <= tables
    assert shared.execute("SELECT status FROM tool_effects").fetchall() == [("completed",)]
    written = shared.execute("SELECT key FROM snapshots ORDER BY row_id").fetchall()
    assert written == [("1",), ("2",)]
    (creation,) = shared.execute(
        "SELECT sql FROM sqlite_schema WHERE name = 'snapshots'"
    ).fetchone()
    assert "AUTOINCREMENT" in creation


async def test_a_table_that_cannot_be_made_leaves_no_half(
    shared: sqlite3.Connection, database: Path
) -> None:
    shared.execute("CREATE TABLE mine (x)")
    shared.execute("CREATE INDEX snapshots_1 ON mine (x)")
    store = SqliteStepStore(database=database)
    with pytest.raises(StoreError, match="snapshots_1 already exists"):
        await store.initialise()
    tables = shared.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    assert tables == [("mine",)]
    await store.aclose()


async def test_a_table_that_is_gone_is_an_error_in_words(
    shared: sqlite3.Connection, store: SqliteStepStore
) -> None:
    await filled(store)
    shared.execute("DROP TABLE events")
    with pytest.raises(StoreError, match="no such table: events"):
        await store.list_events(run_id="run-1")


@pytest.mark.spec("SP-133")
async def test_damaged_rows_are_left_out_of_lists_and_named_where_they_are_needed(
    shared: sqlite3.Connection, store: SqliteStepStore, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(store)
    await store.append_event(event(2, "k"))
    shared.execute("UPDATE events SET context = '{' WHERE step_index = 2")
    shared.execute("UPDATE snapshots SET ranges = '[[0' WHERE key = '2'")
    shared.execute("UPDATE runs SET metadata = 'x'")
    shared.commit()
    assert [each.step_index for each in await store.list_events(run_id="run-2")] == []
    with pytest.raises(
        StoreConfigurationError, match=r"row of table runs in .*runs\.db is damaged"
    ):
        await store.get_run(run_id="run-1")
    assert await store.list_runs() == []
    shared.execute("UPDATE runs SET metadata = '{}'")
    shared.commit()
    assert [each.step_index for each in await store.list_events(run_id="run-1")] == [1]
    assert "row_id 2 of table events" in caplog.text
    with pytest.raises(StoreConfigurationError, match="row of table events"):
        await store.append_event(event(2, "k"))
    with pytest.raises(DamagedSnapshotError, match=r"snapshot 4 of run 'run-1'.*cannot be read"):
        await store.latest_snapshot(run_id="run-1")
    assert [each.step_index for each in await store.list_snapshots(run_id="run-1")] == [1]
    await store.save_snapshot(snapshot([request("a")], "3", step_index=3))
    assert len(await store.list_snapshots(run_id="run-1")) == 2


async def test_a_damaged_message_spoils_only_the_snapshots_that_hold_it(
    shared: sqlite3.Connection, store: SqliteStepStore, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(store)
    shared.execute("UPDATE messages SET text = 'x' WHERE text LIKE '%response%'")
    shared.commit()
    with pytest.raises(DamagedSnapshotError, match="a message cannot be read"):
        await store.latest_snapshot(run_id="run-1")
    assert len(await store.list_snapshots(run_id="run-1")) == 1
    assert "is damaged: a message cannot be read" in caplog.text


# Cost


async def test_every_query_is_served_by_an_index(shared: sqlite3.Connection) -> None:
    executed: list[str] = []
    store = SqliteStepStore(connection=shared, max_snapshots_per_run=1)
    await store.initialise()
    shared.set_trace_callback(executed.append)
    await filled(store)
    script, execution = RunScript(run_id="run-2"), Execution()
    await store.commit(execution.commit(script.register(conversation_id="talk")))
    await store.commit(execution.commit(*script.before_tool(1), *script.after_tool(1)))
    await store.commit(Commit(operations=(script.event("run_completed", 2),), now=at(9)))
    page = await store.page_runs(limit=1)
    await store.page_runs(limit=1, after=page.after)
    await store.page_runs(agent_name="a", state="running")
    await store.list_runs(conversation_id="talk")
    await store.list_runs(parent_run_id="talk")
    await store.latest_snapshot(run_id="run-1")
    await store.list_snapshots(run_id="run-1")
    await store.list_tool_effects(run_id="run-1")
    await store.list_unresolved_tool_effects()
    shared.set_trace_callback(None)
    queries = {each for each in executed if each.startswith(("SELECT", "DELETE", "INSERT"))}
    assert len(queries) > 30
    for query in queries:
        for _, _, _, detail in shared.execute(f"EXPLAIN QUERY PLAN {query}"):
            assert not detail.startswith("SCAN") or "json_each" in detail, (detail, query)
            assert "TEMP B-TREE FOR ORDER BY" not in detail, (detail, query)
