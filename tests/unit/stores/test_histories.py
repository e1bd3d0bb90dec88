import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.digests import message_digest, message_text
from stores.errors import DamagedSnapshotError
from stores.histories import (
    MessageLog,
    StoredTexts,
    assembled,
    history_of,
    place,
    positions_in,
    ranges_of,
)
from stores.rows import SnapshotRow
from tests.stores.writer import START, request, text_of


@pytest.mark.parametrize(
    ("positions", "ranges"),
    [
        ([], ()),
        ([0, 1, 2], ((0, 3),)),
        ([5, 0, 1, 3], ((5, 6), (0, 2), (3, 4))),
        ([1, 1, 2], ((1, 2), (1, 3))),
        ([3, 2, 1], ((3, 4), (2, 3), (1, 2))),
    ],
)
def test_positions_become_the_fewest_ranges(
    positions: list[int], ranges: tuple[tuple[int, int], ...]
) -> None:
    assert ranges_of(positions) == ranges


@given(st.lists(st.integers(0, 20)))
def test_ranges_give_the_positions_back(positions: list[int]) -> None:
    assert list(positions_in(ranges_of(positions))) == positions


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=5))
def test_placed_histories_come_back_and_equal_messages_are_added_once(
    histories: list[list[int]],
) -> None:
    stored: list[str] = []
    log = MessageLog()
    for history in histories:
        messages = [request(str(number)) for number in history]
        texts = [message_text(each) for each in messages]
        ranges, added, entries = place(messages, texts, log, workspace_id="w")
        for entry in entries:
            assert entry.position == len(stored)
            assert added[entry.position] == message_text(entry.message)
            stored.append(text_of(entry.message))
        positions = list(positions_in(ranges))
        assert [stored[each] for each in positions] == list(map(str, history))
        log = MessageLog(
            history=tuple((each, _digest(stored[each])) for each in positions),
            next_position=len(stored),
        )


def _digest(text: str) -> str:
    return message_digest("w", message_text(request(text)))


def test_a_missing_position_and_a_missing_message_are_told_apart() -> None:
    snapshot = SnapshotRow(
        workspace_id="w",
        run_id="r",
        branch="b",
        number=1,
        sequence=3,
        key=None,
        digest="d",
        at=START,
        step_index=1,
        state="complete",
        ranges=((0, 2),),
    )
    both = StoredTexts(found={"a": "A", "b": "B"})
    assert assembled(snapshot, {0: "a", 1: "b"}, both) == ["A", "B"]
    with pytest.raises(DamagedSnapshotError, match="position 1 is missing"):
        assembled(snapshot, {0: "a"}, StoredTexts(found={"a": "A"}))
    with pytest.raises(DamagedSnapshotError, match="message 'b' is missing"):
        assembled(snapshot, {0: "a", 1: "b"}, StoredTexts(found={"a": "A"}))
    unreadable = {"a": '{"kind": "request", "parts": 7}', "b": "{}"}
    with pytest.raises(DamagedSnapshotError, match="a message cannot be read"):
        history_of(snapshot, {0: "a", 1: "b"}, StoredTexts(found=unreadable))
