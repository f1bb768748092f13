"""Overdue messages, the cost of loads, and the effect of other settings of the delayed index; read only."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BeforeValidator, Field

from pulsar_sidecar.api.guard import guarded_router
from pulsar_sidecar.api.paths import NAMESPACE_PATH, TOPIC_PATHS, V2Namespace
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.api.rooms.delayed_delivery.schemas import parse_position
from pulsar_sidecar.api.schemas import Answer, Parameters, Text
from pulsar_sidecar.delayed_delivery.index.inspection.overdue import OverdueReason
from pulsar_sidecar.delayed_delivery.index.service import IndexPlanning
from pulsar_sidecar.delayed_delivery.index.settings import TrackerSettings
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName

_LIMIT = Field(default=1_000_000, ge=1, le=100_000_000)


# --- overdue -------------------------------------------------------------------------------------------------------


class OverdueParameters(Parameters):
    """Parameters of ``overdue``."""

    subscription: str | None = None
    """Subscription. Default: all durable subscriptions."""
    late_ms: int = Field(default=10_000, ge=0)
    """Minimum time since the due time of an overdue message; younger ones may be on their way to a consumer."""
    limit: int = _LIMIT
    """Maximum number of entries to read from the backlog."""


class OverdueMessageAnswer(Answer):
    """One message that is due and not acknowledged."""

    message_id: Text = Field(validation_alias="position")
    """``ledgerId:entryId``."""
    due_ms: int


def _reason(found: object) -> object:
    return {"reason": found.title, "remedy": found.remedy} if isinstance(found, OverdueReason) else found


class OverdueReasonAnswer(Answer):
    """A reason that the broker's figures show."""

    reason: str
    remedy: str
    """What to do."""


class OverdueAnswer(Answer):
    """The overdue messages of one subscription of a partition."""

    topic: Text
    subscription: str
    messages: int
    """How many messages."""
    first_due_ms: int | None
    last_due_ms: int | None
    unreadable: int
    """Unacknowledged entries that could not be read."""
    reasons: list[Annotated[OverdueReasonAnswer, BeforeValidator(_reason)]]
    """Empty where none is known."""
    sample: list[OverdueMessageAnswer]
    """The first of them."""


class OverdueReportAnswer(Answer):
    """The overdue messages of a topic."""

    now_ms: int
    due_by_ms: int
    """Messages due by then are overdue."""
    entries_read: int
    complete: bool
    """False if the limit was reached before the end of the backlog."""
    subscriptions: list[OverdueAnswer]


# --- forecast ------------------------------------------------------------------------------------------------------


class LoadCostAnswer(Answer):
    """The cost of a load."""

    entries: int
    """Entries that the broker reads."""
    seconds: float
    memory_bytes: int


class SubscriptionForecastAnswer(Answer):
    """One subscription of a partition."""

    subscription: str
    waiting: int
    """Unacknowledged entries."""
    indexed: int
    """Those of them that a broker with the bucket tracker need not read."""
    buckets: int
    unusable: str | None
    """Why a broker does not use the buckets; null if it does."""
    as_configured: LoadCostAnswer
    with_buckets: LoadCostAnswer
    without_buckets: LoadCostAnswer


class TopicForecastAnswer(Answer):
    """A topic without partitions, or one partition."""

    topic: Text
    as_configured: LoadCostAnswer
    with_buckets: LoadCostAnswer
    without_buckets: LoadCostAnswer
    subscriptions: list[SubscriptionForecastAnswer]
    unreadable: list[str]
    """Parts that could not be read, and so are in no figure."""


class ForecastAnswer(Answer):
    """The cost of loads now, the most expensive first."""

    buckets_configured: bool
    """Whether the brokers run the bucket tracker."""
    topics: int
    """Number of partitions, and of topics without partitions."""
    total: LoadCostAnswer
    """Of all of them, as the brokers are configured."""
    worst: list[TopicForecastAnswer]
    unreadable: list[str]
    assumptions: list[str]
    """Assumptions of the figures."""


# --- simulate ------------------------------------------------------------------------------------------------------


class SimulateParameters(Parameters):
    """Parameters of ``simulate``; a setting that is left out is the brokers' own."""

    subscription: str | None = None
    """Subscription. Default: all durable subscriptions."""
    min_index_count: int | None = Field(default=None, ge=1)
    """``delayedDeliveryMinIndexCountPerBucket``."""
    time_step_seconds: int | None = Field(default=None, ge=1)
    """``delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds``."""
    max_indexes_per_segment: int | None = Field(default=None, ge=-1)
    """``delayedDeliveryMaxIndexesPerBucketSnapshotSegment``; -1 for any number."""
    max_num_buckets: int | None = Field(default=None, ge=-1)
    """``delayedDeliveryMaxNumBuckets``; -1 for any number."""
    shared_index: bool = False
    """``delayedDeliverySharedIndexEnabled`` of PIP-195: one index for all subscriptions, beside today's of each."""
    cancelled: list[str] = Field(default=[], max_length=1_000, examples=[["4711:99"]])
    """Messages (``ledgerId:entryId``) whose cancellations PIP-423's tracker is given."""
    limit: int = _LIMIT
    """Maximum number of entries to read from each subscription's backlog."""

    def positions(self) -> frozenset[Position]:
        """The messages that are cancelled; raises InvalidInputError for one that is not ``ledgerId:entryId``."""
        return frozenset(map(parse_position, self.cancelled))

    def settings(self, configured: TrackerSettings) -> TrackerSettings:
        """The brokers' settings with what is given here instead; raises InvalidInputError for an unusable number."""
        wanted = {
            "min_index_count": self.min_index_count,
            "time_step_ms": None if self.time_step_seconds is None else self.time_step_seconds * 1000,
            "max_indexes_per_segment": self.max_indexes_per_segment,
            "max_num_buckets": self.max_num_buckets,
            "shared_index": self.shared_index,
        }
        given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        return replace(configured, **given)


class SettingsAnswer(Answer):
    """A bucket tracker's settings."""

    min_index_count: int
    time_step_seconds: Annotated[int, BeforeValidator(lambda milliseconds: milliseconds // 1000)] = Field(
        validation_alias="time_step_ms"
    )
    max_indexes_per_segment: int
    max_num_buckets: int
    shared_index: bool
    breaks_dispatch: bool
    """Whether a broker of 4.0.8 stops dispatching with it: a ``maxNumBuckets`` of 1, 2 or 3."""


class SimulatedTrackerAnswer(Answer):
    """A tracker with all messages in it."""

    settings: SettingsAnswer | None
    """Null for the in-memory tracker."""
    buckets: int
    """At the end."""
    sealed: int
    """How often a bucket was written, merged ones included."""
    merges: int
    segments: int
    """Of the buckets at the end."""
    indexes_in_memory: int
    """In the mutable bucket and in the shared queue."""
    memory_bytes: int
    """Of a broker: these indexes, and the bitmaps of the buckets."""
    snapshot_bytes: int
    largest_snapshot_bytes: int
    load: LoadCostAnswer
    """The next load of the topic."""
    failure: str | None
    """Where a broker would have thrown an exception."""


class SimulatedCancellationsAnswer(Answer):
    """Cancellations in PIP-423's tracker, each right after its message, and a restart."""

    outlived: list[Text]
    """In a bucket: their messages are not delivered after the restart either."""
    forgotten: list[Text]
    """Their messages are delivered after the restart."""
    unknown: list[Text]
    """Of no delayed message that waits."""


class SimulationAnswer(Answer):
    """One subscription of a partition; with a shared index all of them together."""

    topic: Text
    subscription: str
    """``pulsar.delayed.index`` with a shared index."""
    delayed: int
    """Messages that are not due."""
    others: int
    """Unacknowledged entries that are not delayed, or due; a load reads them as well."""
    unreadable: int
    complete: bool
    """False if the limit was reached before the end of the backlog."""
    today: SimulatedTrackerAnswer
    """As the brokers are configured; beside a shared index, the trackers of all subscriptions together."""
    simulated: SimulatedTrackerAnswer
    cancellations: SimulatedCancellationsAnswer | None
    """Null unless cancellations are given."""
    given_although_acknowledged: int | None
    """Positions that a shared index gives to subscriptions which have acknowledged them already; null without one."""
    assumptions: list[str]


def router(service: IndexPlanning) -> APIRouter:
    """The routes; they change nothing."""
    routes = guarded_router("delayed index")
    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/delayedIndex/overdue", name=f"{version}delayed_index_overdue")
        @takes(Right.STATE)
        def overdue(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: Annotated[OverdueParameters, Query()]
        ) -> OverdueReportAnswer:
            """Messages that are due and not acknowledged, with the reasons that the broker's figures show.

            The sidecar reads the entries from the bookies. The request loads the topic. 404: no such topic or
            subscription.
            """
            report = service.overdue.overdue(topic, parameters.subscription, parameters.late_ms, parameters.limit)
            return OverdueReportAnswer.model_validate(report)

        @routes.get(f"{path}/delayedIndex/forecast", name=f"{version}delayed_index_forecast")
        @takes(Right.STATE)
        def forecast(topic: Annotated[TopicName, Depends(topic_of)]) -> ForecastAnswer:
            """The cost of loading this topic now, for each partition. Loads nothing."""
            return ForecastAnswer.model_validate(service.forecaster.of_topic(topic))

        @routes.get(f"{path}/delayedIndex/simulate", name=f"{version}delayed_index_simulate")
        @takes(Right.STATE)
        def simulate(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: Annotated[SimulateParameters, Query()]
        ) -> list[SimulationAnswer]:
            """The topic's delayed messages in a bucket tracker with other settings, and in today's. Loads nothing.

            400: a shared index is asked for together with a subscription or with cancellations.
            """
            settings = parameters.settings(service.simulator.configured())
            found = service.simulator.simulate(
                topic, parameters.subscription, settings, parameters.limit, parameters.positions()
            )
            return [SimulationAnswer.model_validate(one) for one in found]

    @routes.get(f"{NAMESPACE_PATH}/delayedIndex/forecast")
    @takes(Right.STATE)
    def delayed_index_forecast_of_namespace(namespace: V2Namespace) -> ForecastAnswer:
        """The ten topics or partitions of a namespace whose loads would cost most now. Loads nothing."""
        return ForecastAnswer.model_validate(service.forecaster.of_namespace(namespace))

    return routes
