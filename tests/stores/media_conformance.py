"""What every media store of ours must do."""

import asyncio
import re
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import pytest

from stores.errors import MediaFormatError, MediaNotFoundError, StoreError
from stores.media.addresses import media_uri_for
from stores.media.protocols import MediaContext, MediaStore, StreamingMediaStore

PNG = MediaContext(
    media_type="image/png", filename="a.png", metadata={"tag": "one two", "b-2": "3"}
)
DATA = bytes(range(256)) * 300
URI = media_uri_for(DATA)


class Damage(Protocol):
    """Changes or removes bytes of a stored blob, behind the store's back."""

    def __call__(self, uri: str) -> None: ...


class MediaStoreConformance:
    """Subclasses give `store`, `damage`, and `make`: another object over the same place."""

    @pytest.mark.spec("SP-76")
    async def test_bytes_come_back_and_are_stored_once(self, store: MediaStore) -> None:
        assert not await store.exists(URI)
        uris = await asyncio.gather(*(store.put(DATA, context=PNG) for _ in range(4)))
        assert set(uris) == {f"media+sha256://{sha256(DATA).hexdigest()}"} == {URI}
        assert await store.get(URI, context=PNG) == DATA
        assert await store.exists(URI)
        empty = await store.put(b"")
        assert await store.get(empty) == b""

    @pytest.mark.spec("SP-83", "SP-84")
    async def test_metadata_come_back_without_the_media_type(self, store: MediaStore) -> None:
        uri = await store.put(DATA, context=PNG)
        assert dict(await store.get_metadata(uri)) == dict(PNG.metadata)
        bare = await store.put(b"bare", context=MediaContext(media_type="image/png"))
        assert dict(await store.get_metadata(bare)) == {}

    async def test_what_is_not_there_is_said(self, store: MediaStore) -> None:
        with pytest.raises(FileNotFoundError, match=URI.partition("//")[2]):
            await store.get(URI)
        with pytest.raises(MediaNotFoundError):
            await store.get_metadata(URI)
        for call in (store.get, store.exists, store.get_metadata, store.public_url):
            with pytest.raises(MediaFormatError):
                await call("media+sha256://x")

    async def test_bytes_that_do_not_match_their_address_are_refused(
        self, store: MediaStore, damage: Damage
    ) -> None:
        await store.put(DATA)
        damage(URI)
        with pytest.raises(ValueError, match=re.escape(f"{URI} is damaged")):
            await store.get(URI)

    async def test_a_workspace_sees_its_own_blobs_alone(self, store: Any) -> None:
        other = store.for_workspace("other/../tenant")
        await store.put(DATA, context=PNG)
        assert not await other.exists(URI)
        for call in (other.get, other.get_metadata):
            with pytest.raises(MediaNotFoundError):
                await call(URI)
        await other.put(DATA)
        assert await other.get(URI) == DATA
        assert dict(await other.get_metadata(URI)) == {}
        assert dict(await store.get_metadata(URI)) == dict(PNG.metadata)

    @pytest.mark.spec("SP-81", "SP-82")
    async def test_a_resolver_gives_public_addresses(self, make: Any) -> None:
        async def presign(uri: str, context: MediaContext) -> str:
            return f"https://x/{context.workspace_id}/{uri[-4:]}?{context.filename}"

        store = make(public_url=presign).for_workspace("w")
        assert await store.public_url(URI, context=PNG) == f"https://x/w/{URI[-4:]}?a.png"
        assert await make().public_url(URI) is None


class StreamingConformance:
    """Of media stores that stream."""

    async def test_a_stream_is_put_and_got_in_pieces(self, store: StreamingMediaStore) -> None:
        data = DATA * 40  # 3 MB

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(data), 70_000):
                yield data[start : start + 70_000]

        uri = await store.put_stream(pieces(), context=PNG)
        assert uri == await store.put_stream(pieces()) == media_uri_for(data)
        got = [each async for each in store.get_stream(uri)]
        assert b"".join(got) == data
        assert len(got) > 1
        assert dict(await store.get_metadata(uri)) in (dict(PNG.metadata), {})

    async def test_a_stream_that_breaks_off_leaves_nothing(
        self, store: StreamingMediaStore
    ) -> None:
        async def breaks() -> AsyncIterator[bytes]:
            yield DATA
            raise StoreError("broke off")  # noqa: EM101, TRY003 - as a source would

        with pytest.raises(StoreError, match="broke off"):
            await store.put_stream(breaks())
        assert not await store.exists(URI)

    async def test_a_damaged_stream_is_told_at_its_end(
        self, store: StreamingMediaStore, damage: Damage
    ) -> None:
        await store.put(DATA)
        damage(URI)
        with pytest.raises(ValueError, match="damaged"):
            async for _ in store.get_stream(URI):
                pass


def overwrite(path: Path) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
