"""Cutting payloads: pieces that repeat, and trees that put them together again."""

import json
from collections.abc import Sequence
from hashlib import shake_128

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.chunks import LARGEST_CHUNK_BYTES, MOST_IDS, Tree, below, cut, ids_in, plant
from stores.payload_keys import plain_id


def conversation(count: int, size: int = 3000, *, first: int = 0) -> bytes:
    """The JSON of a history; message `n` is the same in each of them."""
    messages = [
        {"kind": "request", "parts": [{"content": shake_128(b"%d" % n).hexdigest(size // 2)}]}
        for n in range(first, count)
    ]
    return json.dumps(messages, separators=(",", ":")).encode()


def together(tree: Tree) -> bytes:
    chunks = {each.id: each for each in tree.chunks}
    ids: Sequence[bytes] = [tree.root]
    while any(chunks[each].kind == "ids" for each in ids):
        ids = [child for each in ids for child in below(chunks[each])]
    return b"".join(chunks[each].body for each in ids)


def new_bytes(data: bytes, known: Tree) -> int:
    ids = {each.id for each in known.chunks}
    return sum(len(each.body) for each in plant(data, plain_id).chunks if each.id not in ids)


@given(st.lists(st.binary(max_size=9000)).map(b'},{"'.join))
def test_pieces_put_together_are_the_payload(data: bytes) -> None:
    pieces = list(cut(data))
    assert b"".join(pieces) == data
    assert all(len(each) <= LARGEST_CHUNK_BYTES for each in pieces)
    assert together(plant(data, plain_id)) == data


@pytest.mark.parametrize("data", [b"", b"x", b"x" * 1_000_000, conversation(900, 6000)])
def test_a_tree_gives_its_payload_back(data: bytes) -> None:
    tree = plant(data, plain_id)
    assert together(tree) == data
    nodes = [each for each in tree.chunks if each.kind == "ids" and each.id != tree.root]
    assert all(len(ids_in(each.body)) <= MOST_IDS for each in nodes)
    assert {tree.root} == {each.id for each in tree.chunks} - {
        child for each in tree.chunks if each.kind == "ids" for child in ids_in(each.body)
    }


def test_a_longer_conversation_consists_of_the_chunks_of_the_shorter_one() -> None:
    shorter = plant(conversation(600), plain_id)
    assert len(conversation(600)) > 1_800_000
    # Its last chunk, the new messages, and the nodes above: no share of the whole.
    assert new_bytes(conversation(602), shorter) < 40_000


def test_a_window_over_a_conversation_consists_of_the_chunks_of_the_whole() -> None:
    whole = plant(conversation(600), plain_id)
    window = conversation(600, first=100)
    assert new_bytes(window, whole) < len(window) / 20


def test_a_step_adds_a_root_and_few_other_nodes_however_long_the_conversation() -> None:
    added: list[int] = []
    for first in (100, 1000):
        known = {each.id for each in plant(conversation(first, 6000), plain_id).chunks}
        for count in range(first + 1, first + 21):
            tree = plant(conversation(count, 6000), plain_id)
            added += [1 for each in tree.chunks if each.kind == "ids" and each.id not in known]
            known |= {each.id for each in tree.chunks}
    assert 40 <= len(added) <= 1.6 * 40
