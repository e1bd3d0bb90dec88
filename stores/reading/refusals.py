"""Why a question is not answered: one code each, for HTTP and for models alike."""

from typing import ClassVar, Literal

from pydantic_core import ErrorDetails

ErrorCode = Literal[
    "parameter_invalid",
    "unauthenticated",
    "not_found",
    "method_not_allowed",
    "unavailable",
    "failed",
]


class ReadingRefusedError(Exception):
    """A question that has no answer; `parameter` is what it was about, where one was."""

    code: ClassVar[ErrorCode]

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        self.message = message
        self.parameter = parameter
        super().__init__(message)


class ParameterInvalidError(ReadingRefusedError):
    """A parameter cannot be what it is, whatever is stored."""

    code = "parameter_invalid"


class NotFoundError(ReadingRefusedError):
    """There is nothing of that id that the caller may read; it does not tell which of the two."""

    code = "not_found"


def no_workspace() -> NotFoundError:
    """There is none, or the caller is no member."""
    message = "there is no such workspace, or you are no member of it"
    return NotFoundError(message, parameter="workspace_public_id")


def no_conversation() -> NotFoundError:
    """There is none in the workspace, or the caller may not read it."""
    message = "the workspace has no such conversation, or you may not read it"
    return NotFoundError(message, parameter="conversation_public_id")


def refusal_of(detail: ErrorDetails) -> ParameterInvalidError:
    """What pydantic found wrong with a parameter; never what was given."""
    places = [each for each in detail["loc"] if each not in {"query", "path"}]
    # The parameter `query` is at the place ("query", "query") of a request.
    name = str(places[0]) if places else ("query" if "query" in detail["loc"] else None)
    words = {"extra_forbidden": "there is no such parameter", "missing": "it is missing"}
    message = words.get(detail["type"], detail["msg"].removeprefix("Value error, "))
    return ParameterInvalidError(message, parameter=name)
