"""Routes that delete a namespace: Pulsar's own call, and one that follows the deletion."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from pulsar_sidecar.features.ledger_deletion.http.topic_deletions import accepted, deletions_of
from pulsar_sidecar.features.ledger_deletion.results import NamespaceDeletionStatus, OperationState
from pulsar_sidecar.features.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.server import schemas
from pulsar_sidecar.server.paths import NAMESPACE_PATHS
from pulsar_sidecar.server.rights import Right, takes

_OperationId = Annotated[
    str, Path(alias="operationId", max_length=128, description="``operationId`` of the 202 response.")
]


class NamespaceDeletionParameters(schemas.Parameters):
    """Parameters of Pulsar's own call."""

    force: bool = False
    """Delete the namespace even if it has topics."""
    authoritative: bool = False
    """Accepted for compatibility; any sidecar can serve this call."""
    wait: bool = True
    """Wait for the end, up to ``twoPhaseDeletionTopicDeletionWaitInSeconds``; false returns at once."""


def add_namespaces(routes: APIRouter, service: LedgerDeletion) -> None:
    """Add the routes for names of both kinds."""
    deletion = deletions_of(routes, NamespaceDeletionStatus)
    for path, namespace_of, version in NAMESPACE_PATHS:

        @deletion(path, name=f"delete_{version}namespace")
        @takes(Right.CHANGE)
        def delete_namespace(
            namespace: Annotated[str, Depends(namespace_of)],
            parameters: Annotated[NamespaceDeletionParameters, Query()],
            request: Request,
        ) -> Response:
            """Delete a namespace in two phases: every ledger in it is recorded before brokers delete anything.

            While the deletion runs, the same call follows it. 404: brokers know no such namespace. 405: brokers do not
            allow it with ``force`` (``forceDeleteNamespaceAllowed``). 409: it is not empty and ``force`` is not given,
            or a shadow topic in it has its source elsewhere, or the other way round. 412: it has more than one
            replication cluster. Its only cluster is another one, to which brokers redirect: 307 to that cluster's
            sidecar, if ``clusterUrls`` names it, else 502.
            """
            status = service.delete_namespace(
                namespace, force=parameters.force, requested_by=request.state.caller.role, wait=parameters.wait
            )
            if status.state is OperationState.DONE:
                return Response(status_code=204)
            return accepted(status, NamespaceDeletionStatus, f"{request.scope['path']}/deletions/{status.operation_id}")

        @routes.get(f"{path}/deletions/{{operationId}}", name=f"{version}namespace_deletion")
        @takes(Right.POLICY)
        def namespace_deletion(
            namespace: Annotated[str, Depends(namespace_of)], operation_id: _OperationId
        ) -> NamespaceDeletionStatus:
            """Return one deletion of the namespace, running or completed."""
            return service.namespace_deletion(namespace, OperationId(operation_id))

    @routes.get("/admin/v2/ledger-deletion/namespace-deletions")
    @takes(Right.CLUSTER_STATE)
    def namespace_deletions() -> list[NamespaceDeletionStatus]:
        """List the running deletions of namespaces."""
        return service.namespace_deletions()
