"""The REST door: routes, errors and gate put together.

Invariant: the app holds no state and makes no decision; it can be built around any rooms.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

from anyio.to_thread import current_default_thread_limiter
from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pulsar_sidecar.api import errors, probes
from pulsar_sidecar.api.authentication import Authenticator
from pulsar_sidecar.api.gate import OPEN_PATHS, Gate
from pulsar_sidecar.api.reference import reference_page
from pulsar_sidecar.api.schemas import Healthy
from pulsar_sidecar.model.clocks import Clock, StopSignal
from pulsar_sidecar.model.errors import TemporaryError

_THREADS = 128
"""Topic deletions wait in a thread each; probes must find a free one beside them."""

_METHODS = ["DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"]
_DESCRIPTION = """Two-phase ledger deletion (PIP-186) beside unmodified brokers.

Every error's body is `{"reason": "..."}`. 400: the request is malformed. 401, 403: no valid token, or a role that is no
superuser. 404: no such path, topic, or outcome. 405: the feature is off (`topicTwoPhaseDeletionEnabled`), or the path
has another method. 409: it does not fit the present state, such as a ledger still in use. 412: the record is not what
the metadata says. 413: more than 8 MiB. 503: it may work later, so ask again; every call may be repeated. A broker's
refusal keeps the broker's status.

A topic in a path is URL-encoded, as for Pulsar's own admin service."""


def create_app(
    routers: Sequence[APIRouter],
    missing: Callable[[], str | None],
    registry: CollectorRegistry,
    authentication: Authenticator,
    *,
    clock: Clock,
    draining: StopSignal,
    own_hosts: Collection[str] = (),
    docs: bool = False,
    version: str = "0",
) -> FastAPI:
    """Build the app.

    Args:
        routers: the routes of the rooms.
        missing: says at once why no work can be done, for ``/readyz``; None when it can.
        registry: what ``/metrics`` shows.
        authentication: decides who may call.
        clock: times requests for the log.
        draining: once set, ``/readyz`` answers 503.
        own_hosts: host names under which clients reach this sidecar, beside loopback ones.
        docs: serve the reference as a page on ``/docs``.
        version: this program's.
    """
    app = _App(
        title="pulsar-sidecar",
        version=version,
        description=_DESCRIPTION,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        lifespan=_threads,
    )
    app.token_required = authentication.required
    errors.install(app)
    for router in routers:
        app.include_router(router)
    app.include_router(probes.router(missing, registry, draining))
    if docs:
        app.add_api_route("/docs", lambda: HTMLResponse(reference_page(app.openapi())), include_in_schema=False)
    app.add_middleware(Gate, authentication=authentication, own_hosts=own_hosts, clock=clock)
    return app


def create_starting_app(
    authentication: Authenticator, *, clock: Clock, own_hosts: Collection[str], missing: Callable[[], str]
) -> FastAPI:
    """The app until the rooms are open; ``missing`` says what the start waits for.

    Every path but ``/livez`` answers 503 with the reason, to those whom the gate lets pass.
    """
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=_threads)
    errors.install(app)

    @app.get("/livez")
    async def livez() -> Healthy:
        return Healthy()

    @app.api_route("/{path:path}", methods=_METHODS)
    def wait(path: str) -> None:
        raise TemporaryError(f"the sidecar is starting: {missing()}")

    app.add_middleware(Gate, authentication=authentication, own_hosts=own_hosts, clock=clock)
    return app


class Front:
    """The app that callers reach at this moment: the starting one, and later the one with the rooms."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class _App(FastAPI):
    """FastAPI with this service's document, which it makes at the first request: that takes longer than a start."""

    token_required = False

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = _with_security(super().openapi(), required=self.token_required)
        return self.openapi_schema


@asynccontextmanager
async def _threads(_: FastAPI) -> AsyncIterator[None]:
    current_default_thread_limiter().total_tokens = _THREADS
    yield


def _with_security(document: dict[str, Any], *, required: bool) -> dict[str, Any]:
    document.setdefault("components", {})["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "A Pulsar token."}
    }
    for path, operations in document["paths"].items():
        if path not in OPEN_PATHS:
            for operation in operations.values():
                # OpenAPI's way to say that the token is optional is an empty alternative.
                operation["security"] = [{"token": []}] if required else [{"token": []}, {}]
    return document
