"""Route of the rehearsal of a broker's death."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from pulsar_sidecar.features.rehearsal.requests import USUAL, Bounds
from pulsar_sidecar.features.rehearsal.results import Rehearsal
from pulsar_sidecar.features.rehearsal.workflow import Rehearsals
from pulsar_sidecar.server.guard import guarded_router
from pulsar_sidecar.server.paths import decode_segment
from pulsar_sidecar.server.rights import Right, takes
from pulsar_sidecar.server.schemas import Parameters

_Broker = Annotated[str, Path(description="The broker's id, URL-encoded.", examples=["10.0.0.7:8080"])]


class RehearsalParameters(Parameters):
    """Bounds of a rehearsal."""

    topics: int = Field(default=USUAL.topics, ge=1, le=100_000)
    """Maximum number of topics to examine, those with the most clients and backlog first."""
    limit: int = Field(default=USUAL.rows, ge=0, le=1_000)
    """Maximum number of topics in the response."""
    seconds: float = Field(default=USUAL.seconds, ge=1, le=3_600)
    """Time after which the topics not examined are reported as unknown."""


def router(rehearsals: Rehearsals) -> APIRouter:
    routes = guarded_router("rehearsal")

    @routes.get("/admin/v2/rehearsal/brokers/{broker}")
    @takes(Right.CLUSTER_STATE)
    def rehearse_broker(broker: _Broker, parameters: Annotated[RehearsalParameters, Query()]) -> Rehearsal:
        """Return what would be forgotten, delivered again and rebuilt if the broker died now. Changes nothing.

        404: no such broker. 503: the broker does not respond.
        """
        bounds = Bounds(parameters.topics, parameters.limit, parameters.seconds)
        return rehearsals.rehearse(decode_segment(broker), bounds)

    return routes
