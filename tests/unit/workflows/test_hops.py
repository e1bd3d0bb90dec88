"""What a run's next execution is told, and goes on from."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from stores.memory import InMemoryStepStore
from workflows.agent_run_models import AgentRunInput
from workflows.direct import DirectWriter
from workflows.hops import HopState, core_run_id
from workflows.recorder import RunRecorder, ToolCallPlace
from workflows.recording import RecordingState
from workflows.transcript import Transcript

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def request(text: str) -> ModelRequest:
    return ModelRequest(parts=[UserPromptPart(text, timestamp=NOW)])


def response(text: str) -> ModelResponse:
    return ModelResponse(parts=[TextPart(text)], timestamp=NOW)


HISTORY: list[ModelMessage] = [request("a"), response("b"), request("c")]


def recorder() -> RunRecorder:
    return RunRecorder("run", DirectWriter(InMemoryStepStore()))


async def test_recorder_goes_on_with_keys_positions_and_sequences() -> None:
    before = recorder()
    await before.event("run_started")
    before.step_index = 1
    await before.event("model_request_started")
    await before.save(HISTORY, "complete")
    before.step_index = 2
    state = RecordingState.model_validate_json(before.state().model_dump_json())
    assert (state.step_index, state.next_sequence, state.saves) == (2, 3, 1)
    assert (state.snapshot_sequence, state.snapshot_key) == (2, "0:1:complete")
    assert (state.ranges, state.next_position, state.ordinals) == (((0, 3),), 3, ())

    after = recorder()
    after.go_on(state, HISTORY)
    assert after.is_at_rest
    assert after.transcript.equals(HISTORY)
    stamped: list[ModelMessage] = [*HISTORY[:2], replace(request("c"), run_id="run")]
    ranges, entries = after.transcript.plan([*stamped, response("d")])
    assert ranges == ((0, 4),)
    assert [each.position for each in entries] == [2, 3]


async def test_counts_of_the_step_to_come_are_handed_on() -> None:
    before = recorder()
    before.step_index = 2
    await before.save(HISTORY, "complete")
    await before.event("model_request_started")
    store = InMemoryStepStore()
    after = RunRecorder("run", DirectWriter(store))
    after.go_on(before.state(), HISTORY)
    await after.event("model_request_started")
    (event,) = await store.list_events(run_id="run")
    assert event.idempotency_key == "2:model_request_started::1"


async def test_recorder_is_at_rest_only_when_nothing_is_open() -> None:
    open_call = recorder()
    assert not open_call.is_at_rest, "it has saved nothing"
    with pytest.raises(RuntimeError, match="saved no history"):
        open_call.state()
    await open_call.save(HISTORY, "complete")
    assert open_call.is_at_rest
    place = ToolCallPlace(step_index=1, call_index=0, tool_call_id="x", tool_name="t")
    await open_call.tool_started(place, effect="read", arguments="{}")
    assert not open_call.is_at_rest
    await open_call.tool_ended(place, "completed")
    assert open_call.is_at_rest


def test_saved_history_is_held_while_only_the_last_message_lacks_stamps() -> None:
    transcript = Transcript()
    assert not transcript.holds([])
    transcript.plan(HISTORY)
    assert transcript.holds([*HISTORY[:2], replace(request("c"), run_id="run")])
    assert not transcript.holds([replace(request("a"), run_id="run"), *HISTORY[1:]])
    assert not transcript.holds([*HISTORY[:2], request("other")])
    assert not transcript.holds([*HISTORY, response("d")])


def test_transcript_of_other_messages_than_its_ranges_name_is_refused() -> None:
    with pytest.raises(ValueError, match="argument"):
        Transcript.of(HISTORY, [(0, 2)], 3)


def test_core_gets_an_id_that_is_in_no_message() -> None:
    assert core_run_id("run", 2, HISTORY) == "run~2"
    taken = [replace(request("a"), run_id="run~2")]
    assert core_run_id("run", 2, taken) == "run~2~"
    assert len(core_run_id("x" * 200, 12, HISTORY)) < 200


def test_input_with_a_hop_needs_no_prompt_and_a_sound_state() -> None:
    recording = {
        "step_index": 2,
        "next_sequence": 3,
        "saves": 1,
        "next_position": 3,
        "snapshot_sequence": 2,
        "snapshot_key": "0:1:complete",
        "ranges": [[0, 3]],
    }
    hop = {"count": 1, "registration_id": "x/run", "recording": recording}
    assert AgentRunInput.model_validate({"agent": "a", "hop": hop}).hop == HopState.model_validate(
        hop
    )
    with pytest.raises(ValidationError, match=r"hop\.count"):
        AgentRunInput.model_validate({"agent": "a", "hop": {**hop, "count": 0}})
