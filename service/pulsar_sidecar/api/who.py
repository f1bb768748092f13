"""Who the caller is to this sidecar, for those who show or check a credential."""

from fastapi import APIRouter, Request

from pulsar_sidecar.api.callers import Caller
from pulsar_sidecar.api.guard import guarded_router
from pulsar_sidecar.api.rights import Right, Rights, takes
from pulsar_sidecar.api.schemas import Answer


class CallerAnswer(Answer):
    """A caller, and what the roles of the settings give; what brokers grant beside depends on the topic."""

    cluster: str | None
    """Name of the Pulsar cluster that this sidecar serves."""
    role: str | None
    """Pulsar's role; null where the sidecar asks for no credential."""
    authenticated_by: str
    """``token``, ``certificate`` or ``none``."""
    super_user: bool
    """Whether the caller may do everything."""
    operator: bool
    """Whether the caller may do what takes an operator's role."""
    viewer: bool
    """Whether the caller may see what takes a viewer's role."""


def router(rights: Rights, cluster: str | None) -> APIRouter:
    routes = guarded_router("callers")

    @routes.get("/admin/v2/caller")
    @takes(Right.ROLE)
    async def caller(request: Request) -> CallerAnswer:
        """Who the caller is, and what the sidecar's settings allow it."""
        asking = request.state.caller
        assert isinstance(asking, Caller)
        return CallerAnswer(
            cluster=cluster,
            role=asking.role,
            authenticated_by=asking.method,
            super_user=rights.suffice(asking, Right.EVERYTHING),
            operator=rights.suffice(asking, Right.CLUSTER_CHANGE),
            viewer=rights.suffice(asking, Right.CLUSTER_STATE),
        )

    return routes
