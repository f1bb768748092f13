"""The REST door: the rooms' routes, and what Kubernetes, Prometheus and readers of the reference ask.

Invariant: an app holds no state and makes no decision; it can be built around any rooms.
"""

from collections.abc import Callable, Iterable
from typing import Any

from fastapi import APIRouter, FastAPI
from jinja2 import Environment
from prometheus_client import CollectorRegistry, generate_latest
from starlette.responses import HTMLResponse, Response

from pulsar_sidecar.api import who
from pulsar_sidecar.api.document import complete, operation_id
from pulsar_sidecar.api.errors import HANDLERS
from pulsar_sidecar.api.guard import GuardedRoute, guarded_router, guarded_routes
from pulsar_sidecar.api.rights import Right, Rights, takes
from pulsar_sidecar.api.schemas import Healthy
from pulsar_sidecar.model.clocks import StopSignal
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.observability.metrics import CONTENT_TYPE

_DESCRIPTION = """Operator's tools beside unmodified brokers: two-phase ledger deletion (PIP-186), delayed messages
(PIP-423) and their index (PIP-195), acknowledgement state (PIP-299), deduplication (PIP-6).

Every error's body is `{"reason": "..."}`. 400: the request is malformed. 401, 403: no valid credential, or a role
that has not the right. 404: no such path, topic, or outcome. 405: the feature is off (`topicTwoPhaseDeletionEnabled`,
`delayedMessageCancellingEnabled`, `auditsDirectory`), or the path has another method. 409: the request does not fit
the present state, such as a ledger still in use. 412: the record does not match the ledger's metadata. 413: more than
8 MiB. 503: it may work later, so ask again; every call may be repeated. A broker's refusal keeps the broker's status.

Every answer names its request in `X-Request-Id`: the caller's own (at most 128 of `0-9A-Za-z._:/+=@~-`), or a new one.
All that the sidecars log of the request has it as `request_id`.

Every other path below `/admin/` and `/lookup/` is passed to a broker (`adminPassThroughEnabled`), with the caller's own
credential. There, 502: a change got no answer, so it may have taken effect.

A topic in a path is URL-encoded, as for Pulsar's own admin service."""

_OF_NO_ROLE = Rights()

# One plain page: no script, and nothing fetched from another host.
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
    """Build the app that `gate.Gate` stands around.

    ``missing`` answers at once why no work can be done, None when it can; ``/readyz`` reports it, and answers 503 once
    ``draining`` is set. ``rights`` decide who may do what. ``token_required`` is what the reference shows of tokens;
    ``docs`` makes a page of it. ``cluster`` is the name that callers are shown.
    """
    app = _App(
        title="pulsar-sidecar",
        version=version,
        description=_DESCRIPTION,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        exception_handlers=HANDLERS,
        generate_unique_id_function=operation_id,
    )
    app.token_required = token_required
    app.state.rights = rights
    app.router.route_class = GuardedRoute
    for router in (*routers, who.router(rights, cluster), _probes(missing, registry, draining)):
        app.include_router(router)
    if docs:
        page = Environment(autoescape=True).from_string(_REFERENCE)

        @app.get("/docs", include_in_schema=False)
        @takes(Right.ROLE)
        def reference() -> HTMLResponse:
            return HTMLResponse(page.render(app.openapi()))

    list(guarded_routes(app))  # a route that is not guarded ends the start
    return app


class _App(FastAPI):
    """FastAPI with this service's document, which it makes at the first request: that takes longer than a start."""

    token_required = False

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = complete(super().openapi(), token_required=self.token_required)
        return self.openapi_schema


def _probes(missing: Callable[[], str | None], registry: CollectorRegistry, draining: StopSignal) -> APIRouter:
    """Open to every client."""
    routes = guarded_router("probes")

    # The first two without a thread: all of them may hang with the cluster that they ask.
    @routes.get("/livez")
    @takes(Right.OPEN)
    async def livez() -> Healthy:
        """The process answers."""
        return Healthy()

    @routes.get("/readyz")
    @takes(Right.OPEN)
    async def readyz() -> Healthy:
        """The sidecar is ready; 503 names what is missing."""
        reason = "the service is stopping" if draining.is_set() else missing()
        if reason is not None:
            raise TemporaryError(reason)
        return Healthy()

    @routes.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE: {}}}})
    @takes(Right.OPEN)
    def metrics() -> Response:
        """Every metric in Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE)

    return routes
