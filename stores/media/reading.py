"""What was read of a blob: whether it is what was put."""

import json
from collections.abc import Mapping

from stores.errors import DamagedMediaError
from stores.media.addresses import parse_media_uri


def check_digest(uri: str, found: str, size_bytes: int) -> None:
    """Return when the bytes that were read have the SHA-256 that their address names.

    Raises:
        DamagedMediaError: they have another one.
    """
    if found != parse_media_uri(uri):
        raise DamagedMediaError(uri, f"its {size_bytes} bytes have the SHA-256 {found}")


def metadata_in(uri: str, text: str | bytes, *, of: str | None = None) -> Mapping[str, str]:
    """The metadata in a JSON text; `of` names the field that holds it.

    Raises:
        DamagedMediaError: it holds none.
    """
    try:
        values = json.loads(text)
        found = values if of is None else values[of]
        return {str(name): str(value) for name, value in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedMediaError(uri, f"its metadata cannot be read: {error}") from error
