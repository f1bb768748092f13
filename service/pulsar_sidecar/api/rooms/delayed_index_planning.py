"""What is overdue, what a load would cost, and what other settings of the delayed index would change; read only."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi import Query as FromQuery
from pydantic import BeforeValidator, Field

from pulsar_sidecar.api.paths import NAMESPACE_PATH, TOPIC_PATHS, V2Namespace
from pulsar_sidecar.api.schemas import Answer, Query, Reason, Text
from pulsar_sidecar.delayed_delivery.index.inspection.overdue import OverdueReason
from pulsar_sidecar.delayed_delivery.index.service import IndexPlanning
from pulsar_sidecar.delayed_delivery.index.settings import TrackerSettings
from pulsar_sidecar.model.names import TopicName

_LIMIT = Field(default=1_000_000, ge=1, le=100_000_000)


# --- overdue -------------------------------------------------------------------------------------------------------


class OverdueParameters(Query):
    """Parameters of ``overdue``."""

    subscription: str | None = None
    """Only this one; all durable ones without it."""
    late_ms: int = Field(default=10_000, ge=0)
    """What has been due for less than this may be on its way to a consumer, and does not count."""
    limit: int = _LIMIT
    """How many entries of the backlog are read at most."""


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
    """What helps."""


class OverdueAnswer(Answer):
    """What of one subscription of a partition is overdue."""

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
    """What is overdue in a topic."""

    now_ms: int
    due_by_ms: int
    """What was due by then counts."""
    entries_read: int
    complete: bool
    """False where the limit came before the end of the backlog."""
    subscriptions: list[OverdueAnswer]


# --- forecast ------------------------------------------------------------------------------------------------------


class LoadCostAnswer(Answer):
    """What a load takes."""

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
    """What could not be read, and so is in no figure."""


class ForecastAnswer(Answer):
    """What loads would cost now, the most expensive first."""

    buckets_configured: bool
    """Whether the brokers run the bucket tracker."""
    topics: int
    """How many partitions, and topics without partitions, were looked at."""
    total: LoadCostAnswer
    """Of all of them, as the brokers are configured."""
    worst: list[TopicForecastAnswer]
    unreadable: list[str]
    assumptions: list[str]
    """What the figures rest on."""


# --- simulate ------------------------------------------------------------------------------------------------------


class SimulateParameters(Query):
    """Parameters of ``simulate``; a setting that is left out is the brokers' own."""

    subscription: str | None = None
    """Only this one; all durable ones without it."""
    min_index_count: int | None = Field(default=None, ge=1)
    """``delayedDeliveryMinIndexCountPerBucket``."""
    time_step_seconds: int | None = Field(default=None, ge=1)
    """``delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds``."""
    max_indexes_per_segment: int | None = Field(default=None, ge=-1)
    """``delayedDeliveryMaxIndexesPerBucketSnapshotSegment``; -1 for any number."""
    max_num_buckets: int | None = Field(default=None, ge=-1)
    """``delayedDeliveryMaxNumBuckets``; -1 for any number."""
    limit: int = _LIMIT
    """How many entries of each subscription's backlog are read at most."""

    def settings(self, configured: TrackerSettings) -> TrackerSettings:
        """The brokers' settings with what is given here instead; raises InvalidInputError for a useless number."""
        wanted = {
            "min_index_count": self.min_index_count,
            "time_step_ms": None if self.time_step_seconds is None else self.time_step_seconds * 1000,
            "max_indexes_per_segment": self.max_indexes_per_segment,
            "max_num_buckets": self.max_num_buckets,
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
    breaks_dispatch: bool
    """Whether a broker of 4.0.8 stops dispatching with it: a ``maxNumBuckets`` of 1, 2 or 3."""


class SimulatedTrackerAnswer(Answer):
    """What a tracker comes to."""

    settings: SettingsAnswer | None
    """Null for the in-memory tracker."""
    buckets: int
    """At the end."""
    sealed: int
    """How often a bucket was written, merged ones included."""
    merges: int
    segments: int
    indexes_in_memory: int
    memory_bytes: int
    """Of a broker: these indexes, and the bitmaps of the buckets."""
    snapshot_bytes: int
    largest_snapshot_bytes: int
    load: LoadCostAnswer
    """The next load of the topic."""
    failure: str | None
    """Where a broker would have thrown."""


class SimulationAnswer(Answer):
    """One subscription of a partition."""

    topic: Text
    subscription: str
    delayed: int
    """Messages that are not due."""
    others: int
    """Unacknowledged entries that are not delayed, or due; a load reads them as well."""
    unreadable: int
    complete: bool
    """False where the limit came before the end of the backlog."""
    today: SimulatedTrackerAnswer
    simulated: SimulatedTrackerAnswer
    assumptions: list[str]


def router(service: IndexPlanning) -> APIRouter:
    """The routes; they change nothing."""
    routes = APIRouter(tags=["delayed index"], responses={"default": {"model": Reason}})
    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/delayedIndex/overdue", name=f"{version}delayed_index_overdue")
        def overdue(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: Annotated[OverdueParameters, FromQuery()]
        ) -> OverdueReportAnswer:
            """Messages that are due and not acknowledged, with the reasons that the broker's figures show.

            The backlog's entries are read from the bookies. Asking loads the topic. 404: no such topic or subscription.
            """
            report = service.overdue.overdue(topic, parameters.subscription, parameters.late_ms, parameters.limit)
            return OverdueReportAnswer.model_validate(report)

        @routes.get(f"{path}/delayedIndex/forecast", name=f"{version}delayed_index_forecast")
        def forecast(topic: Annotated[TopicName, Depends(topic_of)]) -> ForecastAnswer:
            """What a load of this topic would cost its broker now; each partition by itself. Loads nothing."""
            return ForecastAnswer.model_validate(service.forecaster.of_topic(topic))

        @routes.get(f"{path}/delayedIndex/simulate", name=f"{version}delayed_index_simulate")
        def simulate(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: Annotated[SimulateParameters, FromQuery()]
        ) -> list[SimulationAnswer]:
            """The topic's delayed messages in a bucket tracker with other settings, beside today's. Loads nothing."""
            settings = parameters.settings(service.simulator.configured())
            found = service.simulator.simulate(topic, parameters.subscription, settings, parameters.limit)
            return [SimulationAnswer.model_validate(one) for one in found]

    @routes.get(f"{NAMESPACE_PATH}/delayedIndex/forecast")
    def delayed_index_forecast_of_namespace(namespace: V2Namespace) -> ForecastAnswer:
        """The ten topics or partitions of a namespace whose loads would cost most now. Loads nothing."""
        return ForecastAnswer.model_validate(service.forecaster.of_namespace(namespace))

    return routes
