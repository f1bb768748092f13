"""The one table from our errors to HTTP status codes, and the one shape of an error's body.

Invariant: whatever goes wrong, the body is exactly ``{"reason": ...}`` as Pulsar's ``ErrorData``; no route chooses a
status code for an error. The reasons behind the choices:

* 405 while the feature is off, as Pulsar answers when topic policies are off. It must not be 409, which PIP-186 reads
  as "ledger still in use" and final.
* 412 for a record that differs from the ledger's metadata, as Pulsar answers bad parameters, and for what only an
  operator can change.
* 503 for everything that may work later. An unknown outcome too: asking again is safe, every call may be repeated.
* 502 where that is not so: for a change that was passed to a broker, and got no answer.
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
"""Room for some 50,000 records in one call."""

_MAX_REASON = 2_000
_MAX_PROBLEMS = 5
_log = structlog.get_logger(__name__)


class MismatchError(errors.InvalidInputError):
    """The record is well-formed and not true: the ledger is another one than it describes."""


class NotPersistentError(errors.InvalidInputError):
    """The call makes no sense for a non-persistent topic."""


class TooLargeError(errors.InvalidInputError):
    """The request's body is larger than the service reads."""

    def __init__(self) -> None:
        super().__init__(f"the body is larger than {MAX_BODY_BYTES} bytes; send it in parts")


class BrokenOffError(errors.InvalidInputError):
    """The caller left before its request had ended, as callers do: no defect of ours."""

    def __init__(self) -> None:
        super().__init__("the request broke off before its body had ended")


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
    404: "there is no such path; see /openapi.json for the ones there are",
    405: "this path has no such method; see /openapi.json",
}


def status_of(error: errors.SidecarError) -> int:
    """The status code of an error: its own row, or the nearest ancestor's."""
    if isinstance(error, errors.BrokerRefusedError):
        return error.status if 400 <= error.status <= 499 else 502
    return next(STATUS_BY_ERROR[kind] for kind in type(error).__mro__ if kind in STATUS_BY_ERROR)


def error_response(error: errors.SidecarError) -> JSONResponse:
    """The answer with what went wrong and what to do next."""
    status = status_of(error)
    headers = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}.get(status)
    return reason_response(status, _words_of(error, status) or type(error).__name__, headers)


def _words_of(error: errors.SidecarError, status: int) -> str:
    """A broker's refusal is answered with its status, so its words need no more either."""
    if isinstance(error, errors.BrokerRefusedError) and error.status == status:
        return error.reason
    return str(error)


def reason_response(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """``{"reason": ...}``, shortened, and always encodable."""
    text = reason.encode("utf-8", "replace").decode("utf-8")
    if len(text) > _MAX_REASON:
        text = text[:_MAX_REASON] + "..."
    return JSONResponse({"reason": text}, status, dict(headers or {}))


async def _ours(_: Request, error: errors.SidecarError) -> JSONResponse:
    return error_response(error)


async def _left(_: Request, __: ClientDisconnect) -> JSONResponse:
    return error_response(BrokenOffError())


async def _validation(_: Request, error: RequestValidationError) -> JSONResponse:
    problems = error.errors()
    texts = [_problem(problem["loc"], problem["msg"]) for problem in problems[:_MAX_PROBLEMS]]
    if len(problems) > len(texts):
        texts.append(f"and {len(problems) - len(texts)} more")
    return reason_response(400, "; ".join(texts))


def _problem(location: tuple[str | int, ...], message: str) -> str:
    # The input is left out: it may be huge, and it may be a secret in the wrong place.
    place = ".".join(str(part)[:80] for part in location)
    return f"{place}: {message.removeprefix('Value error, ')[:300]}"


async def _framework(request: Request, error: StarletteHTTPException) -> JSONResponse:
    reason = _REASONS_OF_THE_FRAMEWORK.get(error.status_code, str(error.detail))
    headers = {"Allow": ", ".join(_methods_of(request))} if error.status_code == 405 else error.headers
    return reason_response(error.status_code, reason, headers)


def _methods_of(request: Request) -> list[str]:
    """Every method of the path: the framework itself names those of one route, and a path has a route for each."""
    asked = [{**request.scope, "method": method} for method in _METHODS]
    return [
        scope["method"] for scope in asked if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)
    ]


async def unforeseen(request: Request, error: Exception) -> JSONResponse:
    """The answer to a defect; of the error it has the class only."""
    _log.error("a request failed in an unforeseen way", method=request.method, error=type(error).__name__)
    request_id = current_trace().request_id
    details = f"the sidecar's log has the details, with the request_id {request_id}"
    return reason_response(500, f"unforeseen {type(error).__name__}; {details}")


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    errors.SidecarError: _ours,
    RequestValidationError: _validation,
    StarletteHTTPException: _framework,
    ClientDisconnect: _left,
    Exception: unforeseen,
}
"""With these, every failure of an app ends in this module."""
