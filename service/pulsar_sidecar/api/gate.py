"""What every request passes before a route sees it: the raw path, the caller, one log line.

It is an ASGI layer because routing must see the path as it was sent: once decoded, ``a%2Fb`` and ``a/b`` are the same.
Invariants: where a credential is demanded, only the open paths are answered without one, and what brokers judge
themselves; what a browser asks for another site's page goes no further than this layer, unless a token came with it;
no answer becomes a live document in a browser; the gate reads no body (`guard` does, once the right is there); of
headers only a refused page's origin is logged, and of a query and a body only what a route accepted.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulsar_sidecar.api.authentication import Authentication, address_of, has_token
from pulsar_sidecar.api.callers import Caller
from pulsar_sidecar.api.errors import error_response, unforeseen
from pulsar_sidecar.api.guard import READING, READS_IN_PARTS, Change, without_body
from pulsar_sidecar.api.other_sites import is_of_another_site
from pulsar_sidecar.api.pass_through import PassThrough
from pulsar_sidecar.api.schemas import Healthy
from pulsar_sidecar.model.addresses import is_loopback
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import (
    InvalidInputError,
    NotAuthenticatedError,
    NotAuthorizedError,
    SidecarError,
    TemporaryError,
)

OPEN_PATHS = frozenset({"/livez", "/readyz", "/metrics"})
"""Probes and metrics: open, as Pulsar's own are by default."""

_INERT = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
}
"""A browser that shows an answer runs nothing of it, and treats it as no part of the dashboard's origin."""
_MOST_LOGGED = 2_000
"""Characters of a query or of a body."""
_NOT_UNDERSTOOD = frozenset({400, 401, 403, 413})
"""Answers before which a route has not checked the query and the body, so that they may hold a secret."""

_log = structlog.get_logger(__name__)
_audit = structlog.get_logger("audit")


class Gate:
    """The layer around the app.

    Attributes:
        app: what callers reach behind the gate; until it is set, every path but ``/livez`` answers 503.
        passing: takes what goes to brokers; None while all is for ``app``.
    """

    def __init__(
        self,
        authentication: Authentication | None,
        own_hosts: Collection[str],
        clock: Clock,
        waits_for: Callable[[], str],
    ) -> None:
        """``authentication`` None: every client may call, which is fit for a loopback address only.

        ``own_hosts`` are names under which clients reach this sidecar, beside loopback ones; ``waits_for`` answers
        what the start waits for.
        """
        self.app: ASGIApp = self._starting
        self.passing: PassThrough | None = None
        self._authentication = authentication
        self._own_hosts = frozenset(host.lower() for host in own_hosts)
        self._clock = clock
        self._waits_for = waits_for

    async def _starting(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = JSONResponse(Healthy().model_dump())
        if (scope["method"], scope["path"]) != ("GET", "/livez"):
            answer = error_response(TemporaryError(f"the sidecar is starting: {self._waits_for()}"))
        await answer(scope, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # a websocket is left unanswered: uvicorn then closes the connection
            return
        begin = self._clock.monotonic_seconds()
        answer = _Answer()

        async def remember(message: Message) -> None:
            answer.note(message)
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_INERT)
            await send(message)

        caller = Caller(None, "none", address_of(scope))
        state = scope.setdefault("state", {})  # of this request only; the server looks at it too
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
                # Only the gate's own: the app answers what goes wrong in it, and raises it again.
                await (await unforeseen(Request(scope), error))(scope, receive, remember)
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
        """What takes the request if it is for a broker."""
        return self.passing if self.passing is not None and self.passing.takes(method, path) else None

    async def _caller(self, scope: Scope, unknown: Caller, *, is_passed: bool) -> Caller:
        headers = Headers(scope=scope)
        # A page elsewhere cannot add a token: its browser would ask first (CORS), and no answer allows it.
        if self._authentication is None or not has_token(headers):
            _refuse_other_sites(scope, headers)
        if self._authentication is None:
            # The page of a name that was rebound to this address is of this origin to the browser.
            if not self._is_own_url("//" + headers.get("host", "")):
                raise NotAuthorizedError("the Host header is neither a loopback address nor advertisedUrl")
            return unknown
        try:
            return await self._authentication.caller(scope)
        except NotAuthenticatedError:
            if not is_passed:  # otherwise the broker decides for itself
                raise
            return unknown

    def _is_own_url(self, url: str) -> bool:
        try:
            host = (urlsplit(url).hostname or "").lower()
        except ValueError:
            return False
        return is_loopback(host) or host in self._own_hosts


def _refuse_other_sites(scope: Scope, headers: Headers) -> None:
    if is_of_another_site(headers, scope["scheme"]):
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        _log.warning(
            "refused a request of another site's page",
            method=scope["method"],
            path=scope["raw_path"].decode("latin-1")[:500],
            origin=None if origin is None else origin[:200],
            site=None if site is None else site[:200],
        )
        raise NotAuthorizedError(
            "requests of another site's page are refused (Origin, Sec-Fetch-Site), since the browser adds certificate "
            "and cookies by itself; send a token (Authorization: Bearer ...), or call from a program"
        )


def _to_be_passed(scope: Scope, receive: Receive) -> Receive:
    if scope["method"] in READING:
        return without_body(receive)
    scope["state"] |= {READS_IN_PARTS: True, "change": Change("passed_to_a_broker", "")}
    return receive


@dataclass(slots=True)
class _Answer:
    """What went back, as far as the log wants it.

    Attributes:
        status: 0 until an answer begins.
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
        """Why it was refused or failed; None if it was not, or the answer has no reason of ours."""
        try:
            return str(json.loads(self._error)["reason"])[:_MOST_LOGGED]
        except (ValueError, KeyError, TypeError):
            return None


def _log_request(scope: Scope, caller: Caller, change: Change | None, answer: _Answer, milliseconds: float) -> None:
    """One line for each request; one that asks for a change names who asked, from where, for what, and how it ended."""
    sent = scope["raw_path"].decode("latin-1")
    line = {"method": scope["method"], "path": sent[:500], "status": answer.status, "role": caller.role}
    if change is None:
        routine = sent in OPEN_PATHS or (scope["method"] in READING and answer.status < 500)
        (_log.debug if routine else _log.info)("request", **line, milliseconds=milliseconds)
        return
    understood = answer.status not in _NOT_UNDERSTOOD
    _audit.info(
        "change",
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
