"""Route of what bookies have given back."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from pulsar_sidecar.features.ledger_deletion.reclaiming import Reclaiming
from pulsar_sidecar.features.ledger_deletion.results import Reclaim
from pulsar_sidecar.server.guard import guarded_router
from pulsar_sidecar.server.rights import Right, takes
from pulsar_sidecar.server.schemas import Parameters


class ReclaimParameters(Parameters):
    """Age of the deletions."""

    hours: float = Field(default=24, gt=0, le=24 * 365)
    """Only deletions of the last hours, as far back as the outcome topic reaches."""


def reclaim_router(reclaiming: Reclaiming) -> APIRouter:
    routes = guarded_router("ledger deletion")

    @routes.get("/admin/v2/ledger-deletion/reclaimed")
    @takes(Right.CLUSTER_STATE)
    def reclaimed(parameters: Annotated[ReclaimParameters, Query()]) -> Reclaim:
        """Return what bookies have given back of the recorded ledgers that were deleted.

        Each bookie is asked for entries of the last hundred, and for the bytes by which its files have shrunk.
        """
        return reclaiming.reclaimed(parameters.hours)

    return routes
