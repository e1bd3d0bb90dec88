"""What every `StepStore` with a media store must do with large content."""

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextContent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from stores.digests import load_messages, message_text
from stores.media.addresses import media_uri_for
from stores.media.markers import MARKER_KEY
from stores.protocols import StepStore
from tests.stores.records import snapshot
from tests.stores.writer import Execution, RunScript, at, request, response

LARGE = "long " * 20_000
IMAGE = BinaryContent(data=bytes(range(256)) * 400, media_type="image/png")
LOOKALIKE = {
    MARKER_KEY: {"version": 1, "uri": media_uri_for(LARGE.encode()), "encoding": "text"},
    "__harness_external_media__": True,
}


TIME = at(0)


def returned(content: Any) -> ModelRequest:
    return ModelRequest(parts=[ToolReturnPart("tool", content, tool_call_id="1", timestamp=TIME)])


MESSAGES: list[ModelMessage] = [
    ModelRequest(
        parts=[UserPromptPart([LARGE, IMAGE, TextContent(LARGE), "short"], timestamp=TIME)]
    ),
    ModelResponse(
        parts=[ToolCallPart("tool", {"a": LARGE}, tool_call_id="1"), TextPart("ы" * 40_000)],
        timestamp=TIME,
    ),
    ModelResponse(parts=[ToolCallPart("tool", f'{{"a": "{LARGE}"}}', "2")], timestamp=TIME),
    returned(LARGE),
    returned(IMAGE),
    returned({"nested": [{"image": IMAGE, "text": LARGE}, LOOKALIKE]}),
    returned(b"\xff\xfe" * 50_000),
    returned({MARKER_KEY: {"version": 99}}),
    returned({MARKER_KEY: LARGE}),
]
"""Large content wherever a message may have it, and what looks like a marker."""


def as_loaded(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """The messages as they come back from any store, with media or without."""
    return load_messages(map(message_text, messages))


class StepMediaConformance:
    """Saved and loaded."""

    @pytest.mark.spec("SP-71", "SP-74", "SP-88")
    async def test_large_content_comes_back_as_it_was_saved(self, store: Any) -> None:
        script, execution = RunScript(), Execution()
        script.messages = MESSAGES[:5]
        await store.commit(execution.commit(script.snapshot(1, 0)))
        await store.save_snapshot(snapshot(MESSAGES, "single", step_index=2))
        await store.save_snapshot(snapshot(MESSAGES, "single", step_index=2))
        found = await store.list_snapshots(run_id="run-1")
        expected = as_loaded(MESSAGES)
        assert [each.messages for each in found] == [expected[:5], expected]
        latest = await store.latest_snapshot(run_id="run-1")
        assert latest is not None
        assert latest.messages == expected
        for data in (LARGE.encode(), IMAGE.data):
            assert await store.media_store.get(media_uri_for(data)) == data
            other = store.for_workspace("other").media_store
            assert not await other.exists(media_uri_for(data))

    @pytest.mark.spec("SP-57")
    async def test_a_message_of_many_small_parts_has_no_limit(self, store: StepStore) -> None:
        part = TextPart("a" * 60_000)
        whole = ModelResponse(parts=[part] * 290, timestamp=TIME)
        await store.save_snapshot(snapshot([request("go"), whole, response("small")]))
        latest = await store.latest_snapshot(run_id="run-1")
        assert latest is not None
        assert latest.messages == [request("go"), whole, response("small")]
