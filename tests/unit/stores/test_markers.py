import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stores.errors import MediaFormatError, MediaKeyError
from stores.media.addresses import (
    default_key_strategy,
    key_for,
    make_static_public_url,
    media_uri_for,
    parse_media_uri,
    resolved_public_url,
)
from stores.media.disk import DiskMediaStore
from stores.media.markers import (
    MARKER_KEY,
    digests_in,
    externalize_media,
    extract,
    inlined,
    restore_media,
)
from stores.media.messages import MessageMedia
from stores.media.protocols import MediaContext, MediaStore

DIGEST = "a" * 64
URI = f"media+sha256://{DIGEST}"

LOOKALIKES: dict[str, Any] = {
    "a marker": {MARKER_KEY: {"version": 1, "uri": URI, "encoding": "text"}},
    "of another version": {MARKER_KEY: {"version": 99}},
    "the key alone": {MARKER_KEY: True},
    "the key beside others": {MARKER_KEY: {"version": 1, "uri": URI}, "a": 1},
    "a literal": {MARKER_KEY: {"version": 1, "literal": {"a": {MARKER_KEY: 5}}}},
    "the harness's": {"__harness_external_media__": True, "__harness_external_uri__": URI},
}

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
NAMES = st.text(max_size=3) | st.sampled_from([MARKER_KEY, "version", "uri", "literal", "kind"])
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


def contents_of(blobs: Mapping[str, Any]) -> dict[str, bytes]:
    return {uri: blob.data for uri, blob in blobs.items()}


@pytest.mark.spec("SP-71", "SP-74")
@given(TREES, st.integers(1, 8))
def test_any_tree_comes_back_as_it_was(tree: Any, threshold: int) -> None:
    stored, blobs = extract(tree, threshold)
    stored = json.loads(json.dumps(stored))
    assert inlined(stored, contents_of(blobs)) == tree
    assert extract(tree, None)[1] == {}
    assert inlined(extract(tree, None)[0], {}) == tree


@pytest.mark.spec("SP-74")
@pytest.mark.parametrize("name", LOOKALIKES)
def test_a_payload_that_looks_like_a_marker_is_kept_as_it_was(name: str) -> None:
    stored, blobs = extract([LOOKALIKES[name]], 1000)
    assert blobs == {}
    assert inlined(stored, {}) == [LOOKALIKES[name]]
    assert digests_in(json.dumps(stored)) == []


@pytest.mark.spec("SP-74")
async def test_an_unknown_version_and_a_damaged_marker_are_refused(tmp_path: Any) -> None:
    store = DiskMediaStore(tmp_path)
    with pytest.raises(ValueError, match=r"version 2.* knows 1"):
        await restore_media([{MARKER_KEY: {"version": 2, "uri": URI}}], media_store=store)
    for broken in ({}, {"uri": URI}, {"uri": "x", "encoding": "text"}, {"encoding": "text"}):
        with pytest.raises(MediaFormatError):
            inlined({MARKER_KEY: {"version": 1, **broken}}, {})


@pytest.mark.spec("SP-72")
def test_one_threshold_is_for_the_bytes_that_a_string_stands_for() -> None:
    data = bytes(range(256)) * 4
    binary = {"kind": "binary", "media_type": "image/png", "data": base64.b64encode(data).decode()}
    text = {"part_kind": "text", "content": "ы" * 512}
    assert len(binary["data"]) > 1025
    assert extract([binary, text], 1025) == ([binary, text], {})
    stored, blobs = extract([binary, text], 1024)
    assert contents_of(blobs) == {
        media_uri_for(data): data,
        media_uri_for(text["content"].encode()): text["content"].encode(),
    }
    assert [each.media_type for each in blobs.values()] == ["image/png", "text/plain"]
    assert stored[0]["media_type"] == "image/png"
    assert stored[1]["part_kind"] == "text"
    assert digests_in(json.dumps(stored)) == [parse_media_uri(each) for each in blobs]


@pytest.mark.parametrize("data", ["-_-_", "+/+/", "no base64!", "QQ", "QR==", "", "YWJj"])
def test_what_is_no_base64_of_its_own_form_comes_back_as_text(data: str) -> None:
    part = {"kind": "binary", "data": data}
    stored, blobs = extract(part, 1)
    assert inlined(stored, contents_of(blobs)) == part


@pytest.mark.spec("SP-76", "SP-88")
async def test_what_is_put_once_is_restored_from_the_store(tmp_path: Any) -> None:
    store = DiskMediaStore(tmp_path)
    tree = [{"content": "long " * 100}, {"nested": {"content": "long " * 100}}]
    stored = await externalize_media(tree, media_store=store, threshold_bytes=100)
    assert len(list(tmp_path.glob("*.bin"))) == 1
    assert await restore_media(stored, media_store=store) == tree


def test_a_threshold_below_one_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="media_threshold_bytes is 0"):
        MessageMedia(None, workspace_id="default", threshold_bytes=0)


@pytest.mark.spec("SP-76")
@pytest.mark.parametrize("uri", ["", "media+sha256://", f"{URI}0", f"s3://{DIGEST}", URI.upper()])
def test_a_uri_of_another_form_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="no address of media"):
        parse_media_uri(uri)
    assert parse_media_uri(URI) == DIGEST


@pytest.mark.spec("SP-87")
@pytest.mark.parametrize("key", ["/etc/passwd", "../x", "a/../../x", "a\\..\\x", "", "a\0b"])
def test_a_key_that_leaves_the_root_is_refused(key: str) -> None:
    def chosen(_: str, __: MediaContext) -> str:
        return key

    with pytest.raises(MediaKeyError, match="no path below"):
        key_for(chosen, URI, MediaContext())
    assert key_for(default_key_strategy, URI, MediaContext()) == f"{DIGEST}.bin"


@pytest.mark.spec("SP-81")
async def test_public_addresses_come_from_a_resolver_plain_or_async() -> None:
    static = make_static_public_url("https://cdn.example/", key_prefix="media/", extension=".png")
    other = MediaContext(workspace_id="other")
    assert static(URI, MediaContext()) == f"https://cdn.example/media/{DIGEST}.png"
    assert str(static(URI, other)).startswith("https://cdn.example/media/workspaces/")

    async def presign(uri: str, context: MediaContext) -> str | None:
        return f"{uri}?{context.media_type}&{context.workspace_id}"

    png = MediaContext(media_type="image/png")
    asked = {"workspace_id": "w"}
    assert await resolved_public_url(presign, URI, png, **asked) == f"{URI}?image/png&w"
    assert await resolved_public_url(None, URI, png, **asked) is None


@pytest.mark.spec("SP-82")
def test_all_fields_of_a_context_may_be_left_out() -> None:
    context = MediaContext()
    assert (context.media_type, context.filename, dict(context.metadata)) == (None, None, {})


@pytest.mark.spec("SP-89")
def test_a_media_store_has_five_methods() -> None:
    methods = {name for name in vars(MediaStore) if not name.startswith("_")}
    assert methods == {"put", "get", "exists", "public_url", "get_metadata"}
