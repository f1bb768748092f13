"""The operator's verbs under ``/admin/v2/ledger-deletion``, and PIP-186's call in ``broker-stats``."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from pulsar_sidecar.api.rooms.ledger_deletion import shadow_topics, topics
from pulsar_sidecar.api.rooms.ledger_deletion.records import (
    records_of,
)
from pulsar_sidecar.api.rooms.ledger_deletion.schemas import (
    AppendAnswer,
    AppendRequest,
    ControlAnswer,
    DeadLetterAnswer,
    DeadLetterParameters,
    EndProtectionAnswer,
    EndProtectionRequest,
    InflightAnswer,
    NotSent,
    PauseRequest,
    RateRequest,
    RedriveAnswer,
    RedriveRequest,
    StatusAnswer,
    TopicDeletionAnswer,
    UndeleteAnswer,
    UndeleteRequest,
)
from pulsar_sidecar.api.schemas import Reason
from pulsar_sidecar.ledger_deletion.service import InflightEstimate
from pulsar_sidecar.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.ids import LedgerId

AGE_HEADER = "X-Pulsar-Sidecar-Age-Ms"


def router(service: LedgerDeletion) -> APIRouter:
    """The routes of the room: below a topic's path, and for operators."""
    routes = APIRouter()
    for part in (topics.router, shadow_topics.router, _operators_router):
        routes.include_router(part(service))
    return routes


def _operators_router(service: LedgerDeletion) -> APIRouter:
    routes = APIRouter(prefix="/admin/v2", tags=["ledger deletion"], responses={"default": {"model": Reason}})
    _add_first_phase(routes, service)
    _add_reading(routes, service)
    _add_control(routes, service)
    _add_repair(routes, service)
    return routes


def _add_first_phase(routes: APIRouter, service: LedgerDeletion) -> None:
    @routes.post("/ledger-deletion/pending")
    def send_pending_delete_ledgers(append: AppendRequest, request: Request) -> AppendAnswer:
        """Record ledgers that are to be deleted (PIP-186 ``sendPendingDeleteLedger``), at most 8 MiB a call.

        A malformed record refuses the whole call. Whatever is in ``notSent`` must be sent again.
        """
        results = service.send_pending_delete_ledgers(
            records_of(append.ledgers, request.state.role),
            producer_name=append.producer_name,
            first_sequence_id=append.first_sequence_id,
        )
        return AppendAnswer(
            sent=[result.ledger_id for result in results if result.sent],
            not_sent=[NotSent(ledger_id=one.ledger_id, reason=one.reason) for one in results if not one.sent],
        )


def _add_reading(routes: APIRouter, service: LedgerDeletion) -> None:
    @routes.get("/broker-stats/estimatedInflightDeletionLedgerCount", tags=["broker stats"], response_model=int)
    async def estimated_inflight_deletion_ledger_count() -> Response:
        """The number of records that wait, as PIP-186's ``BrokerStats`` call.

        The header ``X-Pulsar-Sidecar-Age-Ms`` says how old the number is, in milliseconds.
        """
        estimate = await _estimate(service)
        return _json(b"%d" % estimate.count, {AGE_HEADER: str(estimate.age_ms)})

    @routes.get("/ledger-deletion/inflight", response_model=InflightAnswer)
    async def inflight() -> Response:
        """The work that waits, with the age of the estimate."""
        estimate = await _estimate(service)
        return _json(InflightAnswer.model_validate(estimate).model_dump_json().encode())

    @routes.get("/ledger-deletion/status")
    def status() -> StatusAnswer:
        """The state of the service, also while the feature is off."""
        return StatusAnswer.model_validate(service.status())

    @routes.get("/ledger-deletion/topic-deletions")
    def topic_deletions() -> list[TopicDeletionAnswer]:
        """The two-phase topic deletions that are running now."""
        return [TopicDeletionAnswer.model_validate(deletion) for deletion in service.topic_deletions()]

    @routes.get("/ledger-deletion/dead-letters")
    def dead_letters(parameters: Annotated[DeadLetterParameters, Query()]) -> list[DeadLetterAnswer]:
        """The records that were given up, oldest first."""
        return [DeadLetterAnswer.model_validate(letter) for letter in service.dead_letters(parameters.limit)]


async def _estimate(service: LedgerDeletion) -> InflightEstimate:
    # Brokers and load balancers poll this call. What is in memory is answered right away: handing the request to a
    # thread would make it wait twice for the interpreter that the worker keeps busy.
    estimate = service.cached_inflight()
    return await run_in_threadpool(service.estimated_inflight) if estimate is None else estimate


def _json(body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, media_type="application/json", headers=headers)


def _add_control(routes: APIRouter, service: LedgerDeletion) -> None:
    @routes.post("/ledger-deletion/pause")
    def pause(pause: PauseRequest | None = None) -> ControlAnswer:
        """Stop deleting on all sidecars; recording goes on."""
        return ControlAnswer.model_validate(service.pause(pause.reason if pause else None))

    @routes.post("/ledger-deletion/resume")
    def resume() -> ControlAnswer:
        """Go on deleting."""
        return ControlAnswer.model_validate(service.resume())

    @routes.put("/ledger-deletion/rate")
    def rate(rate: RateRequest) -> ControlAnswer:
        """Limit the ledgers deleted a second on each sidecar; null lifts the limit."""
        return ControlAnswer.model_validate(service.limit_rate(rate.ledgers_per_second))


def _add_repair(routes: APIRouter, service: LedgerDeletion) -> None:
    @routes.post("/ledger-deletion/dead-letters/redrive")
    def redrive(redrive: RedriveRequest) -> RedriveAnswer:
        """Send dead letters back to the system topic with a fresh count of tries."""
        chosen = None if redrive.ledger_ids is None else [LedgerId(ledger_id) for ledger_id in redrive.ledger_ids]
        return RedriveAnswer.model_validate(service.redrive(chosen, redrive.limit))

    @routes.post("/ledger-deletion/undelete")
    def undelete(undelete: UndeleteRequest) -> UndeleteAnswer:
        """Bring a deleted ledger back, as long as bookies hold its entries.

        Nothing deletes it again before ``protectedUntilMs``: put it back into a list until then. Records about it wait.
        """
        restored = service.undelete(LedgerId(undelete.ledger_id), force=undelete.force)
        return UndeleteAnswer.model_validate(restored)

    @routes.post("/ledger-deletion/end-protection")
    def end_protection(end: EndProtectionRequest) -> EndProtectionAnswer:
        """Let a ledger that was brought back be deleted before its protection ends.

        A record that waits for that end goes on waiting; to have the ledger deleted at once, record it again.
        """
        service.end_protection(LedgerId(end.ledger_id))
        return EndProtectionAnswer(ledger_id=end.ledger_id)
