"""Importing what the harness wrote, from a recording of a database of its own."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.messages import BinaryContent, UserPromptPart
from pymongo import MongoClient
from pymongo.database import Database

from stores.importing import Importer, ImportReport, Problem
from stores.media.addresses import media_uri_for, parse_media_uri
from stores.media.disk import DiskMediaStore
from stores.memory import InMemoryStepStore
from stores.mongo.harness import HarnessDatabase
from stores.mongo.steps import MongoStepStore
from stores.protocols import StepStore
from tests.interop.reads import reads_of
from tests.interop.recording import EXTERNAL, load_recording, recorded_rows, recorded_snapshots
from tests.stores.records import run_record

pytestmark = pytest.mark.integration

THIRD = {"run_id": "whole", "idempotency_key": {"$regex": "^2:"}}
THIRD_INLINE = {"run_id": "broken", "idempotency_key": {"$regex": "^2:"}}
"""The third event, or snapshot, of a run in the one layout of messages and of one in the other."""

ASKED = {"run_id": "whole", "tool_name": "ask"}

Documents = Database[dict[str, Any]]

Content = Callable[[str], Any]


@pytest.fixture
def documents(mongodb_uri: str, source: str) -> Iterator[Documents]:
    """The source's collections, to be changed."""
    with MongoClient[dict[str, Any]](mongodb_uri) as client:
        yield client[source]


@pytest.fixture
def content(mongodb_uri: str) -> Iterator[Content]:
    """Digests of all that a database holds."""
    with MongoClient[dict[str, Any]](mongodb_uri) as client:

        def digests(name: str) -> object:
            return client[name].command("dbHash")["collections"]

        yield digests


async def imported(
    reader: HarnessDatabase, store: StepStore, **options: Any
) -> tuple[ImportReport, dict[tuple[str | None, str], list[Problem]]]:
    """The report, and its problems by run and kind."""
    report = await Importer(reader, store, **options).run()
    problems: dict[tuple[str | None, str], list[Problem]] = {}
    for problem in report.problems:
        problems.setdefault((problem.run_id, problem.kind), []).append(problem)
    return report, problems


@pytest.mark.spec("SP-53", "SP-132")
async def test_all_reads_give_what_those_of_the_harness_gave(
    reader: HarnessDatabase, mongo: MongoStepStore
) -> None:
    report, _ = await imported(reader, mongo)

    assert await reads_of(mongo) == load_recording().reads
    assert (report.runs.imported, report.runs.left_out, report.problem_count) == (5, 0, 0)
    counts = (report.events, report.snapshots, report.tool_effects)
    assert [each.imported for each in counts] == [
        recorded_rows(name) for name in ("events", "snapshots", "tool_effects")
    ]


async def test_rows_of_all_kinds_get_their_places_by_time(
    reader: HarnessDatabase, store: InMemoryStepStore
) -> None:
    await imported(reader, store)

    rows = [
        *((e.sequence, e.timestamp) for e in await store.list_events(run_id="whole")),
        *((s.sequence, s.timestamp) for s in await store.list_snapshot_summaries(run_id="whole")),
        *((e.sequence, e.started_at) for e in await store.list_tool_effects(run_id="whole")),
    ]
    assert [sequence for sequence, _ in sorted(rows)] == list(range(1, len(rows) + 1))
    assert sorted(rows) == sorted(rows, key=lambda row: row[1])


async def test_a_run_has_the_state_that_its_events_tell(
    reader: HarnessDatabase, store: InMemoryStepStore
) -> None:
    await imported(reader, store)

    states = {each.run_id: each.state for each in await store.list_runs()}
    assert states == {
        "older": "running",
        "whole": "completed",
        "whole-helper": "completed",
        "broken": "failed",
        EXTERNAL: "completed",
    }


async def test_a_second_import_changes_nothing(
    reader: HarnessDatabase,
    mongo: MongoStepStore,
    prepared_database: str,
    content: Content,
) -> None:
    first, _ = await imported(reader, mongo)
    before = content(prepared_database)

    second, _ = await imported(reader, mongo)

    assert content(prepared_database) == before
    assert second.rows_imported == second.runs.imported == second.runs_continued == 0
    assert second.events.unchanged == first.events.imported
    assert second.snapshots.unchanged == first.snapshots.imported
    assert second.tool_effects.unchanged == first.tool_effects.imported


async def test_nothing_is_written_to_the_source(
    reader: HarnessDatabase, store: InMemoryStepStore, source: str, content: Content
) -> None:
    before = content(source)

    await imported(reader, store)

    assert content(source) == before


async def test_a_dry_run_reports_the_same_and_writes_nothing(
    reader: HarnessDatabase,
    mongo: MongoStepStore,
    prepared_database: str,
    documents: Documents,
    content: Content,
) -> None:
    documents["snapshots"].update_one(THIRD_INLINE, {"$set": {"messages": "[{}]"}})
    before = content(prepared_database)

    planned = await Importer(reader, mongo, dry_run=True).run()

    assert content(prepared_database) == before
    assert await Importer(reader, mongo).run() == planned


@pytest.mark.parametrize("at", [5, 30])
async def test_an_interrupted_import_goes_on(
    reader: HarnessDatabase, mongo: MongoStepStore, at: int
) -> None:
    written = 0

    def interrupt(_: ImportReport) -> None:
        nonlocal written
        written += 1
        if written == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await imported(reader, mongo, watch=interrupt)
    await imported(reader, mongo)

    assert await reads_of(mongo) == load_recording().reads


async def test_what_came_since_is_added(
    reader: HarnessDatabase, mongo: MongoStepStore, documents: Documents
) -> None:
    events = list(documents["events"].find({"run_id": "older"}).sort("seq", 1))
    snapshots = list(documents["snapshots"].find({"run_id": "whole"}).sort("seq", 1))
    documents["events"].delete_one({"_id": events[-1]["_id"]})
    documents["snapshots"].delete_many({"_id": {"$in": [each["_id"] for each in snapshots[5:]]}})
    await imported(reader, mongo)
    documents["events"].insert_one(events[-1])
    documents["snapshots"].insert_many(snapshots[5:])
    ended = {"status": "failed", "ended_at": "2025-02-03T04:06:00+00:00", "effect_summary": "no"}
    documents["tool_effects"].update_one({"tool_call_id": "call-open"}, {"$set": ended})

    report, _ = await imported(reader, mongo)

    assert report.runs_continued == 2
    counts = (report.events.imported, report.snapshots.imported, report.tool_effects.imported)
    assert counts == (1, len(snapshots[5:]), 1)
    reads = await reads_of(mongo)
    expected = load_recording().reads
    (was_open,) = reads["of_runs"]["older"].pop("tool_effects")
    assert (was_open["status"], was_open["effect_summary"]) == ("failed", "no")
    for name in ("tool_effects", "unresolved"):
        reads["of_runs"]["older"].pop(name, None)
        expected["of_runs"]["older"].pop(name, None)
    assert reads == expected


async def test_a_run_id_that_is_taken_here_is_left_out_and_named(
    reader: HarnessDatabase, store: InMemoryStepStore
) -> None:
    await store.register_run(run_record("whole"))
    await store.for_workspace("other").register_run(run_record("broken"))

    report, problems = await imported(reader, store)

    assert [each.collection for each in problems["whole", "taken"]] == ["runs"]
    assert [each.collection for each in problems["broken", "taken"]] == ["runs"]
    assert report.runs.imported == 3
    assert await store.list_events(run_id="whole") == []
    assert await store.for_workspace("other").list_events(run_id="broken") == []


async def test_a_run_whose_content_is_nowhere_is_refused_whole(
    reader: HarnessDatabase, store: InMemoryStepStore, documents: Documents
) -> None:
    documents["media"].delete_many({"media_type": "image/png"})

    _, problems = await imported(reader, store)

    refused = problems[EXTERNAL, "external"]
    assert await store.get_run(run_id=EXTERNAL) is None
    assert await store.list_events(run_id=EXTERNAL) == []
    assert "name the harness's media store with --media" in refused[0].problem
    kept = {str(each["_id"]): each for each in load_recording().collections["snapshots"]}
    assert {kept[each.document]["run_id"] for each in refused} == {EXTERNAL}


async def test_content_comes_from_the_media_store_that_is_named(
    mongodb_uri: str, source: str, store: InMemoryStepStore, documents: Documents, tmp_path: Path
) -> None:
    media = DiskMediaStore(tmp_path)
    for chunk in documents["media_chunks"].find():
        await media.put(chunk["data"])
    for collection in ("media", "media_chunks"):
        documents[collection].drop()
    reader = HarnessDatabase(db_url=mongodb_uri, database=source, media=media)

    report, _ = await imported(reader, store)

    await reader.aclose()
    assert report.problem_count == 0
    assert await reads_of(store) == load_recording().reads


@pytest.mark.spec("SP-71", "SP-75")
async def test_large_content_goes_to_the_media_store_here(
    reader: HarnessDatabase, mongo: MongoStepStore, mongodb_uri: str, prepared_database: str
) -> None:
    assert await mongo.list_runs() == []
    mongo = MongoStepStore(
        db_url=mongodb_uri, database=prepared_database, media_threshold_bytes=2000
    )

    await imported(reader, mongo)

    assert await reads_of(mongo) == load_recording().reads
    assert mongo.media_store is not None
    assert await mongo.media_store.exists(media_uri_for(bytes(range(256)) * 10))
    await mongo.aclose()


@pytest.mark.parametrize("change", [{"data": b"x"}, {"files_id": "elsewhere"}])
async def test_content_that_is_damaged_leaves_its_snapshots_out(
    reader: HarnessDatabase, store: InMemoryStepStore, documents: Documents, change: dict[str, Any]
) -> None:
    image = documents["media"].find_one({"media_type": "image/png"})
    assert image is not None
    documents["media_chunks"].update_one({"files_id": image["_id"]}, {"$set": change})

    report, problems = await imported(reader, store)

    assert report.runs.imported == 5
    damaged = problems[EXTERNAL, "damaged"]
    assert "in the source do not match it" in damaged[0].problem
    kept = await store.list_snapshots(run_id=EXTERNAL)
    assert len(kept) + len(damaged) == recorded_snapshots(EXTERNAL)


@pytest.mark.spec("SP-74")
async def test_a_marker_of_an_unknown_version_leaves_its_snapshots_out(
    reader: HarnessDatabase, store: InMemoryStepStore, documents: Documents
) -> None:
    for each in documents["snapshot_messages"].find({"message": {"$regex": "literal-v1"}}):
        message = each["message"].replace("literal-v1", "literal-v2")
        documents["snapshot_messages"].update_one(
            {"_id": each["_id"]}, {"$set": {"message": message}}
        )

    report, problems = await imported(reader, store)

    assert report.runs.imported == 5
    assert "'literal-v2'; known is literal-v1" in problems[EXTERNAL, "damaged"][0].problem


async def test_text_that_mentions_a_key_of_the_media_store_is_no_media(
    reader: HarnessDatabase, store: InMemoryStepStore, documents: Documents
) -> None:
    text = '[{"kind":"request","parts":[{"part_kind":"user-prompt","content":"%s"}]}]'
    talk = text % r"what is {\"__harness_external_media__\": true}?"
    documents["snapshots"].update_one(THIRD_INLINE, {"$set": {"messages": talk}})

    _, problems = await imported(reader, store)

    assert ("broken", "external") not in problems
    assert await store.get_run(run_id="broken") is not None


@pytest.mark.spec("SP-73")
async def test_a_marker_of_the_first_form_is_read(
    reader: HarnessDatabase, store: InMemoryStepStore, documents: Documents
) -> None:
    """Binary, inline, with nothing but `uri`; chunks without a size."""
    data = b"of old"
    uri = media_uri_for(data)
    digest = parse_media_uri(uri)
    binary = {"kind": "binary", "media_type": "image/png", "uri": uri}
    part = {
        "part_kind": "user-prompt",
        "content": [{**binary, "__harness_external_media__": True}],
    }
    messages = json.dumps([{"kind": "request", "parts": [part]}])
    documents["snapshots"].update_one(THIRD_INLINE, {"$set": {"messages": messages}})
    documents["media"].insert_one({"_id": digest, "chunk_count": 2})
    for n in (1, 0):
        piece = {"files_id": digest, "n": n, "data": data[n * 3 : n * 3 + 3]}
        documents["media_chunks"].insert_one(piece)

    await imported(reader, store)

    found = [each.messages for each in await store.list_snapshots(run_id="broken")]
    parts = [part for messages in found for each in messages for part in each.parts]
    contents = [each.content for each in parts if isinstance(each, UserPromptPart)]
    binary_contents = [
        each for content in contents for each in content if not isinstance(each, str)
    ]
    assert [each.data for each in binary_contents if isinstance(each, BinaryContent)] == [data]


DAMAGES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "event of unknown kind": ("events", THIRD, {"kind": "lunch"}, "kind:"),
    "event without a step": ("events", THIRD, {"step_index": "1"}, "step_index:"),
    "event with a time without a zone": (
        *("events", THIRD, {"timestamp": "2025-01-01T00:00:00"}, "timestamp:"),
    ),
    "event with a bad id": ("events", THIRD, {"conversation_id": " x"}, "white space"),
    "event with odd metadata": ("events", THIRD, {"metadata": {"a": 1}}, "metadata.a:"),
    "snapshot that is no text": ("snapshots", THIRD, {"messages": 5}, "messages:"),
    "snapshot of half a list": ("snapshots", THIRD_INLINE, {"messages": "[{"}, "cannot be read"),
    "snapshot of other messages": (
        *("snapshots", THIRD_INLINE, {"messages": '[{"kind": "x"}]'}, "cannot be read"),
    ),
    "snapshot of odd references": (
        *("snapshots", THIRD, {"messages": '{"message_refs": 1}'}, "message_refs:"),
    ),
    "snapshot of missing messages": (
        *("snapshots", THIRD, {"messages": '{"message_refs": ["gone"]}'}, "missing"),
    ),
    "snapshot of unknown state": ("snapshots", THIRD, {"state": "half"}, "state:"),
    "effect of unknown status": (*("tool_effects", ASKED, {"status": "x"}, "status:"),),
    "effect without a tool": (*("tool_effects", ASKED, {"tool_name": None}, "tool_name:"),),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_a_damaged_document_is_named_and_the_others_are_imported(
    reader: HarnessDatabase, store: InMemoryStepStore, documents: Documents, name: str
) -> None:
    collection, which, change, words = DAMAGES[name]
    document = documents[collection].find_one(which)
    assert document is not None
    documents[collection].update_one(which, {"$set": change})

    report, problems = await imported(reader, store)

    (found,) = problems[document["run_id"], "damaged"]
    assert (found.collection, found.document) == (collection, str(document["_id"]))
    assert words in found.problem
    assert getattr(report, collection).left_out == 1
    assert report.runs.imported == 5
    expected = load_recording().reads
    for run_id, reads in (await reads_of(store))["of_runs"].items():
        for kind in ("events", "snapshots", "tool_effects"):
            missing = (run_id, kind) == (document["run_id"], collection)
            found_rows = [each for each in reads[kind] if each is not None]
            assert len(found_rows) == len(expected["of_runs"][run_id][kind]) - missing


@pytest.mark.parametrize(
    "change", [{"started_at": 5}, {"run_id": "another"}, {"metadata": []}, {"parent_run_id": ""}]
)
async def test_a_run_whose_document_is_damaged_is_left_out(
    reader: HarnessDatabase, store: InMemoryStepStore, documents: Documents, change: dict[str, Any]
) -> None:
    documents["runs"].update_one({"_id": "broken"}, {"$set": change})

    report, problems = await imported(reader, store)

    assert [each.document for each in problems["broken", "damaged"]] == ["broken"]
    assert (report.runs.imported, report.runs.left_out) == (4, 1)
    assert await store.list_events(run_id="broken") == []


async def test_an_id_that_is_no_text_and_rows_without_a_run_are_named(
    reader: HarnessDatabase, store: InMemoryStepStore, documents: Documents
) -> None:
    documents["runs"].insert_one({"_id": 7, "run_id": 7, "started_at": "2025-01-01T00:00:00Z"})
    documents["runs"].delete_one({"_id": "broken"})

    report, problems = await imported(reader, store)

    assert [each.document for each in problems["7", "damaged"]] == ["7"]
    orphans = {each.collection for each in problems["broken", "damaged"]}
    assert orphans == {"events", "snapshots", "tool_effects"}
    assert report.runs.imported == 4


async def test_what_contradicts_a_row_that_is_here_is_left_out(
    reader: HarnessDatabase, store: InMemoryStepStore, documents: Documents
) -> None:
    await imported(reader, store)
    documents["events"].update_one(THIRD, {"$set": {"step_index": 77}})
    documents["snapshots"].update_one(THIRD, {"$set": {"step_index": 77}})
    ended = {"status": "failed", "effect_summary": "no"}
    documents["tool_effects"].update_one(ASKED, {"$set": ended})

    report, problems = await imported(reader, store)

    collections = [each.collection for each in problems["whole", "conflict"]]
    assert sorted(collections) == ["events", "snapshots", "tool_effects"]
    assert report.rows_imported == 0
    assert await reads_of(store) == load_recording().reads


async def test_rows_without_keys_are_not_doubled(
    reader: HarnessDatabase, store: InMemoryStepStore
) -> None:
    await imported(reader, store)
    await imported(reader, store)

    assert await reads_of(store) == load_recording().reads


async def test_more_problems_than_are_listed_are_counted(
    reader: HarnessDatabase,
    store: InMemoryStepStore,
    documents: Documents,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stores.importing.MAX_LISTED_PROBLEMS", 3)
    documents["events"].update_many({}, {"$set": {"kind": "lunch"}})

    report, _ = await imported(reader, store)

    assert len(report.problems) == 3
    assert report.problem_count > 3
