"""The routes and the JSON of deleting whole namespaces: Pulsar's own call, and one to follow what it began."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import JSONResponse, Response

from pulsar_sidecar.api import schemas
from pulsar_sidecar.api.paths import NAMESPACE_PATH, V1_NAMESPACE_PATH, V1Namespace, V2Namespace
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.api.rooms.ledger_deletion.topic_deletions import deletions_of
from pulsar_sidecar.ledger_deletion.service import NamespaceDeletionStatus, OperationState
from pulsar_sidecar.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.ids import OperationId

_OperationId = Annotated[
    str, Path(alias="operationId", max_length=128, description="``operationId`` of the 202 answer.")
]


class NamespaceDeletionParameters(schemas.Parameters):
    """As Pulsar's own call takes them."""

    force: bool = False
    """Delete the namespace even if it has topics."""
    authoritative: bool = False
    """Accepted as Pulsar does; any sidecar can take this call."""
    wait: bool = True
    """Wait for the end, up to ``twoPhaseDeletionTopicDeletionWaitInSeconds``; false answers at once."""


class NamespaceDeletionAnswer(schemas.Answer):
    """A two-phase deletion of a namespace."""

    operation_id: str
    namespace: str
    state: OperationState
    topics_found: int
    """Its topics, those deleted included; brokers' own topics are not counted."""
    topics_deleted: int
    topics_left: int
    recorded_ledgers: int
    passes: int
    """How often the sidecars went through the whole namespace."""
    topics_per_second: float | None
    """On average since the request; null while that is not known."""
    seconds_left: float | None
    """By that average; null while that is not known."""
    requested_ms: int
    running_ms: int
    reason: str | None
    """What it waits for, or why it was refused."""


_Deletion = Annotated[NamespaceDeletionParameters, Query()]


def add_namespaces(routes: APIRouter, service: LedgerDeletion) -> None:
    """Deleting a namespace, by its names of both kinds."""
    deletion = deletions_of(routes, NamespaceDeletionAnswer)

    @deletion(NAMESPACE_PATH)
    @takes(Right.CHANGE)
    def delete_namespace(namespace: V2Namespace, parameters: _Deletion, request: Request) -> Response:
        """Delete a namespace in two phases: every ledger in it is recorded before brokers delete anything.

        While the deletion runs, the same call follows it. 404: brokers know no such namespace. 405: brokers do not
        allow it with ``force`` (``forceDeleteNamespaceAllowed``). 409: it is not empty and ``force`` is not given, or a
        shadow topic in it has its source elsewhere, or the other way round. 412: it has more than one replication
        cluster. 502: its only cluster is another one, to which brokers redirect.
        """
        return _delete(service, namespace, parameters, request)

    @deletion(V1_NAMESPACE_PATH)
    @takes(Right.CHANGE)
    def delete_v1_namespace(namespace: V1Namespace, parameters: _Deletion, request: Request) -> Response:
        """The same for a V1 namespace."""
        return _delete(service, namespace, parameters, request)

    @routes.get(f"{NAMESPACE_PATH}/deletions/{{operationId}}")
    @takes(Right.POLICY)
    def namespace_deletion(namespace: V2Namespace, operation_id: _OperationId) -> NamespaceDeletionAnswer:
        """One deletion of the namespace, running or ended."""
        return NamespaceDeletionAnswer.model_validate(service.namespace_deletion(namespace, OperationId(operation_id)))

    @routes.get(f"{V1_NAMESPACE_PATH}/deletions/{{operationId}}")
    @takes(Right.POLICY)
    def v1_namespace_deletion(namespace: V1Namespace, operation_id: _OperationId) -> NamespaceDeletionAnswer:
        """The same for a V1 namespace."""
        return NamespaceDeletionAnswer.model_validate(service.namespace_deletion(namespace, OperationId(operation_id)))

    @routes.get("/admin/v2/ledger-deletion/namespace-deletions")
    @takes(Right.CLUSTER_STATE)
    def namespace_deletions() -> list[NamespaceDeletionAnswer]:
        """The deletions of namespaces that are running now."""
        return [NamespaceDeletionAnswer.model_validate(each) for each in service.namespace_deletions()]


def _delete(service: LedgerDeletion, namespace: str, parameters: _Deletion, request: Request) -> Response:
    status = service.delete_namespace(
        namespace, force=parameters.force, requested_by=request.state.caller.role, wait=parameters.wait
    )
    if status.state is OperationState.DONE:
        return Response(status_code=204)
    return _running(status, request)


def _running(status: NamespaceDeletionStatus, request: Request) -> Response:
    answer = NamespaceDeletionAnswer.model_validate(status).model_dump(mode="json")
    place = f"{request.scope['path']}/deletions/{status.operation_id}"
    return JSONResponse(answer, 202, {"Location": place})
