"""What every `ConversationStore` must do."""

import asyncio
from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta

import pytest

from stores.conversation_records import (
    ConversationSpec,
    SubmittedMessage,
    TurnText,
    VariantRecord,
)
from stores.conversation_rows import Admission, turn_run_id
from stores.conversations import ConversationName, ConversationStore
from stores.errors import (
    ConversationClosedError,
    ConversationConflict,
    ConversationNotFoundError,
    InvalidIdentifierError,
    MessageIdTakenError,
    TurnNotFoundError,
    TurnStateError,
)
from stores.protocols import StepStore
from stores.rebuilding import rebuild_conversation

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SPEC = ConversationSpec(agent="conversation", max_turns=6)


def message(message_id: str, text: str = "hello") -> SubmittedMessage:
    return SubmittedMessage(message_id=message_id, text=text, principal="alice")


async def answered(
    store: ConversationStore, message_id: str, text: str, reply: str, *, conversation: str = "c"
) -> Admission:
    admission = await store.admit(conversation, message(message_id, text), now=NOW)
    await finish(store, admission.variant, text, reply)
    return admission


async def finish(
    store: ConversationStore, variant: VariantRecord, prompt: str, reply: str
) -> VariantRecord:
    place = (variant.conversation_id, variant.position, variant.number)
    await store.begin_variant(*place, now=NOW)
    text = TurnText(prompt=prompt, content=reply)
    return await store.finish_variant(*place, status="completed", text=text, now=NOW)


async def words(store: ConversationStore, conversation: str = "c") -> list[tuple[str, str | None]]:
    turns = await store.list_turns(conversation)
    return [(each.record.prompt, each.active.content if each.active else None) for each in turns]


class ConversationConformance(ABC):
    @pytest.fixture
    @abstractmethod
    def store(self) -> StepStore:
        """An empty store."""

    @pytest.fixture
    def conversations(self, store: StepStore) -> ConversationStore:
        return store.conversations

    async def test_a_conversation_is_begun_once_and_keeps_what_it_began_with(
        self, store: StepStore, conversations: ConversationStore
    ) -> None:
        begun = await conversations.open("c", SPEC, now=NOW)
        other = ConversationSpec(agent="conversation", max_turns=2)
        assert await conversations.open("c", other, now=NOW) == begun
        assert await conversations.open("c", None, now=NOW) == begun
        assert (begun.max_turns, begun.state, begun.public_id[14]) == (6, "open", "7")
        assert await conversations.workspace_public_id(
            now=NOW
        ) == await conversations.workspace_public_id(now=NOW)

        with pytest.raises(ConversationConflict, match="held with agent 'conversation'"):
            await conversations.open("c", ConversationSpec(agent="other"), now=NOW)
        with pytest.raises(ConversationNotFoundError) as missing:
            await conversations.open("unknown", None, now=NOW)
        elsewhere = store.for_workspace("w2").conversations
        with pytest.raises(ConversationNotFoundError) as foreign:
            await elsewhere.open("c", None, now=NOW)
        assert str(foreign.value) == str(missing.value).replace("unknown", "c")
        assert await elsewhere.find("c") is None
        with pytest.raises(InvalidIdentifierError):
            await conversations.open("", SPEC, now=NOW)

    async def test_messages_become_turns_in_order_and_one_message_one_turn(
        self, conversations: ConversationStore
    ) -> None:
        await conversations.open("c", SPEC, now=NOW)
        admitted = await asyncio.gather(
            *(
                conversations.admit("c", message(f"m{n % 6}", f"text {n % 6}"), now=NOW)
                for n in range(12)
            )
        )
        assert sorted(each.is_new for each in admitted) == [False] * 6 + [True] * 6
        queue = await conversations.list_unfinished("c")
        assert [turn.position for turn, _ in queue] == list(range(6))
        ids = [turn.public_id for turn, _ in queue]
        assert ids == sorted(set(ids))
        by_message = {turn.message_id: variant.run_id for turn, variant in queue}
        assert by_message == {f"m{n}": turn_run_id("default", "c", f"m{n}", 1) for n in range(6)}
        assert {each.variant.run_id for each in admitted} == set(by_message.values())
        with pytest.raises(MessageIdTakenError, match="another text"):
            await conversations.admit("c", message("m1", "other"), now=NOW)

    async def test_an_end_is_recorded_once_and_no_status_goes_back(
        self, conversations: ConversationStore
    ) -> None:
        await conversations.open("c", SPEC, now=NOW)
        admission = await answered(conversations, "m", "hello", "hi")
        again = await conversations.finish_variant(
            "c", 0, 1, status="failed", text=None, error="late", now=NOW
        )
        assert (again.status, again.content, again.error) == ("completed", "hi", None)
        await conversations.begin_variant("c", 0, 1, now=NOW)
        (turn,) = await conversations.list_turns("c")
        assert (turn.record.status, turn.active) == ("completed", again)
        assert turn.record.public_id == admission.turn.public_id
        assert await conversations.list_unfinished("c") == []

        lone = await conversations.admit("c", message("m2", "a\ud800b"), now=NOW)
        assert lone.turn.prompt == "a\ufffdb"
        await conversations.finish_variant(
            "c", 1, 1, status="cancelled", text=TurnText(prompt="x", content="cut"), now=NOW
        )
        assert await words(conversations) == [("hello", "hi"), ("a\ufffdb", None)]

    async def test_another_answer_takes_over_when_it_is_selected(
        self, conversations: ConversationStore
    ) -> None:
        head = await conversations.open("c", SPEC, now=NOW)
        with pytest.raises(TurnNotFoundError):
            await conversations.regenerate("c", 0, message("r"), now=NOW)
        first = await conversations.admit("c", message("m"), now=NOW)
        with pytest.raises(TurnStateError, match="being answered"):
            await conversations.regenerate("c", 0, message("r"), now=NOW)
        await finish(conversations, first.variant, "hello", "hi")

        second = await conversations.regenerate("c", 0, message("r"), now=NOW)
        again = await conversations.regenerate("c", 0, message("r"), now=NOW)
        assert (again.variant, again.is_new) == (second.variant, False)
        assert second.variant.number == 2
        with pytest.raises(TurnStateError, match="only a completed one"):
            await conversations.select_variant("c", 0, 2, now=NOW)
        await finish(conversations, second.variant, "hello", "good day")
        assert await words(conversations) == [("hello", "hi")]

        await conversations.select_variant("c", 0, 2, now=NOW)
        await conversations.select_variant("c", 0, 2, now=NOW)
        assert await words(conversations) == [("hello", "good day")]
        with pytest.raises(TurnNotFoundError, match="no variant 3"):
            await conversations.select_variant("c", 0, 3, now=NOW)
        moved = await conversations.open("c", None, now=NOW)
        assert (moved.path_revision, moved.revision > head.revision) == (1, True)

    async def test_hidden_and_concealed_are_undone_each_on_its_own(
        self, conversations: ConversationStore
    ) -> None:
        await conversations.open("c", SPEC, now=NOW)
        await conversations.admit("c", message("m"), now=NOW)
        with pytest.raises(TurnStateError, match="not finished"):
            await conversations.set_visibility("c", 0, is_hidden=True, now=NOW)
        await conversations.finish_variant("c", 0, 1, status="failed", text=None, now=NOW)
        await conversations.set_visibility("c", 0, is_hidden=True, now=NOW)
        await conversations.set_visibility("c", 0, is_concealed=True, now=NOW)
        shown = await conversations.set_visibility("c", 0, is_hidden=False, now=NOW)
        assert (shown.is_hidden, shown.is_concealed, shown.is_visible) == (False, True, False)
        shown = await conversations.set_visibility("c", 0, is_concealed=False, now=NOW)
        assert shown.is_visible

    async def test_a_deleted_turn_keeps_its_place_and_none_of_its_words(
        self, store: StepStore, conversations: ConversationStore
    ) -> None:
        await conversations.open("c", SPEC, now=NOW)
        for n in range(3):
            await answered(conversations, f"m{n}", f"question {n}", f"answer {n}")
        await conversations.fork("c", at_position=1, into="f", now=NOW)
        pending = await conversations.admit("c", message("m3"), now=NOW)
        with pytest.raises(TurnStateError, match="being answered"):
            await conversations.delete_turn("c", 1, now=NOW)
        await finish(conversations, pending.variant, "hello", "hi")
        with pytest.raises(TurnNotFoundError):
            await conversations.delete_turn("c", 9, now=NOW)
        before = await conversations.list_turns("c")

        await conversations.delete_turn("c", 1, now=NOW)
        await conversations.delete_turn("c", 1, now=NOW)
        after = await conversations.list_turns("c")
        assert [each.record.public_id for each in after] == [
            each.record.public_id for each in before
        ]
        assert [each.record.is_visible for each in after] == [True, False, True, True]
        assert (after[1].record.is_tombstone, after[1].record.is_hidden) == (True, False)
        assert (await words(conversations))[1] == ("", None)
        assert "question 1" not in repr(after)
        assert "answer 1" not in repr(after)
        head = await conversations.open("c", None, now=NOW)
        assert (head.path_revision, head.turn_count) == (1, 4)
        assert await conversations.listing("answer 1") == []
        for asking in (
            conversations.regenerate("c", 1, message("r"), now=NOW),
            conversations.select_variant("c", 1, 1, now=NOW),
        ):
            with pytest.raises(TurnStateError, match="was deleted"):
                await asking
        again = await conversations.admit("c", message("m1", "question 1"), now=NOW)
        assert (again.is_new, again.turn.position) == (False, 1)

        fork = await conversations.list_turns("f")
        assert [each.record.is_visible for each in fork] == [True, False]
        with pytest.raises(TurnStateError, match="was deleted"):
            await conversations.regenerate("f", 1, message("r"), now=NOW)
        rebuilt = await rebuild_conversation(store, "c", now=NOW)
        assert rebuilt.changed_rows == 0
        assert await conversations.list_turns("c") == after

    async def test_a_turn_that_is_deleted_in_a_fork_stays_where_it_came_from(
        self, conversations: ConversationStore
    ) -> None:
        await conversations.open("c", SPEC, now=NOW)
        await answered(conversations, "m", "question", "answer")
        await conversations.fork("c", at_position=0, into="f", now=NOW)
        await conversations.delete_turn("f", 0, now=NOW)
        (turn,) = await conversations.list_turns("f")
        assert (turn.record.is_visible, turn.record.is_tombstone) == (False, True)
        assert await words(conversations) == [("question", "answer")]

    async def test_the_summary_of_a_compaction_is_a_turn_that_nobody_reads(
        self, conversations: ConversationStore
    ) -> None:
        await conversations.open("c", SPEC, now=NOW)
        await answered(conversations, "m0", "question", "answer")
        summary = message("k", "They asked and were answered")
        turn = await conversations.append_compaction("c", summary, now=NOW)
        assert await conversations.append_compaction("c", summary, now=NOW) == turn
        await answered(conversations, "m1", "more", "and more")
        turns = await conversations.list_turns("c")
        assert [(each.record.kind, each.record.role) for each in turns] == [
            ("message", "user"),
            ("compaction", "agent"),
            ("message", "user"),
        ]
        assert [each.record.is_visible for each in turns] == [True, False, True]
        assert (turns[1].active, turns[1].record.status) == (turns[1].variants[0], "completed")
        assert (turns[1].variants[0].content, turns[1].record.prompt) == (summary.text, "")
        assert await conversations.listing("they asked") == []
        assert await conversations.list_unfinished("c") == []
        with pytest.raises(TurnStateError, match="summary"):
            await conversations.regenerate("c", 1, message("r"), now=NOW)

    async def test_another_answer_to_an_inherited_turn_is_asked_for_with_its_words(
        self, conversations: ConversationStore
    ) -> None:
        await conversations.open("c", SPEC, now=NOW)
        await answered(conversations, "m", "question", "answer")
        await conversations.fork("c", at_position=0, into="f", now=NOW)
        asked = await conversations.regenerate("f", 0, message("r"), now=NOW)
        begun = await conversations.begin_variant("f", 0, asked.variant.number, now=NOW)
        assert begun.record.prompt == "question"
        assert begun.variants[0].status == "running"

    async def test_steers_belong_to_the_answer_in_progress(
        self, conversations: ConversationStore
    ) -> None:
        await conversations.open("c", SPEC, now=NOW)
        await conversations.admit("c", message("m"), now=NOW)
        await conversations.add_steer("c", 0, 1, message("s", "shorter"), now=NOW)
        repeated = await conversations.add_steer("c", 0, 1, message("s", "shorter"), now=NOW)
        assert (repeated.turn.steers, repeated.is_new) == (("shorter",), False)
        text = TurnText(prompt="hello", steers=("shorter",), content="hi")
        await conversations.finish_variant("c", 0, 1, status="completed", text=text, now=NOW)
        late = await conversations.add_steer("c", 0, 1, message("s2"), now=NOW)
        assert late.turn.steers == ("shorter",)

    async def test_a_fork_inherits_turns_by_reference_and_goes_its_own_way(
        self, conversations: ConversationStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stores.conversations.FORK_BATCH", 2)
        await conversations.open("c", SPEC, now=NOW)
        for n in range(4):
            await answered(conversations, f"m{n}", f"q{n}", f"a{n}")
        await conversations.admit("c", message("m4", "q4"), now=NOW)
        for at, error in ((9, TurnNotFoundError), (-1, TurnNotFoundError), (4, TurnStateError)):
            with pytest.raises(error):
                await conversations.fork("c", at_position=at, into="f", now=NOW)
        head = await conversations.fork("c", at_position=2, into="f", now=NOW)
        assert await conversations.fork("c", at_position=2, into="f", now=NOW) == head
        with pytest.raises(ConversationConflict):
            await conversations.fork("c", at_position=1, into="f", now=NOW)
        assert (head.forked_from, head.forked_at, head.turn_count) == ("c", 2, 3)
        assert await words(conversations, "f") == [("q0", "a0"), ("q1", "a1"), ("q2", "a2")]

        source, fork = await conversations.list_turns("c"), await conversations.list_turns("f")
        assert [each.record.public_id for each in fork] == [
            each.record.public_id for each in source[:3]
        ]
        await conversations.set_visibility("f", 0, is_hidden=True, now=NOW)
        await answered(conversations, "m3", "other", "way", conversation="f")
        new = await conversations.regenerate("f", 1, message("r"), now=NOW)
        await finish(conversations, new.variant, "q1", "b1")
        await conversations.select_variant("f", 1, 2, now=NOW)
        assert (await words(conversations))[:4] == [(f"q{n}", f"a{n}") for n in range(4)]
        assert (await conversations.list_turns("c"))[0].record.is_visible

        await conversations.fork("f", at_position=3, into="g", now=NOW)
        assert await words(conversations, "g") == [
            ("q0", "a0"),
            ("q1", "b1"),
            ("q2", "a2"),
            ("other", "way"),
        ]
        removed = await conversations.delete("c", now=NOW)
        assert removed.counts["turns"] == 2
        assert (await words(conversations, "g"))[0] == ("q0", "a0")

    @pytest.mark.spec("SP-93")
    async def test_listing_is_by_activity_and_finds_words_whatever_their_case(
        self, conversations: ConversationStore
    ) -> None:
        for n in range(3):
            await conversations.open(f"c{n}", SPEC, now=NOW + timedelta(minutes=n))
        said = await conversations.admit("c0", message("m", "Die STRASSE"), now=NOW)
        await finish(conversations, said.variant, "Die STRASSE", "Ein Weg")
        name = ConversationName(title="Ein Weg", tags=("Karten",))
        await conversations.name("c1", name, source="manual")

        async def listed(query: str = "", **options: object) -> list[str]:
            found = await conversations.listing(query, **options)  # type: ignore[arg-type]
            return [each.conversation_id for each in found]

        assert await listed() == ["c2", "c1", "c0"]
        assert await listed(limit=1, offset=1) == ["c1"]
        assert await listed("straße") == ["c0"]
        assert await listed("WEG") == ["c1", "c0"]
        assert await listed("karten") == ["c1"]
        await conversations.set_visibility("c0", 0, is_hidden=True, now=NOW)
        assert await listed("straße") == []
        await conversations.set_archived("c1", is_archived=True)
        assert await listed() == ["c2", "c0"]
        assert await listed(archived="only") == ["c1"]
        assert await listed(archived="include") == ["c2", "c1", "c0"]
        for limit, offset in ((0, 0), (1001, 0), (1, -1)):
            with pytest.raises(ValueError, match="is not between"):
                await listed(limit=limit, offset=offset)

    @pytest.mark.spec("SP-91", "SP-95", "SP-102")
    async def test_a_generated_name_never_replaces_something_newer(
        self, conversations: ConversationStore
    ) -> None:
        seen = await conversations.open("c", SPEC, now=NOW)
        name = ConversationName(title="First", subtitle="sub", tags=("a",))
        named = await conversations.name("c", name, source="generated", seen=seen, tokens=7)
        assert (named.title, named.naming_tokens, named.updated_at) == ("First", 7, NOW)
        with pytest.raises(ConversationConflict):  # made from what was there before
            await conversations.name("c", name, source="generated", seen=seen, tokens=5)
        await conversations.admit("c", message("m"), now=NOW)
        with pytest.raises(ConversationConflict):  # it went on meanwhile
            await conversations.name("c", name, source="generated", seen=named, tokens=5)
        manual = await conversations.name("c", ConversationName(title="Mine"), source="manual")
        with pytest.raises(ConversationConflict):
            await conversations.name("c", name, source="generated", seen=manual, tokens=5)
        head = await conversations.open("c", None, now=NOW)
        assert (head.title, head.naming_tokens) == ("Mine", 22)

    async def test_a_closed_conversation_is_read_and_a_deleted_one_is_gone(
        self, conversations: ConversationStore
    ) -> None:
        await conversations.open("c", SPEC, now=NOW)
        await answered(conversations, "m", "hello", "hi")
        await conversations.close("c", now=NOW)
        with pytest.raises(ConversationClosedError, match="closed"):
            await conversations.admit("c", message("m2"), now=NOW)
        assert await words(conversations) == [("hello", "hi")]
        removed = await conversations.delete("c", now=NOW)
        assert (removed.counts["turns"], removed.counts["variants"]) == (1, 1)
        assert removed.counts["conversation_messages"] == 1
        assert (await conversations.delete("c", now=NOW)).counts["turns"] == 0
        assert await conversations.find("c") is None
        with pytest.raises(ConversationNotFoundError):
            await conversations.list_turns("c")
        with pytest.raises(ConversationClosedError, match="deleted"):
            await conversations.open("c", SPEC, now=NOW)
        with pytest.raises(ConversationNotFoundError):
            await conversations.delete("never", now=NOW)
