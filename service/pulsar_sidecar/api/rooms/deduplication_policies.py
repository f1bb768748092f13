"""The policies of deduplication, on Pulsar's own paths, and whether brokers follow them in a namespace.

A change is answered with its effect.
"""

from typing import Annotated

from fastapi import APIRouter, Body, Query
from pydantic import BeforeValidator, StrictBool, StrictInt

from pulsar_sidecar.api.guard import guarded_router
from pulsar_sidecar.api.paths import NAMESPACE_PATH, V2_PATH, V2Namespace, V2Topic
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.api.schemas import Answer, Parameters, Text
from pulsar_sidecar.deduplication.inspection.canary import (
    CheckOutcome,
    DeduplicationChecks,
    DuplicateReceipt,
    SendFailure,
)
from pulsar_sidecar.deduplication.inspection.policy_changes import PolicyChanges
from pulsar_sidecar.deduplication.policies import DeduplicationPolicy, PolicyLevel

_Value = bool | int
_ROUTES = (
    (DeduplicationPolicy.ENABLED, "deduplicationEnabled", "deduplication"),
    (DeduplicationPolicy.SNAPSHOT_INTERVAL, "deduplicationSnapshotInterval", "deduplicationSnapshotInterval"),
)
"""Pulsar's names for a topic's policy and a namespace's."""


class DeduplicationPolicyParameters(Parameters):
    """Parameters of reading a topic's policy."""

    applied: bool = False
    """Answer the policy in effect, of all levels."""


class PolicyValuesAnswer(Answer):
    """A policy on each level; null where it is not set."""

    topic: _Value | None
    topic_global: _Value | None
    """The topic's global policy, which counts after its own."""
    namespace: _Value | None
    broker: _Value
    applied: _Value
    """The policy in effect."""
    decided_by: PolicyLevel
    """The level that decides."""


class TopicStatusAnswer(Answer):
    """What a broker does with a topic, or with a partition."""

    topic: Text
    status: str | None
    """``deduplicationStatus``; null where no broker has the topic loaded: it counts from the next load on."""


class PolicyChangeAnswer(Answer):
    """The effect of a change."""

    asked: _Value | None
    """What was to be set; null for a removal."""
    stored: _Value | None
    """The value of this level now; null if it is not set."""
    values: PolicyValuesAnswer
    statuses: list[TopicStatusAnswer]
    """Of a topic each partition, of a namespace some loaded topics; at most 20."""
    remarks: list[str]
    """Unexpected effects of the change."""


def _written(answer: object) -> object:
    match answer:
        case DuplicateReceipt():
            return "duplicate"
        case SendFailure():
            return f"error: {answer.reason}"
        case _:
            return str(answer)


_SendAnswer = Annotated[str, BeforeValidator(_written)]


class DeduplicationCheckAnswer(Answer):
    """What a broker did with two messages under one sequence id."""

    namespace: str
    topic: Text
    """The check's own topic, which is gone unless ``leftBehind`` has a reason."""
    outcome: CheckOutcome
    reason: str
    policy: PolicyValuesAnswer
    """The policy that should decide it."""
    as_configured: bool | None
    """Whether the broker did what the policy demands; null if the outcome is unknown."""
    status: str | None
    """The topic's ``deduplicationStatus``."""
    first: _SendAnswer
    """``ledgerId:entryId``, ``duplicate`` or an error."""
    second: _SendAnswer
    left_behind: str | None


_Parameters = Annotated[DeduplicationPolicyParameters, Query()]
_Body = Annotated[
    StrictBool | StrictInt, Body(description="true or false, or the interval's seconds (0 for none by time).")
]


def router(policies: PolicyChanges) -> APIRouter:
    """The routes; a namespace's have the same answers as a topic's."""
    routes = guarded_router("deduplication")
    for policy, topic_route, namespace_route in _ROUTES:
        _add_of_topic(routes, policies, policy, topic_route)
        _add_of_namespace(routes, policies, policy, namespace_route)
    return routes


def _add_of_topic(routes: APIRouter, policies: PolicyChanges, policy: DeduplicationPolicy, route: str) -> None:
    path, name = f"{V2_PATH}/{route}", f"topic_{route}"

    @routes.get(path, name=name)
    @takes(Right.POLICY)
    def read(topic: V2Topic, parameters: _Parameters) -> _Value | None:
        """The topic's own policy, null if it is not set; with ``applied`` the policy in effect."""
        values = policies.of_topic(policy, topic)
        return values.applied if parameters.applied else values.topic

    @routes.post(path, name=f"set_{name}")
    @takes(Right.CHANGE)
    def change(topic: V2Topic, value: _Body) -> PolicyChangeAnswer:
        """Set the topic's own policy, and wait some seconds for the brokers that have it loaded."""
        return PolicyChangeAnswer.model_validate(policies.change_topic(policy, topic, value))

    @routes.delete(path, name=f"remove_{name}")
    @takes(Right.CHANGE)
    def remove(topic: V2Topic) -> PolicyChangeAnswer:
        """Remove the topic's own policy, so that its namespace's or its broker's counts again."""
        return PolicyChangeAnswer.model_validate(policies.change_topic(policy, topic, None))


def _add_of_namespace(routes: APIRouter, policies: PolicyChanges, policy: DeduplicationPolicy, route: str) -> None:
    path, name = f"{NAMESPACE_PATH}/{route}", f"namespace_{route}"

    @routes.get(path, name=name)
    @takes(Right.POLICY)
    def read(namespace: V2Namespace) -> _Value | None:
        """The namespace's policy; null if it is not set."""
        return policies.of_namespace(policy, namespace).namespace

    @routes.post(path, name=f"set_{name}")
    @takes(Right.CHANGE)
    def change(namespace: V2Namespace, value: _Body) -> PolicyChangeAnswer:
        """Set the namespace's policy; topics with a policy of their own keep it."""
        return PolicyChangeAnswer.model_validate(policies.change_namespace(policy, namespace, value))

    @routes.delete(path, name=f"remove_{name}")
    @takes(Right.CHANGE)
    def remove(namespace: V2Namespace) -> PolicyChangeAnswer:
        """Remove the namespace's policy, so that its brokers' configuration counts again."""
        return PolicyChangeAnswer.model_validate(policies.change_namespace(policy, namespace, None))


def check_router(checks: DeduplicationChecks) -> APIRouter:
    """The route of the check, on a topic of the sidecar's own."""
    routes = guarded_router("deduplication")

    @routes.post(f"{NAMESPACE_PATH}/deduplication/check")
    @takes(Right.CHANGE)
    def check_deduplication(namespace: V2Namespace) -> DeduplicationCheckAnswer:
        """Publish twice under one sequence id to a new topic of the namespace, observe the broker, delete the topic.

        No existing topic is touched. 404: no such namespace.
        """
        return DeduplicationCheckAnswer.model_validate(checks.check(namespace))

    return routes
