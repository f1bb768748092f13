"""Building the delayed index of unloaded topics (PIP-195): what would be written, and writing what was approved."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from pulsar_sidecar.api.paths import TOPIC_PATHS
from pulsar_sidecar.api.schemas import Answer, Parameters, PlanHash, Reason, Text
from pulsar_sidecar.delayed_delivery.index.maintenance.attach import PointerOutcome
from pulsar_sidecar.delayed_delivery.index.maintenance.bucket_plan import PlannedBucket
from pulsar_sidecar.delayed_delivery.index.maintenance.build import IndexBuilder, SubscriptionBuild
from pulsar_sidecar.model.names import TopicName


class BuildParameters(Parameters):
    """Parameters of ``delayedIndex/build``."""

    subscription: str | None = None
    """Only this one; all durable ones without it."""
    plan: PlanHash | None = None
    """The hash of the plan that was approved: it is carried out. Without it nothing is changed."""


class BuiltBucketAnswer(Answer):
    """One new bucket; times in milliseconds since the epoch."""

    start_ledger_id: int
    """The first ledger that it covers."""
    end_ledger_id: int
    """The last ledger that it covers."""
    segments: int
    """Its segments."""
    indexes: int
    """Messages that it holds."""
    first_due_ms: int
    """The earliest due time."""
    last_due_ms: int
    """The latest due time."""
    ledger_id: int | None
    """The ledger that it was written to; null if it was only planned."""


class LeftOutAnswer(Answer):
    """A ledger whose messages get no index; brokers read them as before."""

    ledger_id: int
    """The ledger."""
    reason: str
    """Why."""


class BuiltSubscriptionAnswer(Answer):
    """What one subscription gets."""

    topic: Text
    """The topic, or the partition."""
    subscription: str
    """The subscription."""
    outcome: PointerOutcome | None
    """What was seen after the cursor was changed; null if nothing was changed."""
    buckets: list[BuiltBucketAnswer]
    """The new ones, in order."""
    covered_ledger_ids: list[int]
    """Ledgers with unacknowledged messages that other buckets cover already."""
    left_out: list[LeftOutAnswer]
    """Ledgers that are not in BookKeeper."""


class BuildAnswer(Answer):
    """A plan, or what became of it."""

    plan: str
    """Its hash, which is what is approved."""
    executed: bool
    """Whether it was carried out."""
    subscriptions: list[BuiltSubscriptionAnswer]
    """Each subscription of the topic, or of each partition; once carried out those that got a bucket."""


def router(builder: IndexBuilder) -> APIRouter:
    routes = APIRouter(tags=["delayed index"], responses={"default": {"model": Reason}})
    for path, topic_of, version in TOPIC_PATHS:

        @routes.post(f"{path}/delayedIndex/build", name=f"{version}build_delayed_index")
        def build_delayed_index(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: Annotated[BuildParameters, Query()]
        ) -> BuildAnswer:
            """Write the buckets of an unloaded topic's backlog, so that its next load reads them and not the backlog.

            Without ``plan`` only what would be written. 409: a broker has the topic loaded, the brokers do not run the
            bucket tracker, or the plan is another one by now.
            """
            if parameters.plan is None:
                plan = builder.plan(topic, parameters.subscription)
                planned = [_answer(build) for build in plan.subscriptions]
                return BuildAnswer(plan=plan.hash, executed=False, subscriptions=planned)
            built = builder.execute(topic, parameters.subscription, parameters.plan)
            written = [_answer(one.build, one.ledgers, one.outcome) for one in built]
            return BuildAnswer(plan=parameters.plan, executed=True, subscriptions=written)

    return routes


def _answer(
    build: SubscriptionBuild, ledgers: tuple[int, ...] = (), outcome: PointerOutcome | None = None
) -> BuiltSubscriptionAnswer:
    written = ledgers or (None,) * len(build.buckets)
    return BuiltSubscriptionAnswer(
        topic=str(build.index.topic),
        subscription=build.index.subscription,
        outcome=outcome,
        buckets=[_bucket(bucket, at) for bucket, at in zip(build.buckets, written, strict=True)],
        covered_ledger_ids=list(build.covered),
        left_out=[LeftOutAnswer(ledger_id=id_, reason=why) for id_, why in build.left_out.items()],
    )


def _bucket(bucket: PlannedBucket, ledger_id: int | None) -> BuiltBucketAnswer:
    metadata = bucket.sealed.metadata
    return BuiltBucketAnswer(
        start_ledger_id=bucket.key.start,
        end_ledger_id=bucket.key.end,
        segments=len(metadata),
        indexes=bucket.count,
        first_due_ms=min(segment.min_schedule_timestamp for segment in metadata),
        last_due_ms=max(segment.max_schedule_timestamp for segment in metadata),
        ledger_id=ledger_id,
    )
