"""What every `KeywordReads` must do."""

from abc import ABC, abstractmethod
from typing import Any

import pytest

from stores.conversation_records import ConversationSpec, TurnText
from stores.conversations import ConversationName, ConversationStore
from stores.keyword.queries import (
    ConversationFilter,
    InvalidParameterError,
    KeywordMatch,
    KeywordPage,
    KeywordQuery,
    KeywordReads,
)
from tests.stores.conversation_conformance import NOW, SPEC, answered, finish, message

EVERYTHING = ConversationFilter(principal="reader", everything=True)


class KeywordConformance(ABC):
    @pytest.fixture
    @abstractmethod
    def store(self) -> Any:
        """A store with conversations and keywords; a workspace of its own for each test."""

    @pytest.fixture
    async def conversations(self, store: Any) -> ConversationStore:
        conversations: ConversationStore = store.conversations
        await conversations.open("c", SPEC, now=NOW)
        return conversations

    async def page(
        self,
        store: Any,
        text: str,
        allowed: ConversationFilter = EVERYTHING,
        *,
        page_size: int = 20,
        after: str | None = None,
        **options: Any,
    ) -> KeywordPage:
        keywords: KeywordReads = store.keywords
        query = KeywordQuery(text=text, **options)
        return await keywords.search_history(
            store.workspace_id, query, allowed, page_size=page_size, after=after
        )

    async def found(self, store: Any, text: str, **options: Any) -> list[tuple[str, str]]:
        page = await self.page(store, text, **options)
        return [(each.field, each.excerpt) for each in page.matches]

    @pytest.mark.spec("HS-11", "HS-12", "HS-16", "HS-25")
    async def test_titles_prompts_answers_and_steers_are_searched_each_by_itself(
        self, store: Any, conversations: ConversationStore
    ) -> None:
        admission = await conversations.admit("c", message("m", "Research on whales"), now=NOW)
        await conversations.begin_variant("c", 0, 1, now=NOW)
        await conversations.add_steer("c", 0, 1, message("s", "and dolphins"), now=NOW)
        text = TurnText(prompt="", steers=("and dolphins",), content="Whales are mammals.")
        await conversations.finish_variant("c", 0, 1, status="completed", text=text, now=NOW)
        await conversations.name("c", ConversationName(title="Whale talk"), source="manual")
        head = await conversations.find("c")
        assert head is not None

        page = await self.page(store, "WHALE")

        of_turn: dict[str, Any] = {
            "conversation_id": "c",
            "conversation_public_id": head.public_id,
            "title": "Whale talk",
            "turn_public_id": admission.turn.public_id,
            "variant_public_id": admission.variant.public_id,
            "position": 0,
            "inherited": False,
            "truncated": False,
        }
        of_title: dict[str, Any] = {
            **of_turn,
            "turn_public_id": None,
            "variant_public_id": None,
            "position": None,
        }
        expected = [
            KeywordMatch(field="prompt", excerpt="Research on whales", **of_turn),
            KeywordMatch(field="content", excerpt="Whales are mammals.", **of_turn),
            KeywordMatch(field="title", excerpt="Whale talk", **of_title),
        ]
        by_order = sorted(
            expected, key=lambda each: each.turn_public_id or head.public_id, reverse=True
        )
        assert list(page.matches) == by_order
        assert page.next_after is None
        assert await self.found(store, "dolphin") == [("steers", "and dolphins")]
        assert await self.found(store, "mammals research") == []

    @pytest.mark.spec("HS-17", "HS-20")
    async def test_a_query_of_stop_words_finds_nothing_and_so_does_a_part_of_a_word(
        self, store: Any, conversations: ConversationStore
    ) -> None:
        await conversations.admit("c", message("m", "the whale"), now=NOW)
        assert await self.found(store, "the of and") == []
        assert await self.found(store, "hal") == []
        assert await self.found(store, "whale the") == [("prompt", "the whale")]

    @pytest.mark.spec("HS-12")
    async def test_an_answer_counts_while_it_is_the_selected_one(
        self, store: Any, conversations: ConversationStore
    ) -> None:
        await answered(conversations, "m", "question", "first answer")
        again = await conversations.regenerate("c", 0, message("r", ""), now=NOW)
        await finish(conversations, again.variant, "", "second reply")
        assert await self.found(store, "answer") == [("content", "first answer")]
        assert await self.found(store, "reply") == []

        await conversations.select_variant("c", 0, 2, now=NOW)
        assert await self.found(store, "answer") == []
        assert await self.found(store, "reply") == [("content", "second reply")]

    @pytest.mark.spec("HS-13")
    async def test_a_turn_without_words_is_not_found(
        self, store: Any, conversations: ConversationStore
    ) -> None:
        await answered(conversations, "m", "", "")
        assert await self.found(store, "image png") == []

    @pytest.mark.spec("HS-3", "HS-9", "HS-10")
    async def test_a_page_is_filled_past_what_may_not_be_read(
        self, store: Any, conversations: ConversationStore
    ) -> None:
        for number in range(6):
            await conversations.admit("c", message(f"m{number}", f"whale {number}"), now=NOW)
            text = TurnText(prompt="", content="")
            await conversations.finish_variant(
                "c", number, 1, status="completed", text=text, now=NOW
            )
        await conversations.set_visibility("c", 4, is_hidden=True, now=NOW)
        await conversations.set_visibility("c", 3, is_concealed=True, now=NOW)

        first = await self.page(store, "whale", page_size=2)
        assert [each.position for each in first.matches] == [5, 2]
        second = await self.page(store, "whale", page_size=2, after=first.next_after)
        assert [each.position for each in second.matches] == [1, 0]
        assert second.next_after is None

        nobody = ConversationFilter(principal="reader")
        assert (await self.page(store, "whale", nobody)).matches == ()
        with pytest.raises(InvalidParameterError, match="no cursor of this search"):
            await self.page(store, "whales and", page_size=2, after="x" + str(first.next_after))
        other = ConversationFilter(principal="other", everything=True)
        with pytest.raises(InvalidParameterError, match="no cursor of this search"):
            await self.page(store, "whale", other, after=first.next_after)

    @pytest.mark.spec("HS-7", "HS-8")
    async def test_archived_and_auxiliary_conversations_are_in_when_they_are_asked_for(
        self, store: Any, conversations: ConversationStore
    ) -> None:
        for name, kind in (("side", "side"), ("sub", "subagent"), ("old", "main")):
            spec = ConversationSpec(agent="conversation", kind=kind)  # type: ignore[arg-type]
            await conversations.open(name, spec, now=NOW)
            await conversations.admit(name, message("m", f"whale {name}"), now=NOW)
        await conversations.admit("c", message("m", "whale c"), now=NOW)
        await conversations.set_archived("old", is_archived=True)

        async def ids(**options: Any) -> set[str]:
            page = await self.page(store, "whale", **options)
            return {each.conversation_id for each in page.matches}

        assert await ids() == {"c"}
        assert await ids(archived="include") == {"c", "old"}
        assert await ids(archived="only") == {"old"}
        assert await ids(include_auxiliary=True) == {"c", "side", "sub"}

    @pytest.mark.spec("HS-4", "HS-23")
    async def test_a_fork_shows_what_it_inherited_as_it_shows_it(
        self, store: Any, conversations: ConversationStore
    ) -> None:
        await answered(conversations, "m", "whale question", "reply")
        await conversations.fork("c", at_position=0, into="d", now=NOW)
        await conversations.fork("d", at_position=0, into="e", now=NOW)
        page = await self.page(store, "whale")
        assert {(each.conversation_id, each.inherited) for each in page.matches} == {
            ("c", False),
            ("d", True),
            ("e", True),
        }
        public_ids = [each.conversation_public_id for each in page.matches]
        assert public_ids == sorted(public_ids, reverse=True)
        assert len({each.turn_public_id for each in page.matches}) == 1

        await conversations.set_visibility("c", 0, is_hidden=True, now=NOW)
        only = ConversationFilter(principal="reader", conversation_ids=frozenset({"c", "e"}))
        page = await self.page(store, "whale", only)
        assert [each.conversation_id for each in page.matches] == ["e"]

    async def test_another_workspace_finds_nothing(
        self, store: Any, conversations: ConversationStore
    ) -> None:
        await conversations.admit("c", message("m", "whale"), now=NOW)
        other = store.for_workspace(f"{store.workspace_id}-other")
        assert (await self.page(other, "whale")).matches == ()

    @pytest.mark.spec("HS-9")
    async def test_a_page_of_no_or_too_many_matches_is_refused(self, store: Any) -> None:
        for size in (0, 51):
            with pytest.raises(InvalidParameterError):
                await self.page(store, "whale", page_size=size)
