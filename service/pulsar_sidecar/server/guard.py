"""Checks of a request once its route is known: first the right that the route takes, then the body.

Invariants: a route that declares no right cannot be created; without the right the sidecar reads no body and runs no
route; requests of one kind that wait for the cluster leave threads for the others.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.server.errors import MAX_BODY_BYTES, ClientDisconnectedError, TooLargeError
from pulsar_sidecar.server.paths import subject_of
from pulsar_sidecar.server.rights import OwnerCheck, Right, Rights, reads_in_parts, right_of
from pulsar_sidecar.server.schemas import REASON

READING = frozenset({"GET", "HEAD"})
READS_IN_PARTS = "reads_in_parts"
"""Key in a request's state, set when its route streams the body: the server then limits each pause."""
ROUTE = "route"
"""Key in a request's state of the route's path as the reference shows it, set once the route is known."""
_AT_ONCE = 128
_PLACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Change:
    """A requested change, for its log line.

    Attributes:
        operation: name of the route.
        query: raw query; empty if the route declares no parameters, since it may then hold anything.
        body: raw body; None if the request has not reached the route, or the route reads it in parts.
    """

    operation: str
    query: str
    body: bytes | None = None


async def _owners(request: Request) -> OwnerCheck:
    check = request.state.owners
    assert isinstance(check, OwnerCheck)
    return check


Owners = Annotated[OwnerCheck, Depends(_owners)]
"""Owner check that a route of `rights.Holders.by_owner` must make before anything else."""


class GuardedRoute(APIRoute):
    """A route that admits only callers with the right that its endpoint declares (`rights.takes`).

    Attributes:
        right: required right.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **described: Any) -> None:
        self.right = right_of(endpoint)
        shown = {**(described.pop("openapi_extra", None) or {}), "x-takes": self.right.value.words}
        super().__init__(path, endpoint, openapi_extra=shown, **described)
        asks = any(each.call is _owners for each in self.dependant.dependencies)
        if self.right.value.by_owner != asks:
            raise TypeError(f"{path} must check the owners' rights if, and only if, its right depends on owners")
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
            async with asyncio.timeout(_PLACE_SECONDS) if self._places.locked() else nullcontext():
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
    """Yield method, path and right of every route in order, including those missing from the reference.

    Raises:
        TypeError: a route is not guarded.
    """
    for route in app.routes:
        assert isinstance(route, Route)
        if isinstance(route, GuardedRoute):
            right = route.right
        elif route.path == app.openapi_url:
            right = Right.ROLE  # the framework's own route, to which the gate admits every role
        else:
            raise TypeError(f"{route.path} is not guarded; make its router with guarded_router")
        for method in sorted((route.methods or set()) - {"HEAD"}):
            yield method, route.path, right


def guarded_router(tag: str, prefix: str = "") -> APIRouter:
    """Return a router with guarded routes and the common shape of errors."""
    return APIRouter(
        prefix=prefix,
        tags=[tag],
        route_class=GuardedRoute,
        # No model: FastAPI would build a validator of it for each route.
        responses={"default": {"content": REASON}},
        generate_unique_id_function=_operation_id,
    )


def _operation_id(route: APIRoute) -> str:
    """Return the route's name in camelCase; a test proves that each is unique."""
    first, *others = route.name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in others)


def without_body(receive: Receive) -> Receive:
    """Return a ``receive`` with an empty body, for requests whose body the sidecar ignores."""
    return _beginning_with(b"", receive)


async def _whole_body(headers: Headers, receive: Receive) -> bytes:
    """Read the whole body, so that the sidecar refuses one that is too large before a route runs."""
    if int(headers.get("content-length", "0")) > MAX_BODY_BYTES:
        raise TooLargeError
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
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
