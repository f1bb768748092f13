"""Routes that cancel, select and reschedule delayed messages; paths and parameters are PIP-423's."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse

from pulsar_sidecar.features.delayed_messages.cancel.requests import (
    CancelOptions,
    check_deliver_at,
    check_subscription_name,
)
from pulsar_sidecar.features.delayed_messages.http import requests
from pulsar_sidecar.features.delayed_messages.http.bulk_lines import (
    MEDIA_TYPE,
    LinesResponse,
    carried_out,
    selected_carried_out,
)
from pulsar_sidecar.features.delayed_messages.results import (
    CancellationStatus,
    CancelStatus,
    DelayedMessage,
    KnownCancellation,
    MessageOutcome,
    Preview,
    RescheduleResult,
)
from pulsar_sidecar.features.delayed_messages.workflow.service import DelayedDelivery
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.server.answers import as_json
from pulsar_sidecar.server.errors import MismatchError, NotPersistentError
from pulsar_sidecar.server.guard import guarded_router
from pulsar_sidecar.server.paths import (
    TOPIC_PATHS,
    V2_PATH,
    SubscriptionName,
    V2Topic,
    decode_segment,
    parse_position,
    v1_topic,
)
from pulsar_sidecar.server.rights import Right, takes
from pulsar_sidecar.server.warnings import warning_headers

_PIPS_V1 = "/admin/v1/persistent/{property}/{cluster}/{namespace}/{topic}"
"""Path of V1 topics in PIP-423; brokers have `V1_PATH` only."""
_PIPS_PATHS = (*TOPIC_PATHS, (_PIPS_V1, v1_topic, ""))


async def _position(
    cancellation_id: Annotated[str, Path(description="``ledgerId:entryId``.", examples=["4711:0"])],
) -> Position:
    return parse_position(decode_segment(cancellation_id))


_CancellationId = Annotated[Position, Depends(_position)]

PROOF_HEADER = "X-Pulsar-Sidecar-Proof"
ID_HEADER = "X-Pulsar-Sidecar-Cancellation"
_ACCEPTED: dict[int | str, dict[str, object]] = {
    202: {"model": MessageOutcome, "description": "Logged; the sidecars acknowledge the message as soon as possible."}
}
_FEW = 5
"""Maximum number of reasons in an error."""
_LINES: dict[int | str, dict[str, object]] = {
    200: {"content": {MEDIA_TYPE: {}}, "description": "One outcome for each line, in order."}
}
_LINES_IN = {
    "requestBody": {
        "required": True,
        "content": {MEDIA_TYPE: {"schema": requests.CancelLine.model_json_schema(by_alias=True)}},
    }
}


def router(service: DelayedDelivery) -> APIRouter:
    routes = guarded_router("delayed messages")
    _add_pip_423(routes, service)
    _add_bulk(routes, service)
    _add_rescheduling(routes, service)
    return routes


def _add_pip_423(routes: APIRouter, service: DelayedDelivery) -> None:
    for path, topic_of, version in _PIPS_PATHS:

        @routes.post(
            f"{path}/cancelDelayedMessage",
            name=f"cancel_{version}delayed_message",
            status_code=204,
            response_description="Cancelled: acknowledged before the broker could dispatch it.",
            responses=_ACCEPTED,
            include_in_schema=path != _PIPS_V1,
        )
        @takes(Right.CHANGE)
        def cancel_delayed_message(
            topic: Annotated[TopicName, Depends(topic_of)],
            parameters: Annotated[requests.CancelParameters, Query()],
            request: Request,
        ) -> Response:
            """Cancel a delayed message on specified subscriptions, or all if none are specified (PIP-423).

            204: the message is not delivered; headers have the proven status and the cancellation's id. 202: in the
            log. 404: no such topic, subscription or entry. 412: invalid parameters, another deliverAt, too late, or
            the message cannot be cancelled.

            ``/admin/v1/persistent``, the PIP's path of V1 topics, works as well.
            """
            wait, defer = _waits(parameters.wait), _defers(parameters.defer)
            return _answer(
                service.cancel(topic, [parameters.target()], CancelOptions(wait, defer, request.state.caller.role))
            )

        @routes.get(
            f"{path}/cancellations/{{cancellation_id}}",
            name=f"{version}cancellations",
            include_in_schema=path != _PIPS_V1,
        )
        @takes(Right.STATE)
        def cancellations(
            topic: Annotated[TopicName, Depends(topic_of)], cancellation_id: _CancellationId
        ) -> list[KnownCancellation]:
            """Return the status of a cancellation on each subscription; its id is ``ledgerId:entryId``.

            404: no cancellation of the message is known, or it ended long ago.
            """
            return service.cancellations(topic, cancellation_id)

        non_persistent = path.replace("/persistent/", "/non-persistent/")

        @routes.post(f"{non_persistent}/cancelDelayedMessage", include_in_schema=False)
        @takes(Right.CHANGE)
        def cancel_non_persistent() -> Response:
            """405: a non-persistent topic stores no message, so none can be cancelled (PIP-423)."""
            raise NotPersistentError(
                "a non-persistent topic delivers delayed messages at once, so none can be cancelled"
            )

    @routes.get("/admin/v2/delayed-delivery/status")
    @takes(Right.CLUSTER_STATE)
    def delayed_delivery_status() -> CancelStatus:
        """Return the status of delayed-message cancellation on this sidecar."""
        return service.cancelling_status()


def _add_bulk(routes: APIRouter, service: DelayedDelivery) -> None:
    @routes.post(
        f"{V2_PATH}/subscription/{{subscription}}/skipByMessageIds",
        status_code=204,
        response_description="All messages are cancelled.",
        responses=_ACCEPTED,
    )
    @takes(Right.CHANGE)
    def skip_by_message_ids(
        topic: V2Topic,
        subscription: SubscriptionName,
        payload: requests.SkipRequest,
        parameters: Annotated[requests.BulkParameters, Query()],
        request: Request,
    ) -> Response:
        """Cancel delayed messages of one subscription by their ids, in one call.

        404, 412: at least one was not cancelled, and the reason names the first few; the others are cancelled.
        ``cancelDelayedMessages`` returns an outcome for each message.
        """
        where = (check_subscription_name(subscription),)
        targets = []
        for index, one in enumerate(payload.message_ids):
            try:
                targets.append(requests.target_of_message_id(one, where) if isinstance(one, str) else one.target(where))
            except InvalidInputError as error:
                raise InvalidInputError(f"messageIds.{index}: {error}; nothing was cancelled") from error
        options = CancelOptions(_waits(parameters.wait), parameters.defer, request.state.caller.role)
        return _answer(service.cancel(topic, targets, options))

    @routes.post(f"{V2_PATH}/cancelDelayedMessages", responses=_LINES, openapi_extra=_LINES_IN)
    @takes(Right.CHANGE, in_parts=True)
    async def cancel_delayed_messages(
        topic: V2Topic,
        parameters: Annotated[requests.BulkParameters, Query()],
        request: Request,
    ) -> StreamingResponse:
        """Cancel delayed messages in bulk: JSON lines in, one outcome per line out in order, as lines arrive.

        Each line is an object with ``ledgerId`` and ``entryId`` or a base64 ``messageId``, and may have ``deliverAt``,
        ``subscriptionNames``, ``partition`` and ``batchIndex``. An invalid line fails alone. The status 200 is sent
        before the lines are read, so check each outcome. The response grows as long as the request: read while you
        write, or send the lines in parts.
        """
        options = CancelOptions(_waits(parameters.wait), parameters.defer, request.state.caller.role)
        lines = await carried_out(request.stream(), lambda targets: service.cancel(topic, targets, options))
        return LinesResponse(lines)

    @routes.get(f"{V2_PATH}/delayedMessages/byId/{{cancellation_id}}")
    @takes(Right.MESSAGES)
    def delayed_message(topic: V2Topic, cancellation_id: _CancellationId) -> DelayedMessage:
        """Return a delayed message by its id, ``ledgerId:entryId``, whether it still waits or not.

        404: no such topic or entry, or the message is not delayed.
        """
        return service.message(topic, cancellation_id)

    @routes.post(f"{V2_PATH}/delayedMessages/preview")
    @takes(Right.MESSAGES)
    def preview_delayed_messages(topic: V2Topic, payload: requests.SelectionPayload) -> Preview:
        """Preview a selection by due time, key or properties: number of messages, a sample, and a hash to confirm.

        The sidecar reads the topic's waiting messages and changes nothing. Messages due within 5 seconds are left out.
        404: no such topic or subscription. 409: nothing can be cancelled on one of the subscriptions, or on any.
        """
        return service.preview(topic, payload.selection())

    @routes.post(f"{V2_PATH}/delayedMessages/cancel", responses=_LINES)
    @takes(Right.CHANGE)
    async def cancel_selected_delayed_messages(
        topic: V2Topic, payload: requests.ConfirmedSelection, request: Request
    ) -> StreamingResponse:
        """Cancel exactly the previewed messages: send the preview's ``selection`` back with its ``hash``.

        409: the selection now finds other messages; nothing was cancelled.
        """
        options = CancelOptions(defer=payload.defer, requested_by=request.state.caller.role)
        batches = await run_in_threadpool(service.confirm_selected, topic, payload.selection(), payload.hash)
        return LinesResponse(selected_carried_out(batches, lambda batch: service.cancel_batch(batch, options)))


def _add_rescheduling(routes: APIRouter, service: DelayedDelivery) -> None:
    @routes.post(f"{V2_PATH}/expediteDelayedMessage")
    @takes(Right.CHANGE)
    def expedite_delayed_message(
        topic: V2Topic, payload: requests.ReschedulePayload, request: Request
    ) -> RescheduleResult:
        """Deliver a delayed message now: publish it again without a delay, and cancel the original.

        The copy's property ``pulsar-sidecar-replaces`` has the original's id. A repeated request returns the same copy.
        ``UNKNOWN``: the broker did not confirm the copy, and it has not been found; it is never published twice.
        """
        if payload.new_deliver_at is not None:
            raise InvalidInputError(
                "newDeliverAt is a parameter of rescheduleDelayedMessage; expediteDelayedMessage delivers now"
            )
        return _reschedule(service, topic, payload, None, request)

    @routes.post(f"{V2_PATH}/rescheduleDelayedMessage")
    @takes(Right.CHANGE)
    def reschedule_delayed_message(
        topic: V2Topic, payload: requests.ReschedulePayload, request: Request
    ) -> RescheduleResult:
        """Give a delayed message another due time, ``newDeliverAt``: publish it again, and cancel the original.

        A repeated request with the same ``newDeliverAt`` returns the same copy; with a different one it is refused.
        """
        if payload.new_deliver_at is None:
            raise InvalidInputError("newDeliverAt is missing: the new due time, milliseconds since the epoch")
        check_deliver_at(payload.new_deliver_at)
        return _reschedule(service, topic, payload, payload.new_deliver_at, request)


def _answer(outcomes: Sequence[MessageOutcome]) -> Response:
    if all(outcome.cancelled for outcome in outcomes):
        return Response(status_code=204, headers=_headers(outcomes))
    if all(outcome.accepted for outcome in outcomes):
        answers = [as_json(outcome) for outcome in outcomes]
        return JSONResponse(answers[0] if len(answers) == 1 else answers, 202)
    bad = [(one, verdict) for one in outcomes for verdict in one.verdicts if not verdict.proof.cancelled]
    reasons = [
        f"{one.cancellation_id}{f' on {verdict.subscription}' if verdict.subscription else ''}: "
        f"{verdict.proof.value}: {verdict.reason}"
        for one, verdict in bad[:_FEW]
    ]
    reason = "; ".join(reasons) + (f"; and {len(bad) - _FEW} more" if len(bad) > _FEW else "")
    if all(verdict.proof is CancellationStatus.NOT_FOUND for _, verdict in bad):
        raise NotFoundError(reason)
    raise MismatchError(reason)


def _headers(outcomes: Sequence[MessageOutcome]) -> dict[str, str]:
    # 204 has no body, so the proof, the id and the warnings are headers.
    proofs = (verdict.proof for outcome in outcomes for verdict in outcome.verdicts)
    headers = {PROOF_HEADER: min(proofs, key=list(CancellationStatus).index).value}
    if len(outcomes) == 1:
        headers[ID_HEADER] = str(outcomes[0].cancellation_id)
    return headers | warning_headers(warning for outcome in outcomes for warning in outcome.warnings)


def _reschedule(
    service: DelayedDelivery, topic: TopicName, payload: requests.ReschedulePayload, due: int | None, request: Request
) -> RescheduleResult:
    if payload.deliver_at is not None:
        check_deliver_at(payload.deliver_at)
    target = payload.target(deliver_at_ms=payload.deliver_at)
    return service.reschedule(topic, target, due, CancelOptions(requested_by=request.state.caller.role))


def _waits(text: str | None) -> bool:
    if text is None or text == "":
        return False
    if text.lower() not in ("persisted", "acked"):
        raise MismatchError("wait must be persisted or acked")
    return text.lower() == "persisted"


def _defers(text: str | None) -> bool:
    if text is not None and text.lower() not in ("", "true", "false"):
        raise MismatchError("defer must be true or false")
    return text is not None and text.lower() == "true"
