"""Markers: what stands in a message's JSON in place of content that lies in a media store.

A marker takes the place of one string: an object with the one key `MARKER_KEY`, and in it the
format's version, the blob's URI, how its bytes make the string, and its media type. An object of
the conversation that has this key itself is wrapped in a marker that holds it as `literal`, so
nobody's data is ever taken for a marker.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from stores.errors import MediaFormatError
from stores.media.addresses import media_uri_for, parse_media_uri
from stores.media.protocols import MediaContext, MediaStore

MARKER_KEY = "__perdure_media__"

FORMAT_VERSION = 1

Encoding = Literal["text", "base64", "base64url"]
"""How a blob's bytes make the string that it stands for: as UTF-8, or in base64."""

_TEXT = "text/plain"

Json = Any
"""What `json.loads` gives."""


@dataclass(frozen=True, kw_only=True)
class Blob:
    """Content on its way into a media store."""

    data: bytes
    media_type: str | None

    @property
    def context(self) -> MediaContext:
        """What is put with it."""
        return MediaContext(media_type=self.media_type)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A marker that was read."""

    uri: str
    encoding: Encoding
    media_type: str | None

    @property
    def context(self) -> MediaContext:
        """What was put with the blob, for a key that depends on it."""
        return MediaContext(media_type=self.media_type)

    def string(self, data: bytes) -> str:
        """The string that the marker stands for."""
        if self.encoding == "text":
            return data.decode(errors="surrogatepass")
        return _ENCODERS[self.encoding](data).decode()


_ENCODERS = {"base64": base64.b64encode, "base64url": base64.urlsafe_b64encode}


def is_marked(text: str) -> bool:
    """Whether a message's text may hold a marker, or something that looks like one."""
    return f'"{MARKER_KEY}"' in text


def extract(node: Json, threshold_bytes: int | None) -> tuple[Json, dict[str, Blob]]:
    """The tree with markers in place of large strings, and what they stand for, by URI.

    A string is as large as the bytes that it stands for: in UTF-8, or decoded where it is the
    `data` of a `BinaryContent`. `None` only escapes what looks like a marker.
    """
    blobs: dict[str, Blob] = {}
    return _extract(node, threshold_bytes, blobs), blobs


def _extract(node: Json, threshold_bytes: int | None, blobs: dict[str, Blob]) -> Json:
    if isinstance(node, str):
        data = node.encode(errors="surrogatepass")
        if threshold_bytes is None or len(data) < threshold_bytes:
            return node
        return _marker(Blob(data=data, media_type=_TEXT), "text", blobs)
    if isinstance(node, list):
        items = cast("list[object]", node)
        return [_extract(each, threshold_bytes, blobs) for each in items]
    if not isinstance(node, dict):
        return node
    fields = cast("dict[str, Json]", node)
    changed = {
        name: _extract_field(name, value, fields, threshold_bytes, blobs)
        for name, value in fields.items()
    }
    if MARKER_KEY in fields:
        return {MARKER_KEY: {"version": FORMAT_VERSION, "literal": changed}}
    return changed


def _extract_field(
    name: str,
    value: Json,
    fields: Mapping[str, Json],
    threshold_bytes: int | None,
    blobs: dict[str, Blob],
) -> Json:
    is_binary = name == "data" and fields.get("kind") == "binary" and isinstance(value, str)
    found = _decoded(value) if is_binary else None
    if found is None:
        return _extract(value, threshold_bytes, blobs)
    data, encoding = found
    if threshold_bytes is None or len(data) < threshold_bytes:
        return value
    media_type = fields.get("media_type")
    blob = Blob(data=data, media_type=media_type if isinstance(media_type, str) else None)
    return _marker(blob, encoding, blobs)


def _decoded(text: str) -> tuple[bytes, Encoding] | None:
    """The bytes of a base64 text, if encoding them again gives this very text."""
    encoding: Encoding = "base64url" if "-" in text or "_" in text else "base64"
    try:
        altchars = b"-_" if encoding == "base64url" else None
        data = base64.b64decode(text, altchars=altchars, validate=True)
    except ValueError:
        return None
    return (data, encoding) if _ENCODERS[encoding](data).decode() == text else None


def _marker(blob: Blob, encoding: Encoding, blobs: dict[str, Blob]) -> Json:
    uri = media_uri_for(blob.data)
    blobs[uri] = blob
    fields = {"version": FORMAT_VERSION, "uri": uri, "encoding": encoding}
    if blob.media_type is not None:
        fields["media_type"] = blob.media_type
    return {MARKER_KEY: fields}


def whole(text: str) -> tuple[Json, dict[str, Blob]]:
    """A marker that stands for a whole message, whose parts are small and too many."""
    blobs: dict[str, Blob] = {}
    return _marker(Blob(data=text.encode(), media_type="application/json"), "text", blobs), blobs


def references_in(node: Json) -> Iterator[Reference]:
    """The markers of a stored tree.

    Raises:
        MediaFormatError: one is of a version that is not known here. Not retryable.
    """
    if isinstance(node, list):
        items = cast("list[object]", node)
        for each in items:
            yield from references_in(each)
    elif isinstance(node, dict):
        found = _read(cast("dict[str, Json]", node))
        if isinstance(found, Reference):
            yield found
        else:
            for each in found.values():
                yield from references_in(each)


def inlined(node: Json, contents: Mapping[str, bytes]) -> Json:
    """The tree as it was before `extract`, from the blobs of all its markers by URI.

    Raises:
        MediaFormatError: a marker is of a version that is not known here. Not retryable.
        KeyError: a blob is missing.
    """
    if isinstance(node, list):
        items = cast("list[object]", node)
        return [inlined(each, contents) for each in items]
    if not isinstance(node, dict):
        return node
    found = _read(cast("dict[str, Json]", node))
    if isinstance(found, Reference):
        return found.string(contents[found.uri])
    return {name: inlined(value, contents) for name, value in found.items()}


def _read(node: dict[str, Json]) -> Reference | dict[str, Json]:
    """What a marker says; of a literal what it holds, and of any other object the object."""
    marker = node.get(MARKER_KEY)
    if node.keys() != {MARKER_KEY} or not isinstance(marker, dict):
        return node
    fields = cast("dict[str, Json]", marker)
    if "version" not in fields:
        return node
    if fields["version"] != FORMAT_VERSION:
        msg = (
            f"a marker of media has format version {fields['version']!r}, and this version of "
            f"Perdure knows {FORMAT_VERSION}; read it with a newer one"
        )
        raise MediaFormatError(msg)
    literal = fields.get("literal")
    if isinstance(literal, dict):
        return cast("dict[str, Json]", literal)
    uri, encoding = fields.get("uri"), fields.get("encoding")
    if not isinstance(uri, str) or encoding not in {"text", *_ENCODERS}:
        msg = "a marker of media names no blob and no known encoding; it was damaged"
        raise MediaFormatError(msg)
    parse_media_uri(uri)
    return Reference(
        uri=uri, encoding=cast("Encoding", encoding), media_type=fields.get("media_type")
    )


async def externalize_media(node: Json, *, media_store: MediaStore, threshold_bytes: int) -> Json:
    """The JSON tree with its large strings put into the store, and markers in their place."""
    changed, blobs = extract(node, threshold_bytes)
    for blob in blobs.values():
        await media_store.put(blob.data, context=blob.context)
    return changed


async def restore_media(node: Json, *, media_store: MediaStore) -> Json:
    """The tree that `externalize_media` was given.

    Raises:
        MediaFormatError: (a `ValueError`) a marker is of a version that is not known here.
        MediaNotFoundError, DamagedMediaError: a blob is missing, or not what its address says.
    """
    wanted = {each.uri: each for each in references_in(node)}
    contents = {
        uri: await media_store.get(uri, context=each.context) for uri, each in wanted.items()
    }
    return inlined(node, contents)


def digests_in(text: str) -> list[str]:
    """SHA-256 (hex) of each blob that a stored message's text names, in order."""
    if not is_marked(text):
        return []
    uris = (each.uri for each in references_in(json.loads(text)))
    return [parse_media_uri(each) for each in dict.fromkeys(uris)]
