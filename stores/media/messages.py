"""The messages of a step store with their large content in a media store.

Content is put before the transaction that writes the messages which name it, so a crash between the
two leaves a blob that nothing names, and never a name without a blob.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Literal

from pydantic_ai.messages import ModelMessage

from stores.digests import message_text
from stores.errors import DamagedMediaError, MediaFormatError, MediaNotFoundError, StoreError
from stores.histories import StoredTexts
from stores.media.markers import (
    Json,
    Reference,
    extract,
    inlined,
    is_marked,
    references_in,
    whole,
)
from stores.media.protocols import MediaStore, WorkspaceMediaStore
from stores.media.reading import check_digest
from stores.media.uploads import Uploads
from stores.operations import SaveSnapshot, Write

DEFAULT_THRESHOLD_BYTES = 64 * 1024

LARGEST_INLINE_BYTES = 4 * 1024 * 1024
"""Of a message's text after its large parts went: one with many small parts goes whole, long before
it is too large for a MongoDB document."""

FETCHES_AT_ONCE = 8
"""Blobs of one load; the rest waits, since each is held in memory."""

MediaChoice = MediaStore | Literal["auto"] | None
"""A media store, the one that suits the step store, or none: then all content stays in messages."""


class MessageMedia:
    """The large content of one workspace's messages.

    Args:
        media_store: `None` keeps all content in the messages.
        threshold_bytes: strings of this size and above go to the media store.

    Raises:
        ValueError: the threshold is below 1.
    """

    def __init__(
        self,
        media_store: MediaStore | None,
        *,
        workspace_id: str,
        threshold_bytes: int = DEFAULT_THRESHOLD_BYTES,
        uploads: Uploads | None = None,
    ) -> None:
        if threshold_bytes < 1:
            msg = f"media_threshold_bytes is {threshold_bytes}; pass 1 or more bytes"
            raise ValueError(msg)
        if isinstance(media_store, WorkspaceMediaStore):
            media_store = media_store.for_workspace(workspace_id)
        self.media_store = media_store
        self._workspace_id = workspace_id
        self._threshold = threshold_bytes
        self._uploads = uploads or Uploads()

    def for_workspace(self, workspace_id: str) -> "MessageMedia":
        """The same for another workspace."""
        return MessageMedia(
            self.media_store,
            workspace_id=workspace_id,
            threshold_bytes=self._threshold,
            uploads=self._uploads,
        )

    async def aclose(self) -> None:
        """Give up what is being put. A media store that was passed in is left open."""
        await self._uploads.cancel()

    # Saving

    async def texts_of(self, operations: Sequence[Write]) -> tuple[Mapping[int, str], ...]:
        """The texts to store of each operation's messages, by position; their blobs are put."""
        texts: list[Mapping[int, str]] = []
        for operation in operations:
            entries = operation.entries if isinstance(operation, SaveSnapshot) else ()
            texts.append({each.position: await self.text_of(each.message) for each in entries})
        return tuple(texts)

    async def text_of(self, message: ModelMessage) -> str:
        """The text to store of a message; its blobs are put."""
        text = message_text(message)
        if self.media_store is None:
            return _dumped(extract(json.loads(text), None)[0]) if is_marked(text) else text
        if len(text.encode()) < self._threshold and not is_marked(text):
            return text
        node, blobs = extract(json.loads(text), self._threshold)
        changed = _dumped(node) if blobs or is_marked(text) else text
        if len(changed.encode()) > LARGEST_INLINE_BYTES:
            node, blobs = whole(text)
            changed = _dumped(node)
        for uri, blob in blobs.items():
            await self._uploads.put(self.media_store, uri, blob, workspace_id=self._workspace_id)
        return changed

    # Loading

    async def restored(self, texts: Mapping[str, str]) -> StoredTexts:
        """The texts, by digest, with the content of their markers; each blob is got once.

        What cannot be restored is broken by itself.

        Raises:
            StoreUnavailableError: the media store is away. Retryable.
            StoreConfigurationError: it refuses. Not retryable.
        """
        return await self._restored(texts, wants_files=True)

    async def searched(self, texts: Mapping[str, str]) -> StoredTexts:
        """As `restored`, without reading files: in place of a file's bytes is its URI.

        A message that lies in the media store as a whole is read, small files in it included.
        """
        return await self._restored(texts, wants_files=False)

    async def _restored(self, texts: Mapping[str, str], *, wants_files: bool) -> StoredTexts:
        found = {digest: text for digest, text in texts.items() if not is_marked(text)}
        broken: dict[str, StoreError] = {}
        nodes: dict[str, Json] = {}
        wanted: dict[str, Reference] = {}
        for digest in texts.keys() - found.keys():
            try:
                node = json.loads(texts[digest])
                wanted |= {each.uri: each for each in references_in(node)}
            except MediaFormatError as error:
                broken[digest] = error
            except ValueError as error:
                broken[digest] = StoreError(f"a message is no JSON: {error}")
            else:
                nodes[digest] = node
        files = {} if wants_files else {u: r for u, r in wanted.items() if r.encoding != "text"}
        contents, missing = await self._fetched({u: wanted[u] for u in wanted.keys() - files})
        contents |= {uri: uri.encode() for uri in files}
        for digest, node in nodes.items():
            try:
                found[digest] = _text_of(inlined(node, contents))
            except KeyError as error:
                broken[digest] = missing[error.args[0]]
        return StoredTexts(found=found, broken=broken)

    async def _fetched(
        self, wanted: Mapping[str, Reference]
    ) -> tuple[dict[str, bytes], dict[str, StoreError]]:
        contents: dict[str, bytes] = {}
        missing: dict[str, StoreError] = {}
        if not wanted:
            return contents, missing
        store = self.media_store
        if store is None:
            words = "is in a media store, and this store was opened with media_store=None"
            return contents, {uri: MediaNotFoundError(uri, words) for uri in wanted}
        slots = asyncio.Semaphore(FETCHES_AT_ONCE)

        async def fetch(reference: Reference) -> None:
            async with slots:
                try:
                    data = await store.get(reference.uri, context=reference.context)
                    # Once more: a store of somebody's own may not look.
                    check_digest(reference.uri, sha256(data).hexdigest(), len(data))
                except (MediaNotFoundError, DamagedMediaError, MediaFormatError) as error:
                    missing[reference.uri] = error
                except FileNotFoundError as error:
                    missing[reference.uri] = MediaNotFoundError(reference.uri, f"is lost: {error}")
                else:
                    contents[reference.uri] = data

        results = await asyncio.gather(*map(fetch, wanted.values()), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return contents, missing


def _dumped(node: Json) -> str:
    return json.dumps(node, ensure_ascii=False, separators=(",", ":"))


def _text_of(node: Json) -> str:
    """A whole message is a marker by itself, which stands for its text."""
    if isinstance(node, str):
        return node
    return _dumped(node)
