"""Acknowledgement states of many subscriptions as they are stored, the fullest first; loads no topic."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from pulsar_sidecar.ack_state.survey import AckStateSurvey, Fullness, StoredAckState
from pulsar_sidecar.ack_state.workflow import RememberedSurveys
from pulsar_sidecar.api.guard import guarded_router
from pulsar_sidecar.api.paths import NAMESPACE_PATH, TOPIC_PATHS, TenantName, V2Namespace
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.api.schemas import Answer, Parameters, Text
from pulsar_sidecar.model.names import TopicName

_MOST_REASONS = 100


class StoredAckStatesParameters(Parameters):
    """Parameters of ``storedAckStates``."""

    offset: int = Field(default=0, ge=0, le=10_000_000)
    """Number of subscriptions to pass over."""
    limit: int = Field(default=50, ge=1, le=10_000)
    """Maximum number of subscriptions in the answer."""
    fullness: Fullness | None = None
    """Only these."""
    holes: bool = False
    """Only subscriptions with acknowledgements beyond the mark-delete position."""
    contains: str = Field(default="", max_length=8192)
    """Only subscriptions whose name, or whose topic's name, contains this text."""

    def takes(self, state: StoredAckState) -> bool:
        """Whether the filters let the subscription through."""
        return (
            self.fullness in (None, state.fullness)
            and (state.ranges > 0 or not self.holes)
            and (self.contains in str(state.topic) or self.contains in state.subscription)
        )


class StoredAckStateAnswer(Answer):
    """One subscription of one topic, or of one partition, as stored."""

    topic: Text
    """The topic, or the partition."""
    subscription: str
    """The subscription."""
    fullness: Fullness
    """Whether the ranges fit."""
    pause_enabled: bool
    """Whether dispatch pauses when they do not, by namespace or broker; the topic's own policy may override it."""
    mark_delete_position: Text = Field(validation_alias="mark_delete")
    """Everything up to here is acknowledged."""
    ranges: int
    """Acknowledged ranges beyond it; brokers store at most one more than fits."""
    entries: int
    """Entries beyond it."""
    acknowledged: int
    """Of them, those that are acknowledged."""
    stretches: list[int]
    """The entries in equal parts: percentage of each that is acknowledged; 0 and 100 only for none and all."""


class StoredAckStatesAnswer(Answer):
    """Subscriptions, the fullest first. Counts are of all, not only of those that the filters let through."""

    as_of_ms: int
    """When it was read; some seconds old at most."""
    topics: int
    """Topics without partitions, and partitions, that were looked at."""
    subscriptions: int
    """Their durable subscriptions."""
    full: int
    """Of them, those whose ranges do not fit."""
    nearly_full: int
    """Of them, those with at least four fifths of what fits."""
    max_unacked_ranges_to_persist: int
    """What fits (``managedLedgerMaxUnackedRangesToPersist`` of a broker)."""
    found: int
    """How many the filters let through."""
    states: list[StoredAckStateAnswer]
    """Of them, those from ``offset`` on."""
    unreadable: int
    """How many could not be read, and may be full."""
    reasons: list[str]
    """Why, of the first 100."""


_Given = Annotated[StoredAckStatesParameters, Query()]


def stored_router(surveys: RememberedSurveys) -> APIRouter:
    """The routes; they change nothing."""
    routes = guarded_router("acknowledgement states")

    @routes.get("/admin/v2/storedAckStates")
    @takes(Right.CLUSTER_STATE)
    def stored_ack_states(parameters: _Given) -> StoredAckStatesAnswer:
        """Which subscriptions have the most acknowledged ranges, as stored: of all topics. Loads no topic."""
        return answer_of(surveys.survey(None), parameters)

    @routes.get("/admin/v2/tenants/{tenant}/storedAckStates")
    @takes(Right.POLICY)
    def stored_ack_states_of_tenant(tenant: TenantName, parameters: _Given) -> StoredAckStatesAnswer:
        """The same of a tenant."""
        return answer_of(surveys.survey(tenant), parameters)

    @routes.get(f"{NAMESPACE_PATH}/storedAckStates")
    @takes(Right.STATE)
    def stored_ack_states_of_namespace(namespace: V2Namespace, parameters: _Given) -> StoredAckStatesAnswer:
        """The same of a namespace."""
        return answer_of(surveys.survey(namespace), parameters)

    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/storedAckStates", name=f"{version}stored_ack_states_of_topic")
        @takes(Right.STATE)
        def stored_ack_states_of_topic(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: _Given
        ) -> StoredAckStatesAnswer:
            """The same of a topic, its partitions together. For what its broker holds in memory, ask ``ackState``."""
            return answer_of(surveys.survey(topic), parameters)

    return routes


def answer_of(survey: AckStateSurvey, parameters: StoredAckStatesParameters) -> StoredAckStatesAnswer:
    """What the parameters let through of a survey."""
    found = [state for state in survey.states if parameters.takes(state)]
    kinds = [state.fullness for state in survey.states]
    return StoredAckStatesAnswer(
        as_of_ms=survey.as_of_ms,
        topics=survey.topics,
        subscriptions=len(kinds),
        full=kinds.count(Fullness.FULL),
        nearly_full=kinds.count(Fullness.NEARLY_FULL),
        max_unacked_ranges_to_persist=survey.limit,
        found=len(found),
        states=[
            StoredAckStateAnswer.model_validate(state)
            for state in found[parameters.offset : parameters.offset + parameters.limit]
        ],
        unreadable=len(survey.unreadable),
        reasons=list(survey.unreadable[:_MOST_REASONS]),
    )
