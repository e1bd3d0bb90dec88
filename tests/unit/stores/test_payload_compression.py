"""Compressing chunks: what was written before is read, and what is no longer whole is not."""

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse, ToolCallPart

from stores.payload_compression import DICTIONARY, compressed, decompressed


@given(st.binary(max_size=5000) | st.text(max_size=5000).map(lambda text: text.encode()))
def test_what_was_compressed_comes_back(body: bytes) -> None:
    assert decompressed(compressed(body)) == body
    assert decompressed(zlib.compress(body)) == body, "as it was before there was a dictionary"


def test_the_dictionary_is_the_one_that_stored_chunks_name() -> None:
    assert zlib.adler32(DICTIONARY) == 0xAE681B3A


def test_field_names_of_messages_take_a_fraction_of_what_they_took() -> None:
    message = ModelResponse(parts=[ToolCallPart("pay", {"cents": 5}, tool_call_id="call-1")])
    body = ModelMessagesTypeAdapter.dump_json([message])
    assert len(compressed(body)) < len(zlib.compress(body)) / 2


@pytest.mark.parametrize("start", [0, 6])
def test_what_is_cut_off_or_no_compressed_chunk_is_refused(start: int) -> None:
    data = compressed(json.dumps(list(range(1000))).encode())
    for part in (data[start:-5], data[start : start + 5], b""):
        with pytest.raises(zlib.error):
            decompressed(part)


def test_another_dictionary_is_refused() -> None:
    squeeze = zlib.compressobj(zdict=b"another")
    data = squeeze.compress(b"words") + squeeze.flush()
    with pytest.raises(zlib.error):
        decompressed(data)
