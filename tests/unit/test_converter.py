"""What the payload converter refuses, and what it marks."""

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.exceptions import ApplicationError

from converter import DATA_CONVERTER, InlinePayloadConverter, PerdurePayloadConverter
from payload_driver import bytes_of, payload_in
from workflows.agent_run_models import AgentRunInput
from workflows.payloads import LARGEST_INLINE_BYTES, LARGEST_PAYLOADS_BYTES, going_to, staying


def test_a_call_that_is_too_large_is_told_with_its_largest_part() -> None:
    """200 MB, as a tool may return them, where payloads are stored; 3 MB where they are not."""
    for converter, size, limit in (
        (PerdurePayloadConverter(), 200_000_000, LARGEST_PAYLOADS_BYTES),
        (InlinePayloadConverter(), 3_000_000, LARGEST_INLINE_BYTES),
    ):
        with going_to("activity 'look_up'"), pytest.raises(ApplicationError) as refused:
            converter.to_payloads([{"small": 1}, "x" * size])
        assert refused.value.type == "PayloadTooLargeError"
        assert refused.value.non_retryable
        assert refused.value.message.startswith(f"activity 'look_up': {size + 13} bytes")
        assert f"the limit is {limit}" in refused.value.message
        assert f"a str of {size + 2} bytes" in refused.value.message
    assert PerdurePayloadConverter().to_payloads(["x" * 3_000_000])


def test_inputs_of_commits_stay_in_the_history_or_in_the_process() -> None:
    converter = PerdurePayloadConverter()
    with staying("inline"), pytest.raises(ApplicationError, match=str(LARGEST_INLINE_BYTES)):
        converter.to_payloads(["x" * 3_000_000])
    with staying("local"):
        (local,) = converter.to_payloads(["x" * 3_000_000])
    assert local.metadata["perdure-place"] == b"local"


def test_a_submitted_input_is_marked_with_its_workspace() -> None:
    (payload,) = DATA_CONVERTER.payload_converter.to_payloads(
        [AgentRunInput(agent="a", prompt="p", workspace_id="acme")]
    )
    assert payload.metadata["perdure-workspace"] == b"acme"


@pytest.mark.parametrize("data", [b"", b"text", bytes(70_000)])
def test_a_payload_is_read_as_it_was_stored(data: bytes) -> None:
    payload = Payload(metadata={"encoding": b"json/plain", "a": b"\xff"}, data=data)
    assert payload_in(bytes_of(payload)) == payload
