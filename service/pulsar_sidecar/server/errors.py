"""The only table from the sidecar's errors to HTTP status codes, and the only shape of an error's body.

Invariant: whatever goes wrong, the body is exactly ``{"reason": ...}`` as Pulsar's ``ErrorData``; no route chooses a
status code for an error. The reasons behind the choices:

* 405 while the feature is off, as Pulsar returns when topic policies are off. 409 would be wrong: PIP-186 reads it as
  "ledger still in use" and final.
* 412 for a record that differs from the ledger's metadata, as Pulsar returns for bad parameters, and for conditions
that
  only an operator can change.
* 503 for everything that may work later, an unknown outcome included: every call is safe to retry.
* 502 where a retry is not safe: a broker did not respond to a change that the sidecar passed to it.
* 307 where brokers redirect to another cluster whose sidecar is known (``clusterUrls``), else 502.
* A broker's refusal keeps the broker's status.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import structlog
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from pulsar_sidecar.model import errors
from pulsar_sidecar.observability.tracing import current_trace

_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
MAX_BODY_BYTES = 8 * 1024 * 1024
"""Space for some 50,000 records in one call."""

_MAX_REASON = 2_000
_MAX_PROBLEMS = 5
_log = structlog.get_logger(__name__)


class MismatchError(errors.InvalidInputError):
    """Raised when a well-formed record describes another ledger than the stored one."""


class NotPersistentError(errors.InvalidInputError):
    """Raised when a call makes no sense for a non-persistent topic."""


class TooLargeError(errors.InvalidInputError):
    """Raised when a request's body is larger than the service reads."""

    def __init__(self) -> None:
        super().__init__(f"the body is larger than {MAX_BODY_BYTES} bytes; send it in parts")


class ClientDisconnectedError(errors.InvalidInputError):
    """Raised when the caller disconnects before the end of its request; no defect of the sidecar."""

    def __init__(self) -> None:
        super().__init__("the caller disconnected before the end of the request's body")


STATUS_BY_ERROR: Mapping[type[errors.SidecarError], int] = {
    MismatchError: 412,
    NotPersistentError: 405,
    TooLargeError: 413,
    errors.InvalidInputError: 400,
    errors.NotAuthenticatedError: 401,
    errors.NotAuthorizedError: 403,
    errors.NotFoundError: 404,
    errors.DisabledError: 405,
    errors.ConflictError: 409,
    errors.ForeignRedirectError: 502,
    errors.PermanentError: 412,
    errors.TemporaryError: 503,
    errors.PassedChangeUnansweredError: 502,
    errors.OutcomeUnknownError: 503,
    errors.SidecarError: 500,
}

_REASONS_OF_THE_FRAMEWORK = {
    400: "the body cannot be read as JSON",
    404: "there is no such path; /openapi.json lists all paths",
    405: "this path does not support the method; see /openapi.json",
}


def status_of(error: errors.SidecarError) -> int:
    """Return the status code of an error: its own row, or the nearest ancestor's."""
    if isinstance(error, errors.BrokerRefusedError):
        return error.status if 400 <= error.status <= 499 else 502
    if isinstance(error, errors.ForeignRedirectError) and error.sidecar_url is not None:
        return 307
    return next(STATUS_BY_ERROR[kind] for kind in type(error).__mro__ if kind in STATUS_BY_ERROR)


def error_response(error: errors.SidecarError) -> JSONResponse:
    """Return an error response with the cause and the next step."""
    status = status_of(error)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(status)
    return reason_response(status, _words_of(error, status) or type(error).__name__, headers)


def _words_of(error: errors.SidecarError, status: int) -> str:
    """Return the error's text; only the broker's reason if the response already has the broker's status."""
    if isinstance(error, errors.BrokerRefusedError) and error.status == status:
        return error.reason
    return str(error)


def reason_response(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return ``{"reason": ...}``, shortened and always encodable."""
    text = reason.encode("utf-8", "replace").decode("utf-8")
    if len(text) > _MAX_REASON:
        text = text[:_MAX_REASON] + "..."
    return JSONResponse({"reason": text}, status, dict(headers or {}))


async def _sidecar_error(request: Request, error: errors.SidecarError) -> JSONResponse:
    answer = error_response(error)
    if isinstance(error, errors.ForeignRedirectError) and error.sidecar_url is not None:
        query = f"?{request.url.query}" if request.url.query else ""
        answer.headers["Location"] = f"{error.sidecar_url}{request.scope['path']}{query}"
    return answer


async def _disconnected(_: Request, __: ClientDisconnect) -> JSONResponse:
    return error_response(ClientDisconnectedError())


async def _validation(_: Request, error: RequestValidationError) -> JSONResponse:
    problems = error.errors()
    texts = [_problem(problem["loc"], problem["msg"]) for problem in problems[:_MAX_PROBLEMS]]
    if len(problems) > len(texts):
        texts.append(f"and {len(problems) - len(texts)} more")
    return reason_response(400, "; ".join(texts))


def _problem(location: tuple[str | int, ...], message: str) -> str:
    # Without the input, which may be huge or a misplaced secret.
    place = ".".join(str(part)[:80] for part in location)
    return f"{place}: {message.removeprefix('Value error, ')[:300]}"


async def _framework(request: Request, error: StarletteHTTPException) -> JSONResponse:
    reason = _REASONS_OF_THE_FRAMEWORK.get(error.status_code, str(error.detail))
    headers = {"Allow": ", ".join(_methods_of(request))} if error.status_code == 405 else error.headers
    return reason_response(error.status_code, reason, headers)


def _methods_of(request: Request) -> list[str]:
    """Return all methods of the path; the framework names only those of one route, and each method has its own."""
    asked = [{**request.scope, "method": method} for method in _METHODS]
    return [
        scope["method"] for scope in asked if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
    ]


async def unexpected_error(request: Request, error: Exception) -> JSONResponse:
    """Return the response to a defect, which names only the error's class."""
    _log.error("a request failed unexpectedly", method=request.method, error=type(error).__name__)
    request_id = current_trace().request_id
    details = f"the sidecar's log has the details, with the request_id {request_id}"
    return reason_response(500, f"unexpected {type(error).__name__}; {details}")


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    errors.SidecarError: _sidecar_error,
    RequestValidationError: _validation,
    StarletteHTTPException: _framework,
    ClientDisconnect: _disconnected,
    Exception: unexpected_error,
}
"""Handlers that route every failure of an app to this module."""
