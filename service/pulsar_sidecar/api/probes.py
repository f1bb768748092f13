"""What Kubernetes and Prometheus ask."""

from collections.abc import Callable

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, generate_latest
from starlette.responses import Response

from pulsar_sidecar.api.schemas import Healthy, Reason
from pulsar_sidecar.model.clocks import StopSignal
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.observability.metrics import CONTENT_TYPE


def router(missing: Callable[[], str | None], registry: CollectorRegistry, draining: StopSignal) -> APIRouter:
    """``/livez``, ``/readyz`` and ``/metrics``, open to everybody; ``missing`` says at once why no work can be done."""
    routes = APIRouter(tags=["probes"], responses={"default": {"model": Reason}})

    # Without a thread: all of them may hang with the cluster that they ask.
    @routes.get("/livez")
    async def livez() -> Healthy:
        """The process answers."""
        return Healthy()

    @routes.get("/readyz")
    async def readyz() -> Healthy:
        """Work can be done; 503 says what is missing."""
        reason = "the service is stopping" if draining.is_set() else missing()
        if reason is not None:
            raise TemporaryError(reason)
        return Healthy()

    @routes.get("/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE: {}}}})
    def scrape() -> Response:
        """Every metric in Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE)

    return routes
