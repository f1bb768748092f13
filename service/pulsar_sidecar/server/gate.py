"""The gate in front of all routes: it checks the raw path, identifies the caller and writes one log line.

It is an ASGI layer because routing must see the path as sent: once decoded, ``a%2Fb`` and ``a/b`` are the same.
Invariants: where authentication is required, only open paths and requests that brokers judge themselves pass without a
credential; this layer stops cross-site requests of browsers unless they have a token; no response becomes a live
document in a browser; the gate reads no body (`guard` does, once it has checked the right); the log shows of headers
only a refused page's origin, and of query and body only what a route accepted.
"""

import json
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulsar_sidecar.model.addresses import is_loopback
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import (
    InvalidInputError,
    NotAuthenticatedError,
    NotAuthorizedError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.server.answers import as_json
from pulsar_sidecar.server.authentication import Authentication, address_of, has_token
from pulsar_sidecar.server.callers import Caller
from pulsar_sidecar.server.csrf import is_cross_site
from pulsar_sidecar.server.errors import error_response, unexpected_error
from pulsar_sidecar.server.guard import READING, READS_IN_PARTS, Change, without_body
from pulsar_sidecar.server.pass_through import PassThrough
from pulsar_sidecar.server.schemas import Healthy

OPEN_PATHS = frozenset({"/livez", "/readyz", "/metrics"})
"""Probes and metrics, open like Pulsar's own by default."""

_INERT = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
}
"""Headers that keep a browser from running a response or treating it as part of the dashboard's origin."""
_MOST_LOGGED = 2_000
"""Most characters logged of a query or of a body."""
_NOT_UNDERSTOOD = frozenset({400, 401, 403, 413})
"""Statuses of requests whose query and body no route has checked, so that they may hold a secret."""

_log = structlog.get_logger(__name__)
_lines = logging.getLogger(__name__)
_admin = structlog.get_logger("admin")


class Gate:
    """The ASGI layer around the app.

    Attributes:
        app: app behind the gate; until it is set, every path but ``/livez`` returns 503.
        passing: handler of requests for brokers; None while ``app`` gets all of them.
    """

    def __init__(
        self,
        authentication: Authentication | None,
        own_hosts: Collection[str],
        clock: Clock,
        waits_for: Callable[[], str],
    ) -> None:
        """Initialise the gate; without ``authentication`` every client may call, which suits loopback addresses only.

        ``own_hosts`` are names under which clients reach this sidecar, besides loopback ones; ``waits_for`` returns
        the reason why the sidecar is still starting.
        """
        self.app: ASGIApp = self._starting
        self.passing: PassThrough | None = None
        self._authentication = authentication
        self._own_hosts = frozenset(host.lower() for host in own_hosts)
        self._clock = clock
        self._waits_for = waits_for

    async def _starting(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = JSONResponse(as_json(Healthy()))
        if (scope["method"], scope["path"]) != ("GET", "/livez"):
            answer = error_response(TemporaryError(f"the sidecar is starting: {self._waits_for()}"))
        await answer(scope, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # without a response to a websocket uvicorn closes the connection
            return
        begin = self._clock.monotonic_seconds()
        answer = _Answer()

        async def remember(message: Message) -> None:
            answer.note(message)
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_INERT)
            await send(message)

        caller = Caller(None, "none", address_of(scope))
        state = scope.setdefault("state", {})  # of this request only; the server reads it too
        state["change"] = None
        try:
            try:
                path = _ascii(scope["raw_path"])
                passing = self._passing(scope["method"], path)
                if path not in OPEN_PATHS:
                    caller = await self._caller(scope, caller, is_passed=passing is not None)
            except SidecarError as error:
                await error_response(error)(scope, receive, remember)
            except Exception as error:
                # Only the gate's own errors: the app responds to its errors itself before it raises them again.
                await (await unexpected_error(Request(scope), error))(scope, receive, remember)
                raise
            else:
                state["caller"] = caller
                if passing is not None:
                    receive = _to_be_passed(scope, receive)
                await (passing or self.app)({**scope, "path": path}, receive, remember)
        finally:
            milliseconds = round((self._clock.monotonic_seconds() - begin) * 1000, 1)
            _log_request(scope, caller, state["change"], answer, milliseconds)

    def _passing(self, method: str, path: str) -> PassThrough | None:
        """Return the pass-through if the request is for a broker."""
        return self.passing if self.passing is not None and self.passing.takes(method, path) else None

    async def _caller(self, scope: Scope, unknown: Caller, *, is_passed: bool) -> Caller:
        headers = Headers(scope=scope)
        # A cross-site page cannot add a token: its browser would ask first (CORS), and no response allows it.
        if self._authentication is None or not has_token(headers):
            _refuse_cross_site(scope, headers)
        if self._authentication is None:
            # DNS rebinding: a page whose name now resolves to this address has this origin to the browser.
            if not self._is_own_url("//" + headers.get("host", "")):
                raise NotAuthorizedError("the Host header is neither a loopback address nor advertisedUrl")
            return unknown
        try:
            return await self._authentication.caller(scope)
        except NotAuthenticatedError:
            if not is_passed:  # otherwise the broker decides
                raise
            return unknown

    def _is_own_url(self, url: str) -> bool:
        try:
            host = (urlsplit(url).hostname or "").lower()
        except ValueError:
            return False
        return is_loopback(host) or host in self._own_hosts


def _refuse_cross_site(scope: Scope, headers: Headers) -> None:
    if is_cross_site(headers, scope["scheme"]):
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        _log.warning(
            "refused a request from another site's page",
            method=scope["method"],
            path=scope["raw_path"].decode("latin-1")[:500],
            origin=None if origin is None else origin[:200],
            site=None if site is None else site[:200],
        )
        raise NotAuthorizedError(
            "requests from another site's page are refused (Origin, Sec-Fetch-Site), since the browser adds "
            "certificate and cookies by itself; send a token (Authorization: Bearer ...), or call from a program"
        )


def _to_be_passed(scope: Scope, receive: Receive) -> Receive:
    if scope["method"] in READING:
        return without_body(receive)
    scope["state"] |= {READS_IN_PARTS: True, "change": Change("passed_to_a_broker", "")}
    return receive


@dataclass(slots=True)
class _Answer:
    """The part of a response that the log shows.

    Attributes:
        status: HTTP status; 0 until a response begins.
    """

    status: int = 0
    _error: bytes = b""

    def note(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self.status >= 400 and not self._error:
            self._error = message.get("body", b"")[: 2 * _MOST_LOGGED]

    @property
    def reason(self) -> str | None:
        """Reason of the refusal or failure; None on success, or if the response has no reason of the sidecar's."""
        try:
            return str(json.loads(self._error)["reason"])[:_MOST_LOGGED]
        except (ValueError, KeyError, TypeError):
            return None


def _log_request(scope: Scope, caller: Caller, change: Change | None, answer: _Answer, milliseconds: float) -> None:
    """Log one line for a request; for a change also its caller, address, content and outcome."""
    sent = scope["raw_path"].decode("latin-1")
    routine = change is None and (sent in OPEN_PATHS or (scope["method"] in READING and answer.status < 500))
    if routine and not _lines.isEnabledFor(logging.DEBUG):  # structlog checks only once it has bound the line
        return
    line = {"method": scope["method"], "path": sent[:500], "status": answer.status, "role": caller.role}
    if change is None:
        (_log.debug if routine else _log.info)("request", **line, milliseconds=milliseconds)
        return
    understood = answer.status not in _NOT_UNDERSTOOD
    _admin.info(
        "admin request",
        **line,
        authenticated_by=caller.method,
        address=caller.address,
        operation=change.operation,
        query=change.query[:_MOST_LOGGED] if understood else None,
        body=(change.body or b"").decode("utf-8", "replace")[:_MOST_LOGGED] if understood else None,
        reason=answer.reason,
        milliseconds=milliseconds,
    )


def _ascii(raw_path: bytes) -> str:
    try:
        return raw_path.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidInputError("the path has characters that must be written as %XX") from None
