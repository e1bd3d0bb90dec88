"""What is masked in the store, as the settings say; and the log of a process without it."""

import importlib
import logging
import os
from collections.abc import Mapping
from typing import cast

from settings import Settings
from stores.errors import StoreConfigurationError
from stores.payload_keys import load_keyring
from stores.redaction import Redaction
from stores.redactor import Hook, Redactor


def build_redaction(
    settings: Settings,
    *,
    is_strict: bool = True,
    environment: Mapping[str, str] = os.environ,
) -> Redaction:
    """What the settings mask, with the keys that seal what a run needs as it was.

    Args:
        settings: names of variables, patterns, a hook, and the keys of payloads.
        is_strict: a variable that is not set is an error: a worker that does not know a secret
            would store it. Commands mask what they know.
        environment: where the variables are.

    Raises:
        StoreConfigurationError: a variable is not set or its value too short, a pattern is no
            regular expression, the hook is not there. No value is told.
        UnknownPayloadKeyError: see `load_keyring`.
    """
    keys = load_keyring(
        settings.payload_keys,
        current=settings.payload_key,
        workspaces=settings.payload_workspace_keys,
    )
    if not settings.redacts:
        return Redaction(keys=keys)
    missing = [name for name in settings.redacted_variables if not environment.get(name)]
    if missing and is_strict:
        msg = (
            f"PERDURE_REDACT_ENV names {', '.join(missing)}, which is not set here: what it holds "
            "elsewhere could not be masked. Set it, or take the name out"
        )
        raise StoreConfigurationError(msg)
    redactor = Redactor(
        secrets=[environment[each] for each in settings.redacted_variables if each not in missing],
        patterns=settings.redact_patterns,
        hook=_hook(settings.redactor) if settings.redactor else None,
    )
    return Redaction(redactor=redactor, keys=keys)


def refuse_plain_payloads(settings: Settings) -> None:
    """Return when what is masked in the store is not legible beside it.

    Histories and stored payloads hold what models and tools get, since replay needs it.

    Raises:
        StoreConfigurationError: redaction is on, payloads are not encrypted, and nobody said that
            this is meant.
    """
    if not settings.redacts or settings.payload_key or settings.allow_plain_payloads:
        return
    msg = (
        "redaction is on, and payloads are not encrypted: Temporal's histories and the payloads in "
        "MongoDB would hold what the store masks. Set PERDURE_PAYLOAD_KEYS and PERDURE_PAYLOAD_KEY "
        "(`openssl rand -base64 32` makes a key), or PERDURE_ALLOW_PLAIN_PAYLOADS=1 to go on so"
    )
    raise StoreConfigurationError(msg)


class _Masked(logging.Formatter):
    def __init__(self, inner: logging.Formatter, redactor: Redactor) -> None:
        super().__init__()
        self._inner = inner
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(self._inner.format(record))


def mask_log(redaction: Redaction) -> None:
    """Mask what this process logs from now on: an error may tell what a tool was given."""
    if redaction.redactor is None:
        return
    for handler in logging.getLogger().handlers:
        inner = handler.formatter or logging.Formatter()
        handler.setFormatter(_Masked(inner, redaction.redactor))


def _hook(path: str) -> Hook:
    module_name, _, attribute = path.partition(":")
    try:
        found: object = getattr(importlib.import_module(module_name), attribute, None)
    except (ImportError, ValueError) as error:
        msg = f"PERDURE_REDACTOR is {path!r}, whose module cannot be imported: {error}"
        raise StoreConfigurationError(msg) from error
    if not callable(found):
        msg = f"PERDURE_REDACTOR is {path!r}; write module:function, of a function of one text"
        raise StoreConfigurationError(msg)
    return cast("Hook", found)
