"""The history API over a real MongoDB: who gets what, and what changes between two pages."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel
from pymongo import AsyncMongoClient

from activities.sessions import (
    SessionReadRequest,
    SessionSearchRequest,
    read_session,
    search_sessions,
)
from stores.conversation_records import ConversationRecord
from stores.conversation_rows import turn_run_id
from stores.mongo.steps import MongoStepStore
from stores.reading.reader import Library
from stores.records import ToolEffectRecord
from tests.helpers.reading import NOW, Api, Said, admit, opened_api, parameter_of, put_conversation
from tests.helpers.script import follow, script
from tests.stores.watching import Watcher
from workflows.persistence import StepPersistence

pytestmark = pytest.mark.integration

NOTHING = "01900000-0000-7000-8000-000000000070"
QUESTIONS = 250
UNHEARD = "neverheard"


def repeat(text: str) -> str:
    return text


async def run_turn(store: Any, conversation_id: str, text: str) -> str:
    """A real run of the first turn of a conversation; return its id."""
    run_id = turn_run_id(store.workspace_id, conversation_id, "m0", 1)
    kept: list[Any] = [StepPersistence[None](store=store)]
    agent: Agent[None, str] = Agent(
        FunctionModel(follow), name="doer", capabilities=kept, tools=[repeat]
    )
    prompt = script([[("repeat", {"text": text})]], final="done")
    await agent.run(prompt, run_id=run_id, conversation_id=conversation_id)
    return run_id


@dataclass
class Tenant:
    """A workspace, its conversations, and who may read which of them."""

    store: MongoStepStore
    heads: dict[str, ConversationRecord] = field(default_factory=dict[str, ConversationRecord])
    turns: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Public ids of each conversation's turns."""
    readable: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    tokens: dict[str, str] = field(default_factory=dict[str, str])
    workspace: str = ""


def secret_of(workspace_id: str, conversation_id: str) -> str:
    """A word that only one conversation says."""
    return f"secret{workspace_id}{conversation_id}".lower()


async def tenant_of(store: MongoStepStore) -> Tenant:
    found = Tenant(store=store)
    workspace = store.workspace_id
    for number, owner in enumerate(["ann", "bob", "eve", "bob"]):
        name = f"c{number}"
        word = secret_of(workspace, name)
        said = [Said(prompt=f"shared {word} {n}", content=f"answer {word}") for n in range(3)]
        found.heads[name] = await put_conversation(
            store, name, said, title=f"shared {word}", principal=owner
        )
        await run_turn(store, name, word)
        turns = await store.conversations.list_turns(name)
        found.turns[name] = [each.record.public_id for each in turns]
    found.tokens["all"] = await admit(store, f"all-{workspace}")
    found.tokens["ann"] = await admit(store, "ann", reach="own")
    found.tokens["given"] = await admit(store, f"given-{workspace}", reach="own")
    found.tokens["none"] = await admit(store, f"none-{workspace}", reach=None)
    given = f"given-{workspace}"
    await store.conversations.access.grant(given, workspace, conversation_id="c2", now=NOW)
    found.readable = {"all": set(found.heads), "ann": {"c0"}, "given": {"c2"}, "none": set()}
    found.workspace = await store.conversations.workspace_public_id(now=NOW)
    return found


@dataclass(frozen=True, kw_only=True)
class Question:
    """Who asks where about what, and what of it is theirs."""

    caller: Api
    principal: str
    target: Tenant
    name: str
    mine: set[str]
    is_member: bool
    limit: int

    @property
    def public_id(self) -> str:
        return self.target.heads[self.name].public_id

    @property
    def secret(self) -> str:
        return secret_of(self.target.store.workspace_id, self.name)

    async def search(self, query: str, after: str | None = None) -> httpx2.Response:
        return await self.caller.search(query=query, after=after, limit=self.limit)

    async def read(self, public_id: str, **parameters: Any) -> httpx2.Response:
        return await self.caller.history(public_id, limit=self.limit, **parameters)

    async def tool_search(self, query: str, after: str | None = None) -> str:
        request = SessionSearchRequest(
            workspace_id=self.target.store.workspace_id,
            principal=self.principal,
            parameters={"query": query, "after": after, "limit": self.limit},
        )
        return await search_sessions(Library(store=self.target.store), request)

    async def tool_read(self, public_id: str, **parameters: Any) -> str:
        request = SessionReadRequest(
            workspace_id=self.target.store.workspace_id,
            principal=self.principal,
            session_id=public_id,
            parameters={"limit": self.limit, **parameters},
        )
        return await read_session(Library(store=self.target.store), request)


class Fuzz:
    """Asks anything of anybody, and looks for what is not theirs in every answer."""

    def __init__(self, tenants: list[Tenant], api: Api, seed: int) -> None:
        self.tenants = tenants
        self.api = api
        self.random = random.Random(seed)  # noqa: S311 - repeats
        self.cursors: list[tuple[str, str]] = []

    async def ask(self) -> None:
        draw = self.random
        home, target = draw.choice(self.tenants), draw.choice(self.tenants)
        who = draw.choice(sorted(home.tokens))
        # `ann` is known in all workspaces, under tokens of her own.
        is_known = who == "ann" or target is home
        question = Question(
            caller=Api(client=self.api.client, workspace=target.workspace, token=home.tokens[who]),
            principal=who if who == "ann" else f"{who}-{home.store.workspace_id}",
            target=target,
            name=draw.choice(sorted(target.heads)),
            mine=target.readable[who] if is_known else set[str](),
            is_member=is_known and who != "none",
            limit=draw.choice([1, 2, 50]),
        )
        ask = draw.choice([self.search, self.secret, self.cursor, self.history, self.around])
        self._check(await ask(question), question)

    async def search(self, question: Question) -> str:
        answer = await question.search(self.random.choice(["shared", "answer", question.secret]))
        assert answer.status_code == (200 if question.is_member else 404)
        cursor = answer.json().get("pagination", {}).get("next_after")
        if cursor:
            self.cursors.append((question.principal, cursor))
        text = await question.tool_search("shared")
        assert ("matches" in json.loads(text)) == question.is_member
        return answer.text + text

    async def secret(self, question: Question) -> str:
        """What others said is found as little as what nobody said."""
        answers = [await question.search(each) for each in (question.secret, UNHEARD)]
        texts = [await question.tool_search(each) for each in (question.secret, UNHEARD)]
        if question.name not in question.mine:
            assert answers[0].status_code == answers[1].status_code
            assert answers[0].text == answers[1].text
            assert texts[0] == texts[1]
        return answers[0].text + texts[0]

    async def cursor(self, question: Question) -> str:
        owner, cursor = self.random.choice(self.cursors) if self.cursors else ("", "x")
        answer = await question.search("shared", cursor)
        text = await question.tool_search("shared", cursor)
        if owner != question.principal:
            assert answer.status_code == (400 if question.is_member else 404)
            assert "error" in json.loads(text)
        return answer.text + text

    async def history(self, question: Question) -> str:
        asked = {"include_execution": self.random.choice(["true", "false"])}
        answer = await question.read(question.public_id, **asked)
        text = await question.tool_read(question.public_id, include_execution=True)
        is_mine = question.name in question.mine
        assert answer.status_code == (200 if is_mine else 404)
        assert ("turns" in json.loads(text)) == is_mine
        if not is_mine:
            missing = await question.read(NOTHING, **asked)
            assert (missing.status_code, missing.text) == (404, answer.text)
            assert await question.tool_read(NOTHING, include_execution=True) == text
        return answer.text + text

    async def around(self, question: Question) -> str:
        """A turn of another conversation is as one that there is not."""
        other = self.random.choice(self.tenants)
        turn = self.random.choice(other.turns[self.random.choice(sorted(other.turns))])
        places = ({"around_turn_public_id": each} for each in (turn, NOTHING))
        asked = [(await question.read(question.public_id, **each), each) for each in places]
        answers = [each for each, _ in asked]
        texts = [await question.tool_read(question.public_id, **each) for _, each in asked]
        assert answers[1].status_code == 404
        if question.name not in question.mine or turn not in question.target.turns[question.name]:
            assert (answers[0].status_code, answers[0].text) == (404, answers[1].text)
            assert texts[0] == texts[1]
        return answers[0].text + texts[0]

    def _check(self, text: str, question: Question) -> None:
        """No word and no id of a conversation that is not theirs."""
        for tenant in self.tenants:
            for name, head in tenant.heads.items():
                if tenant is question.target and name in question.mine:
                    continue
                assert secret_of(tenant.store.workspace_id, name) not in text
                assert head.public_id not in text


@pytest.fixture
async def api(mongo: MongoStepStore) -> AsyncGenerator[Api]:
    async with opened_api(mongo, await admit(mongo, "reader")) as opened:
        yield opened


@pytest.mark.spec("HS-1", "HS-2", "HS-3", "HS-47", "HS-65")
async def test_nobody_ever_gets_what_is_not_theirs(mongo: MongoStepStore, api: Api) -> None:
    tenants = [await tenant_of(mongo.for_workspace(each)) for each in ("wa", "wb")]
    fuzz = Fuzz(tenants, api, seed=11)
    for _ in range(QUESTIONS):
        await fuzz.ask()
    assert fuzz.cursors
    stranger = tenants[0].tokens["none"]
    there = Api(client=api.client, workspace=tenants[0].workspace, token=stranger)
    nowhere = Api(client=api.client, workspace=NOTHING, token=stranger)
    found = await there.search(query="shared")
    assert (found.status_code, found.text) == (404, (await nowhere.search(query="shared")).text)


@pytest.mark.spec("HS-1", "HS-22")
async def test_rights_are_those_of_the_moment_on_each_page(mongo: MongoStepStore, api: Api) -> None:
    access = mongo.conversations.access
    for name in ("c0", "c1"):
        said = [Said(prompt=f"shared {n}") for n in range(4)]
        await put_conversation(mongo, name, said, now=NOW - timedelta(seconds=int(name[1:])))
    token = await admit(mongo, "ann", reach="own")
    await access.grant("ann", "default", conversation_id="c0", now=NOW)
    ann = Api(client=api.client, workspace=api.workspace, token=token)

    first = (await ann.search(query="shared", limit=2)).json()
    assert len(first["matches"]) == 2
    await access.grant("ann", "default", conversation_id="c1", now=NOW)
    after = first["pagination"]["next_after"]
    second = (await ann.search(query="shared", limit=50, after=after)).json()
    ids = {each["conversation_public_id"] for each in (*first["matches"], *second["matches"])}
    assert len(ids) == 2
    await access.revoke("ann", "default", "c0")
    third = (await ann.search(query="shared", limit=50, after=after)).json()
    gone = first["matches"][0]["conversation_public_id"]
    assert gone not in json.dumps(third)
    assert (await ann.history(gone)).status_code == 404

    await access.revoke_tokens("ann")
    assert parameter_of(await ann.search(query="shared", after=after))[:2] == (
        401,
        "unauthenticated",
    )
    token, kept = await access.add_token("ann", now=NOW, expires_at=NOW)
    expired = Api(client=api.client, workspace=api.workspace, token=token)
    assert kept.expires_at == NOW
    assert (await expired.search(query="shared")).status_code == 401


async def test_no_text_of_a_caller_is_an_error_of_the_database(
    mongo: MongoStepStore,
) -> None:
    head = await put_conversation(mongo, "c", [Said()])
    await admit(mongo, "ann")
    library = Library(store=mongo)
    odd = ("\ud800", "a\x00b", "$where", "\N{SNOWMAN}" * 5_000)
    for text in odd:
        for name in ("query", "after", "archived", text):
            search = SessionSearchRequest(
                workspace_id="default", principal="ann", parameters={"query": "hello", name: text}
            )
            found = json.loads(await search_sessions(library, search))
            is_query = name == "query" and text in {"a\x00b", "$where"}
            assert ("matches" in found) == is_query, (name, text)
        for session_id, parameters in (
            (text, {}),
            (head.public_id, {"around_turn_id": text}),
            (head.public_id, {"around_turn_public_id": text}),
            (head.public_id, {"before_position": text}),
            (head.public_id, {"include_execution": True, text: text}),
        ):
            reading = SessionReadRequest(
                workspace_id="default", principal="ann", session_id=session_id,
                parameters=parameters,
            )  # fmt: skip
            found = json.loads(await read_session(library, reading))
            assert found["error"]["code"] == "parameter_invalid", (session_id, parameters)
        place = await mongo.conversations.workspace_public_id(now=NOW)
        assert await mongo.conversations.access.bearer_in(text, place, now=NOW) is None


async def test_a_page_costs_few_questions_and_none_more_in_a_long_conversation(
    mongodb_uri: str, mongodb_database: str
) -> None:
    watcher = Watcher(mongodb_database)
    client = AsyncMongoClient[Any](mongodb_uri, tz_aware=True, event_listeners=[watcher])
    store = MongoStepStore(client=client, database=mongodb_database)
    asked: dict[str, list[list[str]]] = {}
    async with client, opened_api(store, await admit(store, "ann")) as api:
        for count in (9, 99):
            said = [Said(prompt=f"said {n}") for n in range(count)]
            head = await put_conversation(store, f"c{count}", said)
            page = (await api.history(head.public_id)).json()["turns"]
            for name, value in (
                ("limit", 20),
                ("around_turn_public_id", page[4]["public_id"]),
                ("after_position", 3),
            ):
                watcher.commands.clear()
                assert (await api.history(head.public_id, **{name: value})).status_code == 200
                asked.setdefault(name, []).append(watcher.names())
    caller = "aggregate"  # token, workspace and grants
    window = ["find"] * 3  # head, turns, answers
    assert asked == {
        "limit": [[caller, *window]] * 2,
        "around_turn_public_id": [[caller, *window, "find"]] * 2,  # and the turn itself
        "after_position": [[caller, *window, "find"]] * 2,  # and whether there are older ones
    }


async def test_a_conversation_that_is_deleted_while_it_is_read_is_whole_or_gone(
    mongo: MongoStepStore, api: Api
) -> None:
    head = await put_conversation(mongo, "c", [Said(prompt=f"said {n}") for n in range(30)])
    await run_turn(mongo, "c", "x")

    async def read() -> tuple[int, int]:
        found = await api.history(head.public_id, limit=50, include_execution="true")
        return found.status_code, len(found.json().get("turns", []))

    reads = [asyncio.create_task(read()) for _ in range(10)]
    await mongo.conversations.delete("c", now=NOW)
    reads += [asyncio.create_task(read()) for _ in range(3)]
    found = await asyncio.gather(*reads)
    assert set(found) <= {(200, 30), (404, 0)}
    assert found[-1] == (404, 0)
    assert (await api.search(query="said")).json()["matches"] == []


@pytest.mark.spec("HS-62", "HS-67")
async def test_after_retention_identities_and_words_stay(mongo: MongoStepStore, api: Api) -> None:
    head = await put_conversation(mongo, "c", [Said(content="the lasting answer"), Said()])
    run_id = await run_turn(mongo, "c", "x")
    open_run = turn_run_id("default", "c", "m1", 1)
    await mongo.record_tool_effect(
        ToolEffectRecord(tool_call_id="t", tool_name="pay", run_id=open_run, status="started")
    )
    turns = (await api.history(head.public_id)).json()["turns"]
    asked = {"around_turn_public_id": turns[0]["public_id"], "include_execution": "true"}
    before = (await api.history(head.public_id, **asked)).json()["execution"]
    assert len(before["rounds"]) == 2

    later = datetime.now(UTC) + timedelta(days=2)
    prune: dict[str, Any] = {"age": timedelta(days=1), "now": later}
    dry = await mongo.prune_details(**prune)
    assert (dry.detailed, dry.rows) == (1, 0)
    assert (await api.history(head.public_id, **asked)).json()["execution"] == before
    done = await mongo.prune_details(**prune, is_dry=False)
    assert done.detailed == dry.detailed
    assert done.rows > 1
    assert (await mongo.prune_details(**prune, is_dry=False)).detailed == 0

    found = (await api.history(head.public_id, **asked, execution_prefix="1/0")).json()
    after = found["execution"]
    same = ("turn_public_id", "variant_public_id", "run_public_id", "status", "run_status")
    assert [after[name] for name in same] == [before[name] for name in same]
    assert (after["rounds"], after["pagination"]) == ([], {"next_before": None, "has_older": False})
    assert after["details_pruned_at"]
    assert found["turns"][0]["content"] == "the lasting answer"
    assert len((await api.search(query="lasting")).json()["matches"]) == 1
    run = await mongo.get_run(run_id=run_id)
    assert run is not None
    assert run.details_pruned_at == later
    assert await mongo.latest_snapshot(run_id=run_id) is not None
    assert len(await mongo.list_tool_effects(run_id=open_run)) == 1
