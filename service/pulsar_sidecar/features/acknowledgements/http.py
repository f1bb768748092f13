"""Routes of acknowledgement states and of the policy that pauses dispatch (PIP-299), and its key in statistics."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import Field
from starlette.responses import Response

from pulsar_sidecar.features.acknowledgements.results import (
    AckState,
    Fullness,
    PauseRemoval,
    StoredAckState,
    StoredAckStates,
    TopicPolicy,
)
from pulsar_sidecar.features.acknowledgements.states import DetailOptions
from pulsar_sidecar.features.acknowledgements.stats_answers import PausesInStats
from pulsar_sidecar.features.acknowledgements.workflow import AckStateService, CachedSurveys
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.passed_requests import BrokerAnswer, Brokers, PassedRequest
from pulsar_sidecar.server.guard import guarded_router
from pulsar_sidecar.server.paths import (
    NAMESPACE_PATH,
    TOPIC_PATHS,
    V2_PATH,
    SubscriptionName,
    TenantName,
    V2Namespace,
    V2Topic,
    v1_topic,
    v2_topic,
)
from pulsar_sidecar.server.rights import Right, takes
from pulsar_sidecar.server.schemas import Parameters

_POLICY = "dispatcherPauseOnAckStatePersistent"
_STATS = re.compile(r"/admin/(v2/)?persistent/((?:[^/]+/){2,3}[^/]+)/(?:partitioned-)?stats/?")
_OK = 200


class AckStateParameters(Parameters):
    """Parameters of ``ackState``."""

    ranges: int = Field(default=20, ge=0, le=100_000)
    """Maximum number of lost ranges to list."""
    stretches: int = Field(default=60, ge=0, le=10_000)
    """Number of equal parts into which the entries are divided."""

    def options(self) -> DetailOptions:
        return DetailOptions(self.ranges, self.stretches)


class PauseParameters(Parameters):
    """Parameters of reading the policy."""

    applied: bool = False
    """Return the policy in effect, of all levels."""


class PauseRemovalParameters(Parameters):
    """Parameters of removing the policy."""

    force: bool = False
    """Remove it even if the broker then stores a false that overrides the namespace's or the broker's true."""


class StoredAckStatesParameters(Parameters):
    """Parameters of ``storedAckStates``."""

    offset: int = Field(default=0, ge=0, le=10_000_000)
    limit: int = Field(default=50, ge=1, le=10_000)
    """Maximum number of subscriptions in the response."""
    fullness: Fullness | None = None
    """Only subscriptions with this ``fullness``."""
    holes: bool = False
    """Only subscriptions with acknowledgements beyond the mark-delete position."""
    contains: str = Field(default="", max_length=8192)
    """Only subscriptions whose name, or whose topic's name, contains this string."""

    def takes(self, state: StoredAckState) -> bool:
        """Return True if the subscription passes the filters."""
        return (
            self.fullness in (None, state.fullness)
            and (state.ranges > 0 or not self.holes)
            and (self.contains in state.topic or self.contains in state.subscription)
        )


_Options = Annotated[AckStateParameters, Query()]
_Filters = Annotated[StoredAckStatesParameters, Query()]


def router(service: AckStateService) -> APIRouter:
    routes = guarded_router("acknowledgement states")
    _add_states(routes, service)
    _add_topic_policy(routes, service)
    _add_namespace_policy(routes, service)
    return routes


def _add_states(routes: APIRouter, service: AckStateService) -> None:
    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/subscription/{{subscription}}/ackState", name=f"{version}ack_state")
        @takes(Right.STATE)
        def ack_state(
            topic: Annotated[TopicName, Depends(topic_of)], subscription: SubscriptionName, parameters: _Options
        ) -> Sequence[AckState]:
            """Return a subscription's acknowledgement state: ranges and their limit, stored part, entries to redeliver.

            One response for each partition. 404: no such topic, or no such subscription.
            """
            return service.ack_states(topic, subscription, parameters.options())

    @routes.get(f"{V2_PATH}/ackState")
    @takes(Right.STATE)
    def ack_states(topic: V2Topic, parameters: _Options) -> Sequence[AckState]:
        """Return the acknowledgement states of all durable subscriptions of a topic."""
        return service.ack_states(topic, None, parameters.options())


def _add_topic_policy(routes: APIRouter, service: AckStateService) -> None:
    @routes.get(f"{V2_PATH}/{_POLICY}")
    @takes(Right.POLICY)
    def topic_pause(topic: V2Topic, parameters: Annotated[PauseParameters, Query()]) -> bool | None:
        """Return the topic's dispatch-pause policy: true if dispatch pauses when acknowledgements no longer fit.

        Null if unknown.
        """
        policies = service.topic_pause(topic)
        return policies.enabled if parameters.applied else policies.topic is TopicPolicy.TRUE

    @routes.post(f"{V2_PATH}/{_POLICY}", status_code=204, response_description="The policy is true.")
    @takes(Right.CHANGE)
    def enable_topic_pause(topic: V2Topic) -> Response:
        """Pause dispatch of the topic's subscriptions when their acknowledgements no longer fit."""
        service.enable_topic_pause(topic)
        return Response(status_code=204)

    @routes.delete(f"{V2_PATH}/{_POLICY}")
    @takes(Right.CHANGE)
    def remove_topic_pause(topic: V2Topic, parameters: Annotated[PauseRemovalParameters, Query()]) -> PauseRemoval:
        """Remove the topic's dispatch-pause policy. Brokers cannot always remove it; the response reports the result.

        409: the broker would store a false that overrides the namespace's or the broker's true, and ``force`` is not
        given.
        """
        return service.remove_topic_pause(topic, force=parameters.force)


def _add_namespace_policy(routes: APIRouter, service: AckStateService) -> None:
    @routes.get(f"{NAMESPACE_PATH}/{_POLICY}")
    @takes(Right.POLICY)
    def namespace_pause(namespace: V2Namespace) -> bool | None:
        """Return the namespace's dispatch-pause policy; null if it is unset."""
        return service.namespace_pause(namespace)

    @routes.post(f"{NAMESPACE_PATH}/{_POLICY}", status_code=204, response_description="The policy is true.")
    @takes(Right.CHANGE)
    def enable_namespace_pause(namespace: V2Namespace) -> Response:
        """Pause dispatch in the namespace when acknowledgements no longer fit; a topic's policy overrides it."""
        service.enable_namespace_pause(namespace)
        return Response(status_code=204)

    @routes.delete(f"{NAMESPACE_PATH}/{_POLICY}")
    @takes(Right.CHANGE)
    def remove_namespace_pause(namespace: V2Namespace) -> PauseRemoval:
        """Remove the namespace's dispatch-pause policy; its brokers' configuration applies again.

        Brokers up to 4.0.8 store false instead; the sidecar then removes that from the namespace's policies.
        """
        return service.remove_namespace_pause(namespace)


# --- stored states -------------------------------------------------------------------------------------------------


def stored_router(surveys: CachedSurveys) -> APIRouter:
    """Return the routes of stored states, which load no topic."""
    routes = guarded_router("acknowledgement states")

    def survey(scope: TopicName | str | None, filters: StoredAckStatesParameters) -> StoredAckStates:
        return surveys.survey(scope).result(filters.takes, filters.offset, filters.limit)

    @routes.get("/admin/v2/storedAckStates")
    @takes(Right.CLUSTER_STATE)
    def stored_ack_states(parameters: _Filters) -> StoredAckStates:
        """List all topics' stored acknowledgement states, most acknowledged ranges first. Loads no topic."""
        return survey(None, parameters)

    @routes.get("/admin/v2/tenants/{tenant}/storedAckStates")
    @takes(Right.POLICY)
    def stored_ack_states_of_tenant(tenant: TenantName, parameters: _Filters) -> StoredAckStates:
        """List the stored acknowledgement states of a tenant, most acknowledged ranges first."""
        return survey(tenant, parameters)

    @routes.get(f"{NAMESPACE_PATH}/storedAckStates")
    @takes(Right.STATE)
    def stored_ack_states_of_namespace(namespace: V2Namespace, parameters: _Filters) -> StoredAckStates:
        """List the stored acknowledgement states of a namespace, most acknowledged ranges first."""
        return survey(namespace, parameters)

    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/storedAckStates", name=f"{version}stored_ack_states_of_topic")
        @takes(Right.STATE)
        def stored_ack_states_of_topic(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: _Filters
        ) -> StoredAckStates:
            """List the stored acknowledgement states of a topic, its partitions together. ``ackState`` is live."""
            return survey(topic, parameters)

    return routes


# --- passed statistics ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _AmendedAnswer:
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self.body


class BrokersWithPauses:
    """`model.passed_requests.Brokers`, with ``blockedOnAckStatePersistent`` in statistics, which it buffers whole.

    The broker decides with the caller's own credential first; the sidecar adds only to the broker's response.
    """

    def __init__(self, brokers: Brokers, pauses: PausesInStats) -> None:
        self._brokers = brokers
        self._pauses = pauses

    @asynccontextmanager
    async def answer(self, request: PassedRequest) -> AsyncIterator[BrokerAnswer]:
        topic = await _topic_of(request)
        if topic is not None:
            readable = [each for each in request.headers if each[0].lower() != "accept-encoding"]
            request = replace(request, headers=readable)
        async with self._brokers.answer(request) as answer:
            yield answer if topic is None or answer.status != _OK else await self._amended(topic, answer)

    async def close(self) -> None:
        await self._brokers.close()

    async def _amended(self, topic: TopicName, answer: BrokerAnswer) -> BrokerAnswer:
        body = b"".join([piece async for piece in answer.pieces()])
        body = await asyncio.to_thread(self._pauses.amended, topic, body)
        kept = [each for each in answer.headers if each[0].lower() not in (b"content-length", b"transfer-encoding")]
        return _AmendedAnswer(answer.status, [*kept, (b"Content-Length", str(len(body)).encode())], body)


async def _topic_of(request: PassedRequest) -> TopicName | None:
    found = _STATS.fullmatch(request.target.partition("?")[0])
    if found is None or request.method != "GET":
        return None
    names = found[2].split("/")
    try:
        if found[1] and len(names) == 3:
            return await v2_topic(*names)
        return await v1_topic(*names) if not found[1] and len(names) == 4 else None
    except InvalidInputError:
        return None
