"""The literal values are frozen: rows keep digests for years. A new form takes a new scheme."""

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,  # pyright: ignore[reportDeprecated]
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from stores.digests import (
    DIGEST_SCHEME,
    arguments_digest,
    commit_digest,
    history_digest,
    load_message,
    load_messages,
    message_digest,
    message_text,
    operation_digest,
)
from stores.operations import (
    AppendEvent,
    EventContext,
    FinishToolEffect,
    Operation,
    PositionedMessage,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
)

TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)

MESSAGE = ModelRequest(
    parts=[
        UserPromptPart("héllo", timestamp=TIME),
        ToolReturnPart("look_up", {"n": 10**30, "a.b": 1}, tool_call_id="c1", timestamp=TIME),
    ],
    timestamp=TIME,
    instructions="be kind",
    run_id="run-1",
)

OPERATIONS: dict[str, Operation] = {
    "register": RegisterRun(run_id="run-1", registration_id="registration"),
    "event": AppendEvent(
        run_id="run-1",
        key="3/tool_call_failed/1",
        event="tool_call_failed",
        step_index=3,
        call_index=1,
        tool_call_id="c1",
        tool_name="look_up",
        error="ValueError('at 0x7f')",
        error_type="ValueError",
    ),
    "snapshot": SaveSnapshot(
        run_id="run-1",
        key="1/3/complete",
        step_index=3,
        state="complete",
        ranges=((0, 2), (4, 5)),
        entries=(PositionedMessage(position=4, message=MESSAGE),),
    ),
    "start": StartToolEffect(
        run_id="run-1",
        tool_call_id="c1",
        tool_name="look_up",
        step_index=3,
        call_index=1,
        effect="once",
        arguments='{"b": 1, "a": 2}',
    ),
    "finish": FinishToolEffect(
        run_id="run-1",
        tool_call_id="c1",
        tool_name="look_up",
        step_index=3,
        call_index=1,
        status="failed",
        error="ValueError('at 0x7f')",
        error_type="ValueError",
    ),
}

FROZEN = {
    "register": "6a09c691a0eae408017fc0e542703739dd62a754a9c1108dd939a192a55c7900",
    "event": "3bc6e4b959cc14f44daad8425aee7d38589d6b8da611c3ffcc746803ae0f2313",
    "snapshot": "106fc5ba45b742e24fa6b99665d3b545a2b3ca677d57af1ea57c59bb6f135791",
    "start": "2349a8806bec7cba15884fc161e29065e3cbf85dd6cf180c61de48b22abe01ed",
    "finish": "0db9debea3ad9302927e13790c64ff08d50c3fe52a1786535edd4c70d24b6a6e",
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_digest_of_an_operation_is_frozen(name: str) -> None:
    assert DIGEST_SCHEME == 1
    assert operation_digest(OPERATIONS[name]) == FROZEN[name]


def test_the_digest_of_a_commit_is_frozen() -> None:
    operations = tuple(OPERATIONS.values())
    digest = commit_digest(operations, tuple(map(operation_digest, operations)))
    assert digest == "75b7a335421215e2f6e3a6bc1099842db752db3f2817a3b44900c0e570db1063"


def test_the_digest_of_a_history_is_frozen() -> None:
    digest = history_digest(3, "complete", [MESSAGE])
    assert digest == "9e361580630c815236a9a2f66540e291e0c54d1a9ea81f2e1be83cbe97027e93"


def test_the_digest_of_a_message_is_frozen() -> None:
    text = '{"kind":"request","parts":[]}'
    assert message_digest("default", text) == (
        "7cf3ca993778a55fc404491540fd7945e66e67a641b0f40ffa77844e673c3ddd"
    )
    assert message_digest("other", text) != message_digest("default", text)


@pytest.mark.parametrize(
    ("arguments", "digest"),
    [
        (
            '{"b": 1, "a": [2, "é"]}',
            "a912e39b23effbe7b1e005a7b6ef3ab7c9e13858293d1668cb992dab91acbb51",
        ),
        ("not json", "7ccfa1fbf3940e6f0c0375d87c0f9235a50514e14cb427bdfaf5077987b26ccf"),
    ],
)
def test_the_digest_of_arguments_is_frozen(arguments: str, digest: str) -> None:
    assert arguments_digest(arguments) == digest


def test_arguments_are_equal_whatever_the_order_of_their_keys() -> None:
    assert arguments_digest('{"a":1,"b":2}') == arguments_digest(' {"b": 2, "a": 1}')
    assert arguments_digest('{"a":1}') != arguments_digest('{"a":1.0}')
    assert arguments_digest("a\ud800") != arguments_digest("a\ud801")


def test_what_differs_when_a_step_is_executed_again_is_left_out() -> None:
    later = TIME + timedelta(days=1)
    again = replace(
        MESSAGE,
        parts=[
            UserPromptPart("héllo", timestamp=later),
            ToolReturnPart("look_up", {"n": 10**30, "a.b": 1}, tool_call_id="c1", timestamp=later),
        ],
        timestamp=later,
        instructions="be brief",
        run_id="run-2",
        conversation_id="talk",
    )
    event, snapshot = OPERATIONS["event"], OPERATIONS["snapshot"]
    others = (
        snapshot.model_copy(
            update={
                "entries": (PositionedMessage(position=4, message=again),),
                "run_id": "run-2",
                "sequence": 9,
                "key": "another",
                "at": later,
                "context": EventContext(conversation_id="talk"),
            }
        ),
        event.model_copy(
            update={"error": "ValueError('at 0x8e')", "at": later, "usage": {"requests": 1}}
        ),
        OPERATIONS["start"].model_copy(
            update={"arguments": '{"a": 2, "b": 1}', "idempotency_key": "k", "at": later}
        ),
        OPERATIONS["finish"].model_copy(update={"error": "other words", "ordinal": 3}),
        OPERATIONS["register"].model_copy(
            update={"started_at": later, "metadata": {"a": "b"}, "agent_name": "agent"}
        ),
    )
    for other in others:
        name = other.kind.split("_")[0].replace("append", "event").replace("save", "snapshot")
        assert operation_digest(other) == FROZEN[name]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("register", {"registration_id": "other"}),
        ("register", {"registration_id": None}),
        ("event", {"event": "tool_call_completed"}),
        ("event", {"step_index": 4}),
        ("event", {"call_index": None}),
        ("event", {"tool_call_id": "c2"}),
        ("event", {"tool_name": "other"}),
        ("event", {"error_type": "KeyError"}),
        ("event", {"error_type": None}),
        ("event", {"error_type": None, "error": None}),
        ("snapshot", {"step_index": 4}),
        ("snapshot", {"state": "interrupted"}),
        ("snapshot", {"ranges": ((0, 5),)}),
        ("snapshot", {"entries": ()}),
        ("snapshot", {"entries": (PositionedMessage(position=3, message=MESSAGE),)}),
        ("start", {"tool_call_id": "c2"}),
        ("start", {"tool_name": "other"}),
        ("start", {"effect": "read"}),
        ("start", {"arguments": "{}"}),
        ("start", {"arguments": None}),
        ("finish", {"tool_call_id": "c2"}),
        ("finish", {"status": "completed"}),
        ("finish", {"error_type": "KeyError"}),
    ],
)
def test_what_an_operation_means_is_in_its_digest(name: str, change: dict[str, object]) -> None:
    assert operation_digest(OPERATIONS[name].model_copy(update=change)) != FROZEN[name]


# The core makes this part no more, but a history that is passed in may hold one.
@pytest.mark.filterwarnings("ignore::pydantic_ai.PydanticAIDeprecationWarning")
def test_the_generated_id_of_a_retry_that_answers_no_call_is_left_out() -> None:
    def digest(tool_name: str | None, tool_call_id: str) -> str:
        part = RetryPromptPart(  # pyright: ignore[reportDeprecated]
            "again", tool_name=tool_name, tool_call_id=tool_call_id, timestamp=TIME
        )
        return history_digest(1, "complete", [ModelRequest(parts=[part])])

    assert digest(None, "generated-1") == digest(None, "generated-2")
    assert digest("look_up", "call-1") != digest("look_up", "call-2")


def test_a_message_comes_back_from_its_text() -> None:
    call = ModelResponse(
        parts=[TextPart("so"), ToolCallPart("t", {"n": 10**30, "$x": 2}, tool_call_id="c")],
        timestamp=TIME,
    )
    messages: list[ModelMessage] = [MESSAGE, call]
    texts = [message_text(each) for each in messages]
    assert [load_message(each) for each in texts] == messages
    assert load_messages(texts) == messages
    assert load_messages([]) == []


def test_digests_do_not_depend_on_the_process() -> None:
    program = (
        "from tests.unit.stores.test_digests import OPERATIONS, operation_digest\n"
        "for name, operation in OPERATIONS.items(): print(name, operation_digest(operation))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
        env={"PYTHONHASHSEED": "1234", "TZ": "Asia/Tokyo", "PATH": ""},
    )
    assert dict(line.split() for line in ended.stdout.splitlines()) == FROZEN
