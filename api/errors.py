"""What a caller is told when there is no answer: `{"error": {code, message, parameter}}`."""

import logging
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from stores.errors import StoreConfigurationError, StoreError
from stores.reading.pages import ErrorPage, ErrorView
from stores.reading.refusals import ErrorCode, ReadingRefusedError, refusal_of

_LOGGER = logging.getLogger("perdure.api")

_STATUS: dict[ErrorCode, HTTPStatus] = {
    "parameter_invalid": HTTPStatus.BAD_REQUEST,
    "unauthenticated": HTTPStatus.UNAUTHORIZED,
    "not_found": HTTPStatus.NOT_FOUND,
    "method_not_allowed": HTTPStatus.METHOD_NOT_ALLOWED,
    "unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "failed": HTTPStatus.INTERNAL_SERVER_ERROR,
}

RESPONSES: dict[int | str, dict[str, object]] = {
    400: {"model": ErrorPage, "description": "`parameter_invalid`: a parameter cannot be that"},
    401: {"model": ErrorPage, "description": "`unauthenticated`: no token, or an unknown one"},
    404: {"model": ErrorPage, "description": "`not_found`: not there, or not yours"},
    503: {"model": ErrorPage, "description": "`unavailable`: MongoDB is away; ask again"},
    "default": {"model": ErrorPage, "description": "any other error"},
}
"""What both endpoints may answer beside their page."""

_RETRY_AFTER_SECONDS = 1


class UnauthenticatedError(ReadingRefusedError):
    """Nobody is known by what the request brought."""

    code = "unauthenticated"


class UnavailableError(ReadingRefusedError):
    """Somebody else has to be asked first, and does not answer."""

    code = "unavailable"


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


def _invalid(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    return _refused(request, refusal_of(error.errors()[0]))


def _store_failed(request: Request, error: Exception) -> Response:
    """MongoDB is away, or lacks something that its operator has to give it."""
    if not isinstance(error, StoreError):
        raise error
    _LOGGER.warning("%s: %s: %s", request.scope["path"], type(error).__name__, error)
    if not error.retryable and not isinstance(error, StoreConfigurationError):
        return _failed(request, error)
    message = "what is asked for cannot be read at the moment; ask again"
    return _answer("unavailable", message, headers={"Retry-After": str(_RETRY_AFTER_SECONDS)})


def _http_failed(request: Request, error: Exception) -> Response:  # noqa: ARG001 - a handler's form
    """No such path, or method: what the framework itself refuses."""
    if not isinstance(error, HTTPException):
        raise error
    code: ErrorCode = "parameter_invalid"
    for each, status in _STATUS.items():
        if status == error.status_code:
            code = each
    headers = dict(error.headers or {})
    return _answer(code, str(error.detail), status=error.status_code, headers=headers)


def _failed(request: Request, error: Exception) -> Response:  # noqa: ARG001 - a handler's form
    """A defect; the server logs where it is."""
    return _answer("failed", "the question could not be answered; the log of the service has more")
