"""Cancelling delayed messages: PIP-423's route, the one it moved to later, and the bulk ones.

Paths and parameters are the PIP's, so that a client only changes the host.
"""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse

from pulsar_sidecar.api.errors import MismatchError, NotPersistentError
from pulsar_sidecar.api.guard import guarded_router
from pulsar_sidecar.api.paths import TOPIC_PATHS, V2_PATH, SubscriptionName, V2Topic, decode_segment, v1_topic
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.api.rooms.delayed_delivery import schemas
from pulsar_sidecar.api.rooms.delayed_delivery.bulk_lines import (
    MEDIA_TYPE,
    LinesResponse,
    carried_out,
    selected_carried_out,
)
from pulsar_sidecar.delayed_delivery.backlog import WaitingReader, parse_backlog_position
from pulsar_sidecar.delayed_delivery.cancel.requests import (
    CancellationStatus,
    CancelOptions,
    TargetOutcome,
    check_deliver_at,
    check_subscription_name,
)
from pulsar_sidecar.delayed_delivery.workflow.service import DelayedDelivery
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName

_PIPS_V1 = "/admin/v1/persistent/{property}/{cluster}/{namespace}/{topic}"
"""As PIP-423 spells it; brokers know only the other one."""
_PIPS_PATHS = (*TOPIC_PATHS, (_PIPS_V1, v1_topic, ""))


async def _position(
    cancellation_id: Annotated[str, Path(description="``ledgerId:entryId``.", examples=["4711:0"])],
) -> Position:
    return schemas.parse_position(decode_segment(cancellation_id))


_CancellationId = Annotated[Position, Depends(_position)]

LEVEL_HEADER = "X-Pulsar-Sidecar-Proof"
ID_HEADER = "X-Pulsar-Sidecar-Cancellation"
WARNING_HEADER = "X-Pulsar-Sidecar-Warning"
_ACCEPTED: dict[int | str, dict[str, object]] = {
    202: {"model": schemas.OutcomeAnswer, "description": "In the log; acknowledged as soon as that is possible."}
}
_FEW = 5
"""Maximum number of reasons in an error."""
_LINES: dict[int | str, dict[str, object]] = {
    200: {"content": {MEDIA_TYPE: {}}, "description": "One verdict for each line, in order."}
}
_LINES_IN = {
    "requestBody": {
        "required": True,
        "content": {MEDIA_TYPE: {"schema": schemas.CancelLine.model_json_schema(by_alias=True)}},
    }
}


def router(service: DelayedDelivery) -> APIRouter:
    """The routes of cancelling under ``/admin/v2/persistent`` and ``/admin/persistent``."""
    routes = guarded_router("delayed messages")
    _add_pip_423(routes, service)
    _add_bulk(routes, service)
    _add_rescheduling(routes, service)
    return routes


def waiting_router(service: WaitingReader) -> APIRouter:
    """The routes of reading delayed messages, which need no log."""
    routes = guarded_router("delayed messages")
    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/delayedMessages", name=f"{version}delayed_messages")
        @takes(Right.STATE)
        def delayed_messages(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: Annotated[schemas.WaitingParameters, Query()]
        ) -> schemas.WaitingPageAnswer:
            """Waiting messages in the next ``limit`` entries of the backlog, counted by due time; nothing is changed.

            As long as ``after`` is not null, the backlog has more; add the answers up. 404: no such topic or
            subscription.
            """
            after = None if parameters.after is None else parse_backlog_position(parameters.after)
            page = service.waiting(topic, parameters.subscription, after, parameters.limit)
            return schemas.WaitingPageAnswer.model_validate(page)

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
            parameters: Annotated[schemas.CancelParameters, Query()],
            request: Request,
        ) -> Response:
            """Cancel a delayed message on specified subscriptions, or all if none are specified (PIP-423).

            204: it will not be delivered; headers name the proof and the cancellation's id. 202: in the log. 404: no
            such topic, subscription or entry. 412: wrong parameters, another deliverAt, too late, or it cannot be
            cancelled.

            A V1 topic's messages are also cancelled under ``/admin/v1/persistent``, as the PIP spells it.
            """
            wait, defer = _waits(parameters.wait), _flag("defer", parameters.defer)
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
        ) -> list[schemas.CancellationAnswer]:
            """How far a cancellation has come, by subscription; its id is ``ledgerId:entryId``.

            404: none is known, or it was over long ago.
            """
            found = service.cancellations(topic, cancellation_id)
            return [schemas.CancellationAnswer.model_validate(one) for one in found]

        non_persistent = path.replace("/persistent/", "/non-persistent/")

        @routes.post(f"{non_persistent}/cancelDelayedMessage", include_in_schema=False)
        @takes(Right.CHANGE)
        def cancel_non_persistent() -> Response:
            """Answer 405: a non-persistent topic keeps no message, so none can be cancelled (PIP-423)."""
            raise NotPersistentError(
                "a non-persistent topic delivers delayed messages at once, so none can be cancelled"
            )

    @routes.get("/admin/v2/delayed-delivery/status")
    @takes(Right.CLUSTER_STATE)
    def delayed_delivery_status() -> schemas.CancelStatusAnswer:
        """The state of cancelling on this sidecar."""
        return schemas.CancelStatusAnswer.model_validate(service.cancelling_status())


def _add_bulk(routes: APIRouter, service: DelayedDelivery) -> None:
    @routes.post(
        f"{V2_PATH}/subscription/{{subscription}}/skipByMessageIds",
        status_code=204,
        response_description="Every one of them is cancelled.",
        responses=_ACCEPTED,
    )
    @takes(Right.CHANGE)
    def skip_by_message_ids(
        topic: V2Topic,
        subscription: SubscriptionName,
        payload: schemas.SkipRequest,
        parameters: Annotated[schemas.BulkParameters, Query()],
        request: Request,
    ) -> Response:
        """Cancel delayed messages of one subscription by their ids, all in one call.

        404, 412: at least one was not cancelled, and the reason names the first few; the others are. For a verdict on
        each, use ``cancelDelayedMessages``.
        """
        where = (check_subscription_name(subscription),)
        targets = []
        for index, one in enumerate(payload.message_ids):
            try:
                targets.append(schemas.target_of_message_id(one, where) if isinstance(one, str) else one.target(where))
            except InvalidInputError as error:
                raise InvalidInputError(f"messageIds.{index}: {error}; nothing was cancelled") from error
        options = CancelOptions(_waits(parameters.wait), parameters.defer, request.state.caller.role)
        return _answer(service.cancel(topic, targets, options))

    @routes.post(f"{V2_PATH}/cancelDelayedMessages", responses=_LINES, openapi_extra=_LINES_IN)
    @takes(Right.CHANGE, in_parts=True)
    async def cancel_delayed_messages(
        topic: V2Topic,
        parameters: Annotated[schemas.BulkParameters, Query()],
        request: Request,
    ) -> StreamingResponse:
        """Cancel many messages: JSON lines in, one verdict a line out, in order, while the request still comes in.

        Each line is an object with ``ledgerId`` and ``entryId`` or a base64 ``messageId``, and may have ``deliverAt``,
        ``subscriptionNames``, ``partition`` and ``batchIndex``. A bad line fails alone. The status 200 is
        sent before the lines are read: read each verdict, while you write, or in parts; the answer gets as long as the
        request.
        """
        options = CancelOptions(_waits(parameters.wait), parameters.defer, request.state.caller.role)
        lines = await carried_out(request.stream(), lambda targets: service.cancel(topic, targets, options))
        return LinesResponse(lines)

    @routes.post(f"{V2_PATH}/delayedMessages/preview")
    @takes(Right.MESSAGES)
    def preview_delayed_messages(topic: V2Topic, payload: schemas.SelectionPayload) -> schemas.PreviewAnswer:
        """What a selection by due time, key or properties would cancel: how many, a sample, and a hash to confirm.

        It reads the topic's waiting messages; nothing is changed. Messages due within 5 seconds are left out. 404: no
        such topic or subscription. 409: nothing can be cancelled on one of the subscriptions, or on any.
        """
        return schemas.PreviewAnswer.model_validate(service.preview(topic, payload.selection()))

    @routes.post(f"{V2_PATH}/delayedMessages/cancel", responses=_LINES)
    @takes(Right.CHANGE)
    async def cancel_selected_delayed_messages(
        topic: V2Topic, payload: schemas.ConfirmedSelection, request: Request
    ) -> StreamingResponse:
        """Cancel exactly what was previewed: send the preview's ``selection`` back with its ``hash``.

        409: the selection finds other messages now; nothing was cancelled.
        """
        options = CancelOptions(defer=payload.defer, requested_by=request.state.caller.role)
        batches = await run_in_threadpool(service.confirm_selected, topic, payload.selection(), payload.hash)
        return LinesResponse(selected_carried_out(batches, lambda batch: service.cancel_batch(batch, options)))


def _add_rescheduling(routes: APIRouter, service: DelayedDelivery) -> None:
    @routes.post(f"{V2_PATH}/expediteDelayedMessage")
    @takes(Right.CHANGE)
    def expedite_delayed_message(
        topic: V2Topic, payload: schemas.ReissuePayload, request: Request
    ) -> schemas.ReissuedAnswer:
        """Deliver a delayed message now: publish it again without a delay, and cancel the old one.

        The copy names the old message in its property ``pulsar-sidecar-replaces``. A repeated request gets the
        same copy.
        ``UNKNOWN``: the broker did not confirm the copy and it has not been found; it is never published twice.
        """
        if payload.new_deliver_at is not None:
            raise InvalidInputError(
                "newDeliverAt belongs to rescheduleDelayedMessage; expediteDelayedMessage delivers now"
            )
        return _reschedule(service, topic, payload, None, request)

    @routes.post(f"{V2_PATH}/rescheduleDelayedMessage")
    @takes(Right.CHANGE)
    def reschedule_delayed_message(
        topic: V2Topic, payload: schemas.ReissuePayload, request: Request
    ) -> schemas.ReissuedAnswer:
        """Give a delayed message another due time, ``newDeliverAt``: publish it again, and cancel the old one.

        A repeated request with the same ``newDeliverAt`` gets the same copy; with another one it is refused.
        """
        if payload.new_deliver_at is None:
            raise InvalidInputError("newDeliverAt is missing: the new due time, milliseconds since the epoch")
        check_deliver_at(payload.new_deliver_at)
        return _reschedule(service, topic, payload, payload.new_deliver_at, request)


def _answer(outcomes: Sequence[TargetOutcome]) -> Response:
    if all(outcome.cancelled for outcome in outcomes):
        return Response(status_code=204, headers=_headers(outcomes))
    if all(outcome.accepted for outcome in outcomes):
        answers = [schemas.OutcomeAnswer.model_validate(outcome).model_dump(mode="json") for outcome in outcomes]
        return JSONResponse(answers[0] if len(answers) == 1 else answers, 202)
    bad = [(one, verdict) for one in outcomes for verdict in one.results if not verdict.status.cancelled]
    reasons = [
        f"{one.target.position}{f' on {verdict.subscription}' if verdict.subscription else ''}: "
        f"{verdict.status.value}: {verdict.reason}"
        for one, verdict in bad[:_FEW]
    ]
    reason = "; ".join(reasons) + (f"; and {len(bad) - _FEW} more" if len(bad) > _FEW else "")
    if all(verdict.status is CancellationStatus.NOT_FOUND for _, verdict in bad):
        raise NotFoundError(reason)
    raise MismatchError(reason)


def _headers(outcomes: Sequence[TargetOutcome]) -> dict[str, str]:
    # 204 has no body, so what is known beside it goes into headers.
    weakest = min(
        (verdict.status for outcome in outcomes for verdict in outcome.results), key=list(CancellationStatus).index
    )
    headers = {LEVEL_HEADER: weakest.value}
    if len(outcomes) == 1:
        headers[ID_HEADER] = str(outcomes[0].target.position)
    warnings = dict.fromkeys(warning for outcome in outcomes for warning in outcome.warnings)
    if warnings:
        headers[WARNING_HEADER] = "; ".join(warnings).encode("ascii", "replace").decode()[:1000]
    return headers


def _reschedule(
    service: DelayedDelivery, topic: TopicName, payload: schemas.ReissuePayload, due: int | None, request: Request
) -> schemas.ReissuedAnswer:
    if payload.deliver_at is not None:
        check_deliver_at(payload.deliver_at)
    target = payload.target(deliver_at_ms=payload.deliver_at)
    done = service.reschedule(topic, target, due, CancelOptions(requested_by=request.state.caller.role))
    return schemas.ReissuedAnswer.model_validate(done)


def _waits(text: str | None) -> bool:
    if text is None or text == "":
        return False
    if text.lower() not in ("persisted", "acked"):
        raise MismatchError("wait must be persisted or acked")
    return text.lower() == "persisted"


def _flag(name: str, text: str | None) -> bool:
    if text is not None and text.lower() not in ("", "true", "false"):
        raise MismatchError(f"{name} must be true or false")
    return text is not None and text.lower() == "true"
