"""The codec server: what Temporal's pages ask it, and who may ask. Needs no server."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import httpx2
import pytest
from temporalio.converter import StorageDriverStoreContext, StorageDriverWorkflowInfo

from cli.codec_server import LARGEST_REQUEST_BYTES, codec_app, codec_server_command
from cli.failures import WrongUsageError
from converter import build_data_converter
from settings import Settings
from stores.memory_chunks import InMemoryChunkStore

KEYS = {"one": base64.b64encode(b"one".ljust(32)).decode()}
SETTINGS = Settings(mongodb_uri="mongodb://unused", payload_keys=KEYS, payload_key="one")
PAGES = "http://temporal.example"
TOKEN = "let me in"  # noqa: S105 - of this test


async def ask(
    route: str,
    body: object,
    *,
    chunks: InMemoryChunkStore,
    settings: Settings = SETTINGS,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
) -> httpx2.Response:
    converter = build_data_converter(settings, chunks=chunks)
    inline = build_data_converter(settings.model_copy(update={"payload_storage": False}))
    app = codec_app(converter, inline.payload_codec, origins=(PAGES,), token=TOKEN)
    given = {"authorization": f"Bearer {TOKEN}", **(headers or {})}
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://codec") as client:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await client.request(method, route, content=content, headers=given)


async def history_of(values: list[object], chunks: InMemoryChunkStore) -> list[dict[str, Any]]:
    """The payloads as Temporal's pages have them."""
    target = StorageDriverWorkflowInfo(namespace="default", id="run-1")
    converter = build_data_converter(SETTINGS, chunks=chunks)._with_store_context(  # pyright: ignore[reportPrivateUsage]
        StorageDriverStoreContext(target=target)
    )
    return [
        {
            "metadata": {
                name: base64.b64encode(value).decode() for name, value in each.metadata.items()
            },
            "data": base64.b64encode(each.data).decode(),
        }
        for each in await converter.encode(values)
    ]


def read(response: httpx2.Response) -> list[object]:
    assert response.status_code == 200, response.text
    return [json.loads(base64.b64decode(each["data"])) for each in response.json()["payloads"]]


async def test_pages_read_what_is_encrypted_and_what_is_stored() -> None:
    chunks = InMemoryChunkStore()
    long = "long " * 10_000
    payloads = await history_of(["short", long], chunks)
    assert "short" not in str([base64.b64decode(each["data"]) for each in payloads])
    assert len(str(payloads)) < 2000
    assert read(await ask("/decode", {"payloads": payloads}, chunks=chunks)) == ["short", long]


async def test_what_is_encoded_for_a_workflow_to_come_is_encrypted_however_long() -> None:
    chunks = InMemoryChunkStore()
    long = {"metadata": {"encoding": "anNvbi9wbGFpbg=="}, "data": "InRleHQi" * 10_000}
    encoded = await ask("/encode", {"payloads": [long]}, chunks=chunks)
    assert b"text" not in base64.b64decode(encoded.json()["payloads"][0]["data"])
    decoded = await ask("/decode", encoded.json(), chunks=chunks)
    assert decoded.json() == {"payloads": [long]}
    assert not chunks.chunks


async def test_only_who_has_the_token_reads_and_only_pages_of_temporal_may_ask() -> None:
    chunks = InMemoryChunkStore()
    refused = await ask(
        "/decode", {"payloads": []}, chunks=chunks, headers={"authorization": "Bearer no"}
    )
    assert refused.status_code == 401
    asking = {"access-control-request-method": "POST", "authorization": ""}
    for origin, allowed in ((PAGES, PAGES), ("http://evil.example", None)):
        headers = {**asking, "origin": origin}
        answer = await ask("/decode", b"", chunks=chunks, method="OPTIONS", headers=headers)
        assert answer.headers.get("access-control-allow-origin") == allowed
    with pytest.raises(WrongUsageError, match="PERDURE_CODEC_TOKEN"):
        codec_server_command(host="0.0.0.0", token=None)  # noqa: S104 - it is refused


async def test_what_cannot_be_read_is_told_in_words() -> None:
    chunks = InMemoryChunkStore()
    payloads = await history_of(["short", "long " * 10_000], chunks)
    without = SETTINGS.model_copy(update={"payload_keys": {}, "payload_key": None})
    other = SETTINGS.model_copy(update={"payload_keys": {"two": KEYS["one"]}, "payload_key": "two"})
    for settings in (other, without):
        told = await ask("/decode", {"payloads": payloads[1:]}, chunks=chunks, settings=settings)
        assert (told.status_code, "'one' is not known here" in told.text) == (422, True)
    chunks.chunks.clear()
    told = await ask("/decode", {"payloads": payloads}, chunks=chunks)
    assert (told.status_code, "workflow 'run-1'" in told.text) == (422, True)
    assert (await ask("/decode", b"no json", chunks=chunks)).status_code == 400
    large = b"x" * (LARGEST_REQUEST_BYTES + 1)
    assert (await ask("/decode", large, chunks=chunks)).status_code == 413
