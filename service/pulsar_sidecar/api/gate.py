"""What every request passes before a route sees it: the raw path, the caller, one log line.

It is an ASGI layer because routing must see the path as it was sent: once decoded, ``a%2Fb`` and ``a/b`` are the same.
Invariants: where a token is demanded, only the open paths are answered without one; no body is read before that, and
none where none is wanted; neither a query nor a header is logged.
"""

from collections.abc import Callable, Collection
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulsar_sidecar.api.authentication import Authentication, address_of
from pulsar_sidecar.api.callers import Caller
from pulsar_sidecar.api.errors import MAX_BODY_BYTES, TooLargeError, error_response, unforeseen
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

STREAMED = "pulsar_sidecar.streamed"
"""In a scope: the body is read while the request is carried out, however long it is."""

_BULK = "/cancelDelayedMessages"
"""Its route limits each line."""

_READING = frozenset({"GET", "HEAD"})
_log = structlog.get_logger(__name__)


class Gate:
    """The layer around the app.

    Attributes:
        app: what callers reach behind the gate; until it is set, every path but ``/livez`` answers 503.
        passing: takes what goes to brokers; None while all is for ``app``.
    """

    def __init__(
        self,
        authentication: Authentication | None,
        super_user_roles: Collection[str],
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
        self._super_user_roles = frozenset(super_user_roles)
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
        status = 0

        async def remember(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        caller, is_vouched = Caller(None, "none", address_of(scope)), False
        try:
            try:
                path = _ascii(scope["raw_path"])
                is_passed = self.passing is not None and self.passing.takes(scope["method"], path)
                if path not in OPEN_PATHS:
                    caller, is_vouched = await self._admitted(scope, caller, is_passed=is_passed)
                receive = await _receiving(scope, receive, path, is_passed=is_passed)
            except SidecarError as error:
                await error_response(error)(scope, receive, remember)
            except Exception as error:
                # Only the gate's own: the app answers what goes wrong in it, and raises it again.
                answer = await unforeseen(Request(scope), error)
                await answer(scope, receive, remember)
                raise
            else:
                app = self.passing if is_passed and self.passing is not None else self.app
                state = {**scope.get("state", {}), "caller": caller, "vouched": is_vouched}
                await app({**scope, "path": path, "state": state}, receive, remember)
        finally:
            sent = scope["raw_path"].decode("latin-1")
            routine = sent in OPEN_PATHS or (scope["method"] in _READING and status < 500)
            milliseconds = round((self._clock.monotonic_seconds() - begin) * 1000, 1)
            log = _log.debug if routine else _log.info
            log(
                "request",
                method=scope["method"],
                path=sent[:500],
                status=status,
                role=caller.role,
                milliseconds=milliseconds,
            )

    async def _admitted(self, scope: Scope, unknown: Caller, *, is_passed: bool) -> tuple[Caller, bool]:
        """Who calls, and whether the caller may do everything; a broker decides for itself on what is passed to it."""
        caller = unknown
        try:
            caller = await self._caller(scope, Headers(scope=scope))
            self._authorize(caller)
        except (NotAuthenticatedError, NotAuthorizedError):
            if not is_passed or self._authentication is None:
                raise
            return caller, False
        return caller, True

    async def _caller(self, scope: Scope, headers: Headers) -> Caller:
        if self._authentication is not None:
            return await self._authentication.caller(scope)
        # Without a credential, the user's own browser must not become another site's hand.
        if not self._is_own_url("//" + headers.get("host", "")):
            raise NotAuthorizedError("the Host header is neither a loopback address nor advertisedUrl")
        origin = headers.get("origin")
        same_site = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        if not same_site or (origin is not None and not self._is_own_url(origin)):
            raise NotAuthorizedError("requests from another site's pages are refused")
        return Caller(None, "none", address_of(scope))

    def _authorize(self, caller: Caller) -> None:
        if self._authentication is not None and caller.role not in self._super_user_roles:
            raise NotAuthorizedError(f"role {(caller.role or '')[:100]!r} is not among superUserRoles")

    def _is_own_url(self, url: str) -> bool:
        try:
            host = (urlsplit(url).hostname or "").lower()
        except ValueError:
            return False
        return is_loopback(host) or host in self._own_hosts


async def _receiving(scope: Scope, receive: Receive, path: str, *, is_passed: bool) -> Receive:
    scope[STREAMED] = is_passed or path.endswith(_BULK)
    if scope["method"] in _READING or path in OPEN_PATHS:
        return _beginning_with(b"", receive)  # one that comes nevertheless is not read
    return receive if scope[STREAMED] else await _whole_body(Headers(scope=scope), receive)


async def _whole_body(headers: Headers, receive: Receive) -> Receive:
    """Read the body to its end, so that one that is too large is refused before a route begins."""
    if int(headers.get("content-length", "0")) > MAX_BODY_BYTES:
        raise TooLargeError
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidInputError("the request broke off before its body had ended")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY_BYTES:
            raise TooLargeError
    return _beginning_with(bytes(body), receive)


def _beginning_with(body: bytes, receive: Receive) -> Receive:
    replayed = False

    async def replay() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _ascii(raw_path: bytes) -> str:
    try:
        return raw_path.decode("ascii")
    except UnicodeDecodeError:
        raise InvalidInputError("the path has characters that must be written as %XX") from None
