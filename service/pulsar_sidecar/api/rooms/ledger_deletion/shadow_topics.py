"""Deleting shadow topics (PIP-180): a call of the sidecar's own, because the brokers' own call destroys the source."""

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from pulsar_sidecar.api.paths import V1_PATH, V2_PATH, V1Topic, V2Topic
from pulsar_sidecar.api.rooms.ledger_deletion.schemas import ShadowDeletionAnswer
from pulsar_sidecar.api.schemas import Reason
from pulsar_sidecar.ledger_deletion.service import ShadowDeletionStage, ShadowDeletionStatus
from pulsar_sidecar.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.names import TopicName

_MORE: dict[int | str, dict[str, object]] = {
    202: {"model": ShadowDeletionAnswer, "description": "A stage was taken, or waits; call again."}
}
_DONE = "Deleted; what became of the source's ledgers."


def router(service: LedgerDeletion) -> APIRouter:
    """``deleteShadow`` below a topic's path."""
    routes = APIRouter(tags=["persistent topics"], responses={"default": {"model": Reason}})

    @routes.post(
        f"{V2_PATH}/deleteShadow",
        response_model=ShadowDeletionAnswer,
        response_description=_DONE,
        responses=_MORE,
    )
    def delete_shadow(topic: V2Topic, request: Request) -> JSONResponse:
        """Delete a shadow topic, partitioned or not, without touching its source's ledgers: one stage a call.

        Call it until it answers 200; any sidecar can take the next call. 409: it is not a shadow topic, or clients are
        connected to it.
        """
        return _advanced(service, topic, request)

    @routes.post(
        f"{V1_PATH}/deleteShadow",
        response_model=ShadowDeletionAnswer,
        response_description=_DONE,
        responses=_MORE,
    )
    def delete_v1_shadow(topic: V1Topic, request: Request) -> JSONResponse:
        """The same for a shadow topic of a V1 namespace."""
        return _advanced(service, topic, request)

    return routes


def _advanced(service: LedgerDeletion, topic: TopicName, request: Request) -> JSONResponse:
    status = service.delete_shadow(topic, requested_by=request.state.role)
    code = 200 if status.stage is ShadowDeletionStage.DONE else 202
    return JSONResponse(_answer(status).model_dump(mode="json", by_alias=True), code)


def _answer(status: ShadowDeletionStatus) -> ShadowDeletionAnswer:
    check = status.source_check
    return ShadowDeletionAnswer(
        operation_id=status.operation_id,
        topic=str(status.topic),
        source=status.source,
        stage=status.stage,
        requested_ms=status.requested_ms,
        waits_for=status.waits_for,
        source_ledgers=check.ledgers,
        missing_ledgers=[ledger_id for ledger_id in check.missing if ledger_id not in status.missing_before],
        missing_before=[ledger_id for ledger_id in check.missing if ledger_id in status.missing_before],
        missing_sources=[str(source) for source in check.missing_sources],
    )
