"""What is masked, where, and what a redactor refuses to be."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from stores.commits import Commit
from stores.digests import arguments_digest, load_message, message_text
from stores.effects import effect_record, new_effect, transition_of
from stores.errors import RedactionError, StoreConfigurationError, UnsealedError
from stores.operations import (
    AppendEvent,
    EventContext,
    FinishToolEffect,
    PositionedMessage,
    RegisterRun,
    SaveSnapshot,
    StartToolEffect,
)
from stores.payload_keys import Keyring, PayloadKey
from stores.preparing import prepare
from stores.records import ToolEffectResolution
from stores.redaction import Redaction
from stores.redactor import MASK, Redactor
from tests.stores.writer import at, request

TOKEN = "tk-0123456789"  # noqa: S105 - of the tests
ODD = 'pa"ss\\wörd/1'


def keyring(secret: bytes = b"k" * 32) -> Keyring:
    return Keyring(keys={"one": PayloadKey("one", secret)}, current="one")


@pytest.mark.parametrize(
    "text",
    [
        ODD,
        json.dumps(ODD),
        json.dumps(ODD, ensure_ascii=False),
        "https://host/?key=pa%22ss%5Cw%C3%B6rd%2F1",
    ],
)
def test_a_secret_is_masked_as_json_and_urls_write_it(text: str) -> None:
    masked = Redactor(secrets=[ODD]).text(f"before {text} after")

    assert masked.replace('"', "").replace("https://host/?key=", "") == f"before {MASK} after"


@given(st.text(alphabet="ab12 [redacted]", max_size=60))
def test_what_is_masked_stays_as_it_is(text: str) -> None:
    redactor = Redactor(secrets=["ab12ab", "12 ab a"], patterns=[r"a+1+", r"d2\w*"])

    assert redactor.text(redactor.text(text)) == redactor.text(text)


def test_a_message_is_masked_wherever_it_speaks_and_stays_a_message() -> None:
    redactor = Redactor(secrets=[TOKEN, "4711471147"], patterns=[r"card=\S+"])
    response = ModelResponse(
        parts=[
            TextPart(f"I use {TOKEN}"),
            ToolCallPart("pay", {"kind": TOKEN, TOKEN: [1, {"pin": 4711471147}]}, "call-1"),
            ToolCallPart("pay", f'{{"a": "card=1234", "b": "{TOKEN}"}}', "call-2"),
        ]
    )
    asked = ModelRequest(
        parts=[
            UserPromptPart(
                ["see", BinaryContent(data=f"key: {TOKEN}".encode(), media_type="text/plain")]
            ),
            ToolReturnPart("pay", {"state": TOKEN, "n": 3}, "call-1"),
        ],
        instructions=f"Use {TOKEN}.",
    )

    told, given_ = redactor.message(response), redactor.message(asked)

    assert [each for each in (told, given_) if TOKEN in message_text(each)] == []
    assert isinstance(told, ModelResponse)
    assert isinstance(told.parts[1], ToolCallPart)
    assert told.parts[1].args_as_dict() == {"kind": MASK, MASK: [1, {"pin": MASK}]}
    assert isinstance(told.parts[2], ToolCallPart)
    assert told.parts[2].args_as_dict() == {"a": MASK, "b": MASK}
    assert told.parts[2].tool_call_id == "call-2"
    (seen, returned) = given_.parts
    assert isinstance(seen, UserPromptPart)
    assert isinstance(seen.content[1], BinaryContent)
    assert seen.content[1].data == f"key: {MASK}".encode()
    assert isinstance(returned, ToolReturnPart)
    assert returned.content == {"state": MASK, "n": 3}
    assert redactor.message(told) == told


def test_a_message_without_anything_to_mask_is_the_same_object() -> None:
    message = request("hello")

    assert Redactor(secrets=[ODD]).message(message) is message


def test_every_operation_is_masked_before_its_digest() -> None:
    redaction = Redaction(redactor=Redactor(secrets=[TOKEN]))

    def commit(word: str) -> Commit:
        resolution = ToolEffectResolution(
            decision="completed", by="ann", why=word, result=json.dumps({"r": word})
        )
        place: dict[str, Any] = {"run_id": "run-1", "tool_call_id": "c", "tool_name": "pay"}
        operations = (
            RegisterRun(run_id="run-1", registration_id="r", metadata={"note": word}),
            AppendEvent(
                run_id="run-1",
                key="k",
                event="run_failed",
                step_index=1,
                error=f"no {word}",
                context=EventContext(metadata={"m": word}),
            ),
            SaveSnapshot(
                run_id="run-1",
                key="s",
                step_index=1,
                state="complete",
                ranges=((0, 1),),
                entries=(PositionedMessage(position=0, message=request(word)),),
            ),
            StartToolEffect(**place, arguments=json.dumps({"a": word}), effect_summary=word),
            FinishToolEffect(
                **place, status="failed", error=word, idempotency_key=word, resolution=resolution
            ),
        )
        return Commit(operations=operations, now=at(0))

    masked = redaction.commit(commit(TOKEN))

    assert TOKEN not in repr(masked)
    assert repr(masked).count(MASK) == 10
    assert prepare(masked).digest == prepare(redaction.commit(commit(TOKEN))).digest
    assert prepare(masked).digests == prepare(redaction.commit(commit(MASK))).digests
    assert redaction.commit(masked) == masked


def test_an_approval_is_for_the_arguments_that_the_tool_gets() -> None:
    arguments = json.dumps({"token": TOKEN})
    start = StartToolEffect(run_id="run-1", tool_call_id="c", tool_name="pay", arguments=arguments)
    redaction = Redaction(redactor=Redactor(secrets=[TOKEN]))
    prepared = prepare(redaction.commit(Commit(operations=(start,), now=at(0))))

    (operation,) = prepared.commit.operations
    assert isinstance(operation, StartToolEffect)
    transition = transition_of(operation, digest=prepared.digests[0], prepared=prepared)
    row = effect_record(new_effect(operation, transition, workspace_id="default", sequence=1))

    assert row.arguments_digest == arguments_digest(arguments)
    assert row.arguments_summary == json.dumps({"token": MASK})


def test_what_is_sealed_opens_with_its_key_alone() -> None:
    redaction = Redaction(redactor=Redactor(secrets=[TOKEN]), keys=keyring())
    sealed = redaction.seal("default", b"as it was")

    assert sealed is not None
    assert b"as it was" not in sealed
    assert Redaction(keys=keyring()).unsealed(sealed) == b"as it was"
    assert redaction.unsealed(b"never sealed") == b"never sealed"
    assert Redaction(redactor=redaction.redactor).seal("default", b"no key") is None
    with pytest.raises(UnsealedError, match="'one'"):
        Redaction(keys=keyring(b"o" * 32)).unsealed(sealed)


@given(st.data())
def test_text_that_is_masked_piece_by_piece_is_masked_as_a_whole(data: st.DataObject) -> None:
    redactor = Redactor(secrets=["open sesame now", "tk-0123"], patterns=[r"\bkey=\w+"])
    words = st.sampled_from(["open", "sesame", "now", "tk-0123", "key=abc", "你好", "so", "key="])
    text = " ".join(data.draw(st.lists(words, max_size=12)))
    told, held = "", ""
    rest = text
    while rest:
        size = data.draw(st.integers(1, 5))
        held, rest = held + rest[:size], rest[size:]
        end = redactor.settled(held)
        told, held = told + redactor.text(held[:end]), held[end:]
    assert told + redactor.text(held) == redactor.text(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"secrets": ["short"]}, "less than 6"),
        ({"patterns": ["("]}, "no regular expression"),
        ({"patterns": ["x*"]}, "empty string"),
        ({"patterns": ["redacted"]}, "changes '\\[redacted\\]'"),
        ({"hook": str.upper}, "changes '\\[redacted\\]'"),
    ],
)
def test_what_could_not_redact_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(StoreConfigurationError, match=words) as caught:
        Redactor(**options)
    assert "short" not in str(caught.value)


def test_a_hook_that_fails_tells_no_text() -> None:
    def hook(text: str) -> str:
        if text != MASK:
            raise ValueError(text)
        return text

    with pytest.raises(RedactionError, match="ValueError") as caught:
        Redactor(hook=hook).text("private")
    assert "private" not in str(caught.value)

    def nothing(text: str) -> Any:
        return text if text == MASK else None

    with pytest.raises(RedactionError, match="NoneType"):
        Redactor(hook=nothing).text("private")


def test_a_pattern_that_would_break_a_message_is_named() -> None:
    image = {"kind": "image-url", "url": "https://host/a.png"}
    message = ModelRequest(parts=[UserPromptPart([])])
    loaded = json.loads(message_text(message))
    loaded["parts"][0]["content"] = [image]
    with pytest.raises(RedactionError, match="content"):
        Redactor(patterns=["image-url"]).message(load_message(json.dumps(loaded)))


def test_bytes_that_only_call_themselves_text_stay() -> None:
    data = base64.urlsafe_b64encode(b"\xff\xfe\xfd").decode()
    node: Any = {"kind": "binary", "media_type": "text/plain", "data": data}

    assert Redactor(secrets=[ODD]).node(node) == node
