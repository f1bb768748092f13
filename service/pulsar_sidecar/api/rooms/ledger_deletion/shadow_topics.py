"""Deleting shadow topics (PIP-180): a call of the sidecar's own, because the brokers' own call destroys the source."""

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from pulsar_sidecar.api.path_parameters import Cluster, Namespace, Tenant, Topic
from pulsar_sidecar.api.paths import persistent_topic, persistent_v1_topic
from pulsar_sidecar.api.rooms.ledger_deletion.records import shadow_deletion_answer
from pulsar_sidecar.api.rooms.ledger_deletion.schemas import ShadowDeletionAnswer
from pulsar_sidecar.api.schemas import Reason
from pulsar_sidecar.ledger_deletion.service import LedgerDeletionService, ShadowDeletionStage
from pulsar_sidecar.model.names import TopicName

_MORE: dict[int | str, dict[str, object]] = {
    202: {"model": ShadowDeletionAnswer, "description": "A stage was taken, or waits; call again."}
}
_DONE = "Deleted; what became of the source's ledgers."


def router(service: LedgerDeletionService) -> APIRouter:
    """``deleteShadow`` below a topic's path."""
    routes = APIRouter(tags=["persistent topics"], responses={"default": {"model": Reason}})

    @routes.post(
        "/admin/v2/persistent/{tenant}/{namespace}/{topic}/deleteShadow",
        response_model=ShadowDeletionAnswer,
        response_description=_DONE,
        responses=_MORE,
    )
    def delete_shadow(tenant: Tenant, namespace: Namespace, topic: Topic, request: Request) -> JSONResponse:
        """Delete a shadow topic, partitioned or not, without touching its source's ledgers: one stage a call.

        Call it until it answers 200; any sidecar can take the next call. 409: it is not a shadow topic, or clients are
        connected to it.
        """
        return _advanced(service, persistent_topic(tenant, namespace, topic), request)

    @routes.post(
        "/admin/persistent/{property}/{cluster}/{namespace}/{topic}/deleteShadow",
        response_model=ShadowDeletionAnswer,
        response_description=_DONE,
        responses=_MORE,
    )
    def delete_v1_shadow(
        property: Tenant,  # Pulsar's word for a tenant in V1 paths
        cluster: Cluster,
        namespace: Namespace,
        topic: Topic,
        request: Request,
    ) -> JSONResponse:
        """The same for a shadow topic of a V1 namespace."""
        return _advanced(service, persistent_v1_topic(property, cluster, namespace, topic), request)

    return routes


def _advanced(service: LedgerDeletionService, topic: TopicName, request: Request) -> JSONResponse:
    status = service.delete_shadow(topic, requested_by=request.state.role)
    code = 200 if status.stage is ShadowDeletionStage.DONE else 202
    return JSONResponse(shadow_deletion_answer(status).model_dump(mode="json", by_alias=True), code)
