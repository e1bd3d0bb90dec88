"""A page of a conversation against a plain reading of what it must be, over random turns."""

import asyncio
import dataclasses
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stores.access import ReadingRights
from stores.memory import InMemoryStepStore
from stores.reading.history import read_history
from stores.reading.pages import HistoryPage
from stores.reading.parameters import HistoryParameters
from tests.helpers.reading import NOW, Said, put_conversation

RIGHTS = ReadingRights(principal_id="ann", workspace_id="default")

TEXTS = st.sampled_from([0, 1, 500, 1999, 2000, 2001, 5000]).map(
    lambda size: "\N{SNOWMAN}" * size  # three bytes of UTF-8 each: characters are counted
)

TURNS = st.lists(
    st.builds(
        Said,
        prompt=TEXTS,
        steers=st.one_of(st.just(()), st.tuples(TEXTS), st.tuples(TEXTS, TEXTS)),
        content=st.one_of(st.none(), TEXTS),
        kind=st.sampled_from(["message"] * 5 + ["compaction"]),
        is_hidden=st.sampled_from([False] * 5 + [True]),
        is_concealed=st.sampled_from([False] * 5 + [True]),
        is_tombstone=st.sampled_from([False] * 5 + [True]),
    ),
    max_size=14,
)

Window = Literal["newest", "around", "before", "after"]


def fields_of(said: Said) -> dict[str, str]:
    found = {
        "prompt": said.prompt,
        "steers": "\n".join(said.steers),
        "content": said.content or "",
    }
    return {name: text for name, text in found.items() if text}


def window(readable: list[int], kind: Window, at: int, limit: int) -> tuple[list[int], list[int]]:
    """Positions of the page in their order, and in that in which they get text."""
    if kind == "after":
        shown = [each for each in readable if each > at][:limit]
        return shown, shown
    if kind == "around":
        middle = readable.index(at)
        ranked = sorted(
            range(len(readable)), key=lambda index: (abs(index - middle), index < middle)
        )
        by_need = [readable[index] for index in ranked[:limit]]
        return sorted(by_need), by_need
    found = [each for each in readable if kind == "newest" or each < at]
    shown = found[-limit:]
    return shown, shown[::-1]


def texts(said: list[Said], by_need: list[int]) -> dict[int, dict[str, str]]:
    left = 12_000
    found: dict[int, dict[str, str]] = {}
    for position in by_need:
        found[position] = {}
        for name, text in fields_of(said[position]).items():
            found[position][name] = text[: min(2_000, left)]
            left -= len(found[position][name])
    return found


async def read(said: list[Said], kind: Window, at: int, limit: int) -> HistoryPage:
    store = InMemoryStepStore()
    head = await put_conversation(store, "c", said)
    asked: dict[str, Any] = {"limit": limit}
    if kind == "around":
        (turn,) = await store.conversations.list_turns("c", after=at - 1, limit=1)
        asked["around_turn_public_id"] = turn.record.public_id
    elif kind != "newest":
        asked[f"{kind}_position"] = at
    return await read_history(store, RIGHTS, head.public_id, HistoryParameters(**asked))


@pytest.mark.spec("HS-30", "HS-31", "HS-33", "HS-34", "HS-35", "HS-36", "HS-37", "HS-38", "HS-39")
@pytest.mark.spec("HS-40", "HS-41", "HS-43")
@given(TURNS, st.sampled_from(["newest", "around", "before", "after"]), st.data())
@settings(max_examples=300, deadline=None, database=None)
def test_a_page_is_what_a_plain_reading_of_all_turns_gives(
    said: list[Said], kind: Window, data: st.DataObject
) -> None:
    readable = [position for position, each in enumerate(said) if each.is_read]
    limit = data.draw(st.integers(1, 6))
    if kind == "around" and not readable:
        return
    places = st.sampled_from(readable) if kind == "around" else st.integers(0, 15)
    at = data.draw(places)
    page = asyncio.run(read(said, kind, at, limit))

    shown, by_need = window(readable, kind, at, limit)
    expected = texts(said, by_need)
    assert [each.position for each in page.turns] == shown
    for each in page.turns:
        told = each.model_dump(exclude_unset=True)
        assert {name: told[name] for name in told if name in FIELDS} == expected[each.position]
        assert each.truncated == (expected[each.position] != fields_of(said[each.position]))
    assert page.truncated == any(each.truncated for each in page.turns)
    total = sum(len(text) for each in expected.values() for text in each.values())
    assert total <= 12_000
    assert page.pagination.has_older == bool(
        [each for each in readable if each < (shown[0] if shown else edge(kind, at, "older"))]
    )
    assert page.pagination.has_newer == bool(
        [each for each in readable if each > (shown[-1] if shown else edge(kind, at, "newer"))]
    )
    assert "execution" not in page.model_fields_set


FIELDS = {"prompt", "steers", "content"}


def edge(kind: Window, at: int, side: str) -> int:
    """Where an empty page is: nothing lies beyond it on the side to which it looked."""
    if kind == "after":
        return at + 1 if side == "older" else 10**9
    if kind == "before":
        return -1 if side == "older" else at - 1
    return 0


@pytest.mark.spec("HS-41")
@given(TURNS, st.integers(1, 5), st.booleans())
@settings(max_examples=100, deadline=None, database=None)
def test_pages_one_after_the_other_give_each_turn_once(
    said: list[Said],
    limit: int,
    is_forwards: bool,  # noqa: FBT001 - hypothesis gives it
) -> None:
    readable = [position for position, each in enumerate(said) if each.is_read]

    async def walk() -> list[int]:
        store = InMemoryStepStore()
        head = await put_conversation(store, "c", said)
        asked = HistoryParameters(limit=limit, after_position=-1 if is_forwards else None)
        found: list[int] = []
        while True:
            page = await read_history(store, RIGHTS, head.public_id, asked)
            positions = [each.position for each in page.turns]
            found += positions if is_forwards else positions[::-1]
            place = page.pagination
            if not (place.has_newer if is_forwards else place.has_older):
                return found
            asked = (
                HistoryParameters(limit=limit, after_position=place.after_position)
                if is_forwards
                else HistoryParameters(limit=limit, before_position=place.before_position)
            )

    assert asyncio.run(walk()) == (readable if is_forwards else readable[::-1])


@pytest.mark.spec("HS-41")
@pytest.mark.parametrize("place", ["before_position", "after_position"])
async def test_an_empty_page_tells_how_to_go_back(place: str) -> None:
    store = InMemoryStepStore()
    head = await put_conversation(store, "c", [Said(), Said(), Said()])
    asked: dict[str, Any] = {place: 0 if place == "before_position" else 2}
    page = await read_history(store, RIGHTS, head.public_id, HistoryParameters(**asked))
    assert list(page.turns) == []
    back = page.pagination
    if place == "after_position":
        assert (back.has_older, back.has_newer, back.before_position) == (True, False, 3)
        again = HistoryParameters(before_position=back.before_position)
    else:
        assert (back.has_older, back.has_newer, back.after_position) == (False, True, -1)
        again = HistoryParameters(after_position=back.after_position)
    found = await read_history(store, RIGHTS, head.public_id, again)
    assert [each.position for each in found.turns] == [0, 1, 2]


@pytest.mark.spec("HS-42", "HS-44")
async def test_a_running_turn_has_its_input_and_a_regeneration_leaves_the_answer() -> None:
    store = InMemoryStepStore()
    running = Said(prompt="and now?", content=None, status="running")
    said = [Said(content="first", others=("running",)), Said(others=("completed",)), running]
    head = await put_conversation(store, "c", said, is_archived=True)
    page = await read_history(store, RIGHTS, head.public_id, HistoryParameters())
    first, second, last = page.turns
    assert (first.content, first.status) == ("first", "completed")
    assert second.content == "hi"
    told = last.model_dump(exclude_unset=True)
    assert (told["prompt"], told["status"]) == ("and now?", "running")
    assert not {"content", "steers"} & set(told)


@pytest.mark.spec("HS-3", "HS-4")
async def test_a_fork_shows_its_own_view_of_what_it_inherited() -> None:
    store = InMemoryStepStore()
    conversations = store.conversations
    source = await put_conversation(store, "c", [Said(content=f"answer {n}") for n in range(4)])
    fork = await conversations.fork("c", at_position=2, into="f", now=NOW)
    await conversations.set_visibility("c", 1, is_hidden=True, now=NOW)
    await conversations.set_visibility("f", 0, is_concealed=True, now=NOW)

    async def answers(public_id: str) -> list[str]:
        page = await read_history(store, RIGHTS, public_id, HistoryParameters())
        return [each.content for each in page.turns]

    assert await answers(source.public_id) == ["answer 0", "answer 2", "answer 3"]
    assert await answers(fork.public_id) == ["answer 1", "answer 2"]


def test_rights_follow_from_reach_owner_and_grants() -> None:
    rights = dataclasses.replace(RIGHTS, reach="own", conversation_ids=frozenset({"c"}))

    async def head(conversation_id: str, principal: str) -> bool:
        store = InMemoryStepStore()
        return rights.allow(await put_conversation(store, conversation_id, [], principal=principal))

    found = [asyncio.run(head(*each)) for each in (("c", "bob"), ("d", "ann"), ("d", "bob"))]
    assert found == [True, True, False]
