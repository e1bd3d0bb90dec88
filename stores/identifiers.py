"""The rule that run, conversation and workspace ids follow, and an id made of two."""

import base64
import unicodedata

from stores.errors import InvalidIdentifierError

MAX_LENGTH = 200
"""Characters. The seed's file store bounds run ids at 200; one bound for every store keeps an id
that one of them accepted valid in the others."""

DEFAULT_WORKSPACE = "default"
"""The tenant of whoever names none."""


def check_identifier(kind: str, value: str) -> str:
    """Return `value` when it may serve as an id of this `kind` (the word used in the message).

    Raises:
        InvalidIdentifierError: empty, over 200 characters, with control characters, lone
            surrogates or outer white space. Not retryable.
    """
    if not value:
        problem = "is empty"
    elif len(value) > MAX_LENGTH:
        raise InvalidIdentifierError(kind, f"{value[:20]}...", f"has {len(value)} characters")
    elif value != value.strip():
        problem = "has white space at an end"
    elif any(unicodedata.category(character) in {"Cc", "Cs"} for character in value):
        problem = "holds a control character or a lone surrogate"
    else:
        return value
    raise InvalidIdentifierError(kind, value, problem)


def derive_run_id(agent_name: str, run_id: str) -> str:
    """The id of one of several runs that share `run_id` and are told apart by their agent's name.

    Raises:
        InvalidIdentifierError: the two are too long together.
    """
    # The length keeps the pair apart: ("a", "b:c") and ("a:b", "c") must not meet.
    pair = f"{len(agent_name.encode())}:{agent_name}{run_id}"
    derived = "sp-" + base64.urlsafe_b64encode(pair.encode()).decode().rstrip("=")
    if len(derived) > MAX_LENGTH:
        problem = f"has {len(derived)} characters when derived from agent_name and run id"
        kind = "run_id"
        raise InvalidIdentifierError(kind, f"{derived[:20]}...", problem)
    return derived
