"""Pulsar's own places: deleting a topic in two phases, and PIP-186's ``deleteLedger``.

Paths and parameters are Pulsar's, so that a client only changes the host.
"""

from typing import Annotated, assert_never

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from pulsar_sidecar.api.errors import MismatchError
from pulsar_sidecar.api.path_parameters import Cluster, Namespace, Tenant, Topic
from pulsar_sidecar.api.paths import persistent_topic, persistent_v1_topic
from pulsar_sidecar.api.rooms.ledger_deletion.records import check_same_topic, record_of, topic_deletion_answer
from pulsar_sidecar.api.rooms.ledger_deletion.schemas import (
    DeleteLedgerPayload,
    LedgerDeletionParameters,
    TopicDeletionAnswer,
    TopicDeletionParameters,
)
from pulsar_sidecar.api.schemas import Reason
from pulsar_sidecar.ledger_deletion.service import (
    LedgerDeletionAnswer,
    LedgerDeletionService,
    OperationState,
    Redirect,
    TopicDeletionStatus,
)
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError
from pulsar_sidecar.model.names import TopicName

_V2 = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_V1 = "/admin/persistent/{property}/{cluster}/{namespace}/{topic}"
_RUNNING: dict[int | str, dict[str, object]] = {
    202: {"model": TopicDeletionAnswer, "description": "Recorded; the sidecars finish it by themselves."}
}


def router(service: LedgerDeletionService) -> APIRouter:
    """The routes under ``/admin/v2/persistent`` and ``/admin/persistent``."""
    routes = APIRouter(tags=["persistent topics"], responses={"default": {"model": Reason}})
    _add_v2_deletions(routes, service)
    _add_v1_deletions(routes, service)

    @routes.post(
        f"{_V2}/deleteLedger",
        status_code=204,
        response_description="Deleted, or gone already.",
        responses={307: {"description": "Ask the sidecar that Location names."}},
    )
    def delete_ledger(
        tenant: Tenant,
        namespace: Namespace,
        topic: Topic,
        parameters: Annotated[LedgerDeletionParameters, Query()],
        payload: DeleteLedgerPayload,
        request: Request,
    ) -> Response:
        """Judge one ledger now, and delete it if nothing references it (PIP-186 ``deleteLedger``).

        204: deleted, or gone already. 307: ask the sidecar beside the owning broker. 409: still in use, or too young.
        412: the ledger is not what the record says, or the topic is not the path's.
        """
        record = record_of(payload, request.state.role)
        check_same_topic(record, persistent_topic(tenant, namespace, topic))
        try:
            answer = service.delete_ledger(record, authoritative=parameters.authoritative)
        except InvalidInputError as error:
            raise MismatchError(str(error)) from error
        match answer:
            case Redirect(base_url):
                return _redirect(base_url, request)
            case LedgerDeletionAnswer.DELETED | LedgerDeletionAnswer.GONE:
                return Response(status_code=204)
            case _:
                assert_never(answer)

    return routes


def _add_v2_deletions(routes: APIRouter, service: LedgerDeletionService) -> None:
    @routes.delete(_V2, status_code=204, response_description="Deleted.", responses=_RUNNING)
    def delete_topic(
        tenant: Tenant,
        namespace: Namespace,
        topic: Topic,
        parameters: Annotated[TopicDeletionParameters, Query()],
        request: Request,
    ) -> Response:
        """Delete a topic in two phases: record every ledger it references, then have the broker delete it.

        409: the topic is a shadow (a broker would delete its source's ledgers), or the source of one and
        ``confirmSourceDataLoss`` does not name it.
        """
        name = persistent_topic(tenant, namespace, topic)
        return _delete(service, name, partitioned=False, parameters=parameters, request=request)

    @routes.delete(f"{_V2}/partitions", status_code=204, response_description="Deleted.", responses=_RUNNING)
    def delete_partitioned_topic(
        tenant: Tenant,
        namespace: Namespace,
        topic: Topic,
        parameters: Annotated[TopicDeletionParameters, Query()],
        request: Request,
    ) -> Response:
        """Delete a partitioned topic with all its partitions in two phases."""
        name = persistent_topic(tenant, namespace, topic)
        return _delete(service, name, partitioned=True, parameters=parameters, request=request)


def _add_v1_deletions(routes: APIRouter, service: LedgerDeletionService) -> None:
    @routes.delete(_V1, status_code=204, response_description="Deleted.", responses=_RUNNING)
    def delete_v1_topic(
        property: Tenant,  # Pulsar's word for a tenant in V1 paths
        cluster: Cluster,
        namespace: Namespace,
        topic: Topic,
        parameters: Annotated[TopicDeletionParameters, Query()],
        request: Request,
    ) -> Response:
        """Delete a topic of a V1 namespace in two phases."""
        name = persistent_v1_topic(property, cluster, namespace, topic)
        return _delete(service, name, partitioned=False, parameters=parameters, request=request)

    @routes.delete(f"{_V1}/partitions", status_code=204, response_description="Deleted.", responses=_RUNNING)
    def delete_v1_partitioned_topic(
        property: Tenant,
        cluster: Cluster,
        namespace: Namespace,
        topic: Topic,
        parameters: Annotated[TopicDeletionParameters, Query()],
        request: Request,
    ) -> Response:
        """Delete a partitioned topic of a V1 namespace in two phases."""
        name = persistent_v1_topic(property, cluster, namespace, topic)
        return _delete(service, name, partitioned=True, parameters=parameters, request=request)


def _delete(
    service: LedgerDeletionService,
    topic: TopicName,
    *,
    partitioned: bool,
    parameters: TopicDeletionParameters,
    request: Request,
) -> Response:
    status = service.delete_topic(
        topic,
        partitioned=partitioned,
        force=parameters.force,
        requested_by=request.state.role,
        confirm_source_data_loss=parameters.confirm_source_data_loss,
    )
    match status.state:
        case OperationState.DONE:
            return Response(status_code=204)
        case OperationState.RUNNING:
            return _accepted(status)
        case OperationState.REFUSED:
            raise ConflictError(f"the deletion of {topic} was refused: {status.reason}")
        case _:
            assert_never(status.state)


def _accepted(status: TopicDeletionStatus) -> JSONResponse:
    return JSONResponse(topic_deletion_answer(status).model_dump(mode="json"), 202)


def _redirect(base_url: str, request: Request) -> Response:
    # The path goes on as it came, still encoded, so that the other sidecar reads the same topic.
    location = f"{base_url.rstrip('/')}{request.scope['path']}?authoritative=true"
    return Response(status_code=307, headers={"Location": location})
