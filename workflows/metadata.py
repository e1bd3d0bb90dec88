"""What a caller may attach to a run: strings by strings."""

from collections.abc import Mapping
from typing import cast


def check_metadata(metadata: object) -> None:
    """Refuse metadata that is not `dict[str, str]`, naming the path of the bad value.

    Raises:
        TypeError: a key or a value is no string.
    """
    if not isinstance(metadata, Mapping):
        message = f"metadata must be a dict of strings, found {type(metadata).__name__}"
        raise TypeError(message)
    for key, value in cast("Mapping[object, object]", metadata).items():
        if not isinstance(key, str):
            message = f"metadata key {key!r} must be a string, found {type(key).__name__}"
            raise TypeError(message)
        if not isinstance(value, str):
            message = f"metadata[{key!r}] must be a string, found {type(value).__name__}"
            raise TypeError(message)
