"""What the service refuses, parameter by parameter, and what it tells nobody."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from stores.conversation_records import ConversationRecord
from stores.conversation_rows import turn_run_id
from stores.faulty import Fault, FaultPlan, with_faults
from stores.keyword import cursors
from stores.memory import InMemoryStepStore
from stores.records import RunRecord
from tests.helpers.reading import NOW, Api, Said, admit, opened_api, parameter_of, put_conversation

UNKNOWN = "01900000-0000-7000-8000-000000000070"
LONG = "\N{SNOWMAN}" * 342  # 1,026 bytes in 342 characters
INVALID = "parameter_invalid"


@pytest.fixture
def store() -> InMemoryStepStore:
    return InMemoryStepStore()


@pytest.fixture
async def head(store: InMemoryStepStore) -> ConversationRecord:
    said = [Said(prompt=f"question {n}", content=f"answer {n}") for n in range(5)]
    return await put_conversation(store, "c", said, title="Research")


@pytest.fixture
async def api(store: InMemoryStepStore, head: ConversationRecord) -> AsyncGenerator[Api]:
    assert head.title
    async with opened_api(store, await admit(store, "ann")) as opened:
        yield opened


BAD_SEARCHES: list[tuple[dict[str, Any], str]] = [
    ({}, "query"),
    ({"query": ""}, "query"),
    ({"query": " \t"}, "query"),
    ({"query": LONG}, "query"),
    ({"query": "\N{SNOWMAN}" * 341 + "aa"}, "query"),  # 1,025 bytes
    ({"query": ["a", "b"]}, "query"),
    ({"query": "a", "archived": "maybe"}, "archived"),
    ({"query": "a", "archived": ""}, "archived"),
    ({"query": "a", "archived": ["only", "only"]}, "archived"),
    ({"query": "a", "include_auxiliary": "perhaps"}, "include_auxiliary"),
    ({"query": "a", "include_auxiliary": ""}, "include_auxiliary"),
    ({"query": "a", "include_auxiliary": ["true", "false"]}, "include_auxiliary"),
    ({"query": "a", "limit": 0}, "limit"),
    ({"query": "a", "limit": 51}, "limit"),
    ({"query": "a", "limit": "1.5"}, "limit"),
    ({"query": "a", "limit": ""}, "limit"),
    ({"query": "a", "limit": "9" * 5000}, "limit"),
    ({"query": "a", "limit": [1, 2]}, "limit"),
    ({"query": "a", "after": ""}, "after"),
    ({"query": "a", "after": "\N{SNOWMAN}"}, "after"),
    ({"query": "a", "after": "A" * 10_000}, "after"),
    ({"query": "a", "after": ["x", "y"]}, "after"),
    ({"query": "a", "offset": 3}, "offset"),
]


@pytest.mark.spec("HS-6", "HS-7", "HS-8", "HS-9", "HS-10")
@pytest.mark.parametrize(("parameters", "name"), BAD_SEARCHES)
async def test_a_search_with_a_bad_parameter_names_it(
    api: Api, parameters: dict[str, Any], name: str
) -> None:
    assert parameter_of(await api.search(**parameters)) == (400, INVALID, name)


BAD_READINGS: list[tuple[dict[str, Any], str]] = [
    ({"limit": 0}, "limit"),
    ({"limit": 51}, "limit"),
    ({"limit": "many"}, "limit"),
    ({"limit": [1, 2]}, "limit"),
    ({"around_turn_public_id": ""}, "around_turn_public_id"),
    ({"around_turn_public_id": "7"}, "around_turn_public_id"),
    ({"around_turn_public_id": UNKNOWN + "\n"}, "around_turn_public_id"),
    ({"around_turn_public_id": [UNKNOWN, UNKNOWN]}, "around_turn_public_id"),
    ({"before_position": -1}, "before_position"),
    ({"before_position": 2**31}, "before_position"),
    ({"before_position": 10**30}, "before_position"),
    ({"before_position": ""}, "before_position"),
    ({"before_position": "x"}, "before_position"),
    ({"before_position": [1, 1]}, "before_position"),
    ({"after_position": -2}, "after_position"),
    ({"after_position": 2**31}, "after_position"),
    ({"after_position": "1.5"}, "after_position"),
    ({"after_position": ""}, "after_position"),
    ({"after_position": [1, 2]}, "after_position"),
    ({"before_position": 3, "after_position": 1}, "after_position"),
    ({"around_turn_public_id": UNKNOWN, "before_position": 1}, "before_position"),
    ({"around_turn_public_id": UNKNOWN, "after_position": 1}, "after_position"),
    ({"include_execution": "yes please"}, "include_execution"),
    ({"include_execution": ["true", "true"]}, "include_execution"),
    ({"execution_prefix": ["1/0", "1/0"]}, "execution_prefix"),
    ({"execution_before": ["x", "y"]}, "execution_before"),
    ({"arround_turn_public_id": UNKNOWN}, "arround_turn_public_id"),
]


@pytest.mark.spec("HS-30", "HS-31")
@pytest.mark.parametrize(("parameters", "name"), BAD_READINGS)
async def test_a_reading_with_a_bad_parameter_names_it(
    api: Api, head: ConversationRecord, parameters: dict[str, Any], name: str
) -> None:
    found = await api.history(head.public_id, **parameters)
    assert parameter_of(found) == (400, INVALID, name)
    text = found.text
    assert not any(str(e) in text for e in parameters.values() if len(str(e)) > len("execution"))


@pytest.mark.spec("HS-5", "HS-29")
async def test_ids_in_the_path_are_uuids_in_any_case(api: Api, head: ConversationRecord) -> None:
    assert (await api.history(head.public_id.upper())).status_code == 200
    assert parameter_of(await api.history("c")) == (400, INVALID, "conversation_public_id")
    elsewhere = Api(client=api.client, workspace="default", token=api.token)
    found = await elsewhere.search(query="a")
    assert parameter_of(found) == (400, INVALID, "workspace_public_id")


@pytest.mark.spec("HS-32")
async def test_a_turn_that_cannot_be_read_is_not_found(
    store: InMemoryStepStore, api: Api, head: ConversationRecord
) -> None:
    turns = await store.conversations.list_turns("c")
    hidden = turns[1].record.public_id
    await store.conversations.set_visibility("c", 1, is_hidden=True, now=NOW)
    other = await put_conversation(store, "d", [Said()])
    (foreign,) = await store.conversations.list_turns("d")
    assert other.public_id != head.public_id
    answers = [
        await api.history(head.public_id, around_turn_public_id=each)
        for each in (hidden, foreign.record.public_id, UNKNOWN)
    ]
    assert {each.text for each in answers} == {answers[0].text}
    assert parameter_of(answers[0]) == (404, "not_found", "around_turn_public_id")
    near = await api.history(head.public_id, around_turn_public_id=turns[2].record.public_id)
    assert [each["position"] for each in near.json()["turns"]] == [0, 2, 3, 4]


@pytest.mark.spec("HS-28")
async def test_a_hit_opens_its_context(api: Api) -> None:
    (match,) = (await api.search(query="question 3")).json()["matches"]
    found = await api.history(
        match["conversation_public_id"], around_turn_public_id=match["turn_public_id"], limit=3
    )
    assert [each["position"] for each in found.json()["turns"]] == [2, 3, 4]
    assert found.json()["conversation"]["title"] == "Research"


@pytest.mark.spec("HS-24", "HS-25")
async def test_matches_have_these_keys_and_those_of_titles_no_turn(api: Api) -> None:
    (title,) = (await api.search(query="research")).json()["matches"]
    assert list(title) == [
        "conversation_public_id",
        "title",
        "turn_public_id",
        "variant_public_id",
        "position",
        "field",
        "inherited",
        "excerpt",
        "truncated",
    ]
    nothing = {title[name] for name in ("turn_public_id", "variant_public_id", "position")}
    assert (nothing, title["field"]) == ({None}, "title")
    page = (await api.search(query="answer", limit=2)).json()
    assert list(page) == ["matches", "pagination"]
    assert [each["position"] for each in page["matches"]] == [4, 3]
    after = page["pagination"]["next_after"]
    rest = (await api.search(query="answer", after=after)).json()
    assert [each["position"] for each in rest["matches"]] == [2, 1, 0]
    assert rest["pagination"] == {"next_after": None}
    edited = await api.search(query="answer", after=after[:-2] + "AA")
    assert parameter_of(edited) == (400, INVALID, "after")
    other = await api.search(query="question", after=after)
    assert parameter_of(other) == (400, INVALID, "after")


@pytest.mark.spec("HS-6")
async def test_a_query_of_1024_bytes_is_one(api: Api) -> None:
    found = await api.search(query="\N{SNOWMAN}" * 341 + "a")
    assert (found.status_code, found.json()["matches"]) == (200, [])


@pytest.mark.spec("HS-10", "HS-22")
async def test_a_cursor_of_another_principal_or_from_before_a_change_of_the_order_is_refused(
    store: InMemoryStepStore, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = (await api.search(query="answer", limit=2)).json()["pagination"]["next_after"]
    bob = Api(client=api.client, workspace=api.workspace, token=await admit(store, "bob"))
    refused = (400, INVALID, "after")
    assert parameter_of(await bob.search(query="answer", after=after)) == refused
    assert (await api.search(query="answer", after=after)).status_code == 200
    monkeypatch.setattr(cursors, "CURSOR_VERSION", cursors.CURSOR_VERSION + 1)
    assert parameter_of(await api.search(query="answer", after=after)) == refused


@pytest.mark.spec("HS-46", "HS-61")
async def test_a_branch_or_a_cursor_that_an_execution_does_not_have_is_named(
    store: InMemoryStepStore, api: Api, head: ConversationRecord
) -> None:
    run_id = turn_run_id("default", "c", "m4", 1)
    await store.register_run(RunRecord(run_id=run_id, started_at=NOW))
    for prefix in ("", "7/0", "1/0/2/3", "../x", "\N{SNOWMAN}", "9" * 5000, "1/0\n", "\x00"):
        found = await api.history(head.public_id, include_execution="true", execution_prefix=prefix)
        assert parameter_of(found) == (404, "not_found", "execution_prefix"), prefix
    for before in ("", "x", "WzEsICJ4Il0=", "\N{SNOWMAN}", "A" * 10_000, "\x00"):
        found = await api.history(head.public_id, include_execution="true", execution_before=before)
        assert parameter_of(found) == (400, INVALID, "execution_before"), before


@pytest.mark.spec("HS-17")
async def test_stop_words_alone_find_nothing(api: Api) -> None:
    found = await api.search(query="the and of")
    assert (found.status_code, found.json()["matches"]) == (200, [])


async def test_bytes_that_are_no_text_are_no_error(api: Api) -> None:
    address = f"/agent_api/v1/workspaces/{api.workspace}/conversation_search"
    headers = {"Authorization": f"Bearer {api.token}"}
    for query in ("%ED%A0%80", "%00", "%FF", "a%00b"):
        found = await api.client.get(f"{address}?query={query}", headers=headers)
        assert found.status_code == 200, query


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer ", "Basic abc", "Bearer perdure_x", "Bearer a.b"]
)
async def test_who_is_not_known_is_told_so_before_anything_else(
    api: Api, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    address = f"/agent_api/v1/workspaces/{api.workspace}/conversation_search?limit=1000"
    found = await api.client.get(address, headers=headers)
    assert parameter_of(found) == (401, "unauthenticated", None)
    assert found.headers["www-authenticate"] == "Bearer"


async def test_other_paths_and_methods_are_answered_in_the_same_shape(api: Api) -> None:
    assert parameter_of(await api.client.get("/nowhere")) == (404, "not_found", None)
    found = await api.client.post(f"/agent_api/v1/workspaces/{api.workspace}/conversation_search")
    assert parameter_of(found) == (405, "method_not_allowed", None)
    assert (await api.client.get("/openapi.json")).status_code == 200


async def test_a_database_that_is_away_is_503_in_words_of_the_service(
    store: InMemoryStepStore, head: ConversationRecord, tmp_path: Path
) -> None:
    fault = Fault(name="away", action="fail", method="read")
    faulty = with_faults(store, FaultPlan(directory=tmp_path, faults=(fault,)))
    async with opened_api(faulty, await admit(store, "ann")) as api:
        found = await api.history(head.public_id)
        assert parameter_of(found) == (503, "unavailable", None)
        assert found.headers["retry-after"] == "1"
        assert (await api.history(head.public_id)).status_code == 200
