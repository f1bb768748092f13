"""Delayed indexes (PIP-195) on Pulsar's own paths: the buckets that brokers keep of delayed messages."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BeforeValidator, Field

from pulsar_sidecar.api.guard import guarded_router
from pulsar_sidecar.api.paths import (
    NAMESPACE_PATH,
    TOPIC_PATHS,
    SubscriptionName,
    TenantName,
    V2Namespace,
)
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.api.schemas import Answer, Parameters, Text
from pulsar_sidecar.delayed_delivery.index.inspection.counting import CalendarOptions, CalendarReader
from pulsar_sidecar.delayed_delivery.index.inspection.show import Tracker
from pulsar_sidecar.delayed_delivery.index.service import DelayedIndexService
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import TopicName

_State = Annotated[str | None, BeforeValidator(lambda state: state.name if isinstance(state, LedgerState) else state)]


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


class TrackerAnswer(Answer):
    """A tracker."""

    tracker: Tracker
    """What holds delayed messages back."""
    reason: str
    """Why it is known, or why not."""


class SegmentAnswer(Answer):
    """One segment of a bucket, by the bucket's metadata; times in milliseconds since the epoch."""

    entry: int
    """Its entry in the bucket's ledger."""
    first_due_ms: int
    """The earliest due time."""
    last_due_ms: int
    """The latest due time."""
    indexes: int
    """Messages that it holds."""
    left: int | None
    """Of them, those that are not acknowledged; null if the acknowledgements are unknown."""


class BucketAnswer(Answer):
    """One bucket."""

    name: str
    """The cursor property that points to it."""
    start_ledger_id: int | None
    """The first ledger that it covers; null if the name has none."""
    end_ledger_id: int | None
    """The last ledger that it covers; null if the name has none."""
    ledger_id: int
    """The ledger that it is stored in."""
    state: _State
    """That ledger's state; null if it is gone or cannot be read."""
    size_bytes: int | None
    """Bytes of that ledger; null while they are not known."""
    indexes: int | None
    """Messages in all segments; null if they are unknown."""
    left: int | None
    """Of them, those that are not acknowledged; null if that is unknown."""
    done: int | None
    """Of them, those that are acknowledged."""
    first_due_ms: int | None
    """The earliest due time."""
    last_due_ms: int | None
    """The latest due time."""
    problem: str | None
    """Why a part of it is missing or unknown; null if none is."""
    segments: list[SegmentAnswer] | None
    """In order; null if the bucket's metadata could not be read."""


class DelayedIndexAnswer(Answer):
    """The delayed index of one subscription of one topic, or of one partition (PIP-195)."""

    topic: Text
    """The topic, or the partition."""
    subscription: str
    """The subscription."""
    mark_delete_position: Text | None = Field(validation_alias="mark_delete")
    """Everything up to here is acknowledged, as stored; null if that is unknown."""
    configured: TrackerAnswer
    """What the owning broker, or any broker if none owns the topic, is configured to run."""
    running: TrackerAnswer
    """What the subscription runs on now."""
    next_load: TrackerAnswer
    """What it will run on when the topic is loaded next."""
    unreadable: int | None
    """Buckets that are in none of the following counts, because their metadata could not be read."""
    indexes: int | None
    """Messages in all other buckets; of buckets that overlap, in each of them."""
    left: int | None
    """Of them, those that are not acknowledged; null if the acknowledgements are unknown."""
    done: int | None
    """Of them, those that are acknowledged."""
    size_bytes: int | None
    """Bytes of all buckets whose size is known."""
    problem: str | None
    """Why the subscription, or what it has acknowledged, could not be read; null if it could."""
    buckets: list[BucketAnswer] | None
    """In order of the ledgers that they cover; null, and all counts with them, if the cursor could not be read."""


class DueTimeAnswer(Answer):
    """Messages that are due within one step."""

    from_ms: int
    """Its beginning, milliseconds since the epoch."""
    messages: int
    """How many they are."""


class _CountsAnswer(Answer):
    delayed: int
    """Messages that are not due yet."""
    due: int
    """Messages whose due time has come, not acknowledged."""
    undelayed: int
    """Messages without a due time, not acknowledged."""
    unreadable: int
    """Entries that could not be read."""
    unread: int
    """Entries beyond ``limit``."""
    from_buckets: int
    """How many of ``delayed`` and ``due`` are counted in buckets, and not by their own entries."""


class DueCountsAnswer(_CountsAnswer):
    """One subscription of one topic, or of one partition."""

    topic: str
    """The topic, or the partition."""
    subscription: str
    """The subscription; empty if the topic could not be read."""
    first_due_ms: int | None
    """The second in which the first delayed message is due."""
    last_due_ms: int | None
    """The second in which the last one is."""
    problem: str | None
    """Why the subscription is not counted; null if it is."""


class CalendarAnswer(_CountsAnswer):
    """When delayed messages are due; a message counts once for each subscription that waits for it."""

    now_ms: int
    """When it was asked."""
    exact: bool
    """Whether buckets' segments were read, and not only their metadata."""
    step_seconds: int
    """How long each of ``times`` is."""
    resolution_ms: int
    """How much later messages may be due than in ``times``: the longest segment that was counted."""
    times: list[DueTimeAnswer]
    """Steps with delayed messages, ascending."""
    subscriptions: list[DueCountsAnswer]
    """Where they wait."""


def router(service: DelayedIndexService) -> APIRouter:
    """What indexes hold."""
    routes = guarded_router("delayed index")

    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/subscription/{{subscription}}/delayedIndex", name=f"{version}delayed_index")
        @takes(Right.STATE)
        def delayed_index(
            topic: Annotated[TopicName, Depends(topic_of)],
            subscription: SubscriptionName,
            parameters: Annotated[DelayedIndexParameters, Query()],
        ) -> list[DelayedIndexAnswer]:
            """The delayed index of a subscription, read from the metadata store and the bookies.

            One answer for each partition. The topic is not loaded. 404: no such topic, or no such subscription.
            """
            views = service.show(topic, subscription, ask_broker=parameters.ask_broker)
            return [DelayedIndexAnswer.model_validate(view) for view in views]

        @routes.get(f"{path}/delayedIndex", name=f"{version}delayed_indexes")
        @takes(Right.STATE)
        def delayed_indexes(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: Annotated[DelayedIndexParameters, Query()]
        ) -> list[DelayedIndexAnswer]:
            """The same for all durable subscriptions of a topic."""
            views = service.show(topic, ask_broker=parameters.ask_broker)
            return [DelayedIndexAnswer.model_validate(view) for view in views]

    return routes


def calendar_router(reader: CalendarReader) -> APIRouter:
    """When messages are due."""
    routes = guarded_router("delayed index")
    given = Annotated[CalendarParameters, Query()]

    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/delayedCalendar", name=f"{version}delayed_calendar")
        @takes(Right.STATE)
        def calendar(topic: Annotated[TopicName, Depends(topic_of)], parameters: given) -> CalendarAnswer:
            """How many of a topic's messages are due when, from buckets and from entries that no bucket has.

            The topic is not loaded. A subscription that is not Shared or Key_Shared is delivered at once, whatever
            the due times. 404: no such topic, or no such subscription.
            """
            return CalendarAnswer.model_validate(reader.of_topic(topic, parameters.options()))

    @routes.get("/admin/v2/delayedCalendar")
    @takes(Right.CLUSTER_STATE)
    def delayed_calendar_of_all(parameters: given) -> CalendarAnswer:
        """The same for all topics, without those of brokers."""
        return CalendarAnswer.model_validate(reader.below(None, parameters.options()))

    @routes.get(f"{NAMESPACE_PATH}/delayedCalendar")
    @takes(Right.STATE)
    def delayed_calendar_of_namespace(namespace: V2Namespace, parameters: given) -> CalendarAnswer:
        """The same for all topics of a namespace, without those of brokers."""
        return CalendarAnswer.model_validate(reader.below(namespace, parameters.options()))

    @routes.get("/admin/v2/tenants/{tenant}/delayedCalendar")
    @takes(Right.POLICY)
    def delayed_calendar_of_tenant(tenant: TenantName, parameters: given) -> CalendarAnswer:
        """The same for all topics of a tenant."""
        return CalendarAnswer.model_validate(reader.below(tenant, parameters.options()))

    return routes
