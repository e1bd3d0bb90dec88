"""Content that pydantic-ai-harness keeps outside its messages.

In a message stands, in place of a part or a mapping with large content, the same mapping without
that content, and in it:

- `__harness_external_media__`: true;
- `__harness_external_uri__`: where the content is; before there was this key, `uri`. `uri` is a
  copy of it where the mapping had none of its own;
- `__harness_external_text__`: true where `content`, a text, is outside; else it is `data`, base64,
  with the URL's alphabet where `__harness_external_urlsafe__` says `base64-urlsafe-v1`;
- `__harness_external_escaped_keys__`: what the mapping itself had under any of these keys, if
  `__harness_external_marker_format__` says `escaped-keys-v1`.

A mapping of a user's that looks like one is wrapped: `__harness_external_literal__` holds it,
beside a format of `literal-v1`. The content is in the collections `media` and `media_chunks`.
"""

import base64
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, cast

from stores.errors import DamagedMediaError, MediaFormatError, MediaNotFoundError
from stores.importing import DamagedDocumentError
from stores.media.addresses import parse_media_uri
from stores.mongo.client import Database
from stores.mongo.documents import Document

EXTERNAL_PREFIX = "__harness_external_"

_MEDIA, _TEXT = f"{EXTERNAL_PREFIX}media__", f"{EXTERNAL_PREFIX}text__"
_URI, _URL_SAFE = f"{EXTERNAL_PREFIX}uri__", f"{EXTERNAL_PREFIX}urlsafe__"
_ESCAPED, _FORMAT = f"{EXTERNAL_PREFIX}escaped_keys__", f"{EXTERNAL_PREFIX}marker_format__"
_LITERAL = f"{EXTERNAL_PREFIX}literal__"

_OURS = frozenset({_MEDIA, _TEXT, _URI, _ESCAPED, _FORMAT, _URL_SAFE})

Fields = dict[str, Any]

ReadContent = Callable[[str], Awaitable[bytes]]
"""The bytes behind a URI."""


@dataclass(frozen=True, kw_only=True)
class _External:
    """A mapping whose content is outside; `fields` is the rest of it."""

    uri: str
    fields: Fields
    name: str
    is_url_safe: bool

    def whole(self, data: bytes, fields: Fields) -> Fields:
        if self.name == "content":
            return {**fields, "content": data.decode(errors="surrogatepass")}
        encode = base64.urlsafe_b64encode if self.is_url_safe else base64.b64encode
        return {**fields, "data": encode(data).decode()}


def external_uris(text: str) -> list[str]:
    """Where the content is that a JSON text of the harness leaves out.

    A text of the conversation that merely mentions a key has none.

    Raises:
        DamagedDocumentError: a marker has a form that is not known here.
    """
    if EXTERNAL_PREFIX not in text:
        return []
    try:
        return list(dict.fromkeys(_uris(json.loads(text))))
    except (ValueError, RecursionError) as error:
        problem = f"messages: no JSON: {error}"
        raise DamagedDocumentError(problem) from error


def _uris(node: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON
    if isinstance(node, list):
        for each in cast("list[object]", node):
            yield from _uris(each)
    elif isinstance(node, dict):
        found = _read(cast("Fields", node))
        if isinstance(found, _External):
            yield found.uri
            found = found.fields
        for each in found.values():
            yield from _uris(each)


async def with_content(text: str, read: ReadContent) -> str:
    """The text with its content back in place.

    Raises:
        DamagedDocumentError: content is missing or damaged, or has a form that is not known here.
    """
    contents = {uri: await _content(uri, read) for uri in external_uris(text)}
    if EXTERNAL_PREFIX not in text:
        return text
    return json.dumps(_whole(json.loads(text), contents), ensure_ascii=False)


async def _content(uri: str, read: ReadContent) -> bytes:
    try:
        return await read(uri)
    except (MediaNotFoundError, DamagedMediaError, MediaFormatError) as error:
        raise DamagedDocumentError(str(error)) from error


def _whole(node: Any, contents: Mapping[str, bytes]) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(node, list):
        return [_whole(each, contents) for each in cast("list[object]", node)]
    if not isinstance(node, dict):
        return node
    found = _read(cast("Fields", node))
    fields = found.fields if isinstance(found, _External) else found
    whole = {name: _whole(value, contents) for name, value in fields.items()}
    return found.whole(contents[found.uri], whole) if isinstance(found, _External) else whole


def _read(node: Fields) -> _External | Fields:
    """What stands there: content that is outside, what a wrapper holds, or the mapping itself."""
    stamp = node.get(_FORMAT)
    if node.keys() == {_LITERAL, _FORMAT} and _is_of(stamp, "literal"):
        literal = node[_LITERAL]
        return cast("Fields", literal) if isinstance(literal, dict) else node
    return _external(node, stamp) if node.get(_MEDIA) is True else node


def _external(node: Fields, stamp: object) -> _External:
    is_url_safe = node.get(_URL_SAFE) == "base64-urlsafe-v1"
    dropped = {_MEDIA, _TEXT, *([_URL_SAFE] if is_url_safe else [])}
    escaped = node.get(_ESCAPED)
    own: Fields = {}
    if isinstance(escaped, dict) and escaped:
        kept = cast("Fields", escaped)
        if kept.keys() <= _OURS and _is_of(stamp, "escaped-keys"):
            own, dropped = kept, {*dropped, _ESCAPED, _FORMAT}
    uri = node.get(_URI, node.get("uri"))
    if _URI in node:
        dropped.add(_URI)
    if node.get("uri") == uri:
        dropped.add("uri")
    if not isinstance(uri, str):
        problem = "messages: content is outside them, and nothing says where"
        raise DamagedDocumentError(problem)
    return _External(
        uri=uri,
        fields={name: value for name, value in node.items() if name not in dropped} | own,
        name="content" if node.get(_TEXT) is True else "data",
        is_url_safe=is_url_safe,
    )


def _is_of(stamp: object, form: str) -> bool:
    """Whether the stamp is of this form.

    Raises:
        DamagedDocumentError: it is, and of another version.
    """
    if not isinstance(stamp, str) or not stamp.startswith(f"{form}-v"):
        return False
    if stamp != f"{form}-v1":
        problem = f"messages: content is outside them in the form {stamp!r}; known is {form}-v1"
        raise DamagedDocumentError(problem)
    return True


async def read_media(database: Database, uri: str) -> bytes:
    """The bytes of a blob that the harness's `MongoMediaStore` wrote.

    Raises:
        MediaNotFoundError, DamagedMediaError: it is missing, or not what the URI says.
    """
    digest = parse_media_uri(uri)
    manifest = await database["media"].find_one({"_id": digest})
    if manifest is None:
        raise MediaNotFoundError(uri, "is not in the source's collection 'media'")
    size, count = manifest.get("chunk_size"), manifest.get("chunk_count")
    # Chunks had no size at first.
    wanted: Document = {"files_id": digest, "chunk_size": size or {"$exists": False}}
    found = database["media_chunks"].find(wanted, {"data": 1}).sort("n", 1).limit(count or 1)
    data = b"".join([bytes(each["data"]) async for each in found])
    if sha256(data).hexdigest() != digest:
        raise DamagedMediaError(uri, f"its {len(data)} bytes in the source do not match it")
    return data
