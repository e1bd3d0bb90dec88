"""Addresses of blobs: URIs, keys in a backend, public URLs."""

import inspect
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import PurePosixPath

from stores.errors import MediaFormatError, MediaKeyError
from stores.identifiers import DEFAULT_WORKSPACE
from stores.media.protocols import KeyStrategy, MediaContext, PublicUrlResolver

SCHEME = "media+sha256://"

_DIGEST = re.compile(r"[0-9a-f]{64}")

_FOLDER_NAME_LENGTH = 32
"""Of a SHA-256 in hex: a workspace id may hold characters that no path may."""


def media_uri_for(data: bytes) -> str:
    """The URI of these bytes, in whichever store they are."""
    return uri_of_digest(sha256(data).hexdigest())


def uri_of_digest(digest: str) -> str:
    """The URI of the bytes that have this SHA-256 (hex)."""
    return f"{SCHEME}{digest}"


def parse_media_uri(uri: str) -> str:
    """The SHA-256 (hex) that a URI names.

    Raises:
        MediaFormatError: it is none of ours. Not retryable.
    """
    digest = uri.removeprefix(SCHEME)
    if digest == uri or not _DIGEST.fullmatch(digest):
        msg = f"{uri[:100]!r} is no address of media: those are {SCHEME} and 64 digits of hex"
        raise MediaFormatError(msg)
    return digest


def default_key_strategy(uri: str, context: MediaContext) -> str:  # noqa: ARG001 - its contract
    """`<sha256>.bin`, whatever the context."""
    return f"{parse_media_uri(uri)}.bin"


def workspace_folder(workspace_id: str) -> str:
    """The folder of a workspace's blobs, with a slash at its end; none for the default one."""
    if workspace_id == DEFAULT_WORKSPACE:
        return ""
    name = sha256(workspace_id.encode(errors="surrogatepass")).hexdigest()
    return f"workspaces/{name[:_FOLDER_NAME_LENGTH]}/"


def key_for(strategy: KeyStrategy, uri: str, context: MediaContext) -> str:
    """The key of a blob below a store's root, in its workspace's own folder.

    Raises:
        MediaFormatError: the URI is of another form.
        MediaKeyError: the strategy leaves the root. Not retryable.
    """
    parse_media_uri(uri)  # a strategy may use the URI without a look at it
    key = strategy(uri, context)
    path = PurePosixPath(key)
    if not key or path.is_absolute() or ".." in path.parts or "\\" in key or "\0" in key:
        msg = (
            f"key_strategy gave {key!r} for {uri}, which is no path below the store's root; give a "
            "relative one without '..'"
        )
        raise MediaKeyError(msg)
    return f"{workspace_folder(context.workspace_id)}{path}"


def make_static_public_url(
    base: str, *, key_prefix: str = "", extension: str = ".bin"
) -> PublicUrlResolver:
    """A resolver for blobs that lie at `<base>/<key_prefix><sha256><extension>`.

    Those of a workspace other than the default one lie in its folder, as the stores put them.
    """
    root = f"{base.rstrip('/')}/{key_prefix}"

    def resolve(uri: str, context: MediaContext) -> str:
        return f"{root}{workspace_folder(context.workspace_id)}{parse_media_uri(uri)}{extension}"

    return resolve


async def resolved_public_url(
    resolver: PublicUrlResolver | None, uri: str, context: MediaContext, *, workspace_id: str
) -> str | None:
    """What the resolver says of a blob of that workspace; `None` without one."""
    parse_media_uri(uri)
    if resolver is None:
        return None
    found = resolver(uri, replace(context, workspace_id=workspace_id))
    return await found if inspect.isawaitable(found) else found
