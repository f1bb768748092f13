"""Routes that delete namespaces, and that list, follow and abandon deletions; any sidecar responds."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar, assert_never

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import JSONResponse, Response

from pulsar_sidecar.features.ledger_deletion.http.requests import NamespaceDeletionParameters
from pulsar_sidecar.features.ledger_deletion.results import (
    FollowedDeletion,
    NamespaceDeletionStatus,
    OperationState,
    TopicDeletionStatus,
)
from pulsar_sidecar.features.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.errors import ConflictError
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.server.answers import as_json
from pulsar_sidecar.server.guard import Owners
from pulsar_sidecar.server.paths import NAMESPACE_PATHS
from pulsar_sidecar.server.rights import Right, takes
from pulsar_sidecar.server.warnings import warning_headers

Endpoint = TypeVar("Endpoint", bound=Callable[..., Response])

_PATH = "/ledger-deletion/topic-deletions"
_ACCEPTED = 202
_OperationId = Annotated[
    str,
    Path(
        alias="operationId",
        pattern=r"^[-_A-Za-z0-9]{1,100}$",
        description="The operationId of the deletion.",
        examples=["0c2f4c1e9b7d4f0f8a55a1c1b0a3d9e2"],
    ),
]
_NamespaceOperationId = Annotated[
    str, Path(alias="operationId", max_length=128, description="``operationId`` of the 202 response.")
]


def deletions_of(routes: APIRouter, answer: type[object]) -> Callable[..., Callable[[Endpoint], Endpoint]]:
    """Declare at a path a DELETE that returns 204, or 202 with ``answer`` while the sidecars continue."""
    continued = {"model": answer, "description": "The sidecars continue the deletion; Location follows it."}
    return partial(routes.delete, status_code=204, response_description="Deleted.", responses={_ACCEPTED: continued})


def accepted(status: object, kind: type[object], location: str) -> Response:
    """Return 202 for a deletion that the sidecars continue."""
    return JSONResponse(as_json(status, kind), _ACCEPTED, {"Location": location})


def answer_of(status: TopicDeletionStatus) -> Response:
    """Return 204 for a deletion that is done, 202 for one that runs; one that ended otherwise is a `ConflictError`."""
    match status.state:
        case OperationState.DONE:
            return Response(status_code=204, headers=warning_headers([status.reason] if status.reason else []))
        case OperationState.RUNNING | OperationState.STUCK | OperationState.UNREADABLE:
            return accepted(status, TopicDeletionStatus, f"/admin/v2{_PATH}/{status.operation_id}")
        case OperationState.REFUSED | OperationState.ABANDONED:
            raise ConflictError(f"the deletion of {status.subject} was refused: {status.reason}")
        case _:
            assert_never(status.state)


def add_topic_deletions(routes: APIRouter, service: LedgerDeletion) -> None:
    """Add the list, one deletion, and its end."""

    @routes.get(_PATH)
    @takes(Right.CLUSTER_STATE)
    def topic_deletions() -> list[TopicDeletionStatus]:
        """List the running two-phase topic deletions."""
        return service.topic_deletions()

    @routes.get(f"{_PATH}/{{operationId}}")
    @takes(Right.OWNED_STATE)
    def topic_deletion(operation_id: _OperationId, owners: Owners) -> FollowedDeletion:
        """Return one topic deletion: its progress and remaining ledgers, or its outcome in the last 10 minutes.

        404: it is not running, and its end is not known.
        """
        found = service.topic_deletion(OperationId(operation_id))
        owners.require(lambda: [_tenant(found)])
        return found

    @routes.post(f"{_PATH}/{{operationId}}/abandon")
    @takes(Right.OWNED_CHANGE)
    def abandon_topic_deletion(operation_id: _OperationId, request: Request, owners: Owners) -> FollowedDeletion:
        """End a topic deletion, even if this version cannot read it; the response names the remainder.

        The sidecars send brokers no further requests. They evaluate the records as usual, so referenced ledgers stay.
        404: it is not running.
        """
        owners.require(lambda: [_tenant(service.topic_deletion(OperationId(operation_id)))])
        return service.abandon_topic_deletion(OperationId(operation_id), asked_by=request.state.caller.role)


def _tenant(found: FollowedDeletion) -> str | None:
    topic = found.topic_name
    return None if topic is None else topic.tenant


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

            While the deletion runs, the same call follows it. 404: no such namespace. 405: brokers do not
            allow it with ``force`` (``forceDeleteNamespaceAllowed``). 409: it is not empty and ``force`` is not given,
            or a shadow topic in it has its source elsewhere, or the other way round. 412: it has more than one
            replication cluster. If its only cluster is a different one, brokers redirect to it: 307 to that cluster's
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
            namespace: Annotated[str, Depends(namespace_of)], operation_id: _NamespaceOperationId
        ) -> NamespaceDeletionStatus:
            """Return one deletion of the namespace, running or completed."""
            return service.namespace_deletion(namespace, OperationId(operation_id))

    @routes.get("/admin/v2/ledger-deletion/namespace-deletions")
    @takes(Right.CLUSTER_STATE)
    def namespace_deletions() -> list[NamespaceDeletionStatus]:
        """List the running deletions of namespaces."""
        return service.namespace_deletions()
