"""Pulsar's own places: deleting a topic in two phases, and PIP-186's ``deleteLedger``.

Paths and parameters are Pulsar's, so that a client only changes the host.
"""

from typing import Annotated, assert_never

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from pulsar_sidecar.api.errors import MismatchError
from pulsar_sidecar.api.paths import V1_PATH, V2_PATH, V1Topic, V2Topic
from pulsar_sidecar.api.rooms.ledger_deletion.records import record_of
from pulsar_sidecar.api.rooms.ledger_deletion.schemas import (
    DeleteLedgerPayload,
    LedgerDeletionParameters,
    TopicDeletionAnswer,
    TopicDeletionParameters,
)
from pulsar_sidecar.api.schemas import Reason
from pulsar_sidecar.ledger_deletion.service import (
    LedgerDeletionAnswer,
    OperationState,
    Redirect,
)
from pulsar_sidecar.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError
from pulsar_sidecar.model.names import TopicName

_Deletion = Annotated[TopicDeletionParameters, Query()]
_RUNNING: dict[int | str, dict[str, object]] = {
    202: {"model": TopicDeletionAnswer, "description": "Recorded; the sidecars finish it by themselves."}
}


def router(service: LedgerDeletion) -> APIRouter:
    """The routes under ``/admin/v2/persistent`` and ``/admin/persistent``."""
    routes = APIRouter(tags=["persistent topics"], responses={"default": {"model": Reason}})
    _add_deletions(routes, service)

    @routes.post(
        f"{V2_PATH}/deleteLedger",
        status_code=204,
        response_description="Deleted, or gone already.",
        responses={307: {"description": "Ask the sidecar that Location names."}},
    )
    def delete_ledger(
        topic: V2Topic,
        parameters: Annotated[LedgerDeletionParameters, Query()],
        payload: DeleteLedgerPayload,
        request: Request,
    ) -> Response:
        """Judge one ledger now, and delete it if nothing references it (PIP-186 ``deleteLedger``).

        204: deleted, or gone already. 307: ask the sidecar beside the owning broker. 409: still in use, or too young.
        412: the ledger is not what the record says, or the topic is not the path's.
        """
        record = record_of(payload, request.state.role)
        if record.topic != topic:
            raise MismatchError(f"topicName is not the topic of the path, {topic}")
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


def _add_deletions(routes: APIRouter, service: LedgerDeletion) -> None:
    @routes.delete(V2_PATH, status_code=204, response_description="Deleted.", responses=_RUNNING)
    def delete_topic(topic: V2Topic, parameters: _Deletion, request: Request) -> Response:
        """Delete a topic in two phases: record every ledger it references, then have the broker delete it.

        409: the topic is a shadow (a broker would delete its source's ledgers), or the source of one and
        ``confirmSourceDataLoss`` does not name it.
        """
        return _delete(service, topic, parameters, request, partitioned=False)

    @routes.delete(f"{V2_PATH}/partitions", status_code=204, response_description="Deleted.", responses=_RUNNING)
    def delete_partitioned_topic(topic: V2Topic, parameters: _Deletion, request: Request) -> Response:
        """Delete a partitioned topic with all its partitions in two phases."""
        return _delete(service, topic, parameters, request, partitioned=True)

    @routes.delete(V1_PATH, status_code=204, response_description="Deleted.", responses=_RUNNING)
    def delete_v1_topic(topic: V1Topic, parameters: _Deletion, request: Request) -> Response:
        """Delete a topic of a V1 namespace in two phases."""
        return _delete(service, topic, parameters, request, partitioned=False)

    @routes.delete(f"{V1_PATH}/partitions", status_code=204, response_description="Deleted.", responses=_RUNNING)
    def delete_v1_partitioned_topic(topic: V1Topic, parameters: _Deletion, request: Request) -> Response:
        """Delete a partitioned topic of a V1 namespace in two phases."""
        return _delete(service, topic, parameters, request, partitioned=True)


def _delete(
    service: LedgerDeletion,
    topic: TopicName,
    parameters: TopicDeletionParameters,
    request: Request,
    *,
    partitioned: bool,
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
            return JSONResponse(TopicDeletionAnswer.model_validate(status).model_dump(mode="json"), 202)
        case OperationState.REFUSED:
            raise ConflictError(f"the deletion of {topic} was refused: {status.reason}")
        case _:
            assert_never(status.state)


def _redirect(base_url: str, request: Request) -> Response:
    # The path goes on as it came, still encoded, so that the other sidecar reads the same topic.
    location = f"{base_url.rstrip('/')}{request.scope['path']}?authoritative=true"
    return Response(status_code=307, headers={"Location": location})
