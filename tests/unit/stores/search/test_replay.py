"""A run's record from its snapshots, and which messages are the same."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    CompactionPart,
    InstructionDeltaPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    UserPromptPart,
)

from stores.records import ContinuableSnapshot, RunRecord
from stores.search.corpus import corpus_of
from stores.search.identity import message_hash, without_summary
from stores.search.replay import overlap_length, replayed

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def said(text: str, **stamps: Any) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(content=text, timestamp=NOON)], **stamps)


def answered(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(content=text)], timestamp=NOON)


def snapshot(*messages: ModelMessage, **changed: Any) -> ContinuableSnapshot:
    return ContinuableSnapshot(run_id="r", step_index=1, messages=list(messages), **changed)


def change(text: str) -> InstructionDeltaPart:
    return InstructionDeltaPart(id=cast("Any", None), content=text)


def reloaded(message: ModelMessage) -> ModelMessage:
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json([message]))[0]


@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
@pytest.mark.spec("CS-15")
def test_overlap_is_the_longest_end_that_the_snapshot_begins_with(first: str, second: str) -> None:
    lengths = range(min(len(first), len(second)), 0, -1)
    expected = next((n for n in lengths if first[-n:] == second[:n]), 0)
    assert overlap_length(first, second) == expected


@pytest.mark.spec("CS-16", "CS-17")
def test_a_message_is_the_same_when_it_is_loaded_again_stamped_or_given_changed_instructions() -> (
    None
):
    plain = said("hello")
    stamped = replace(
        plain, timestamp=NOON, run_id="r", conversation_id="c", instructions="be brief"
    )
    changed = replace(stamped, parts=[*plain.parts, change("be long")])
    assert len({message_hash(each) for each in (plain, reloaded(stamped), changed)}) == 1
    assert message_hash(said("hello!")) != message_hash(plain)
    assert (
        message_hash(answered("hello")) != message_hash(replace(answered("hello"), run_id="r"))[:0]
    )


def test_the_form_of_the_hash_is_frozen() -> None:
    assert message_hash(said("hello")) == (
        "67610dde9921e817498d8116fae33b6b5466778066fa3c76f0b9050574045087"
    )
    assert message_hash(answered("hello")) == (
        "623966d5ba683a5336c3e79b78a0b286f300e303b756ba528e7ac0739f7bcd1f"
    )


@pytest.mark.spec("CS-14")
def test_summaries_of_a_compaction_are_dropped_and_an_applications_own_stay() -> None:
    for mark in ("pydantic-ai-harness.compaction.summary.v1", "perdure.compaction.summary.v1"):
        summary = CompactionPart(content="they spoke of cats", metadata={mark: True})
        assert without_summary(ModelRequest(parts=[summary])) is None
        merged = ModelRequest(parts=[summary, UserPromptPart(content="and now?")])
        assert without_summary(merged) == ModelRequest(parts=merged.parts[1:])
    legacy = SystemPromptPart(content="Summary of previous conversation:\n\nthey spoke of cats")
    assert without_summary(ModelRequest(parts=[legacy])) is None
    for own in (
        CompactionPart(content="my own"),
        SystemPromptPart(content="Summary of previous conversation: is what you write."),
        CompactionPart(content=None, metadata={"perdure.compaction.summary.v1": True}),
    ):
        assert without_summary(ModelRequest(parts=[own])) is not None


@pytest.mark.spec("CS-4", "CS-12", "CS-13", "CS-18")
def test_the_record_is_what_complete_snapshots_held_together() -> None:
    before, after = said("a"), replace(said("a"), instructions="be brief")
    b, c, d = answered("b"), said("c"), answered("d")
    summary = ModelRequest(
        parts=[CompactionPart(content="sum", metadata={"perdure.compaction.summary.v1": True})]
    )
    record = replayed(
        [
            snapshot(before),
            snapshot(after, b),
            snapshot(after, b, said("lost"), state="interrupted"),
            snapshot(after, b, c),
            snapshot(summary, c, d),
        ]
    )
    assert record == [after, b, c, d]


@pytest.mark.spec("CS-21", "CS-60")
def test_equal_messages_at_different_places_are_both_kept() -> None:
    a, b = said("again"), answered("done")
    assert replayed([snapshot(a, b, a, b)]) == [a, b, a, b]
    # A window that dropped its prefix and holds an exchange which reads as the one before it:
    # positions tell that it is another one; the texts alone cannot.
    first = snapshot(said("x"), a, b, ranges=((0, 3),))
    second = snapshot(a, b, ranges=((3, 5),))
    assert replayed([first, second]) == [said("x"), a, b, a, b]
    unplaced = [replace(each, ranges=()) for each in (first, second)]
    assert replayed(unplaced) == [said("x"), a, b]


def test_a_message_that_was_rewritten_in_place_is_added_and_its_neighbours_are_not() -> None:
    a, b, shorter, c = said("a"), answered("a long answer"), answered("a ..."), said("c")
    first = snapshot(a, b, ranges=((0, 2),))
    second = snapshot(a, shorter, c, ranges=((0, 1), (2, 4)))
    assert replayed([first, second]) == [a, b, shorter, c]


def run(run_id: str, minute: int) -> RunRecord:
    return RunRecord(run_id=run_id, conversation_id="c", started_at=NOON.replace(minute=minute))


@pytest.mark.spec("CS-19")
def test_inherited_messages_belong_to_the_run_that_saved_them_first() -> None:
    one: list[ModelMessage] = [said("a"), answered("b")]
    two: list[ModelMessage] = [*one, said("c"), *one]
    corpus = corpus_of([(run("1", 1), one), (run("2", 2), two), (run("3", 3), one)])
    assert [(each.section.run_id, each.section.first_index) for each in corpus] == [
        ("1", 0),
        ("2", 2),
    ]
    assert list(corpus[1].messages) == two[2:]


@pytest.mark.spec("CS-20", "CS-61")
def test_an_inherited_request_with_a_change_of_instructions_is_indexed_again() -> None:
    plain, b = said("a"), answered("b")
    changed = replace(plain, parts=[*plain.parts, change("be long")])
    runs: list[tuple[RunRecord, list[ModelMessage]]] = [
        (run("first", 1), [plain, b]),
        (run("gains", 2), [changed, b, said("c")]),
        (run("before", 3), [plain, b]),  # branches from before the change
        (run("past", 4), [changed, b, said("d")]),  # and one goes on past it
    ]
    found = [(each.section.run_id, each.section.first_index) for each in corpus_of(runs)]
    assert found == [("first", 0), ("gains", 0), ("past", 0)]
