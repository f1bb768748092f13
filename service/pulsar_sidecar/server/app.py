"""The REST server: the features' routes, and those for callers, Kubernetes, Prometheus and readers of the reference.

Invariant: an app holds no state and makes no decision; it can be built around any features.
"""

from collections.abc import Callable, Iterable
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from jinja2 import Environment
from prometheus_client import CollectorRegistry, generate_latest
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pulsar_sidecar.model.clocks import StopSignal
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.observability.metrics import CONTENT_TYPE
from pulsar_sidecar.server.callers import Caller, CallerRights
from pulsar_sidecar.server.document import complete
from pulsar_sidecar.server.errors import HANDLERS
from pulsar_sidecar.server.guard import GuardedRoute, guarded_router, guarded_routes
from pulsar_sidecar.server.rights import Right, Rights, takes
from pulsar_sidecar.server.schemas import Healthy

_DESCRIPTION = """Operator's tools beside unmodified brokers: two-phase ledger deletion (PIP-186), delayed messages
(PIP-423) and their index (PIP-195), acknowledgement state (PIP-299), deduplication (PIP-6).

The body of every error is `{"reason": "..."}`. 400: the request is malformed. 401, 403: no valid credential, or a role
without the right. 404: no such path, topic, or outcome. 405: the feature is off (`topicTwoPhaseDeletionEnabled`,
`delayedMessageCancellingEnabled`, `auditsDirectory`), or the path does not support the method. 409: the request does
not fit the current state, such as a ledger still in use. 412: the record does not match the ledger's metadata. 413:
more than 8 MiB. 503: it may work later, so retry; every call may be repeated. A broker's refusal keeps the broker's
status.

Every response carries the id of its request in `X-Request-Id`: the caller's own (at most 128 of `0-9A-Za-z._:/+=@~-`),
or a new one. The sidecars log it as `request_id` in each line about the request.

The sidecar passes every other path below `/admin/` and `/lookup/` to a broker (`adminPassThroughEnabled`), with the
caller's own credential. There, 502: no response came to a change, so it may have taken effect.

A topic in a path is URL-encoded, as for Pulsar's own admin service."""

_OF_NO_ROLE = Rights()

# A plain page without scripts or resources of other hosts.
_REFERENCE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{{ info.title }}</title></head><body>
<h1>{{ info.title }}</h1><pre>{{ info.description }}</pre>
{% for path, operations in paths.items() %}{% for method, operation in operations.items() %}
<h2><code>{{ method | upper }} {{ path }}</code></h2><p>{{ operation.description }}</p>
<ul>{% for one in operation.parameters %}<li><code>{{ one.name }}</code> {{ one.description }}</li>{% endfor %}</ul>
{% endfor %}{% endfor %}
<p>All fields and types: <a href="openapi.json">openapi.json</a></p></body></html>"""


def create_app(
    routers: Iterable[APIRouter],
    missing: Callable[[], str | None],
    registry: CollectorRegistry,
    draining: StopSignal,
    rights: Rights = _OF_NO_ROLE,
    *,
    token_required: bool = False,
    docs: bool = False,
    version: str = "0",
    cluster: str | None = None,
) -> FastAPI:
    """Build the app that `gate.Gate` wraps.

    ``missing`` returns at once the reason why the sidecar cannot work, None if it can; ``/readyz`` reports the reason,
    and returns 503 once ``draining`` is set. ``rights`` decide each caller's access. ``token_required`` marks tokens as
    required in the reference; ``docs`` serves the reference as a page. ``cluster`` is the name that callers see.
    """
    routers = (*routers, _callers(rights, cluster), _probes(missing, registry, draining))
    app = _App(
        # An included router's routes would be built, and matched, twice.
        routes=[route for router in routers for route in router.routes],
        title="pulsar-sidecar",
        version=version,
        description=_DESCRIPTION,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        exception_handlers=HANDLERS,
    )
    app.token_required = token_required
    app.state.rights = rights
    app.router.route_class = GuardedRoute
    if docs:
        page = Environment(autoescape=True).from_string(_REFERENCE)

        @app.get("/docs", include_in_schema=False)
        @takes(Right.ROLE)
        def reference() -> HTMLResponse:
            return HTMLResponse(page.render(app.openapi()))

    list(guarded_routes(app))  # an unguarded route aborts the start
    app.router.middleware_stack = _PlainPathsFirst(app.router)
    return app


class _PlainPathsFirst:
    """Router that looks up paths without parameters, since a hundred patterns take longer than most responses."""

    def __init__(self, router: APIRouter) -> None:
        self._router = router
        self._plain = {
            (method, route.path): route
            for route in reversed(router.routes)
            if isinstance(route, Route) and not route.param_convertors
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._plain.get((scope["method"], scope["path"]))
        if route is None:
            await self._router.app(scope, receive, send)
        else:
            scope["router"] = self._router
            scope.update(route.matches(scope)[1])
            await route.handle(scope, receive, send)


class _App(FastAPI):
    """FastAPI with this service's document, built at the first request because that takes longer than a start."""

    token_required = False

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = complete(super().openapi(), token_required=self.token_required)
        return self.openapi_schema


def _callers(rights: Rights, cluster: str | None) -> APIRouter:
    routes = guarded_router("callers")

    @routes.get("/admin/v2/caller")
    @takes(Right.ROLE)
    async def caller(request: Request) -> CallerRights:
        """Return the caller's role and its rights by the sidecar's settings."""
        verified = request.state.caller
        assert isinstance(verified, Caller)
        return CallerRights(
            cluster=cluster,
            role=verified.role,
            authenticated_by=verified.method,
            super_user=rights.suffice(verified, Right.EVERYTHING),
            operator=rights.suffice(verified, Right.CLUSTER_CHANGE),
            viewer=rights.suffice(verified, Right.CLUSTER_STATE),
        )

    return routes


def _probes(missing: Callable[[], str | None], registry: CollectorRegistry, draining: StopSignal) -> APIRouter:
    """Return the routes that are open to every client."""
    routes = guarded_router("probes")

    # The first two need no thread: every thread may be waiting for a cluster that hangs.
    @routes.get("/livez")
    @takes(Right.OPEN)
    async def livez() -> Healthy:
        """Liveness probe: succeeds while the process responds."""
        return Healthy()

    @routes.get("/readyz")
    @takes(Right.OPEN)
    async def readyz() -> Healthy:
        """Readiness probe: 200 if the sidecar is ready, 503 with the missing dependency otherwise."""
        reason = "the service is stopping" if draining.is_set() else missing()
        if reason is not None:
            raise TemporaryError(reason)
        return Healthy()

    @routes.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE: {}}}})
    @takes(Right.OPEN)
    def metrics() -> Response:
        """Return the metrics in Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE)

    return routes
