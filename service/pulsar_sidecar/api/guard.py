"""What a request passes once its route is known: the right that the route takes, then the body, in this order.

Invariants: a route that does not declare what it takes cannot be made; without the right no body is read, and no route
begins; requests of one kind that wait for the cluster leave threads to the others.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from pulsar_sidecar.api.errors import MAX_BODY_BYTES, BrokenOffError, TooLargeError
from pulsar_sidecar.api.paths import subject_of
from pulsar_sidecar.api.rights import OwnerCheck, Right, Rights, reads_in_parts, right_of
from pulsar_sidecar.api.schemas import Reason
from pulsar_sidecar.model.errors import TemporaryError

READING = frozenset({"GET", "HEAD"})
READS_IN_PARTS = "reads_in_parts"
"""In a request's state, once its route reads the body while it comes in: the server then limits each pause."""
ROUTE = "route"
"""In a request's state, once its route is known: the route's path, as the reference has it."""
_AT_ONCE = 128
_PLACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Change:
    """What a request asks to change, for the line that is logged of it.

    Attributes:
        operation: the route's name.
        query: as it came; empty where the route knows no parameters, so that it may be anything.
        body: as it came; None where the route has not been reached, or reads it in parts.
    """

    operation: str
    query: str
    body: bytes | None = None


async def _owners(request: Request) -> OwnerCheck:
    check = request.state.owners
    assert isinstance(check, OwnerCheck)
    return check


Owners = Annotated[OwnerCheck, Depends(_owners)]
"""What a route of `rights.Holders.by_owner` must ask before it does anything."""


class GuardedRoute(APIRoute):
    """A route that admits who has the right which its endpoint declares (`rights.takes`).

    Attributes:
        right: what it takes.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **described: Any) -> None:
        self.right = right_of(endpoint)
        shown = {**(described.pop("openapi_extra", None) or {}), "x-takes": self.right.value.words}
        super().__init__(path, endpoint, openapi_extra=shown, **described)
        asks = any(each.call is _owners for each in self.dependant.dependencies)
        if self.right.value.by_owner != asks:
            raise TypeError(f"{path} must ask for its owners' rights if, and only if, it takes a right by owner")
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in (self.methods or ()):
            async with self._place():
                await self._admit(scope)
            receive = await self._body(scope, receive)
        async with self._place():
            await super().handle(scope, receive, send)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_PLACE_SECONDS):
                await self._places.acquire()
        except TimeoutError as error:
            raise TemporaryError(f"{_AT_ONCE} requests of this kind wait for the cluster; try again") from error
        try:
            yield
        finally:
            self._places.release()

    async def _admit(self, scope: Scope) -> None:
        state, rights = scope["state"], scope["app"].state.rights
        state[ROUTE] = self.path_format
        assert isinstance(rights, Rights)
        if self._changes(scope):
            known = bool(self.dependant.query_params)
            state["change"] = Change(self.name, scope["query_string"].decode("latin-1") if known else "")
        if self.right.value.by_owner:
            state["owners"] = OwnerCheck(rights, state["caller"], self.right)
        elif not rights.suffice(state["caller"], self.right):
            subject = await subject_of(scope["path_params"])
            await run_in_threadpool(rights.require, state["caller"], self.right, subject)

    async def _body(self, scope: Scope, receive: Receive) -> Receive:
        if reads_in_parts(self.endpoint):
            scope["state"][READS_IN_PARTS] = True
            return receive
        if scope["method"] in READING:
            return without_body(receive)
        body = await _whole_body(Headers(scope=scope), receive)
        if self._changes(scope):
            scope["state"]["change"] = replace(scope["state"]["change"], body=body)
        return _beginning_with(body, receive)

    def _changes(self, scope: Scope) -> bool:
        return self.right.value.changes and scope["method"] not in READING


def guarded_routes(app: FastAPI) -> Iterator[tuple[str, str, Right]]:
    """Method, path and right of every route, also of those that the reference leaves out, in order.

    `TypeError` if one is not guarded.
    """
    for route in iter_route_contexts(app.routes):
        original = route.original_route
        if isinstance(original, GuardedRoute):
            right = original.right
        elif route.path == app.openapi_url:
            right = Right.ROLE  # the framework's own route, which the gate admits every role to
        else:
            raise TypeError(f"{route.path} is not guarded; make its router with guarded_router")
        for method in sorted((route.methods or set()) - {"HEAD"}):
            yield method, route.path or "", right


def guarded_router(tag: str, prefix: str = "") -> APIRouter:
    """A router whose routes are guarded, with the one shape of their errors."""
    return APIRouter(prefix=prefix, tags=[tag], route_class=GuardedRoute, responses={"default": {"model": Reason}})


def without_body(receive: Receive) -> Receive:
    """For a request that wants none: one that comes nevertheless is not read."""
    return _beginning_with(b"", receive)


async def _whole_body(headers: Headers, receive: Receive) -> bytes:
    """Read the body to its end, so that one that is too large is refused before a route begins."""
    if int(headers.get("content-length", "0")) > MAX_BODY_BYTES:
        raise TooLargeError
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BrokenOffError
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY_BYTES:
            raise TooLargeError
    return bytes(body)


def _beginning_with(body: bytes, receive: Receive) -> Receive:
    replayed = False

    async def replay() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
