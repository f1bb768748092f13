"""Deletions of subscriptions and of schemas: recorded first, then passed to a broker with the caller's own credential.

Invariants: nothing is recorded unless the sidecar knows that brokers let the caller delete; and after a broker's
timeout the sidecars continue, with their own credential, only for an admin role of the tenant.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from pulsar_sidecar.features.ledger_deletion.http.deletions import answer_of, deletions_of
from pulsar_sidecar.features.ledger_deletion.results import TopicDeletionStatus
from pulsar_sidecar.features.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.errors import (
    DisabledError,
    InvalidInputError,
    NotAuthorizedError,
    OutcomeUnknownError,
    TemporaryError,
)
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.server.pass_through import First, RequestToPass, Unanswered, passed_after
from pulsar_sidecar.server.paths import TOPIC_PATHS, SubscriptionName, decode_segment
from pulsar_sidecar.server.rights import Right, Subject
from pulsar_sidecar.server.schemas import Parameters

_SCHEMA_PATHS = {
    "": "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema",
    "v1_": "/admin/schemas/{property}/{cluster}/{namespace}/{topic}/schema",
}
_TopicOf = Callable[..., Awaitable[TopicName]]


class PartParameters(Parameters):
    """Brokers' own parameters of these calls."""

    force: bool = False
    """Delete a subscription even if consumers are connected, or a schema with all its versions and ledgers."""
    authoritative: bool = Field(default=False)
    """Used between brokers."""


_Parameters = Annotated[PartParameters, Query()]


def add_parts(routes: APIRouter, service: LedgerDeletion) -> None:
    """Add the deletions that the sidecar records and then passes to a broker."""
    deletion = deletions_of(routes, TopicDeletionStatus)
    for path, topic_of, version in TOPIC_PATHS:

        @deletion(f"{path}/subscription/{{subscription}}", name=f"{version}delete_subscription")
        @passed_after(_recorded(service, topic_of))
        def delete_subscription(
            topic: Annotated[TopicName, Depends(topic_of)], subscription: SubscriptionName, parameters: _Parameters
        ) -> Response:
            """Delete a subscription in two phases: record its cursor's ledger and delayed index, then call a broker.

            The broker decides by the caller's own credential, and its response is the caller's. 202: the broker did not
            answer, and the sidecars continue. 503: the ledgers could not be recorded, so no broker was called.
            """
            raise _not_passed()

        @deletion(_SCHEMA_PATHS[version], name=f"{version}delete_schema")
        @passed_after(_recorded(service, topic_of))
        def delete_schema(topic: Annotated[TopicName, Depends(topic_of)], parameters: _Parameters) -> Response:
            """Delete a topic's schema; with ``force`` all its versions with their ledgers, in two phases.

            Without ``force`` brokers add a version that marks it as deleted, and nothing is recorded.
            """
            raise _not_passed()


def _not_passed() -> DisabledError:
    return DisabledError("brokers serve this, and pass-through to them is off: set adminPassThroughEnabled=true")


def _recorded(service: LedgerDeletion, topic_of: _TopicOf) -> First:
    async def first(request: RequestToPass) -> Unanswered | None:
        params = dict(request.path_params)
        encoded = params.pop("subscription", None)
        try:
            subscription = None if encoded is None else decode_segment(encoded)
            topic = await topic_of(**params)
        except InvalidInputError:
            return None  # the broker has its own words for such a name
        if subscription is None and not _forced(request):
            return None
        # Partitions share the schema of their topic.
        owner = topic.base if subscription is None else topic
        return await run_in_threadpool(_record, service, request, owner, subscription)

    return first


def _forced(request: RequestToPass) -> bool:
    """Return True if the first ``force`` is ``true``, as brokers read it; any later one is ignored."""
    given = (value for key, value in parse_qsl(request.query, keep_blank_values=True) if key == "force")
    return next(given, "").lower() == "true"


def _record(
    service: LedgerDeletion, request: RequestToPass, topic: TopicName, subscription: str | None
) -> Unanswered | None:
    if not _has(request, Right.CHANGE if subscription is None else Right.MESSAGES, topic):
        return None
    try:
        operation = service.record_part(topic, subscription, force=_forced(request), requested_by=request.caller.role)
    except (TemporaryError, OutcomeUnknownError) as error:
        raise TemporaryError(
            f"its ledgers could not be recorded, so no broker was called ({error}); try again"
        ) from error
    if operation is None or not _has(request, Right.CHANGE, topic):
        return None
    return lambda: run_in_threadpool(lambda: answer_of(service.continue_part(operation)))


def _has(request: RequestToPass, right: Right, topic: TopicName) -> bool:
    try:
        request.rights.require(request.caller, right, Subject(topic.tenant, topic.namespace, topic))
    except NotAuthorizedError:
        return False
    return True
