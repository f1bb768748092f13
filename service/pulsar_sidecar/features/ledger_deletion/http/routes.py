"""Routes of ledger deletion: Pulsar's own below a topic's path, and operators' calls.

Paths and parameters are Pulsar's, so that a client only changes the host. ``deleteShadow`` (PIP-180) is the sidecar's
own, because the brokers' call destroys the source.
"""

from collections.abc import Sequence
from functools import cache
from typing import Annotated, assert_never

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response

from pulsar_sidecar.features.ledger_deletion import results
from pulsar_sidecar.features.ledger_deletion.http import requests
from pulsar_sidecar.features.ledger_deletion.http.deletions import (
    add_namespaces,
    add_topic_deletions,
    answer_of,
    deletions_of,
)
from pulsar_sidecar.features.ledger_deletion.http.parts import add_parts
from pulsar_sidecar.features.ledger_deletion.http.watch import add_watch
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo, parse_record_document
from pulsar_sidecar.features.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.server.cached_reading import CachedReading
from pulsar_sidecar.server.errors import MismatchError
from pulsar_sidecar.server.guard import Owners, guarded_router
from pulsar_sidecar.server.paths import TOPIC_PATHS
from pulsar_sidecar.server.rights import Right, takes

AGE_HEADER = "X-Pulsar-Sidecar-Age-Ms"
_Deletion = Annotated[requests.TopicDeletionParameters, Query()]


def router(service: LedgerDeletion) -> APIRouter:
    """Return the routes of the feature."""
    topics = guarded_router("persistent topics")
    _add_deletions(topics, service)
    add_parts(topics, service)
    _add_delete_ledger(topics, service)
    _add_shadow_deletions(topics, service)
    namespaces = guarded_router("namespaces")
    add_namespaces(namespaces, service)
    operators = guarded_router("ledger deletion", prefix="/admin/v2")
    _add_reading(operators, service)
    _add_changes(operators, service)
    add_topic_deletions(operators, service)
    add_watch(operators, service)
    return APIRouter(routes=[*topics.routes, *namespaces.routes, *operators.routes])


def _add_deletions(routes: APIRouter, service: LedgerDeletion) -> None:
    deletion = deletions_of(routes, results.TopicDeletionStatus)

    def delete(topic: TopicName, parameters: _Deletion, request: Request, *, partitioned: bool) -> Response:
        status = service.delete_topic(
            topic,
            partitioned=partitioned,
            force=parameters.force,
            requested_by=request.state.caller.role,
            confirm_source_data_loss=parameters.confirm_source_data_loss,
        )
        return answer_of(status)

    for path, topic_of, version in TOPIC_PATHS:

        @deletion(path, name=f"delete_{version}topic")
        @takes(Right.CHANGE)
        def delete_topic(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: _Deletion, request: Request
        ) -> Response:
            """Delete a topic in two phases: record every ledger it references, then have the broker delete it.

            409: the topic is a shadow (a broker would delete its source's ledgers), or the source of one and
            ``confirmSourceDataLoss`` does not name it.
            """
            return delete(topic, parameters, request, partitioned=False)

        @deletion(f"{path}/partitions", name=f"delete_{version}partitioned_topic")
        @takes(Right.CHANGE)
        def delete_partitioned_topic(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: _Deletion, request: Request
        ) -> Response:
            """Delete a partitioned topic in two phases, with all its partitions, including leftover ones.

            412, without ``force``: a client is connected to one of the partitions; all of them stay.
            """
            return delete(topic, parameters, request, partitioned=True)


def _add_delete_ledger(routes: APIRouter, service: LedgerDeletion) -> None:
    for path, topic_of, version in TOPIC_PATHS:

        @routes.post(
            f"{path}/deleteLedger",
            name=f"delete_{version}ledger",
            status_code=204,
            response_description="Deleted, or already deleted.",
            responses={307: {"description": "Send the request to the sidecar that Location names."}},
        )
        @takes(Right.CHANGE)
        def delete_ledger(
            topic: Annotated[TopicName, Depends(topic_of)],
            parameters: Annotated[requests.LedgerDeletionParameters, Query()],
            payload: requests.DeleteLedgerPayload,
            request: Request,
        ) -> Response:
            """Check one ledger now, and delete it if nothing references it (PIP-186 ``deleteLedger``).

            204: deleted, or already gone. 307: call the sidecar beside the owning broker. 409: the reason is ``ledger
            still in use``, which is final. 412: the ledger is not the one that the record describes, the topic is not
            the path's, or only an operator can change what keeps the ledger. 503: call again later, since the ledger
            cannot be judged yet (``too-young``, ``owner-still-uses``, ...), something could not be read, or deletion is
            paused.
            """
            record = _record_of(payload, request.state.caller.role)
            if record.topic != topic:
                raise MismatchError(f"topicName is not the topic of the path, {topic}")
            try:
                answer = service.delete_ledger(record, authoritative=parameters.authoritative)
            except InvalidInputError as error:
                raise MismatchError(str(error)) from error
            match answer:
                case results.Redirect(base_url):
                    # The path is forwarded as it came, still encoded, so that the other sidecar reads the same topic.
                    location = f"{base_url.rstrip('/')}{request.scope['path']}?authoritative=true"
                    return Response(status_code=307, headers={"Location": location})
                case results.LedgerDeletionAnswer.DELETED | results.LedgerDeletionAnswer.GONE:
                    return Response(status_code=204)
                case _:
                    assert_never(answer)


def _add_shadow_deletions(routes: APIRouter, service: LedgerDeletion) -> None:
    for path, topic_of, version in TOPIC_PATHS:

        @routes.post(
            f"{path}/deleteShadow",
            name=f"delete_{version}shadow",
            response_description="Deleted, with the check of the source's ledgers.",
            responses={
                202: {"model": results.ShadowDeletionStatus, "description": "A stage is done, or waits; call again."}
            },
        )
        @takes(Right.CHANGE)
        def delete_shadow(
            topic: Annotated[TopicName, Depends(topic_of)], request: Request, response: Response
        ) -> results.ShadowDeletionStatus:
            """Delete a shadow topic, partitioned or not, without touching its source's ledgers: one stage per call.

            Call it until it returns 200; any sidecar can take the next call. 409: it is not a shadow topic, or clients
            are connected to it.
            """
            status = service.delete_shadow(topic, requested_by=request.state.caller.role)
            if status.stage is not results.ShadowDeletionStage.DONE:
                response.status_code = 202
            return status


def _records_of(
    payloads: Sequence[requests.PendingDeleteLedgerPayload], requested_by: str | None
) -> list[PendingDeleteLedgerInfo]:
    records = []
    for index, payload in enumerate(payloads):
        try:
            records.append(_record_of(payload, requested_by))
        except InvalidInputError as error:
            raise InvalidInputError(f"ledgers.{index}: {error}; nothing was sent") from error
    return records


def _record_of(payload: requests.DeleteLedgerPayload, requested_by: str | None) -> PendingDeleteLedgerInfo:
    """Parse a payload by the feature's grammar, and add the caller, which no payload may name."""
    document = payload.model_dump(by_alias=True, exclude_none=True)
    if requested_by is not None:
        document.setdefault("sidecar", {})["requestedBy"] = requested_by
    return parse_record_document(document)


def _add_reading(routes: APIRouter, service: LedgerDeletion) -> None:
    @cache  # at the first request
    def measured() -> CachedReading[results.InflightEstimate]:
        return CachedReading(service.estimated_inflight, service.last_inflight)

    @cache
    def status() -> CachedReading[results.ServiceStatus]:
        return CachedReading(service.status, service.last_status)

    async def estimated() -> results.InflightEstimate:
        # Brokers and load balancers poll this call. Values in memory are returned right away: handing the request to a
        # thread would make it wait twice for the interpreter that the worker keeps busy.
        return service.cached_inflight() or await measured().within_timeout()

    @routes.get("/broker-stats/estimatedInflightDeletionLedgerCount", tags=["broker stats"], response_model=int)
    @takes(Right.CLUSTER_STATE)
    async def estimated_inflight_deletion_ledger_count() -> Response:
        """Return the number of pending records (PIP-186 ``BrokerStats``).

        The header ``X-Pulsar-Sidecar-Age-Ms`` gives its age in milliseconds: at most a second, or more while brokers do
        not respond.
        """
        estimate = await estimated()
        return JSONResponse(estimate.count, headers={AGE_HEADER: str(estimate.age_ms)})

    @routes.get("/ledger-deletion/inflight")
    @takes(Right.CLUSTER_STATE)
    async def ledger_deletion_inflight() -> results.InflightEstimate:
        """Return the estimate of pending records with its age."""
        return await estimated()

    @routes.get("/ledger-deletion/status")
    @takes(Right.CLUSTER_STATE)
    async def ledger_deletion_status() -> results.ServiceStatus:
        """Return the state of ledger deletion, even while the feature is off.

        If the cluster does not respond within 2 seconds, it is the last one that was read; ``asOfMs`` is its time.
        """
        return await status().within_timeout()

    @routes.get("/ledger-deletion/pending")
    @takes(Right.CLUSTER_STATE)
    def pending_records(parameters: Annotated[requests.PendingParameters, Query()]) -> list[results.PendingRecord]:
        """List the pending records in order of publishing, without consuming any."""
        return service.pending_records(parameters.limit, parameters.offset)

    @routes.get("/ledger-deletion/trend")
    @takes(Right.CLUSTER_STATE)
    def ledger_deletion_trend() -> results.DeletionTrend:
        """Return this sidecar's last hour by the minute: pending records, deletions per second, leaked ledgers."""
        return service.trend()

    @routes.get("/ledger-deletion/reclaimed")
    @takes(Right.CLUSTER_STATE)
    def reclaimed(parameters: Annotated[requests.ReclaimParameters, Query()]) -> results.Reclaim:
        """Return the space that bookies have reclaimed from recorded ledgers that were deleted.

        Each bookie is queried for entries of the last hundred, and for the bytes by which its files have shrunk.
        """
        return service.reclaimed(parameters.hours)


def _add_changes(routes: APIRouter, service: LedgerDeletion) -> None:
    @routes.post("/ledger-deletion/pending")
    @takes(Right.OWNED_CHANGE)
    def send_pending_delete_ledgers(
        append: requests.AppendRequest, request: Request, owners: Owners
    ) -> results.Appended:
        """Record ledgers for deletion (PIP-186 ``sendPendingDeleteLedger``), at most 8 MiB per call.

        A malformed record makes the sidecar refuse the whole call. Send the records in ``notSent`` again. 403: one of
        the ledgers belongs to another tenant, or to an unknown owner; nothing was sent.
        """
        owners.require(lambda: service.tenants_of([LedgerId(ledger.ledger_id) for ledger in append.ledgers]))
        answers = service.send_pending_delete_ledgers(
            _records_of(append.ledgers, request.state.caller.role),
            producer_name=append.producer_name,
            first_sequence_id=append.first_sequence_id,
        )
        return results.Appended(
            sent=tuple(each.ledger_id for each in answers if each.sent),
            not_sent=tuple(results.NotSent(each.ledger_id, each.reason) for each in answers if not each.sent),
        )

    @routes.post("/ledger-deletion/pause")
    @takes(Right.CLUSTER_CHANGE)
    def pause_ledger_deletion(request: Request, pause: requests.PauseRequest | None = None) -> results.Control:
        """Stop deleting on all sidecars; recording continues."""
        return service.pause(pause.reason if pause else None, request.state.caller.role)

    @routes.post("/ledger-deletion/resume")
    @takes(Right.CLUSTER_CHANGE)
    def resume_ledger_deletion() -> results.Control:
        """Resume deleting on all sidecars."""
        return service.resume()

    @routes.put("/ledger-deletion/rate")
    @takes(Right.CLUSTER_CHANGE)
    def limit_ledger_deletion_rate(rate: requests.RateRequest) -> results.Control:
        """Limit how many ledgers each sidecar deletes per second; null removes the limit."""
        return service.limit_rate(rate.ledgers_per_second)

    @routes.get("/ledger-deletion/dead-letters")
    @takes(Right.CLUSTER_STATE)
    def dead_letters(parameters: Annotated[requests.DeadLetterParameters, Query()]) -> list[results.DeadLetter]:
        """List the dead letters, oldest first: records that the sidecars gave up on."""
        return service.dead_letters(parameters.limit, parameters.after)

    @routes.post("/ledger-deletion/dead-letters/redrive")
    @takes(Right.CLUSTER_CHANGE)
    def redrive_dead_letters(redrive: requests.RedriveRequest) -> results.RedriveResult:
        """Send dead letters back to the system topic and reset their retry counts."""
        chosen = None if redrive.ledger_ids is None else [LedgerId(ledger_id) for ledger_id in redrive.ledger_ids]
        return service.redrive(chosen, redrive.limit)

    @routes.post("/ledger-deletion/undelete")
    @takes(Right.OWNED_CHANGE)
    def undelete_ledger(undelete: requests.UndeleteRequest, owners: Owners) -> results.UndeleteResult:
        """Restore a deleted ledger, as long as bookies hold its entries.

        No sidecar deletes it again before ``protectedUntilMs``: add it to a topic's ledger list again before then.
        Records about it wait.
        """
        owners.require(lambda: [service.tenant_of_deleted(LedgerId(undelete.ledger_id))])
        return service.undelete(LedgerId(undelete.ledger_id), force=undelete.force)

    @routes.post("/ledger-deletion/end-protection")
    @takes(Right.OWNED_CHANGE)
    def end_ledger_protection(end: requests.EndProtectionRequest, owners: Owners) -> results.EndedProtection:
        """End the protection of a restored ledger, so that it can be deleted.

        A record that waits for the protection's end keeps waiting; to delete the ledger at once, record it again.
        """
        owners.require(lambda: service.tenants_of([LedgerId(end.ledger_id)]))
        return service.end_protection(LedgerId(end.ledger_id))
