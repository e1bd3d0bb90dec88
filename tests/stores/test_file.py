import asyncio
import errno
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from stores.errors import (
    DamagedSnapshotError,
    InvalidIdentifierError,
    StoreConfigurationError,
    StoreUnavailableError,
)
from stores.file import layout
from stores.file.directory import MAX_RUNS, StoreDirectory
from stores.file.steps import FileStepStore
from stores.protocols import StepStore
from tests.architecture.source_tree import ROOT
from tests.stores.asking import everything
from tests.stores.dying_writer import bounded_store, second_commit
from tests.stores.local_conformance import LocalStepStoreConformance
from tests.stores.local_processes import check_what_two_writers_wrote, run_two_writers
from tests.stores.records import ODD_KEYS, effect, event, run_record, snapshot
from tests.stores.step_media_conformance import StepMediaConformance
from tests.stores.writer import Execution, RunScript, request, response

UNSAFE = ["..", ".", "a..b", "../other", "a/b", "/etc", "a b", "ключ", "a\\b", "~", "@commit-heads"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(directory: Path) -> FileStepStore:
    return FileStepStore(directory)


class TestFileStepStore(LocalStepStoreConformance, StepMediaConformance):
    @pytest.fixture
    def store(self, store: FileStepStore) -> StepStore:
        return store

    async def test_a_registered_run_is_read_as_it_was_written(self, store: StepStore) -> None:
        """With an id that may name a directory."""
        record = run_record(
            "tenant_a-b.c",
            conversation_id="talk",
            parent_run_id="tenant/a:b..c",
            agent_name="agent",
            metadata=ODD_KEYS,
            principal="ann",
        )
        await store.register_run(record)
        assert await store.get_run(run_id="tenant_a-b.c") == record


async def filled(store: StepStore) -> None:
    """A run with one of everything, and two snapshots."""
    await store.register_run(run_record(metadata=ODD_KEYS))
    await store.append_event(event(kind="run_started", key="k"))
    await store.record_tool_effect(effect())
    await store.save_snapshot(snapshot([request("a")], "1"))
    await store.save_snapshot(snapshot([request("a"), response("b")], "2", step_index=2))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def damage(path: Path, old: str, new: str) -> None:
    """Replace text by another of the same length, which leaves the other lines where they are."""
    content = path.read_text()
    assert old in content
    assert len(old) == len(new)
    path.write_text(content.replace(old, new))


# Layout


async def test_nothing_is_made_before_the_first_write(
    directory: Path, store: FileStepStore
) -> None:
    assert await store.list_runs() == []
    assert await store.list_events(run_id="run-1") == []
    assert not directory.exists()


@pytest.mark.spec("SP-45")
async def test_the_files_of_a_run_are_those_of_the_seed(
    directory: Path, store: FileStepStore
) -> None:
    await filled(store)
    run = directory / "run-1"
    assert sorted(each.name for each in run.iterdir()) == [
        "commits.jsonl",
        "events.jsonl",
        "messages.jsonl",
        "run.json",
        "snapshots",
        "tool_effects.jsonl",
    ]
    assert sorted(each.name for each in (run / "snapshots").iterdir()) == ["1.json", "2.json"]
    record = json.loads((run / "run.json").read_text())
    assert (record["run_id"], record["metadata"], record["state"]) == (
        "run-1",
        ODD_KEYS,
        "running",
    )
    assert [each["event"] for each in lines(run / "events.jsonl")] == ["run_started"]
    assert [each["tool_call_id"] for each in lines(run / "tool_effects.jsonl")] == ["call-1"]
    assert json.loads((run / "snapshots" / "2.json").read_text())["ranges"] == [[0, 2]]
    texts = [json.loads(str(each["text"])) for each in lines(run / "messages.jsonl")]
    assert [each["kind"] for each in texts] == ["request", "response"]
    last = lines(run / "commits.jsonl")[-1]
    assert (last["count"], last["snapshot_count"]) == (2, 2)
    assert last["sizes"] == {
        each.name: each.stat().st_size
        for each in run.glob("*.jsonl")
        if each.name != "commits.jsonl"
    }


async def test_a_commit_of_a_workflow_leaves_its_place_in_its_line(
    directory: Path, store: FileStepStore
) -> None:
    script, execution = RunScript(), Execution()
    result = await store.commit(execution.commit(script.register(), script.event("run_started", 0)))
    (line,) = lines(directory / "run-1" / "commits.jsonl")
    assert (line["branch"], line["number"], line["history_length"]) == ("branch-1", 1, 3)
    assert (line["digest"], line["count"]) == (result.digest, 1)
    assert str(line["queued_at"]).startswith("2026-03-01T12:00:00")


async def test_a_suppressed_write_leaves_no_line(directory: Path, store: FileStepStore) -> None:
    for _ in range(2):
        await store.append_event(event(key="k"))
    assert len(lines(directory / "run-1" / "commits.jsonl")) == 1


async def test_what_is_no_run_is_passed_over(directory: Path, store: FileStepStore) -> None:
    await filled(store)
    (directory / "media").mkdir()
    (directory / "notes.txt").write_text("mine")
    (directory / ".git").mkdir()
    assert [run.run_id for run in await store.list_runs()] == ["run-1"]
    assert len(await store.list_unresolved_tool_effects()) == 1
    await store.verify()


# Run ids


@pytest.mark.spec("SP-46")
@pytest.mark.parametrize("run_id", UNSAFE)
async def test_an_unsafe_run_id_is_refused_by_every_write(
    tmp_path: Path, directory: Path, store: FileStepStore, run_id: str
) -> None:
    rule = r"no name of a directory here: it takes \[A-Za-z0-9_.-\]\{1,200\} without '\.\.'"
    for write in (
        store.register_run(run_record(run_id)),
        store.append_event(event(run_id=run_id)),
        store.save_snapshot(snapshot([request("a")], run_id=run_id)),
        store.record_tool_effect(effect(run_id=run_id)),
    ):
        with pytest.raises(InvalidIdentifierError, match=rule):
            await write
    assert list(tmp_path.iterdir()) == []
    await filled(store)
    assert sorted(each.name for each in directory.iterdir()) == ["run-1"]


@pytest.mark.spec("SP-46")
@pytest.mark.parametrize("run_id", [*UNSAFE, "run-1/../run-1", "\ud800", "nul\x00"])
async def test_there_is_no_run_of_an_unsafe_id(store: FileStepStore, run_id: str) -> None:
    await filled(store)
    assert await store.get_run(run_id=run_id) is None
    assert await store.list_events(run_id=run_id) == []
    assert await store.latest_snapshot(run_id=run_id, include_interrupted=True) is None
    assert await store.list_snapshots(run_id=run_id) == []
    assert await store.list_tool_effects(run_id=run_id) == []


@pytest.mark.spec("SP-46")
async def test_the_longest_run_id_is_kept(store: FileStepStore) -> None:
    await store.register_run(run_record("x" * 200))
    assert [run.run_id for run in await store.list_runs()] == ["x" * 200]


# Other writers


async def test_what_another_store_object_writes_is_seen(
    directory: Path, store: FileStepStore
) -> None:
    other = FileStepStore(directory)
    for number in range(3):
        await store.append_event(event(2 * number))
        await other.append_event(event(2 * number + 1))
        await other.save_snapshot(snapshot([request(str(number))]))
    for each in (store, other, FileStepStore(directory)):
        events = await each.list_events(run_id="run-1")
        assert [one.step_index for one in events] == list(range(6))
        assert len(await each.list_snapshots(run_id="run-1")) == 3


async def test_snapshots_that_another_store_object_prunes_are_gone(directory: Path) -> None:
    one, other = bounded_store(directory), bounded_store(directory)
    for number in range(4):
        store = (one, other)[number % 2]
        await store.save_snapshot(snapshot([request(str(number))], str(number)))
        for each in (one, other):
            (only,) = await each.list_snapshots(run_id="run-1")
            assert only.messages == [request(str(number))]
    # Its file goes while a reader that knows nothing of it is about to read it.
    run = StoreDirectory(directory).run("run-1")
    await one.save_snapshot(snapshot([request("4")], "4"))
    assert [row.key for row in run.snapshots("default", "run-1")] == []
    assert run.problems == []
    assert [row.key for row in run.snapshots("default", "run-1")] == ["4"]


async def test_a_run_that_was_removed_and_written_again_is_read_anew(
    directory: Path, store: FileStepStore
) -> None:
    await filled(store)
    shutil.rmtree(directory / "run-1")
    assert await store.get_run(run_id="run-1") is None
    assert await store.list_events(run_id="run-1") == []
    for count in (1, 20):  # a shorter file, and a longer one
        other = FileStepStore(directory)
        for step in range(count):
            await other.append_event(event(step))
        listed = await store.list_events(run_id="run-1")
        assert [each.step_index for each in listed] == list(range(count))
        shutil.rmtree(directory / "run-1")


async def test_more_runs_than_are_kept_in_memory_are_read_again(
    directory: Path, store: FileStepStore
) -> None:
    count = MAX_RUNS + 5
    for _ in range(2):
        for number in range(count):
            await store.append_event(event(run_id=f"run-{number}"))
    for number in range(count):
        assert len(await store.list_events(run_id=f"run-{number}")) == 2
    runs = StoreDirectory(directory)
    files = [runs.run(f"run-{number}") for number in range(count)]
    assert runs.glance(f"run-{count - 1}") is files[-1]
    assert runs.glance("run-0") is not files[0]


async def test_a_last_line_of_any_length_is_found(directory: Path, store: FileStepStore) -> None:
    metadata = {"large": "x" * 50_000}
    await store.register_run(run_record(metadata=metadata))
    await store.append_event(event(kind="run_completed"))
    (run,) = await FileStepStore(directory).list_runs()
    assert (run.metadata, run.state) == (metadata, "completed")


@pytest.mark.timeout(120)
async def test_two_processes_write_one_directory(directory: Path) -> None:
    await asyncio.to_thread(run_two_writers, "file", directory)
    await check_what_two_writers_wrote("file", directory)


async def test_a_writer_that_holds_a_run_for_long_is_named(
    directory: Path, store: FileStepStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(store)
    monkeypatch.setattr(layout, "LOCK_SECONDS", 0.05)
    with layout.locked(directory / "run-1"):
        with pytest.raises(StoreUnavailableError, match=r"another writer has held .*run-1"):
            await store.append_event(event())
        await store.append_event(event(run_id="run-2"))
        assert len(await store.list_events(run_id="run-1")) == 1  # readers do not wait
    await store.append_event(event())


@pytest.mark.spec("SP-50")
async def test_a_writer_that_waits_does_not_hold_up_the_event_loop(
    directory: Path, store: FileStepStore
) -> None:
    await filled(store)
    with layout.locked(directory / "run-1"):
        writing = asyncio.ensure_future(store.append_event(event(2)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(writing), 0.1)
    await writing
    assert len(await store.list_events(run_id="run-1")) == 2


# Crashes


async def first_commit(directory: Path) -> None:
    """A store with a run that has been begun."""
    store = FileStepStore(directory)
    await store.register_run(run_record(started_at=run_record().started_at))
    await store.append_event(event(0, "0", kind="run_started", branch="b"))
    await store.save_snapshot(snapshot([request("a")], "1/0", branch="b"))


async def check_after_crash(directory: Path, before: object, after: object) -> str:
    """Whole or not at all; and whole when it is written again, with nothing left of the rest."""
    store = bounded_store(directory)
    found = await everything(store)
    assert found in (before, after)
    listed = await store.list_runs()
    assert listed == [found["run"]]
    await store.commit(second_commit())
    assert await everything(store) == after
    assert await everything(bounded_store(directory)) == after
    await store.verify()
    run = directory / "run-1"
    sizes = lines(run / "commits.jsonl")[-1]["sizes"]
    assert {name: (run / name).stat().st_size for name in sizes} == sizes
    assert [each.name for each in (run / "snapshots").iterdir()] == ["2.json"]
    assert json.loads((run / "run.json").read_text())["state"] == "completed"
    return "after" if found == after else "before"


async def prepared_for_crash(tmp_path: Path) -> tuple[Path, object, object]:
    source, whole = tmp_path / "source", tmp_path / "whole"
    await first_commit(source)
    before = await everything(FileStepStore(source))
    shutil.copytree(source, whole)
    await bounded_store(whole).commit(second_commit())
    after = await everything(bounded_store(whole))
    assert before != after
    return source, before, after


@pytest.mark.timeout(120)
async def test_a_writer_that_dies_leaves_a_commit_whole_or_not_at_all(tmp_path: Path) -> None:
    source, before, after = await prepared_for_crash(tmp_path)
    copies = tmp_path / "copies"
    command = [sys.executable, "-m", "tests.stores.dying_writer", str(source), str(copies)]
    await asyncio.to_thread(lambda: subprocess.run(command, cwd=ROOT, check=True))
    found = [
        await check_after_crash(copies / str(number), before, after)
        for number in range(len(list(copies.iterdir())))
    ]
    # The rows and the commit's line are in six files and the directory; then come run.json and the
    # end. The line may be read before its sync: a killed process loses nothing that it has written.
    assert found == ["before"] * found.index("after") + ["after"] * found.count("after")
    assert found.count("before") >= 6
    assert found.count("after") >= 2


async def test_a_line_that_was_written_in_part_counts_as_not_written(tmp_path: Path) -> None:
    source, before, after = await prepared_for_crash(tmp_path)
    old = (source / "run-1" / "commits.jsonl").stat().st_size
    new = (tmp_path / "whole" / "run-1" / "commits.jsonl").stat().st_size
    for size in {*range(old, new, 37), new - 1, new - 2}:
        copy = tmp_path / f"cut-{size}"
        shutil.copytree(tmp_path / "whole", copy)
        os.truncate(copy / "run-1" / "commits.jsonl", size)
        # Pruning and run.json come after the line.
        shutil.copy(source / "run-1" / "run.json", copy / "run-1" / "run.json")
        shutil.copy(source / "run-1" / "snapshots" / "1.json", copy / "run-1" / "snapshots")
        assert await check_after_crash(copy, before, after) == "before"


@pytest.mark.parametrize("share", [0, 0.5])
async def test_rows_that_were_written_in_part_are_removed(tmp_path: Path, share: float) -> None:
    source, before, after = await prepared_for_crash(tmp_path)
    whole = tmp_path / "whole" / "run-1"
    for name in ("messages.jsonl", "tool_effects.jsonl", "events.jsonl", "snapshots/2.json"):
        copy = tmp_path / name.replace("/", "-")
        shutil.copytree(source, copy)
        path = copy / "run-1" / name
        old = path.read_bytes() if path.exists() else b""
        added = (whole / name).read_bytes()[len(old) :]
        path.write_bytes(old + added[: int(len(added) * share) + 1])
        assert await check_after_crash(copy, before, after) == "before"


async def test_a_crash_between_two_runs_of_a_commit_is_made_good_by_repeating_it(
    directory: Path, store: FileStepStore
) -> None:
    scripts = [RunScript(run_id="run-1"), RunScript(run_id="run-2")]
    execution = Execution()
    operations = [each for one in scripts for each in (one.register(), one.event("run_started", 0))]
    commit = execution.commit(*operations)
    result = await store.commit(commit)
    wanted = [await everything(store, each.run_id) for each in scripts]
    shutil.rmtree(directory / "run-2")
    shutil.rmtree(directory / layout.HEADS)
    again = FileStepStore(directory)
    repeated = await again.commit(commit)
    assert (repeated.verdict, repeated.digest) == ("apply", result.digest)
    assert [each.disposition for each in repeated.outcomes] == ["suppressed"] * 2
    assert [await everything(again, each.run_id) for each in scripts] == wanted


async def test_what_comes_after_the_line_may_fail(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = bounded_store(directory)
    await filled(store)
    (directory / "run-1" / "run.json").unlink()
    (directory / "run-1" / "run.json").mkdir()
    await store.append_event(event(kind="run_completed"))
    run = await store.get_run(run_id="run-1")
    assert run is not None
    assert run.state == "completed"
    assert "run.json or a pruned snapshot" in caplog.text


# Damage


async def test_a_damaged_line_is_left_out_and_logged(
    directory: Path, store: FileStepStore, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(store)
    await store.append_event(event(2))
    await store.record_tool_effect(effect(tool_call_id="call-2"))
    run = directory / "run-1"
    damage(run / "events.jsonl", '"run_started"', '"run_started\x01')
    damage(run / "tool_effects.jsonl", '"call-1"', '"call-1}')
    again = FileStepStore(directory)
    assert [each.step_index for each in await again.list_events(run_id="run-1")] == [2]
    assert [each.tool_call_id for each in await again.list_tool_effects(run_id="run-1")] == [
        "call-2"
    ]
    assert f"the line at byte 0 of {run / 'events.jsonl'} is damaged" in caplog.text
    with pytest.raises(StoreConfigurationError, match=r"events\.jsonl.*tool_effects\.jsonl"):
        await again.verify()
    await again.append_event(event(3))
    assert len(await again.list_events(run_id="run-1")) == 2


@pytest.mark.spec("SP-133")
@pytest.mark.parametrize("problem", ["is damaged", "is missing"])
async def test_a_damaged_snapshot_is_left_out_of_lists_and_named_where_it_is_needed(
    directory: Path, store: FileStepStore, caplog: pytest.LogCaptureFixture, problem: str
) -> None:
    await filled(store)
    await store.save_snapshot(snapshot([request("a")], "3", state="interrupted", step_index=3))
    path = directory / "run-1" / "snapshots" / "3.json"
    if problem == "is missing":
        path.unlink()
    else:
        path.write_text("[]")
    again = FileStepStore(directory)
    assert len(await again.list_snapshots(run_id="run-1")) == 2
    assert len(await again.list_snapshot_summaries(run_id="run-1")) == 2
    assert f"{path} {problem}" in caplog.text
    for include_interrupted in (True, False):
        with pytest.raises(DamagedSnapshotError, match=rf"snapshot 3 .*3\.json {problem}"):
            await again.latest_snapshot(run_id="run-1", include_interrupted=include_interrupted)
    await again.save_snapshot(snapshot([request("a"), response("c")], "4", step_index=4))
    assert "its messages are stored once more" in caplog.text
    latest = await again.latest_snapshot(run_id="run-1")
    assert latest is not None
    assert latest.messages == [request("a"), response("c")]


async def test_a_damaged_message_spoils_only_the_snapshots_that_hold_it(
    directory: Path, store: FileStepStore
) -> None:
    await filled(store)
    damage(directory / "run-1" / "messages.jsonl", '"position": 1', '"position": X')
    again = FileStepStore(directory)
    with pytest.raises(DamagedSnapshotError, match="position 1 is missing"):
        await again.latest_snapshot(run_id="run-1")
    assert len(await again.list_snapshots(run_id="run-1")) == 1
    # Its position is not used again, or that snapshot would hold another message.
    await again.save_snapshot(snapshot([request("a"), response("new")], "3"))
    listed = await again.list_snapshots(run_id="run-1")
    assert [len(each.messages) for each in listed] == [1, 2]
    with pytest.raises(StoreConfigurationError, match=r"messages\.jsonl is damaged"):
        await again.verify()


@pytest.mark.parametrize("text", ['"text": 12345', '"text": ""   '])
async def test_a_text_that_was_damaged_after_its_line_was_read_is_noticed(
    directory: Path, store: FileStepStore, text: str
) -> None:
    await filled(store)
    path = directory / "run-1" / "messages.jsonl"
    assert await store.latest_snapshot(run_id="run-1") is not None
    content = path.read_text()
    start = content.rindex('"text": ')
    rest = len(content) - start - len("}\n")
    path.write_text(f"{content[:start]}{text.ljust(rest)}}}\n")
    with pytest.raises(DamagedSnapshotError, match="message"):
        await store.latest_snapshot(run_id="run-1")


async def test_a_damaged_newest_commit_is_not_read_and_stops_writers(
    directory: Path, store: FileStepStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.append_event(event(1))
    await store.append_event(event(2))
    path = directory / "run-1" / "commits.jsonl"
    content = path.read_text()
    path.write_text(f"{content[:-5]}????\n")
    again = FileStepStore(directory)
    assert [each.step_index for each in await again.list_events(run_id="run-1")] == [1]
    assert f"the last line of {path} is damaged" in caplog.text
    with pytest.raises(StoreConfigurationError, match=r"cannot write run 'run-1'.*commits\.jsonl"):
        await again.append_event(event(3))
    with pytest.raises(StoreConfigurationError, match=r"commits\.jsonl is damaged"):
        await again.verify()
    path.write_text(content.splitlines(keepends=True)[0])
    await again.append_event(event(3))
    assert [each.step_index for each in await again.list_events(run_id="run-1")] == [1, 3]


async def test_a_run_of_which_no_commit_can_be_read_is_empty(
    directory: Path, store: FileStepStore
) -> None:
    await store.append_event(event(1))
    (directory / "run-1" / "commits.jsonl").write_text("?\n")
    again = FileStepStore(directory)
    assert await again.list_events(run_id="run-1") == []
    assert await again.list_runs() == []
    with pytest.raises(StoreConfigurationError, match="cannot write run 'run-1'"):
        await again.append_event(event(2))


async def test_a_file_that_lost_its_end_is_not_written_on(
    directory: Path, store: FileStepStore
) -> None:
    for step in range(3):
        await store.append_event(event(step))
    path = directory / "run-1" / "events.jsonl"
    size = path.stat().st_size
    os.truncate(path, size - 10)
    again = FileStepStore(directory)
    assert len(await again.list_events(run_id="run-1")) == 2
    with pytest.raises(
        StoreConfigurationError, match=rf"events\.jsonl has {size - 10} bytes of the {size}"
    ):
        await again.append_event(event(3))
    path.unlink()
    assert await FileStepStore(directory).list_events(run_id="run-1") == []


async def test_a_damaged_key_is_named_and_spoils_nothing_else(directory: Path) -> None:
    store = bounded_store(directory)
    for number in range(3):
        await store.save_snapshot(snapshot([request(str(number))], str(number)))
    damage(directory / "run-1" / "snapshot-keys.jsonl", '"number": 1', '"number": X')
    again = bounded_store(directory)
    (only,) = await again.list_snapshots(run_id="run-1")
    assert only.messages == [request("2")]
    assert (await again.latest_snapshot(run_id="run-1")) == only
    with pytest.raises(StoreConfigurationError, match=r"snapshot-keys\.jsonl is damaged"):
        await again.verify()
    await again.save_snapshot(snapshot([request("3")], "3"))
    assert len(await again.list_snapshots(run_id="run-1")) == 1


async def test_a_damaged_commit_head_is_named(directory: Path, store: FileStepStore) -> None:
    await store.commit(Execution().commit())
    (head,) = (directory / layout.HEADS).iterdir()
    head.write_text("{")
    with pytest.raises(StoreConfigurationError, match=r"'execution-1'.*is damaged"):
        await store.find_commit_head(execution_id="execution-1")
    with pytest.raises(StoreConfigurationError, match="is damaged"):
        await store.commit(Execution().commit())


# The directory


async def test_initialise_makes_the_directory(directory: Path, store: FileStepStore) -> None:
    with pytest.raises(StoreConfigurationError, match="no directory that can be written"):
        await store.verify()
    assert await store.initialise() == [f"made directory {directory}"]
    assert await store.initialise() == []
    await store.verify()


async def test_a_file_in_place_of_the_directory_is_named(
    directory: Path, store: FileStepStore
) -> None:
    directory.write_text("mine")
    for call in (
        store.initialise(),
        store.list_runs(),
        store.append_event(event()),
        store.commit(Execution().commit()),
    ):
        with pytest.raises(StoreConfigurationError, match=f"{directory}.*name another directory"):
            await call
    assert directory.read_text() == "mine"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StoreUnavailableError),
        (errno.EIO, StoreUnavailableError),
        (errno.EACCES, StoreConfigurationError),
        (errno.EROFS, StoreConfigurationError),
    ],
)
async def test_what_the_system_refuses_is_told_apart_by_whether_it_may_pass(
    directory: Path,
    store: FileStepStore,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[Exception],
) -> None:
    def refuse(_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    await filled(store)
    before = await everything(store)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(kind, match=f"commit 'run-1' in {directory}: .*{os.strerror(number)}"):
            await store.append_event(event(2))
    assert await everything(store) == before
    await store.append_event(event(3))
    assert [each.step_index for each in await store.list_events(run_id="run-1")] == [1, 3]


async def test_a_commit_that_fails_halfway_counts_as_not_written(
    directory: Path, store: FileStepStore
) -> None:
    await filled(store)
    before = await everything(store)
    path = directory / "run-1" / "snapshots" / "3.json.tmp"
    path.mkdir()
    with pytest.raises(StoreConfigurationError, match=r"3\.json\.tmp"):
        await store.save_snapshot(snapshot([request("x")], "3"))
    assert await everything(store) == before
    path.rmdir()
    await store.save_snapshot(snapshot([request("x")], "3"))
    assert len(await store.list_snapshots(run_id="run-1")) == 3
    await store.verify()


async def test_texts_that_utf8_lacks_are_kept(store: FileStepStore) -> None:
    await store.register_run(run_record(agent_name="a\ud800", metadata={"k": "\udfff"}))
    (run,) = await store.list_runs()
    assert (run.agent_name, run.metadata) == ("a\ud800", {"k": "\udfff"})


async def test_damage_is_logged_once_for_each_reading(
    directory: Path, store: FileStepStore, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(store)
    damage(directory / "run-1" / "events.jsonl", '"run_started"', '"run_started}')
    again = FileStepStore(directory)
    caplog.set_level(logging.WARNING)
    for _ in range(3):
        await again.list_events(run_id="run-1")
    assert caplog.text.count("is damaged") == 1
