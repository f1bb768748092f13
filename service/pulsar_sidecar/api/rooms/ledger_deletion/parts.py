"""Deletions of subscriptions and of schemas: recorded first, then passed to a broker with the caller's own credential.

Invariants: nothing is recorded for a caller of whom the sidecar does not know that brokers let it delete; and where a
broker does not answer, the sidecars go on, with their own credential, only for an admin role of the tenant.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from pulsar_sidecar.api.pass_through import First, ToBePassed, Unanswered, passed_after
from pulsar_sidecar.api.paths import TOPIC_PATHS, SubscriptionName, decode_segment
from pulsar_sidecar.api.rights import Right, Subject
from pulsar_sidecar.api.rooms.ledger_deletion.schemas import TopicDeletionAnswer
from pulsar_sidecar.api.rooms.ledger_deletion.topic_deletions import answer_of, deletions_of
from pulsar_sidecar.api.schemas import Parameters
from pulsar_sidecar.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.errors import (
    DisabledError,
    InvalidInputError,
    NotAuthorizedError,
    OutcomeUnknownError,
    TemporaryError,
)
from pulsar_sidecar.model.names import TopicName

_SCHEMA_PATHS = {
    "": "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema",
    "v1_": "/admin/schemas/{property}/{cluster}/{namespace}/{topic}/schema",
}
_TopicOf = Callable[..., Awaitable[TopicName]]


class PartParameters(Parameters):
    """Brokers' own parameters of these calls."""

    force: bool = False
    """Of a subscription: although consumers are connected. Of a schema: with all its versions and ledgers."""
    authoritative: bool = Field(default=False)
    """Brokers use it among themselves."""


_Parameters = Annotated[PartParameters, Query()]


def add_parts(routes: APIRouter, service: LedgerDeletion) -> None:
    """What is passed to brokers once it is recorded."""
    deletion = deletions_of(routes, TopicDeletionAnswer)
    for path, topic_of, version in TOPIC_PATHS:

        @deletion(f"{path}/subscription/{{subscription}}", name=f"{version}delete_subscription")
        @passed_after(_subscription_first(service, topic_of))
        def delete_subscription(
            topic: Annotated[TopicName, Depends(topic_of)], subscription: SubscriptionName, parameters: _Parameters
        ) -> Response:
            """Delete a subscription in two phases: record its cursor's ledger and its delayed index, then ask a broker.

            The broker decides by the caller's own credential, and its answer is the caller's. 202: the broker did not
            answer, and the sidecars continue. 503: the ledgers could not be recorded, so no broker was asked.
            """
            raise _not_passed()

        @deletion(_SCHEMA_PATHS[version], name=f"{version}delete_schema")
        @passed_after(_schema_first(service, topic_of))
        def delete_schema(topic: Annotated[TopicName, Depends(topic_of)], parameters: _Parameters) -> Response:
            """Delete a topic's schema; with ``force`` all its versions with their ledgers, in two phases.

            Without ``force`` brokers add a version that marks it as deleted, and nothing is recorded.
            """
            raise _not_passed()


def _not_passed() -> DisabledError:
    return DisabledError("brokers do this, and nothing is passed to them: set adminPassThroughEnabled=true")


def _subscription_first(service: LedgerDeletion, topic_of: _TopicOf) -> First:
    async def first(asked: ToBePassed) -> Unanswered | None:
        params = dict(asked.path_params)
        try:
            subscription = decode_segment(params.pop("subscription"))
            topic = await topic_of(**params)
        except InvalidInputError:
            return None  # the broker has its own words for such a name
        return await run_in_threadpool(_record, service, asked, topic, subscription, Right.MESSAGES)

    return first


def _schema_first(service: LedgerDeletion, topic_of: _TopicOf) -> First:
    async def first(asked: ToBePassed) -> Unanswered | None:
        try:
            topic = await topic_of(**asked.path_params)
        except InvalidInputError:
            return None
        if not _forced(asked):
            return None
        # Partitions share the schema of their topic.
        return await run_in_threadpool(_record, service, asked, topic.base, None, Right.CHANGE)

    return first


def _forced(asked: ToBePassed) -> bool:
    """Whether ``force`` is given, as brokers read it: the first one, and no word but "true"."""
    given = (value for key, value in parse_qsl(asked.query, keep_blank_values=True) if key == "force")
    return next(given, "").lower() == "true"


def _record(
    service: LedgerDeletion, asked: ToBePassed, topic: TopicName, subscription: str | None, right: Right
) -> Unanswered | None:
    if not _has(asked, right, topic):
        return None
    try:
        operation = service.record_part(topic, subscription, force=_forced(asked), requested_by=asked.caller.role)
    except (TemporaryError, OutcomeUnknownError) as error:
        raise TemporaryError(
            f"its ledgers could not be recorded, so no broker was asked ({error}); try again"
        ) from error
    if operation is None or not _has(asked, Right.CHANGE, topic):
        return None
    return lambda: run_in_threadpool(lambda: answer_of(service.continue_part(operation)))


def _has(asked: ToBePassed, right: Right, topic: TopicName) -> bool:
    try:
        asked.rights.require(asked.caller, right, Subject(topic.tenant, topic.namespace, topic))
    except NotAuthorizedError:
        return False
    return True
