"""The routes of ledger deletion: Pulsar's own places below a topic's path, and the operator's verbs.

Pulsar's paths and parameters are kept, so that a client only changes the host. ``deleteShadow`` (PIP-180) is a call of
the sidecar's own, because the brokers' own call destroys the source.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Annotated, assert_never

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from pulsar_sidecar.api.errors import MismatchError
from pulsar_sidecar.api.guard import Owners, guarded_router
from pulsar_sidecar.api.last_reading import LastReading
from pulsar_sidecar.api.paths import V1_PATH, V2_PATH, V1Topic, V2Topic
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.api.rooms.ledger_deletion import schemas
from pulsar_sidecar.api.rooms.ledger_deletion.namespaces import add_namespaces
from pulsar_sidecar.api.rooms.ledger_deletion.parts import add_parts
from pulsar_sidecar.api.rooms.ledger_deletion.topic_deletions import add_topic_deletions, answer_of, deletions_of
from pulsar_sidecar.api.rooms.ledger_deletion.watch import add_watch
from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo, parse_record_document
from pulsar_sidecar.ledger_deletion.service import (
    InflightEstimate,
    LedgerDeletionAnswer,
    Redirect,
    ServiceStatus,
    ShadowDeletionStage,
)
from pulsar_sidecar.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName

AGE_HEADER = "X-Pulsar-Sidecar-Age-Ms"
_Deletion = Annotated[schemas.TopicDeletionParameters, Query()]
_LedgerDeletion = Annotated[schemas.LedgerDeletionParameters, Query()]


def router(service: LedgerDeletion) -> APIRouter:
    """The routes of the room: below a topic's path, and for operators."""
    topics = guarded_router("persistent topics")
    _add_deletions(topics, service)
    add_parts(topics, service)
    _add_delete_ledger(topics, service)
    _add_shadow_deletions(topics, service)
    namespaces = guarded_router("namespaces")
    add_namespaces(namespaces, service)
    operators = guarded_router("ledger deletion", prefix="/admin/v2")
    _add_first_phase(operators, service)
    _add_reading(operators, service)
    _add_control(operators, service)
    _add_repair(operators, service)
    add_topic_deletions(operators, service)
    add_watch(operators, service)
    routes = APIRouter()
    routes.include_router(topics)
    routes.include_router(namespaces)
    routes.include_router(operators)
    return routes


def _add_deletions(routes: APIRouter, service: LedgerDeletion) -> None:
    deletion = deletions_of(routes, schemas.TopicDeletionAnswer)

    @deletion(V2_PATH)
    @takes(Right.CHANGE)
    def delete_topic(topic: V2Topic, parameters: _Deletion, request: Request) -> Response:
        """Delete a topic in two phases: record every ledger it references, then have the broker delete it.

        409: the topic is a shadow (a broker would delete its source's ledgers), or the source of one and
        ``confirmSourceDataLoss`` does not name it.
        """
        return _delete(service, topic, parameters, request, partitioned=False)

    @deletion(f"{V2_PATH}/partitions")
    @takes(Right.CHANGE)
    def delete_partitioned_topic(topic: V2Topic, parameters: _Deletion, request: Request) -> Response:
        """Delete a partitioned topic with all its partitions in two phases; those too that are left without it.

        412, without ``force``: a client is connected to one of them; all of them stay.
        """
        return _delete(service, topic, parameters, request, partitioned=True)

    @deletion(V1_PATH)
    @takes(Right.CHANGE)
    def delete_v1_topic(topic: V1Topic, parameters: _Deletion, request: Request) -> Response:
        """Delete a topic of a V1 namespace in two phases."""
        return _delete(service, topic, parameters, request, partitioned=False)

    @deletion(f"{V1_PATH}/partitions")
    @takes(Right.CHANGE)
    def delete_v1_partitioned_topic(topic: V1Topic, parameters: _Deletion, request: Request) -> Response:
        """Delete a partitioned topic of a V1 namespace in two phases."""
        return _delete(service, topic, parameters, request, partitioned=True)


def _delete(
    service: LedgerDeletion, topic: TopicName, parameters: _Deletion, request: Request, *, partitioned: bool
) -> Response:
    status = service.delete_topic(
        topic,
        partitioned=partitioned,
        force=parameters.force,
        requested_by=request.state.caller.role,
        confirm_source_data_loss=parameters.confirm_source_data_loss,
    )
    return answer_of(status)


def _add_delete_ledger(routes: APIRouter, service: LedgerDeletion) -> None:
    deletion = partial(
        routes.post,
        status_code=204,
        response_description="Deleted, or gone already.",
        responses={307: {"description": "Ask the sidecar that Location names."}},
    )

    @deletion(f"{V2_PATH}/deleteLedger")
    @takes(Right.CHANGE)
    def delete_ledger(
        topic: V2Topic, parameters: _LedgerDeletion, payload: schemas.DeleteLedgerPayload, request: Request
    ) -> Response:
        """Check one ledger now, and delete it if nothing references it (PIP-186 ``deleteLedger``).

        204: deleted, or gone already. 307: ask the sidecar beside the owning broker. 409: the reason is ``ledger still
        in use``, which is final. 412: the ledger is not the one that the record describes, the topic is not the path's,
        or only an operator can change what keeps the ledger. 503: call again later, since the ledger cannot be judged
        yet (``too-young``, ``owner-still-uses``, ...), something could not be read, or deletion is paused.
        """
        return _delete_ledger(service, topic, parameters, payload, request)

    @deletion(f"{V1_PATH}/deleteLedger")
    @takes(Right.CHANGE)
    def delete_v1_ledger(
        topic: V1Topic, parameters: _LedgerDeletion, payload: schemas.DeleteLedgerPayload, request: Request
    ) -> Response:
        """Check one ledger of a topic of a V1 namespace now, and delete it if nothing references it."""
        return _delete_ledger(service, topic, parameters, payload, request)


def _delete_ledger(
    service: LedgerDeletion,
    topic: TopicName,
    parameters: _LedgerDeletion,
    payload: schemas.DeleteLedgerPayload,
    request: Request,
) -> Response:
    record = _record_of(payload, request.state.caller.role)
    if record.topic != topic:
        raise MismatchError(f"topicName is not the topic of the path, {topic}")
    try:
        answer = service.delete_ledger(record, authoritative=parameters.authoritative)
    except InvalidInputError as error:
        raise MismatchError(str(error)) from error
    match answer:
        case Redirect(base_url):
            # The path goes on as it came, still encoded, so that the other sidecar reads the same topic.
            location = f"{base_url.rstrip('/')}{request.scope['path']}?authoritative=true"
            return Response(status_code=307, headers={"Location": location})
        case LedgerDeletionAnswer.DELETED | LedgerDeletionAnswer.GONE:
            return Response(status_code=204)
        case _:
            assert_never(answer)


def _add_shadow_deletions(routes: APIRouter, service: LedgerDeletion) -> None:
    stage = partial(
        routes.post,
        response_model=schemas.ShadowDeletionAnswer,
        response_description="Deleted, with the check of the source's ledgers.",
        responses={
            202: {"model": schemas.ShadowDeletionAnswer, "description": "A stage is done, or waits; call again."}
        },
    )

    @stage(f"{V2_PATH}/deleteShadow")
    @takes(Right.CHANGE)
    def delete_shadow(topic: V2Topic, request: Request) -> JSONResponse:
        """Delete a shadow topic, partitioned or not, without touching its source's ledgers: one stage a call.

        Call it until it answers 200; any sidecar can take the next call. 409: it is not a shadow topic, or clients are
        connected to it.
        """
        return _delete_shadow(service, topic, request)

    @stage(f"{V1_PATH}/deleteShadow")
    @takes(Right.CHANGE)
    def delete_v1_shadow(topic: V1Topic, request: Request) -> JSONResponse:
        """The same for a shadow topic of a V1 namespace."""
        return _delete_shadow(service, topic, request)


def _delete_shadow(service: LedgerDeletion, topic: TopicName, request: Request) -> JSONResponse:
    status = service.delete_shadow(topic, requested_by=request.state.caller.role)
    check = status.source_check
    answer = schemas.ShadowDeletionAnswer(
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
    code = 200 if status.stage is ShadowDeletionStage.DONE else 202
    return JSONResponse(answer.model_dump(mode="json"), code)


def _add_first_phase(routes: APIRouter, service: LedgerDeletion) -> None:
    @routes.post("/ledger-deletion/pending")
    @takes(Right.OWNED_CHANGE)
    def send_pending_delete_ledgers(
        append: schemas.AppendRequest, request: Request, owners: Owners
    ) -> schemas.AppendAnswer:
        """Record ledgers that are to be deleted (PIP-186 ``sendPendingDeleteLedger``), at most 8 MiB a call.

        A malformed record refuses the whole call. Send the records in ``notSent`` again. 403: one of the ledgers is
        another tenant's, or nothing names its owner; nothing was sent.
        """
        owners.require(lambda: service.tenants_of([LedgerId(ledger.ledger_id) for ledger in append.ledgers]))
        results = service.send_pending_delete_ledgers(
            _records_of(append.ledgers, request.state.caller.role),
            producer_name=append.producer_name,
            first_sequence_id=append.first_sequence_id,
        )
        return schemas.AppendAnswer(
            sent=[result.ledger_id for result in results if result.sent],
            not_sent=[schemas.NotSent.model_validate(result) for result in results if not result.sent],
        )


def _records_of(
    payloads: Sequence[schemas.PendingDeleteLedgerPayload], requested_by: str | None
) -> list[PendingDeleteLedgerInfo]:
    """All or none; an error names the wrong one."""
    records = []
    for index, payload in enumerate(payloads):
        try:
            records.append(_record_of(payload, requested_by))
        except InvalidInputError as error:
            raise InvalidInputError(f"ledgers.{index}: {error}; nothing was sent") from error
    return records


def _record_of(payload: schemas.DeleteLedgerPayload, requested_by: str | None) -> PendingDeleteLedgerInfo:
    """The record that a payload stands for, by the room's grammar; the door adds who asked, not the payload."""
    document = payload.model_dump(by_alias=True, exclude_none=True)
    if requested_by is not None:
        document.setdefault("sidecar", {})["requestedBy"] = requested_by
    return parse_record_document(document)


def _add_reading(routes: APIRouter, service: LedgerDeletion) -> None:
    @cache  # at the first request
    def measured() -> LastReading[InflightEstimate]:
        return LastReading(service.estimated_inflight, service.last_inflight)

    @cache
    def status() -> LastReading[ServiceStatus]:
        return LastReading(service.status, service.last_status)

    async def estimated() -> InflightEstimate:
        # Brokers and load balancers poll this call. What is in memory is answered right away: handing the request to a
        # thread would make it wait twice for the interpreter that the worker keeps busy.
        return service.cached_inflight() or await measured().soon()

    @routes.get("/broker-stats/estimatedInflightDeletionLedgerCount", tags=["broker stats"], response_model=int)
    @takes(Right.CLUSTER_STATE)
    async def estimated_inflight_deletion_ledger_count() -> Response:
        """The number of records that wait, as PIP-186's ``BrokerStats`` call.

        The header ``X-Pulsar-Sidecar-Age-Ms`` is the age of the number in milliseconds: a second at most, or more while
        brokers do not answer.
        """
        estimate = await estimated()
        return JSONResponse(estimate.count, headers={AGE_HEADER: str(estimate.age_ms)})

    @routes.get("/ledger-deletion/inflight", response_model=schemas.InflightAnswer)
    @takes(Right.CLUSTER_STATE)
    async def ledger_deletion_inflight() -> Response:
        """The records that wait, with the age of the estimate."""
        return JSONResponse(schemas.InflightAnswer.model_validate(await estimated()).model_dump())

    @routes.get("/ledger-deletion/status")
    @takes(Right.CLUSTER_STATE)
    async def ledger_deletion_status() -> schemas.StatusAnswer:
        """The state of the service, also while the feature is off.

        Where the cluster does not answer within 2 seconds it is the last one that was read; ``asOfMs`` is its time.
        """
        return schemas.StatusAnswer.model_validate(await status().soon())

    @routes.get("/ledger-deletion/pending")
    @takes(Right.CLUSTER_STATE)
    def pending_records(
        parameters: Annotated[schemas.PendingParameters, Query()],
    ) -> list[schemas.PendingRecordAnswer]:
        """The records that wait, in order of publishing, read beside the subscription: none is consumed."""
        found = service.pending_records(parameters.limit, parameters.offset)
        return [schemas.PendingRecordAnswer.model_validate(each) for each in found]

    @routes.get("/ledger-deletion/trend")
    @takes(Right.CLUSTER_STATE)
    def ledger_deletion_trend() -> schemas.TrendAnswer:
        """The last hour by this sidecar, a point a minute: pending records, deletions a second, leaked ledgers."""
        return schemas.TrendAnswer.model_validate(service.trend())

    @routes.get("/ledger-deletion/dead-letters")
    @takes(Right.CLUSTER_STATE)
    def dead_letters(parameters: Annotated[schemas.DeadLetterParameters, Query()]) -> list[schemas.DeadLetterAnswer]:
        """The records that the sidecars gave up, oldest first."""
        letters = service.dead_letters(parameters.limit, parameters.after)
        return [schemas.DeadLetterAnswer.model_validate(letter) for letter in letters]


def _add_control(routes: APIRouter, service: LedgerDeletion) -> None:
    @routes.post("/ledger-deletion/pause")
    @takes(Right.CLUSTER_CHANGE)
    def pause_ledger_deletion(request: Request, pause: schemas.PauseRequest | None = None) -> schemas.ControlAnswer:
        """Stop deleting on all sidecars; recording continues."""
        return schemas.ControlAnswer.model_validate(
            service.pause(pause.reason if pause else None, request.state.caller.role)
        )

    @routes.post("/ledger-deletion/resume")
    @takes(Right.CLUSTER_CHANGE)
    def resume_ledger_deletion() -> schemas.ControlAnswer:
        """Resume deleting."""
        return schemas.ControlAnswer.model_validate(service.resume())

    @routes.put("/ledger-deletion/rate")
    @takes(Right.CLUSTER_CHANGE)
    def limit_ledger_deletion_rate(rate: schemas.RateRequest) -> schemas.ControlAnswer:
        """Limit how many ledgers each sidecar deletes a second; null removes the limit."""
        return schemas.ControlAnswer.model_validate(service.limit_rate(rate.ledgers_per_second))


def _add_repair(routes: APIRouter, service: LedgerDeletion) -> None:
    @routes.post("/ledger-deletion/dead-letters/redrive")
    @takes(Right.CLUSTER_CHANGE)
    def redrive_dead_letters(redrive: schemas.RedriveRequest) -> schemas.RedriveAnswer:
        """Send dead letters back to the system topic with a fresh count of tries."""
        chosen = None if redrive.ledger_ids is None else [LedgerId(ledger_id) for ledger_id in redrive.ledger_ids]
        return schemas.RedriveAnswer.model_validate(service.redrive(chosen, redrive.limit))

    @routes.post("/ledger-deletion/undelete")
    @takes(Right.OWNED_CHANGE)
    def undelete_ledger(undelete: schemas.UndeleteRequest, owners: Owners) -> schemas.UndeleteAnswer:
        """Restore a deleted ledger, as long as bookies hold its entries.

        No sidecar deletes it again before ``protectedUntilMs``: add it to a topic's ledger list again before then.
        Records about it wait.
        """
        owners.require(lambda: [service.tenant_of_deleted(LedgerId(undelete.ledger_id))])
        return schemas.UndeleteAnswer.model_validate(
            service.undelete(LedgerId(undelete.ledger_id), force=undelete.force)
        )

    @routes.post("/ledger-deletion/end-protection")
    @takes(Right.OWNED_CHANGE)
    def end_ledger_protection(end: schemas.EndProtectionRequest, owners: Owners) -> schemas.EndProtectionAnswer:
        """End the protection of a restored ledger, so that it can be deleted.

        A record that waits for the protection's end keeps waiting; to delete the ledger at once, record it again.
        """
        owners.require(lambda: service.tenants_of([LedgerId(end.ledger_id)]))
        service.end_protection(LedgerId(end.ledger_id))
        return schemas.EndProtectionAnswer(ledger_id=end.ledger_id)
