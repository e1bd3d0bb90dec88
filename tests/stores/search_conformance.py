"""What a search finds in any store, with an index or without."""

from typing import Any

import pytest
from pydantic_ai.messages import CompactionPart, ModelMessage, ModelRequest

from stores.histories import ranges_of
from stores.operations import PositionedMessage, SaveSnapshot
from stores.protocols import StepStore
from stores.records import RunRecord
from stores.search.answering import EMPTY_CONVERSATION, EMPTY_QUERY, EMPTY_STORE, search_history
from stores.search.query import HistoryQuery, SearchAnswer
from stores.search.source import SnapshotHistorySource
from tests.stores.abstract import StepStoreTests
from tests.stores.records import run_record, snapshot
from tests.stores.writer import Execution, RunScript, at, request, response


async def find(
    store: StepStore, text: str, *, conversation: str | None = "talk", **options: Any
) -> SearchAnswer:
    query = HistoryQuery(text=text, conversation_id=conversation, **options)
    return await search_history(SnapshotHistorySource(store), query)


def places(answer: SearchAnswer) -> list[tuple[str, int]]:
    return [(each.run_id, each.index) for each in answer.matches]


async def save_run(
    store: StepStore,
    run_id: str,
    *histories: list[ModelMessage],
    second: float = 0,
    conversation: str | None = "talk",
) -> RunRecord:
    """A run with a snapshot of each history."""
    record = run_record(run_id, conversation_id=conversation, started_at=at(second))
    await store.register_run(record)
    for step, history in enumerate(histories):
        await store.save_snapshot(
            snapshot(history, f"{step}", run_id=run_id, step_index=step, timestamp=at(second))
        )
    return record


def save(
    script: RunScript, history: dict[int, ModelMessage], *, known: int = 0, **values: Any
) -> SaveSnapshot:
    """A snapshot of messages by position; those below `known` are in the log already."""
    script.saves += 1
    given = {
        "run_id": script.run_id,
        "sequence": script.next_sequence(),
        "key": f"{script.saves}",
        "step_index": script.saves,
        "ranges": ranges_of(history),
        "entries": tuple(
            PositionedMessage(position=position, message=message)
            for position, message in history.items()
            if position >= known
        ),
    }
    return SaveSnapshot.model_validate(given | {"state": "complete"} | values)


def turn(text: str, *, seconds: float = 0) -> list[ModelMessage]:
    return [request(text, seconds=seconds), response(f"about {text}", seconds=seconds)]


class SearchConformance(StepStoreTests):
    @pytest.mark.spec("CS-5", "CS-8", "CS-19", "CS-26", "CS-30", "CS-31", "CS-32", "CS-45")
    async def test_past_runs_of_a_conversation_are_one_corpus(self, store: StepStore) -> None:
        first = turn("the red lamp")
        second = [*first, *turn("a blue chair", seconds=1)]
        await save_run(store, "one", first[:1], first)
        await save_run(store, "two", second[:3], second, second=1)
        await save_run(store, "apart", turn("a red herring"), conversation="other", second=2)
        answer = await find(store, "red blue", context_lines=1)
        assert places(answer) == [("one", 0), ("two", 2)]
        assert (answer.runs, answer.messages, answer.skipped) == (2, 4, 0)
        assert "run: two | conversation: talk]\n[2] User: a blue chair" in answer.text
        assert "[0] User: the red lamp\n[1] Assistant: about the red lamp" in answer.text
        alone = await find(store, "red", run_id="two")
        assert places(alone) == [("two", 0)]
        assert alone.messages == 4
        assert [each.run_id for each in await SnapshotHistorySource(store).list_runs()] == [
            "one",
            "two",
            "apart",
        ]
        assert await SnapshotHistorySource(store).run_history(run_id="nobody") == []

    @pytest.mark.spec("CS-27", "CS-28", "CS-29", "CS-35")
    async def test_excerpts_are_bounded_and_do_not_repeat_each_other(
        self, store: StepStore
    ) -> None:
        history: list[ModelMessage] = [request(f"item {n} " + "x" * 600) for n in range(6)]
        history.append(request("item " + "y " * 400 + "needle"))
        await save_run(store, "one", history)
        both = await find(store, "item", context_lines=1)
        assert [index for _, index in places(both)] == [0, 2, 4, 6]
        assert len((await find(store, "item", context_lines=0, max_matches=3)).matches) == 3
        assert (await find(store, "item", max_matches=0)).matches == ()
        assert places(await find(store, "needle")) == [("one", 6)]

    @pytest.mark.spec("CS-40", "CS-43", "CS-46")
    async def test_there_is_an_answer_for_each_way_to_find_nothing(self, store: StepStore) -> None:
        assert (await find(store, "x")).text == EMPTY_CONVERSATION
        assert (await find(store, "x", scope="all")).text == EMPTY_STORE
        await save_run(store, "mine", turn("hello"))
        await save_run(store, "unlabelled", turn("secret"), conversation=None, second=1)
        await save_run(store, "theirs", turn("secret"), conversation="other", second=2)
        assert (await find(store, "x")).text == (
            "No matches for 'x' in 2 persisted messages of 1 run(s)."
        )
        nobody, theirs = [
            (await find(store, "secret", run_id=each)).text for each in ("nobody", "theirs")
        ]
        assert nobody.replace("nobody", "theirs") == theirs
        assert theirs == "No persisted history for run 'theirs'."
        nameless = await find(store, "secret", conversation=None)
        assert nameless.text.startswith("Conversation-scoped search needs a conversation id")
        assert nameless.matches == ()
        for query in ("", "  ", "?!... -- ", "。、"):
            assert (await find(store, query)).text == EMPTY_QUERY

    @pytest.mark.spec("CS-41", "CS-48")
    async def test_all_reaches_every_run_of_the_workspace_and_of_no_other(
        self, store: StepStore
    ) -> None:
        await save_run(store, "mine", turn("a secret"))
        await save_run(store, "unlabelled", turn("one more secret"), conversation=None, second=1)
        await save_run(store, "theirs", turn("their own secret"), conversation="other", second=2)
        tenant = store.for_workspace("tenant")
        await save_run(tenant, "tenants", turn("a secret"))
        found = await find(store, "secret", scope="all", context_lines=0)
        assert {each.run_id for each in found.matches} == {"mine", "unlabelled", "theirs"}
        assert (found.runs, found.messages) == (3, 6)
        assert "run: unlabelled]\n" in found.text
        inherited = [*turn("a secret"), *turn("forked")]
        await save_run(store, "fork", inherited, conversation="third", second=3)
        assert places(await find(store, "forked", scope="all", context_lines=0))[0] == ("fork", 2)
        assert {run for run, _ in places(await find(tenant, "secret"))} == {"tenants"}
        assert (await find(tenant, "secret", run_id="mine")).matches == ()

    @pytest.mark.spec("CS-2", "CS-4", "CS-12", "CS-13", "CS-14", "CS-60")
    async def test_what_a_compaction_dropped_is_found_and_its_summary_is_not(
        self, store: StepStore
    ) -> None:
        execution = Execution()
        script = RunScript(run_id="run-1")
        path = request("the file is src/perdure/needle.py")
        summary = ModelRequest(
            parts=[CompactionPart("a summary", metadata={"perdure.compaction.summary.v1": True})]
        )
        again: list[ModelMessage] = [request("again"), response("done")]
        first: dict[int, ModelMessage] = dict(enumerate([path, *again]))
        await store.commit(
            execution.commit(
                script.register(conversation_id="talk"),
                save(script, first),
                save(script, {**first, 3: request("unsettled")}, known=3, state="interrupted"),
            )
        )
        execution.next_task()
        compacted: dict[int, ModelMessage] = dict(enumerate([summary, *again], start=4))
        await store.commit(execution.commit(save(script, compacted, known=4), now=1))
        assert places(await find(store, "needle")) == [("run-1", 0)]
        assert (await find(store, "summary")).matches == ()
        assert (await find(store, "unsettled")).matches == ()
        # The exchange that reads like the one before it was said again, at places of its own.
        assert (await find(store, "again")).messages == 5

    @pytest.mark.spec("CS-62")
    async def test_words_of_scripts_without_spaces_are_found_unless_the_harness_is_asked_for(
        self, store: StepStore
    ) -> None:
        await save_run(store, "one", turn("我们在12月31日去北京大学"), turn("other words"))
        assert places(await find(store, "北京", context_lines=0))[0] == ("one", 0)
        assert (await find(store, "北京", analyzer="regex")).matches == ()

    async def test_a_query_of_a_megabyte_is_cut_and_says_so(self, store: StepStore) -> None:
        await save_run(store, "one", turn("needle"))
        answer = await find(store, "needle " + "x y " * 250_000)
        assert places(answer)
        assert "Only the first 10,000 characters" in answer.text
        assert len(answer.text) < 1000
