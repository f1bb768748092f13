"""Routes of delayed messages and their indexes (PIP-195).

All but building and repairing only read: a change is first planned, then executed with the approved hash of the plan.
"""

from dataclasses import replace
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from pulsar_sidecar.backlog.waiting import WaitingPage, WaitingReader, parse_backlog_position
from pulsar_sidecar.features.delayed_index.inspection.counting import CalendarOptions, CalendarReader
from pulsar_sidecar.features.delayed_index.maintenance.build import IndexBuilder
from pulsar_sidecar.features.delayed_index.maintenance.checking import CheckOptions
from pulsar_sidecar.features.delayed_index.maintenance.repair import IndexRepair
from pulsar_sidecar.features.delayed_index.results.inspection import (
    Calendar,
    Forecast,
    IndexView,
    OverdueReport,
    Simulation,
)
from pulsar_sidecar.features.delayed_index.results.maintenance import (
    BuildReport,
    CheckReport,
    FindingKind,
    RepairReport,
    RepairResult,
)
from pulsar_sidecar.features.delayed_index.service import DelayedIndexService, IndexPlanning
from pulsar_sidecar.features.delayed_index.settings import TrackerSettings
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.server.guard import guarded_router
from pulsar_sidecar.server.paths import (
    NAMESPACE_PATH,
    TOPIC_PATHS,
    SubscriptionName,
    TenantName,
    V2Namespace,
    parse_position,
)
from pulsar_sidecar.server.rights import Right, takes
from pulsar_sidecar.server.schemas import Parameters, PlanHash

_LIMIT: Final = Field(default=1_000_000, ge=1, le=100_000_000)
_TAG: Final = "delayed index"


# --- waiting messages ----------------------------------------------------------------------------------------------


class WaitingParameters(Parameters):
    """Parameters of ``delayedMessages``."""

    subscription: str | None = Field(default=None, max_length=8192, examples=["billing"])
    """Subscription. Default: all durable subscriptions."""
    limit: int = Field(default=50_000, ge=1, le=1_000_000)
    """Maximum number of entries to read from the backlog."""
    after: str | None = Field(default=None, max_length=100, examples=["0:4711:99"])
    """``after`` of an earlier response, to continue from there."""


def waiting_router(service: WaitingReader) -> APIRouter:
    routes = guarded_router("delayed messages")
    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/delayedMessages", name=f"{version}delayed_messages")
        @takes(Right.STATE)
        def delayed_messages(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: Annotated[WaitingParameters, Query()]
        ) -> WaitingPage:
            """Count the waiting messages in the next ``limit`` entries of the backlog, by due time; changes nothing.

            As long as ``after`` is not null, the backlog has more; add the responses up. 404: no such topic or
            subscription.
            """
            after = None if parameters.after is None else parse_backlog_position(parameters.after)
            return service.waiting(topic, parameters.subscription, after, parameters.limit)

    return routes


# --- contents and due times ----------------------------------------------------------------------------------------


class DelayedIndexParameters(Parameters):
    """Parameters of ``delayedIndex``."""

    ask_broker: bool = False
    """Conclude which tracker a loaded topic runs on from its broker's statistics; loads nothing."""


class CalendarParameters(Parameters):
    """Parameters of ``delayedCalendar``."""

    subscription: str | None = None
    """Subscription. Default: all durable subscriptions."""
    exact: bool = False
    """Read buckets' segments, not only their metadata: every due time is exact."""
    step_seconds: int | None = Field(default=None, ge=1, le=366 * 86_400)
    """Length of each of ``times``. Default: a round one."""
    rows: int = Field(default=20, ge=1, le=10_000)
    """Maximum number of ``times`` without ``stepSeconds``."""
    limit: int = Field(default=200_000, ge=0, le=10_000_000)
    """Maximum number of entries in no bucket to read; the rest is ``unread``."""

    def options(self) -> CalendarOptions:
        return CalendarOptions(self.subscription, self.exact, self.step_seconds, self.rows, self.limit)


def index_router(service: DelayedIndexService) -> APIRouter:
    routes = guarded_router(_TAG)
    given = Annotated[DelayedIndexParameters, Query()]

    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/subscription/{{subscription}}/delayedIndex", name=f"{version}delayed_index")
        @takes(Right.STATE)
        def delayed_index(
            topic: Annotated[TopicName, Depends(topic_of)], subscription: SubscriptionName, parameters: given
        ) -> list[IndexView]:
            """Return a subscription's delayed index, read from the metadata store and the bookies.

            One response for each partition. The topic is not loaded. 404: no such topic, or no such subscription.
            """
            return service.show(topic, subscription, ask_broker=parameters.ask_broker)

        @routes.get(f"{path}/delayedIndex", name=f"{version}delayed_indexes")
        @takes(Right.STATE)
        def delayed_indexes(topic: Annotated[TopicName, Depends(topic_of)], parameters: given) -> list[IndexView]:
            """Return the delayed indexes of all durable subscriptions of a topic."""
            return service.show(topic, ask_broker=parameters.ask_broker)

    return routes


def calendar_router(reader: CalendarReader) -> APIRouter:
    routes = guarded_router(_TAG)
    given = Annotated[CalendarParameters, Query()]

    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/delayedCalendar", name=f"{version}delayed_calendar")
        @takes(Right.STATE)
        def calendar(topic: Annotated[TopicName, Depends(topic_of)], parameters: given) -> Calendar:
            """Count a topic's delayed messages by due time, from buckets and from entries in no bucket.

            The topic is not loaded. A subscription that is not Shared or Key_Shared is delivered at once, whatever
            the due times. 404: no such topic, or no such subscription.
            """
            return reader.of_topic(topic, parameters.options())

    @routes.get("/admin/v2/delayedCalendar")
    @takes(Right.CLUSTER_STATE)
    def delayed_calendar_of_all(parameters: given) -> Calendar:
        """Count all topics' delayed messages by due time, except those of brokers' own topics."""
        return reader.below(None, parameters.options())

    @routes.get(f"{NAMESPACE_PATH}/delayedCalendar")
    @takes(Right.STATE)
    def delayed_calendar_of_namespace(namespace: V2Namespace, parameters: given) -> Calendar:
        """Count a namespace's delayed messages by due time, except those of brokers' own topics."""
        return reader.below(namespace, parameters.options())

    @routes.get("/admin/v2/tenants/{tenant}/delayedCalendar")
    @takes(Right.POLICY)
    def delayed_calendar_of_tenant(tenant: TenantName, parameters: given) -> Calendar:
        """Count a tenant's delayed messages by due time, except those of brokers' own topics."""
        return reader.below(tenant, parameters.options())

    return routes


# --- planning ------------------------------------------------------------------------------------------------------


class OverdueParameters(Parameters):
    """Parameters of ``overdue``."""

    subscription: str | None = None
    """Subscription. Default: all durable subscriptions."""
    late_ms: int = Field(default=10_000, ge=0)
    """Minimum time since the due time of an overdue message; younger ones may be on their way to a consumer."""
    limit: int = _LIMIT
    """Maximum number of entries to read from the backlog."""


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
    """Messages (``ledgerId:entryId``) to cancel in PIP-423's tracker."""
    limit: int = _LIMIT
    """Maximum number of entries to read from each subscription's backlog."""

    def positions(self) -> frozenset[Position]:
        """Return the messages to cancel; raises InvalidInputError for one that is not ``ledgerId:entryId``."""
        return frozenset(map(parse_position, self.cancelled))

    def settings(self, configured: TrackerSettings) -> TrackerSettings:
        """Return the brokers' settings with the given ones instead; raises InvalidInputError for an unusable number."""
        wanted = {
            "min_index_count": self.min_index_count,
            "time_step_ms": None if self.time_step_seconds is None else self.time_step_seconds * 1000,
            "max_indexes_per_segment": self.max_indexes_per_segment,
            "max_num_buckets": self.max_num_buckets,
            "shared_index": self.shared_index,
        }
        given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        return replace(configured, **given)


def planning_router(service: IndexPlanning) -> APIRouter:
    routes = guarded_router(_TAG)
    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/delayedIndex/overdue", name=f"{version}delayed_index_overdue")
        @takes(Right.STATE)
        def overdue(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: Annotated[OverdueParameters, Query()]
        ) -> OverdueReport:
            """Return the overdue messages, due and not acknowledged, with the reasons in the broker's statistics.

            The sidecar reads the entries from the bookies. The request loads the topic. 404: no such topic or
            subscription.
            """
            return service.overdue.overdue(topic, parameters.subscription, parameters.late_ms, parameters.limit)

        @routes.get(f"{path}/delayedIndex/forecast", name=f"{version}delayed_index_forecast")
        @takes(Right.STATE)
        def forecast(topic: Annotated[TopicName, Depends(topic_of)]) -> Forecast:
            """Estimate the cost of loading a topic now, for each partition. Loads nothing."""
            return service.forecaster.of_topic(topic)

        @routes.get(f"{path}/delayedIndex/simulate", name=f"{version}delayed_index_simulate")
        @takes(Right.STATE)
        def simulate(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: Annotated[SimulateParameters, Query()]
        ) -> list[Simulation]:
            """Simulate a topic's bucket tracker with other settings, and with today's. Loads nothing.

            400: a shared index with a subscription or with cancellations.
            """
            settings = parameters.settings(service.simulator.configured())
            return service.simulator.simulate(
                topic, parameters.subscription, settings, parameters.limit, parameters.positions()
            )

    @routes.get(f"{NAMESPACE_PATH}/delayedIndex/forecast")
    @takes(Right.STATE)
    def delayed_index_forecast_of_namespace(namespace: V2Namespace) -> Forecast:
        """Return the ten topics or partitions of a namespace that would cost most to load now. Loads nothing."""
        return service.forecaster.of_namespace(namespace)

    return routes


# --- building ------------------------------------------------------------------------------------------------------


class BuildParameters(Parameters):
    """Parameters of ``delayedIndex/build``."""

    subscription: str | None = None
    """Subscription. Default: all durable subscriptions."""
    plan: PlanHash | None = None
    """Hash of the approved plan, to execute it. Without it nothing is changed."""


def build_router(builder: IndexBuilder) -> APIRouter:
    routes = guarded_router(_TAG)
    for path, topic_of, version in TOPIC_PATHS:

        @routes.post(f"{path}/delayedIndex/build", name=f"{version}build_delayed_index")
        @takes(Right.CHANGE)
        def build_delayed_index(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: Annotated[BuildParameters, Query()]
        ) -> BuildReport:
            """Write the buckets of an unloaded topic's backlog: the next topic load reads them instead of the backlog.

            Without ``plan`` only plan them. 409: a broker has the topic loaded, the brokers do not run the bucket
            tracker, or the plan has changed.
            """
            if parameters.plan is None:
                return builder.plan(topic, parameters.subscription).result()
            built = builder.execute(topic, parameters.subscription, parameters.plan)
            return BuildReport(parameters.plan, executed=True, subscriptions=tuple(built))

    return routes


# --- checking and repairing ----------------------------------------------------------------------------------------


class CheckParameters(Parameters):
    """Scope of a check."""

    sample: int = Field(default=1_000, ge=0, le=10_000_000)
    """Number of messages of each bucket to read and compare with their index."""
    all_messages: bool = False
    """Compare all messages and ignore ``sample``."""
    orphans: bool = False
    """Search every ledger in BookKeeper for buckets that no cursor points to: reads each ledger's node."""
    settle_seconds: int = Field(default=600, ge=0, le=31_536_000)
    """Minimum age of an orphaned ledger, and minimum time since the last due time of a dead bucket: brokers may yet
    point to the one, or delete the other."""

    def options(self) -> CheckOptions:
        return CheckOptions(None if self.all_messages else self.sample, self.orphans, self.settle_seconds * 1000)


class RepairParameters(CheckParameters):
    """Scope of a check, and findings to repair."""

    kinds: set[FindingKind] = Field(default_factory=set)
    """Kinds of findings to repair. Default: all but ``tracker-downgrade``, which has to be named."""


class ExecutionParameters(RepairParameters):
    """Approved plan, and the parameters with which it was made."""

    plan: PlanHash


_Checking = Annotated[CheckParameters, Query()]
_Planning = Annotated[RepairParameters, Query()]
_Executing = Annotated[ExecutionParameters, Query()]


def repair_router(repair: IndexRepair) -> APIRouter:
    routes = guarded_router(_TAG)

    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/delayedIndex/fsck", name=f"{version}check_delayed_index")
        @takes(Right.STATE)
        def check_topic(topic: Annotated[TopicName, Depends(topic_of)], parameters: _Checking) -> CheckReport:
            """Check the delayed indexes of a topic. Loads nothing.

            404: no such topic; a deleted one may have orphans.
            """
            return repair.checker.check(topic, parameters.options()).result()

        @routes.get(f"{path}/delayedIndex/repair", name=f"{version}plan_delayed_index_repair")
        @takes(Right.STATE)
        def plan_topic(topic: Annotated[TopicName, Depends(topic_of)], parameters: _Planning) -> RepairReport:
            """Plan the repair of a topic's delayed indexes; approve the plan by its hash."""
            return repair.plan(topic, parameters.options(), parameters.kinds).result()

        @routes.post(f"{path}/delayedIndex/repair", name=f"{version}repair_delayed_index")
        @takes(Right.CHANGE)
        def repair_topic(topic: Annotated[TopicName, Depends(topic_of)], parameters: _Executing) -> list[RepairResult]:
            """Repair a topic's delayed indexes: execute the plan of the same parameters if it has the approved hash.

            409: the plan has changed, or a broker has one of its topics loaded. 405: the deletion service is needed
            and off. Nothing was changed then.
            """
            return repair.execute(topic, parameters.options(), parameters.kinds, parameters.plan)

    @routes.get(f"{NAMESPACE_PATH}/delayedIndex/fsck")
    @takes(Right.STATE)
    def check_delayed_indexes_of_namespace(namespace: V2Namespace, parameters: _Checking) -> CheckReport:
        """Check the delayed indexes of a namespace. Loads nothing."""
        return repair.checker.check(namespace, parameters.options()).result()

    @routes.get(f"{NAMESPACE_PATH}/delayedIndex/repair")
    @takes(Right.STATE)
    def plan_delayed_index_repairs_of_namespace(namespace: V2Namespace, parameters: _Planning) -> RepairReport:
        """Plan the repair of a namespace's delayed indexes; approve the plan by its hash."""
        return repair.plan(namespace, parameters.options(), parameters.kinds).result()

    @routes.post(f"{NAMESPACE_PATH}/delayedIndex/repair")
    @takes(Right.CHANGE)
    def repair_delayed_indexes_of_namespace(namespace: V2Namespace, parameters: _Executing) -> list[RepairResult]:
        """Repair a namespace's delayed indexes, as for a topic."""
        return repair.execute(namespace, parameters.options(), parameters.kinds, parameters.plan)

    return routes
