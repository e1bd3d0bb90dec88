"""What a media store promises: bytes, addressed by their content."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, Self, runtime_checkable

from stores.identifiers import DEFAULT_WORKSPACE

_NO_METADATA: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class MediaContext:
    """What is known of a blob beside its bytes. All of it may be left out; fields may be added.

    Attributes:
        media_type: as `image/png`.
        filename: the original one.
        metadata: a caller's own words, kept with the blob; small.
        workspace_id: whose blob it is. Stores that are bound to a workspace set it themselves.
    """

    media_type: str | None = None
    filename: str | None = None
    metadata: Mapping[str, str] = field(default_factory=lambda: _NO_METADATA)
    workspace_id: str = DEFAULT_WORKSPACE


NO_CONTEXT = MediaContext()

PublicUrlResolver = Callable[[str, MediaContext], str | Awaitable[str | None] | None]
"""Turns a blob's URI into an address that a model's provider can fetch; `None` when it has none.
Plain or async."""

KeyStrategy = Callable[[str, MediaContext], str]
"""Chooses a blob's path or key by its URI. One that depends on the context needs the same context
on reading; restored messages pass the media type again."""


class MediaStore(Protocol):
    """Bytes under `media+sha256://<hex>`: equal bytes have one address and are stored once.

    Errors of every method: `StoreUnavailableError` (retryable) when the store could not be reached;
    `MediaFormatError` (a `ValueError`) for a URI of another form.
    """

    async def put(self, data: bytes, *, context: MediaContext = NO_CONTEXT) -> str:
        """Keep the bytes; their URI. Repeats: again with the same bytes changes nothing in them."""
        ...

    async def get(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> bytes:
        """The bytes.

        Raises:
            MediaNotFoundError: (a `FileNotFoundError`) there are none. Not retryable.
            DamagedMediaError: (a `ValueError`) they do not match their address. Not retryable.
        """
        ...

    async def exists(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> bool:
        """Whether the blob is there; its bytes are not read."""
        ...

    async def public_url(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> str | None:
        """An address that can be fetched from outside, `None` without a resolver."""
        ...

    async def get_metadata(
        self, uri: str, *, context: MediaContext = NO_CONTEXT
    ) -> Mapping[str, str]:
        """The metadata that came with the blob; its media type is not among it.

        Raises:
            MediaNotFoundError: there is no such blob. Not retryable.
        """
        ...


class StreamingMediaStore(MediaStore, Protocol):
    """A media store that needs no blob as a whole in memory."""

    async def put_stream(
        self, chunks: AsyncIterable[bytes], *, context: MediaContext = NO_CONTEXT
    ) -> str:
        """As `put`. A stream that breaks off leaves nothing that could be read."""
        ...

    def get_stream(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> AsyncIterator[bytes]:
        """The bytes in pieces. Whoever was given them all knows that they match their address.

        Raises:
            MediaNotFoundError: before the first piece.
            DamagedMediaError: after the last one: what came until then is not to be used.
        """
        ...


@runtime_checkable
class ForgettingMediaStore(Protocol):
    """A media store that can forget a blob: those that no sweep looks at."""

    async def delete(self, uri: str, *, context: MediaContext = NO_CONTEXT) -> None:
        """Remove a blob with what is known of it. Quiet when it is gone."""
        ...


@runtime_checkable
class WorkspaceMediaStore(Protocol):
    """A media store that keeps the blobs of each workspace apart. All of Perdure's own do."""

    def for_workspace(self, workspace_id: str) -> Self:
        """The same store bound to another workspace; shares the connection."""
        ...
