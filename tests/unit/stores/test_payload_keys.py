"""Keys of payloads: what they make equal, what they keep apart, and how a bad one is told."""

import base64
from pathlib import Path

import pytest

from stores.errors import StoreConfigurationError, UnknownPayloadKeyError
from stores.payload_keys import Keyring, PayloadKey, WrongPayloadKeyError, load_keyring

SECRET = base64.b64encode(bytes(range(32))).decode()
KEY = PayloadKey("first", bytes(range(32)))
OTHER = PayloadKey("second", bytes(range(32)))


def test_equal_chunks_are_equal_under_one_key_and_differ_under_another() -> None:
    name = KEY.identify("bytes", b"text")
    assert name == KEY.identify("bytes", b"text")
    assert KEY.seal_chunk(name, b"text") == KEY.seal_chunk(name, b"text")
    assert name != OTHER.identify("bytes", b"text")
    assert name != KEY.identify("ids", b"text")
    assert KEY.seal_chunk(name, b"text") != OTHER.seal_chunk(name, b"text")


def test_names_and_sealed_chunks_are_what_they_were() -> None:
    """Frozen: what is stored depends on them."""
    name = KEY.identify("bytes", b"text")
    assert name.hex() == "5bfb3c2a24f75cce1151601a23d6089a5bf6ab3e7a9c90ec358815451ec7e1c5"
    assert KEY.seal_chunk(name, b"text").hex() == "0ca1b6943d501d804d98b85749cc749a5667fff5"
    assert (
        KEY.open_chunk(name, bytes.fromhex("0ca1b6943d501d804d98b85749cc749a5667fff5")) == b"text"
    )


def test_a_payload_in_a_history_never_looks_the_same_twice() -> None:
    assert KEY.seal(b"text") != KEY.seal(b"text")
    assert KEY.open(KEY.seal(b"text")) == b"text"


def test_another_key_and_changed_bytes_are_refused() -> None:
    sealed = KEY.seal(b"text")
    changed = sealed[:-1] + bytes([sealed[-1] ^ 1])
    name = KEY.identify("bytes", b"text")
    for key, data in ((OTHER, sealed), (KEY, changed), (KEY, b"short")):
        with pytest.raises(WrongPayloadKeyError):
            key.open(data)
    with pytest.raises(WrongPayloadKeyError):
        OTHER.open_chunk(name, KEY.seal_chunk(name, b"text"))
    with pytest.raises(WrongPayloadKeyError):
        KEY.open_chunk(KEY.identify("bytes", b"else"), KEY.seal_chunk(name, b"text"))


def test_keys_come_from_settings_and_files_and_workspaces_have_their_own(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    sources = {"old": SECRET, "new": f"file:{tmp_path / 'key'}"}
    ring = load_keyring(sources, current="new", workspaces={"acme": "old"})
    for workspace, key_id in (("acme", "old"), ("other", "new")):
        key = ring.for_workspace(workspace)
        assert key is not None
        assert key.id == key_id
    assert Keyring(keys={}).for_workspace("acme") is None


def test_a_bad_key_is_told_by_its_id_and_never_shown(tmp_path: Path) -> None:
    with pytest.raises(UnknownPayloadKeyError, match=r"'gone'.*known are: 'old'"):
        load_keyring({"old": SECRET}, current="gone", workspaces={})
    for source in ("c2hvcnQ=", "not base64!", f"file:{tmp_path / 'missing'}"):
        with pytest.raises(StoreConfigurationError, match="'old'") as refused:
            load_keyring({"old": source}, current=None, workspaces={})
        assert "c2hvcnQ" not in str(refused.value)
