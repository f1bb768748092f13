"""Routes of deduplication (PIP-6), on Pulsar's own paths; none loads a topic, except that the check creates its own."""

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Query
from pydantic import Field, StrictBool, StrictInt

from pulsar_sidecar.features.deduplication.inspection.canary import DeduplicationChecks
from pulsar_sidecar.features.deduplication.inspection.health import DeduplicationHealth
from pulsar_sidecar.features.deduplication.inspection.lag_limits import DEFAULT_BYTES, DEFAULT_ENTRIES, LagLimits
from pulsar_sidecar.features.deduplication.inspection.policy_changes import PolicyChanges
from pulsar_sidecar.features.deduplication.inspection.replay import MOST_ENTRIES
from pulsar_sidecar.features.deduplication.inspection.service import DeduplicationService
from pulsar_sidecar.features.deduplication.policies import NAMESPACE_ROUTES, TOPIC_ROUTES, DeduplicationPolicy
from pulsar_sidecar.features.deduplication.results import (
    DeduplicationCheck,
    DeduplicationView,
    LoadForecasts,
    PolicyChange,
    PolicyValue,
    StuckReport,
)
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.server.guard import guarded_router
from pulsar_sidecar.server.paths import NAMESPACE_PATH, TOPIC_PATHS, V2_PATH, V2Namespace, V2Topic
from pulsar_sidecar.server.rights import Right, takes
from pulsar_sidecar.server.schemas import Parameters

_MOST = 2**63 - 1
_NOUNS = (
    (DeduplicationPolicy.ENABLED, "deduplication policy"),
    (DeduplicationPolicy.SNAPSHOT_INTERVAL, "deduplication snapshot interval"),
)


class DeduplicationParameters(Parameters):
    """Parameters of ``deduplication``."""

    ask_broker: bool = False
    """Read the status from the broker that has the topic loaded; loads nothing."""
    replay: bool = False
    """Read the entries after the snapshot, and rebuild the map as a broker that loads the topic does."""
    limit: int = Field(default=MOST_ENTRIES, ge=1, le=100_000_000)
    """Maximum number of entries that a replay reads of each partition."""


class StuckParameters(Parameters):
    """Parameters of a search for stuck cursors."""

    entries: int = Field(default=DEFAULT_ENTRIES, ge=0, le=_MOST)
    """Maximum number of entries between a cursor and the end of its topic; a cursor further behind lags."""
    size_bytes: int = Field(default=DEFAULT_BYTES, ge=0, le=_MOST)
    """Maximum number of bytes between a cursor and the end of its topic; a cursor further behind lags."""
    most: int = Field(default=100, ge=1, le=100_000)
    """Maximum number of cursors shown."""

    @property
    def limits(self) -> LagLimits:
        return LagLimits(self.entries, self.size_bytes)


class DeduplicationPolicyParameters(Parameters):
    """Parameters of reading a topic's policy."""

    applied: bool = False
    """Return the policy in effect, of all levels."""


_Stuck = Annotated[StuckParameters, Query()]
_Body = Annotated[
    StrictBool | StrictInt,
    Body(description="true or false, or the interval in seconds (0 switches snapshots by time off)."),
]


def router(service: DeduplicationService) -> APIRouter:
    routes = guarded_router("deduplication")

    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/deduplication", name=f"{version}deduplication")
        @takes(Right.STATE)
        def deduplication(
            topic: Annotated[TopicName, Depends(topic_of)],
            parameters: Annotated[DeduplicationParameters, Query()],
        ) -> list[DeduplicationView]:
            """Return a topic's stored deduplication state, the cost of its next topic load, and the ledgers retained.

            One response for each partition, read from the metadata store and the bookies; brokers are queried for
            policies and settings only. The topic is not loaded. 404: no such topic.
            """
            at_most = parameters.limit if parameters.replay else 0
            return service.show(topic, ask_broker=parameters.ask_broker, replay_at_most=at_most)

    return routes


def policies_router(policies: PolicyChanges) -> APIRouter:
    """Return the routes of both policies of topics and namespaces."""
    routes = guarded_router("deduplication")
    for policy, noun in _NOUNS:
        _add_of_topic(routes, policies, policy, noun)
        _add_of_namespace(routes, policies, policy, noun)
    return routes


def _add_of_topic(routes: APIRouter, policies: PolicyChanges, policy: DeduplicationPolicy, noun: str) -> None:
    route = TOPIC_ROUTES[policy]
    path, name = f"{V2_PATH}/{route}", f"topic_{route}"

    @routes.get(
        path,
        name=name,
        description=f"Return a topic's own {noun}; null if it is unset. With ``applied``: the value in effect.",
    )
    @takes(Right.POLICY)
    def read(topic: V2Topic, parameters: Annotated[DeduplicationPolicyParameters, Query()]) -> PolicyValue | None:
        values = policies.of_topic(policy, topic)
        return values.applied if parameters.applied else values.topic

    @routes.post(
        path,
        name=f"set_{name}",
        description=f"Set a topic's own {noun}; the sidecar waits some seconds for the brokers that have it loaded.",
    )
    @takes(Right.CHANGE)
    def change(topic: V2Topic, value: _Body) -> PolicyChange:
        return policies.change_topic(policy, topic, value)

    @routes.delete(
        path,
        name=f"remove_{name}",
        description=f"Remove a topic's own {noun}; its namespace's or its broker's applies again.",
    )
    @takes(Right.CHANGE)
    def remove(topic: V2Topic) -> PolicyChange:
        return policies.change_topic(policy, topic, None)


def _add_of_namespace(routes: APIRouter, policies: PolicyChanges, policy: DeduplicationPolicy, noun: str) -> None:
    route = NAMESPACE_ROUTES[policy]
    path, name = f"{NAMESPACE_PATH}/{route}", f"namespace_{route}"

    @routes.get(path, name=name, description=f"Return a namespace's {noun}; null if it is unset.")
    @takes(Right.POLICY)
    def read(namespace: V2Namespace) -> PolicyValue | None:
        return policies.of_namespace(policy, namespace).namespace

    @routes.post(
        path, name=f"set_{name}", description=f"Set a namespace's {noun}; topics with a policy of their own keep it."
    )
    @takes(Right.CHANGE)
    def change(namespace: V2Namespace, value: _Body) -> PolicyChange:
        return policies.change_namespace(policy, namespace, value)

    @routes.delete(
        path,
        name=f"remove_{name}",
        description=f"Remove a namespace's {noun}; its brokers' configuration applies again.",
    )
    @takes(Right.CHANGE)
    def remove(namespace: V2Namespace) -> PolicyChange:
        return policies.change_namespace(policy, namespace, None)


def check_router(checks: DeduplicationChecks) -> APIRouter:
    routes = guarded_router("deduplication")

    @routes.post(f"{NAMESPACE_PATH}/deduplication/check")
    @takes(Right.CHANGE)
    def check_deduplication(namespace: V2Namespace) -> DeduplicationCheck:
        """Check that brokers of a namespace deduplicate: publish twice under one sequence id to a new topic.

        The sidecar deletes that topic afterwards; no existing topic is touched. 404: no such namespace.
        """
        return checks.check(namespace)

    return routes


def health_router(health: DeduplicationHealth) -> APIRouter:
    """Return the routes of stuck cursors and slow loads, which change nothing."""
    routes = guarded_router("deduplication")

    @routes.get("/admin/v2/deduplication/stuck")
    @takes(Right.CLUSTER_STATE)
    def stuck_deduplication_cursors(parameters: _Stuck) -> StuckReport:
        """Return all topics' stuck deduplication cursors: deduplication is off, or they lag. Loads no topic."""
        return health.stuck(None, parameters.limits, parameters.most)

    @routes.get(f"{NAMESPACE_PATH}/deduplication/stuck")
    @takes(Right.STATE)
    def stuck_deduplication_cursors_of_namespace(namespace: V2Namespace, parameters: _Stuck) -> StuckReport:
        """Return a namespace's stuck deduplication cursors."""
        return health.stuck(namespace, parameters.limits, parameters.most)

    @routes.get("/admin/v2/deduplication/forecast")
    @takes(Right.CLUSTER_STATE)
    def deduplication_forecast() -> LoadForecasts:
        """Return the ten topics whose loads deduplication slows most, in the cluster. Loads no topic."""
        return health.slowest_loads(None)

    @routes.get(f"{NAMESPACE_PATH}/deduplication/forecast")
    @takes(Right.STATE)
    def deduplication_forecast_of_namespace(namespace: V2Namespace) -> LoadForecasts:
        """Return the ten topics whose loads deduplication slows most, in a namespace. Loads no topic."""
        return health.slowest_loads(namespace)

    return routes
