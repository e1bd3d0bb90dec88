"""The S3 media store against a real server, `rclone serve s3`."""

import asyncio
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stores.errors import StoreConfigurationError, StoreUnavailableError
from stores.media.addresses import make_static_public_url, parse_media_uri
from stores.media.protocols import MediaContext
from stores.media.s3 import PART_BYTES, S3MediaStore
from tests.helpers.s3_server import BUCKET, S3Server, s3_server
from tests.stores.media_conformance import (
    DATA,
    PNG,
    URI,
    MediaStoreConformance,
    StreamingConformance,
    overwrite,
)

pytestmark = [pytest.mark.integration, pytest.mark.spec("SP-79")]

DIGEST = parse_media_uri(URI)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def make(server: S3Server, tmp_path: Path) -> Any:
    """Each test has a prefix of its own."""
    defaults: dict[str, Any] = {**server.options, "key_prefix": f"{tmp_path.name}/"}

    def make(**options: Any) -> S3MediaStore:
        return S3MediaStore(**{**defaults, **options})

    return make


class TestS3MediaStore(MediaStoreConformance, StreamingConformance):
    @pytest.fixture
    def make(self, make: Any) -> Any:
        return make

    @pytest.fixture
    def store(self, make: Callable[..., S3MediaStore]) -> S3MediaStore:
        return make()

    @pytest.fixture
    def damage(self, server: S3Server, tmp_path: Path) -> Any:
        folder = server.directory / BUCKET / tmp_path.name

        def damage(uri: str) -> None:
            overwrite(folder / f"{parse_media_uri(uri)}.bin")

        return damage

    @pytest.mark.spec("SP-81", "SP-85", "SP-86")
    async def test_keys_have_prefix_and_strategy_and_addresses_name_them(
        self, make: Any, server: S3Server, tmp_path: Path
    ) -> None:
        prefix = f"{tmp_path.name}/"
        static = make_static_public_url("https://cdn.example", key_prefix=prefix)
        store = make(public_url=static)
        for workspace in ("default", "tenant"):
            bound = store.for_workspace(workspace)
            await bound.put(DATA)
            address = str(await bound.public_url(URI)).removeprefix("https://cdn.example/")
            assert (server.directory / BUCKET / address).read_bytes() == DATA

        def by_type(_: str, context: MediaContext) -> str:
            return f"as/{context.media_type}"

        chosen = make(key_strategy=by_type)
        await chosen.put(DATA, context=PNG)
        assert (server.directory / BUCKET / prefix / "as" / "image" / "png").is_file()
        assert await chosen.get(URI, context=PNG) == DATA

    async def test_a_large_blob_goes_in_parts_and_is_not_sent_again(
        self, store: Any, server: S3Server
    ) -> None:
        data = bytes(20_000_000)
        tagged = MediaContext(metadata={"Tag": "x"})
        before = server.parts_received()
        await store.put(bytes(PART_BYTES))
        assert server.parts_received() == before
        uri = await store.put(data, context=tagged)
        assert server.parts_received() == before + 3
        assert await store.put(data) == uri
        assert server.parts_received() == before + 3
        assert await store.get(uri) == data
        assert dict(await store.get_metadata(uri)) == {"tag": "x"}

    @pytest.mark.parametrize(
        "metadata",
        [{"a b": "c"}, {"é": "c"}, {"a": "é"}, {"a": "b\r\nc: d"}, {"content-type": "x"}],
    )
    async def test_metadata_that_no_header_takes_are_refused(
        self, store: Any, metadata: dict[str, str]
    ) -> None:
        with pytest.raises(ValueError, match="cannot be sent to S3"):
            await store.put(DATA, context=MediaContext(metadata=metadata))

    async def test_a_server_that_refuses_is_a_matter_of_configuration(self, make: Any) -> None:
        stranger = make(secret_access_key="another secret")  # noqa: S106 - a wrong one
        for call in (stranger.put(DATA), stranger.get(URI), stranger.exists(URI)):
            with pytest.raises(StoreConfigurationError, match="refuses") as raised:
                await call
            assert "another secret" not in str(raised.value)
        with pytest.raises(StoreConfigurationError, match="no such bucket"):
            await make(bucket="elsewhere").put(DATA)

    async def test_a_server_that_is_away_is_an_outage_and_comes_back(self, tmp_path: Path) -> None:
        with s3_server(tmp_path / "s3") as server:
            store = S3MediaStore(**server.options)
            await store.put(DATA)
        for call in (store.put(DATA), store.get(URI), store.exists(URI)):
            with pytest.raises(StoreUnavailableError, match="away"):
                await call

    async def test_a_server_that_goes_away_in_the_middle_is_an_outage(self, make: Any) -> None:
        with failing_server(HalfAnswering) as endpoint:
            store = make(endpoint=endpoint)
            with pytest.raises(StoreUnavailableError, match="away"):
                await asyncio.wait_for(store.get(URI), 30)

    @pytest.mark.parametrize("size_bytes", [500_000, 20_000_000], ids=["whole", "in parts"])
    async def test_a_server_that_goes_away_in_an_upload_is_an_outage(
        self, make: Any, size_bytes: int
    ) -> None:
        with failing_server(HangingUp) as endpoint:
            store = make(endpoint=endpoint)
            with pytest.raises(StoreUnavailableError, match="away"):
                await asyncio.wait_for(store.put(bytes(size_bytes)), 30)


class HalfAnswering(socketserver.StreamRequestHandler):
    """Answers each request with half of what it announces, and hangs up."""

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        self.wfile.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nETag: x\r\n"
            b"Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n\r\n" % len(DATA)
        )
        self.wfile.write(DATA[: len(DATA) // 2])


class HangingUp(socketserver.StreamRequestHandler):
    """Knows no object, begins each upload in parts, and hangs up while it is sent one."""

    def handle(self) -> None:
        request = self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        if request.startswith(b"HEAD"):
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        elif request.startswith(b"POST"):
            begun = (
                b"<InitiateMultipartUploadResult><UploadId>1</UploadId>"
                b"</InitiateMultipartUploadResult>"
            )
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(begun))
            self.wfile.write(begun)
        elif request.startswith(b"PUT"):
            self.rfile.read(100_000)
        else:
            self.wfile.write(b"HTTP/1.1 204 No Content\r\n\r\n")


class failing_server:  # noqa: N801 - used as a function
    """A server that handles each request so."""

    def __init__(self, handler: type[socketserver.StreamRequestHandler]) -> None:
        self._handler = handler

    def __enter__(self) -> str:
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), self._handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
