"""What a caller is told when there is no answer: `{"error": {code, message, parameter}}`."""

import logging
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException

from stores.errors import StoreError
from stores.reading.pages import ErrorPage, ErrorView
from stores.reading.refusals import ErrorCode, ReadingRefusedError

_LOGGER = logging.getLogger("perdure.api")

_STATUS: dict[ErrorCode, HTTPStatus] = {
    "parameter_invalid": HTTPStatus.BAD_REQUEST,
    "unauthenticated": HTTPStatus.UNAUTHORIZED,
    "not_found": HTTPStatus.NOT_FOUND,
    "unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "failed": HTTPStatus.INTERNAL_SERVER_ERROR,
}

RESPONSES: dict[int | str, dict[str, object]] = {
    400: {"model": ErrorPage, "description": "`parameter_invalid`: a parameter cannot be that"},
    401: {"model": ErrorPage, "description": "`unauthenticated`: no token, or an unknown one"},
    404: {"model": ErrorPage, "description": "`not_found`: not there, or not yours"},
    503: {"model": ErrorPage, "description": "`unavailable`: MongoDB is away; ask again"},
}
"""What both endpoints may answer beside their page."""

_RETRY_AFTER_SECONDS = 1


class UnauthenticatedError(ReadingRefusedError):
    """Nobody is known by what the request brought."""

    code = "unauthenticated"


def add_error_handlers(app: FastAPI) -> None:
    """Have every error answered in the one shape."""
    app.add_exception_handler(ReadingRefusedError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(StoreError, _store_failed)
    app.add_exception_handler(HTTPException, _http_failed)
    app.add_exception_handler(Exception, _failed)


def _answer(
    code: ErrorCode,
    message: str,
    parameter: str | None = None,
    *,
    status: int | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    body = ErrorPage(error=ErrorView(code=code, message=message, parameter=parameter))
    return Response(
        body.to_json(),
        status_code=_STATUS[code] if status is None else status,
        media_type="application/json",
        headers=headers,
    )


def _refused(request: Request, error: Exception) -> Response:  # noqa: ARG001 - a handler's form
    if not isinstance(error, ReadingRefusedError):
        raise error
    challenge = {"WWW-Authenticate": "Bearer"} if error.code == "unauthenticated" else None
    return _answer(error.code, error.message, error.parameter, headers=challenge)


def _invalid(request: Request, error: Exception) -> Response:  # noqa: ARG001 - a handler's form
    if not isinstance(error, RequestValidationError):
        raise error
    name, message = misfit(error.errors()[0])
    return _answer("parameter_invalid", message, name)


def misfit(detail: ErrorDetails) -> tuple[str | None, str]:
    """Which parameter does not fit, and why; never what was given."""
    places = [each for each in detail["loc"] if each not in {"query", "path"}]
    # The parameter `query` is at the place ("query", "query") of a request.
    name = str(places[0]) if places else ("query" if "query" in detail["loc"] else None)
    if detail["type"] == "extra_forbidden":
        return name, "there is no such parameter"
    if detail["type"] == "missing":
        return name, "it is missing"
    return name, detail["msg"].removeprefix("Value error, ")


def _store_failed(request: Request, error: Exception) -> Response:
    if not isinstance(error, StoreError):
        raise error
    if error.retryable:
        headers = {"Retry-After": str(_RETRY_AFTER_SECONDS)}
        message = "what is asked for cannot be read at the moment; ask again"
        return _answer("unavailable", message, headers=headers)
    return _failed(request, error)


def _http_failed(request: Request, error: Exception) -> Response:  # noqa: ARG001 - a handler's form
    """No such path, or method: what the framework itself refuses."""
    if not isinstance(error, HTTPException):
        raise error
    is_path = error.status_code == HTTPStatus.NOT_FOUND
    code: ErrorCode = "not_found" if is_path else "parameter_invalid"
    return _answer(
        code, str(error.detail), status=error.status_code, headers=dict(error.headers or {})
    )


def _failed(request: Request, error: Exception) -> Response:
    """A defect, or a store that is unfit: told to the log, without a word of anybody's content."""
    _LOGGER.error("%s failed: %s", request.scope["path"], type(error).__name__)
    return _answer("failed", "the question could not be answered; the log of the service has more")
