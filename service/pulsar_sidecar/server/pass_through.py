"""Pass-through of requests that the sidecar does not serve to a broker, which judges the caller's own credential.

Invariants: the sidecar never passes a path that its own routes serve, however it is spelled, except those of
`Right.BROKERS`, after their first phase; it buffers at most `_KEPT_BYTES` of a body; it drops the caller's headers that
brokers trust from a proxy, and the broker's headers that a browser would apply to the sidecar's own pages.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Message, Receive, Scope, Send

from pulsar_sidecar.model.errors import (
    InvalidInputError,
    PassedChangeUnansweredError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.passed_requests import BrokerAnswer, Brokers, PassedRequest
from pulsar_sidecar.reports.formatting import format_count
from pulsar_sidecar.server.callers import Caller
from pulsar_sidecar.server.errors import ClientDisconnectedError, error_response
from pulsar_sidecar.server.guard import READING, Change, GuardedRoute
from pulsar_sidecar.server.paths import NAMESPACE_PATH, V1_NAMESPACE_PATH, V1_PATH, V2_PATH, is_ambiguous
from pulsar_sidecar.server.rights import Right, Rights

PREFIXES = ("/admin/", "/lookup/")
_BROKERS_TOO = frozenset(
    {V2_PATH, f"{V2_PATH}/partitions", V1_PATH, f"{V1_PATH}/partitions", NAMESPACE_PATH, V1_NAMESPACE_PATH}
)
"""Paths where brokers have further methods; at every other path of the sidecar another method is a mistake."""
_KEPT_BYTES = 1024 * 1024
"""Longest body that the sidecar can resend after a broker's redirect."""
_HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    }
)
_NOT_PASSED = re.compile(
    r"host|expect|cookie|x.original.*|x.forwarded.*|forwarded|via|x.real.ip|x.proxied.https|proxy.(auth.cert|ssl.id)"
)
"""Headers that brokers trust from a proxy for its client's role, address and connection; cookies are the dashboard's.
The dots match any character, because a proxy in front of a broker may read ``_`` as ``-``.
"""
_NOT_RETURNED = re.compile(
    r"date|set-cookie2?|access-control-.*|content-security-policy-report-only|clear-site-data|refresh|alt-svc|nel|"
    r"strict-transport-security|service-worker-allowed|report-to|reporting-endpoints"
)
"""Headers that a browser would apply to all pages of the sidecar's address, and the date, which the server sets."""
_UNRESERVED = re.compile(r"%(2[DE]|3\d|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])", re.IGNORECASE)
_UNWATCHED_SECONDS = 0.5
_AT_ONCE = 500
_log = structlog.get_logger(__name__)


Unanswered = Callable[[], Awaitable[Response]]
"""Response to the caller if no broker responded."""


@dataclass(frozen=True, slots=True)
class RequestToPass:
    """A request that the sidecar prepares before a broker gets it.

    Attributes:
        path_params: path parameters of its route, still encoded.
        query: raw query.
    """

    path_params: Mapping[str, str]
    query: str
    caller: Caller
    rights: Rights


First = Callable[[RequestToPass], Awaitable[Unanswered | None]]
"""Preparation of a request; raises if the sidecar must not pass it."""
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., object])


def passed_after(first: First) -> Callable[[_Endpoint], _Endpoint]:
    """Declare a route of `Right.BROKERS`: the sidecar passes its requests once ``first`` is done."""

    def declared(endpoint: _Endpoint) -> _Endpoint:
        endpoint.__dict__.update(right=Right.BROKERS, first=first)
        return endpoint

    return declared


class PassThrough:
    """The ASGI app that passes requests to brokers."""

    def __init__(self, brokers: Brokers, routes: Sequence[BaseRoute], rights: Rights, at_once: int = _AT_ONCE) -> None:
        """Initialise with the sidecar's own ``routes``, to which ``at_once`` leaves connections while brokers hang."""
        self._brokers, self._rights = brokers, rights
        self._passed, self._at_once = 0, at_once
        self._prepared = _prepared(routes)
        self._own, self._own_alone = _patterns(routes, self._prepared)

    def takes(self, method: str, path: str) -> bool:
        """Return True if the request is for a broker; ``path`` is the raw one."""
        if not path.startswith(PREFIXES):
            return False
        # Another spelling that brokers read alike is the sidecar's path too; the app refuses it.
        plain = _plain(path)
        own = self._own.get(method, self._own_alone)
        return own.fullmatch(plain) is None and self._own_alone.fullmatch(plain) is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            target = _target(scope)
            body = await _body(receive)
            headers = _passed_headers(Headers(scope=scope), scope["client"], is_whole=isinstance(body, bytes))
            caller = scope["state"]["caller"]
            vouched = self._rights.suffice(caller, Right.EVERYTHING)
            by_certificate = caller.role if caller.method == "certificate" else None
            request = PassedRequest(scope["method"], target, headers, body, vouched, by_certificate)
            exchange = self._exchange(request, scope, receive, send)
            await (_cancel_on_disconnect(exchange, receive) if isinstance(body, bytes) else exchange)
        except SidecarError as error:
            await error_response(error)(scope, receive, send)

    async def _exchange(self, request: PassedRequest, scope: Scope, receive: Receive, send: Send) -> None:
        if self._passed >= self._at_once:
            raise TemporaryError(f"{format_count(self._passed, 'passed request')} already wait for brokers; try again")
        self._passed += 1
        try:
            unanswered = await self._first(scope)
            try:
                async with self._brokers.answer(request) as answer:
                    await _return(answer, send)
            except PassedChangeUnansweredError:
                if unanswered is None:
                    raise
                await (await unanswered())(scope, receive, send)
        finally:
            self._passed -= 1

    async def _first(self, scope: Scope) -> Unanswered | None:
        if scope["method"] in READING:
            return None
        plain = {**scope, "path": _plain(scope["path"])}
        for route in self._prepared:
            match, found = route.matches(plain)
            if match is Match.FULL:
                # A broker may know more query parameters than the route.
                scope["state"]["change"] = Change(route.name, "")
                query = scope["query_string"].decode("latin-1")
                to_be_passed = RequestToPass(found["path_params"], query, scope["state"]["caller"], self._rights)
                first: First = route.endpoint.__dict__["first"]
                return await first(to_be_passed)
        return None


async def _cancel_on_disconnect(exchange: Coroutine[object, object, None], receive: Receive) -> None:
    """Run the exchange, and cancel it if the caller disconnects; a streamed body detects that itself."""
    exchanging = asyncio.current_task()
    assert exchanging is not None
    leaving: asyncio.Task[None] | None = None

    def end(left: asyncio.Task[None]) -> None:
        if not left.cancelled():
            exchanging.cancel()

    def watch() -> None:
        nonlocal leaving
        leaving = asyncio.ensure_future(_disconnected(receive))
        leaving.add_done_callback(end)

    # Most responses come sooner, and a task for each would cost more than everything else here.
    watching = asyncio.get_running_loop().call_later(_UNWATCHED_SECONDS, watch)
    try:
        await exchange
    except asyncio.CancelledError:
        if leaving is None or not leaving.done() or leaving.cancelled():
            raise
        exchanging.uncancel()
    finally:
        watching.cancel()
        if leaving is not None:
            leaving.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _return(answer: BrokerAnswer, send: Send) -> None:
    received = Headers(raw=[(name.lower(), value) for name, value in answer.headers])
    dropped = _HOP_BY_HOP | _of_the_connection(received)
    named = [(name.decode("latin-1"), value) for name, value in received.raw]
    headers = [
        (name.encode("latin-1"), value)
        for name, value in named
        if name not in dropped and not _NOT_RETURNED.fullmatch(name)
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    length = received.get("content-length", "")
    left, is_ended = int(length) if length.isdecimal() else -1, False
    try:
        async for piece in answer.pieces():
            left -= len(piece)
            is_ended = left == 0
            await send({"type": "http.response.body", "body": piece, "more_body": not is_ended})
    except SidecarError as error:
        # Part of the response is sent. Without its end the server closes the connection, so that the caller notices.
        _log.warning("a broker's response was interrupted", error=str(error))
        return
    if not is_ended:
        await send({"type": "http.response.body", "body": b""})


def _patterns(
    routes: Sequence[BaseRoute], passed: Sequence[BaseRoute]
) -> tuple[Mapping[str, re.Pattern[str]], re.Pattern[str]]:
    """Return one pattern of the routes' paths for each method, and one of the paths where brokers have none."""
    paths: dict[str, list[str]] = {}
    alone: list[str] = []
    for route in routes:
        if isinstance(route, Route) and route not in passed:
            pattern = re.sub(r"\?P<\w+>", "?:", route.path_regex.pattern)
            for method in route.methods or ():
                paths.setdefault(method, []).append(pattern)
            if route.path not in _BROKERS_TOO:
                alone.append(pattern)
    return {method: re.compile("|".join(patterns)) for method, patterns in paths.items()}, re.compile("|".join(alone))


def _plain(path: str) -> str:
    return _UNRESERVED.sub(lambda escape: chr(int(escape[1], 16)), path).rstrip("/")


def _prepared(routes: Sequence[BaseRoute]) -> list[GuardedRoute]:
    return [route for route in routes if isinstance(route, GuardedRoute) and route.right is Right.BROKERS]


def _target(scope: Scope) -> str:
    path = scope["path"]
    if is_ambiguous(path):
        raise InvalidInputError("the path has an empty segment, a step (. or ..) or a raw ';'; write names URL-encoded")
    query = scope["query_string"].decode("latin-1")
    return f"{path}?{query}" if query else path


def _passed_headers(headers: Headers, client: Sequence[object] | None, *, is_whole: bool) -> list[tuple[str, str]]:
    dropped = _HOP_BY_HOP | _of_the_connection(headers)
    if is_whole:  # the length is counted again, because the sidecar ignores the body of a read
        dropped |= {"content-length"}
    passed = [each for each in headers.items() if each[0] not in dropped and not _NOT_PASSED.fullmatch(each[0])]
    return [*passed, ("x-forwarded-for", str(client[0]))] if client else passed


def _of_the_connection(headers: Headers) -> frozenset[str]:
    """Return the headers that the ``Connection`` header lists."""
    return frozenset(part.strip().lower() for value in headers.getlist("connection") for part in value.split(","))


async def _body(receive: Receive) -> bytes | AsyncIterator[bytes]:
    """Return the whole body, or an iterator of its pieces if it is longer than `_KEPT_BYTES`."""
    kept = bytearray()
    more = True
    while more:
        piece, more = _piece(await receive())
        kept += piece
        if more and len(kept) > _KEPT_BYTES:
            return _pieces(bytes(kept), receive)
    return bytes(kept)


async def _pieces(first: bytes, receive: Receive) -> AsyncIterator[bytes]:
    yield first
    more = True
    while more:
        piece, more = _piece(await receive())
        if piece:
            yield piece


def _piece(message: Message) -> tuple[bytes, bool]:
    if message["type"] == "http.disconnect":
        raise ClientDisconnectedError
    return message.get("body", b""), message.get("more_body", False)
