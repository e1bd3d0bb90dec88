"""Rows against rows: what is a difference, and what only looks like one."""

from dataclasses import replace
from datetime import UTC, datetime

from pydantic_ai.messages import ModelRequest, UserPromptPart

from stores.commits import Commit, CommitPosition
from stores.comparison import Scope, compare
from stores.expected_rows import ExpectedRows
from stores.operations import (
    AppendEvent,
    FinishToolEffect,
    Operation,
    PositionedMessage,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
)
from stores.preparing import prepare
from stores.recorded_digests import CommitDigest, compare_digests
from stores.run_rows import RunRows

NOW = datetime(2026, 1, 1, tzinfo=UTC)

OPERATIONS: tuple[Operation, ...] = (
    RegisterRun(run_id="run", sequence=0, registration_id="id"),
    AppendEvent(run_id="run", sequence=1, key="1", event="run_started", step_index=0),
    StartToolEffect(
        run_id="run", sequence=2, tool_call_id="c", tool_name="t", step_index=1, call_index=0
    ),
    FinishToolEffect(
        run_id="run",
        sequence=3,
        tool_call_id="c",
        tool_name="t",
        step_index=1,
        call_index=0,
        status="failed",
        error="<object at 0x7f01>",
        error_type="ValueError",
    ),
    SaveSnapshot(
        run_id="run",
        sequence=4,
        key="s",
        step_index=1,
        state="complete",
        ranges=((0, 1),),
        entries=(
            PositionedMessage(position=0, message=ModelRequest(parts=[UserPromptPart("hello")])),
        ),
    ),
)


def commit(number: int = 1, branch: str = "a") -> Commit:
    position = CommitPosition(
        execution_id="a",
        branch=branch,
        branch_time=NOW,
        number=number,
        history_length=3,
        queued_at=NOW,
    )
    return Commit(operations=OPERATIONS, now=NOW, position=position)


async def rows() -> RunRows:
    store = ExpectedRows()
    await store.take(commit(), digest=prepare(commit()).digest, left_out=())
    return store.rows_of("run")


SCOPE = Scope(newest={"a": 1})


def told(expected: RunRows, stored: RunRows, scope: Scope = SCOPE) -> list[tuple[str, str]]:
    found = compare("run", expected, stored, scope)
    return [(each.kind, each.key) for each in found.differences]


async def test_rows_are_equal_to_themselves_whenever_they_were_written() -> None:
    made = await rows()
    later = datetime(2027, 1, 1, tzinfo=UTC)
    stored = replace(made, events=tuple(replace(each, at=later) for each in made.events))
    assert told(made, stored) == []


async def test_addresses_in_an_errors_words_are_no_difference_and_other_words_are() -> None:
    made = await rows()
    (effect,) = made.effects

    def saying(words: str) -> RunRows:
        start, finish = effect.transitions
        changed = replace(effect, transitions=(start, replace(finish, error=words)))
        return replace(made, effects=(changed,))

    assert told(made, saying("<object at 0xabcd>")) == []
    assert told(made, saying("<subject at 0x7f01>")) == [("diverged", "1/0#0")]


async def test_a_row_that_no_history_holds_is_judged_by_who_wrote_it() -> None:
    made = await rows()
    (event,) = made.events

    def with_row(branch: str, number: int | None) -> RunRows:
        added = replace(event, key="2", sequence=9, branch=branch, number=number)
        return replace(made, events=(*made.events, added))

    going_on = Scope(newest={"a": 1}, open_branch="a")
    assert told(made, with_row("a", 1)) == [("diverged", "2")]
    assert told(made, with_row("a", 2)) == [("diverged", "2")]
    assert told(made, with_row("a", 2), going_on) == []
    assert told(made, with_row("a", None)) == []
    assert told(made, with_row("older", 7)) == []
    found = compare("run", made, with_row("a", 2), going_on)
    assert (found.ahead, found.outside, found.untold) == (1, 0, 0)


async def test_rows_of_another_digest_scheme_are_compared_by_content() -> None:
    made = await rows()
    older = tuple(replace(each, scheme=0, digest="of another form") for each in made.events)
    assert told(made, replace(made, events=older)) == []
    assert told(made, replace(made, events=(replace(older[0], step_index=3),))) == [
        ("diverged", "1")
    ]


async def test_an_outcome_that_somebody_outside_said_first_is_no_gap() -> None:
    made = await rows()
    (effect,) = made.effects
    start, finish = effect.transitions
    outside = replace(finish, ordinal=1, number=None, status="resolved")
    stored = replace(made, effects=(replace(effect, transitions=(start, outside)),))
    assert told(made, stored) == []


def digests() -> list[CommitDigest]:
    digest = prepare(commit()).digest
    return [CommitDigest(branch="a", number=1, digest=digest, first=0, last=4, is_plain=True)]


async def test_recorded_digests_alone_tell_a_gap_from_a_change() -> None:
    made = await rows()
    assert compare_digests("run", made, digests(), SCOPE).differences == []
    (effect,) = made.effects
    start, _ = effect.transitions
    cut = replace(made, effects=(replace(effect, transitions=(start,)),))
    (gap,) = compare_digests("run", cut, digests(), SCOPE).differences
    assert (gap.kind, gap.sequence, gap.number) == ("gap", 3, 1)
    renamed = tuple(replace(each, key="other") for each in made.events)
    (change,) = compare_digests("run", replace(made, events=renamed), digests(), SCOPE).differences
    assert (change.kind, change.boundary) == ("diverged", "commit_boundaries")
    edited = tuple(replace(each, event="run_failed") for each in made.events)
    found = compare_digests("run", replace(made, events=edited), digests(), SCOPE).differences
    assert [each.boundary for each in found] == ["append_event"]
