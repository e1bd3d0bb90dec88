"""Cutting a payload into chunks that repeat, and the tree of ids that puts it together again.

A model request carries the whole history each time, so two payloads of a run differ at their ends.
Cut where messages meet, both consist of the same chunks but for the last one or two; a chunk is
named by its content, so only what is new is written. The ids of the chunks are cut into nodes in
the same way, and those again, until there are few: the root lists them, and names the payload. So
neither a list of ids nor what a step adds to it grows with the payload.

Everything here is a pure function of its arguments.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

Kind = Literal["bytes", "ids"]
"""What a chunk holds: a piece of the payload, or the ids of chunks in their order."""

Identify = Callable[[Kind, bytes], bytes]
"""Names a chunk by its kind and content; `ID_BYTES` long."""

ID_BYTES = 32

SMALLEST_CHUNK_BYTES = 4 * 1024
"""Below this the ids, and what a database keeps beside a document, would weigh too much."""

USUAL_CHUNK_BYTES = 16 * 1024
"""From here on every boundary is a cut, not only every second one."""

LARGEST_CHUNK_BYTES = 128 * 1024
"""A piece without a boundary, such as one long text, is cut here."""

FEWEST_IDS = 4
MOST_IDS = 64
"""In one node; the root has up to so many of each level."""

_BOUNDARY = re.compile(rb'\},\{"|\}\],"')
"""Between two objects of a JSON list, and behind such a list: the parts of a message end before
what is stamped on it only when it is sent again. Inside a string the quotes would be escaped."""

_BEFORE_STEP = 2
"""A cut goes behind `},` or `}]`."""

_SEEN_BYTES = 64
"""Of what stands before a boundary, to decide whether it is a cut. So a payload that lost its
beginning, as a window over a conversation does, is soon cut as before."""

_ONE_IN = 4
"""Ids that end a node. A step writes half of one for each level, and reading the levels takes a
request each where nothing is remembered."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a payload, or a node of its tree. `id` follows from the other two."""

    id: bytes
    kind: Kind
    body: bytes


@dataclass(frozen=True, slots=True)
class Tree:
    """A payload in chunks: pieces and nodes. Their ids may repeat; `root` is one of them."""

    root: bytes
    chunks: tuple[Chunk, ...]


def cut(data: bytes) -> Iterator[bytes]:
    """The pieces of a payload, in order; one that is small is one piece."""
    start = boundary = 0
    for match in _BOUNDARY.finditer(data):
        last, boundary = boundary, match.start() + _BEFORE_STEP
        for whole in range(start + LARGEST_CHUNK_BYTES, boundary, LARGEST_CHUNK_BYTES):
            yield data[start:whole]
            start = whole
        if _is_cut(data, start, last, boundary):
            yield data[start:boundary]
            start = boundary
    for whole in range(start, max(len(data), 1), LARGEST_CHUNK_BYTES):
        yield data[whole : whole + LARGEST_CHUNK_BYTES]


def _is_cut(data: bytes, start: int, last: int, boundary: int) -> bool:
    """Behind something large always, so that it is not written again with what comes later."""
    if boundary - start < SMALLEST_CHUNK_BYTES:
        return False
    if boundary - last >= SMALLEST_CHUNK_BYTES or boundary - start >= USUAL_CHUNK_BYTES:
        return True
    return crc32(data[boundary - _SEEN_BYTES : boundary]) % 2 == 0


def plant(data: bytes, identify: Identify) -> Tree:
    """The tree of a payload.

    A node is written when it is full. Of each level the ids that fill none yet are in the root, the
    one node that differs from payload to payload of a run.
    """
    chunks = [_chunk("bytes", piece, identify) for piece in cut(data)]
    level = [each.id for each in chunks]
    loose: list[bytes] = []
    while len(level) > 1:
        groups, rest = _groups(level)
        nodes = [_chunk("ids", b"".join(ids), identify) for ids in groups]
        chunks += nodes
        level, loose = [each.id for each in nodes], rest + loose
    top = level + loose
    if len(top) > 1:
        chunks.append(_chunk("ids", b"".join(top), identify))
    return Tree(root=chunks[-1].id, chunks=tuple(chunks))


def _chunk(kind: Kind, body: bytes, identify: Identify) -> Chunk:
    return Chunk(id=identify(kind, body), kind=kind, body=body)


def _groups(ids: Sequence[bytes]) -> tuple[list[list[bytes]], list[bytes]]:
    """Those that fill a node, and what is left at the end."""
    groups: list[list[bytes]] = []
    group: list[bytes] = []
    for each in ids:
        group.append(each)
        is_full = len(group) >= MOST_IDS
        if is_full or (len(group) >= FEWEST_IDS and each[-1] % _ONE_IN == 0):
            groups.append(group)
            group = []
    return groups, group


def ids_in(body: bytes) -> list[bytes]:
    """The ids that a node holds, in order."""
    return [body[start : start + ID_BYTES] for start in range(0, len(body), ID_BYTES)]


def below(chunk: Chunk) -> list[bytes]:
    """What stands for it in a payload: the ids in a node, and of a piece its own."""
    return ids_in(chunk.body) if chunk.kind == "ids" else [chunk.id]
