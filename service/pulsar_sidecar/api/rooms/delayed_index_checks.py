"""Building, checking and repairing delayed indexes (PIP-195): a plan first, then what was approved of it."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import AfterValidator, BeforeValidator, Field

from pulsar_sidecar.api.guard import guarded_router
from pulsar_sidecar.api.paths import NAMESPACE_PATH, TOPIC_PATHS, V2Namespace
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.api.schemas import Answer, Parameters, PlanHash, Text
from pulsar_sidecar.delayed_delivery.index.maintenance.attach import PointerOutcome
from pulsar_sidecar.delayed_delivery.index.maintenance.bucket_plan import PlannedBucket
from pulsar_sidecar.delayed_delivery.index.maintenance.build import IndexBuilder, SubscriptionBuild
from pulsar_sidecar.delayed_delivery.index.maintenance.checking import CheckOptions
from pulsar_sidecar.delayed_delivery.index.maintenance.findings import FindingKind, RepairStep
from pulsar_sidecar.delayed_delivery.index.maintenance.repair import IndexRepair, LoadedTopic
from pulsar_sidecar.model.names import TopicName


class BuildParameters(Parameters):
    """Parameters of ``delayedIndex/build``."""

    subscription: str | None = None
    """Only this subscription. Default: all durable ones."""
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


class CheckParameters(Parameters):
    """How much is looked at."""

    sample: int = Field(default=1_000, ge=0, le=10_000_000)
    """So many messages of each bucket are read and compared with their index."""
    all_messages: bool = False
    """Compare all of them and ignore ``sample``."""
    orphans: bool = False
    """Search every ledger in BookKeeper for buckets that no cursor points to: reads each ledger's node."""
    settle_seconds: int = Field(default=600, ge=0, le=31_536_000)
    """A younger ledger may be pointed to yet, and what was due later may be deleted yet: neither is a finding."""

    def options(self) -> CheckOptions:
        """In the room's words."""
        return CheckOptions(None if self.all_messages else self.sample, self.orphans, self.settle_seconds * 1000)


class RepairParameters(CheckParameters):
    """What is looked at, and what is to be done about."""

    kinds: set[FindingKind] = Field(default_factory=set)
    """Only findings of these kinds; ``tracker-downgrade`` is repaired only if it is named here."""


class ExecutionParameters(RepairParameters):
    """A plan that was approved, found by the same parameters."""

    plan: PlanHash
    """Its hash."""


class FindingAnswer(Answer):
    """One thing that is wrong."""

    kind: FindingKind
    """What it is."""
    topic: Text | None
    """The topic, or the partition; null for a broker's setting."""
    subscription: str | None
    bucket: str | None
    """The cursor property that names the bucket."""
    ledger_id: int | None
    """The bucket's ledger."""
    cause: str
    """What was read."""
    consequence: str
    """What it does to the topic."""
    remedy: str
    """What to do."""


class CheckedAnswer(Answer):
    """How much was looked at."""

    topics: int
    subscriptions: int
    buckets: int
    indexes: int
    """In buckets' segments."""
    entries: int
    """Messages compared with their index."""
    entries_left: int
    """Messages with an index that are not acknowledged: ``entries`` is a sample of them, or all."""
    unread: int
    """Messages of that sample that bookies do not have, or do not deliver now."""
    ledgers: int | None
    """Ledgers searched for orphans; null if they were not searched."""
    wrong_share_bound: float
    """If every message compared was right: with 95 % confidence no larger share is wrong; 1 if some are unread."""


class CheckAnswer(Answer):
    """What a check found; clean without findings."""

    findings: list[FindingAnswer]
    checked: CheckedAnswer
    seconds: Annotated[float, AfterValidator(lambda seconds: round(seconds, 3))]


class ActionAnswer(Answer):
    """What is done about one bucket."""

    step: RepairStep
    topic: Text
    subscription: str
    bucket: str
    ledger_id: int
    reason: str
    """What was found."""


def _loaded(topics: Mapping[TopicName, LoadedTopic]) -> list[dict[str, object]]:
    return [{"topic": str(topic), "broker": each.broker, "clients": each.clients} for topic, each in topics.items()]


class LoadedTopicAnswer(Answer):
    """A topic whose clients must stop and that must be unloaded before the plan can be carried out."""

    topic: str
    broker: str
    """The broker that has it loaded."""
    clients: list[str] | None
    """Its producers and consumers, which would have it loaded again at once; null if the broker did not report them."""


class PlanAnswer(Answer):
    """What a repair would do; nothing was changed."""

    plan: str = Field(validation_alias="hash")
    """The hash to approve."""
    actions: list[ActionAnswer]
    left: list[FindingAnswer]
    """Findings that nothing is done about."""
    loaded: Annotated[list[LoadedTopicAnswer], BeforeValidator(_loaded)]
    """Topics that must be unloaded first."""
    checked: CheckedAnswer


class RepairedAnswer(Answer):
    """What became of one action."""

    action: ActionAnswer
    done: bool
    outcome: PointerOutcome | None
    """What was seen after the cursor was changed; null if it was not, or if that is not known: see ``problem``."""
    handed_over: bool
    """Whether the deletion service has a record of the ledger."""
    problem: str | None
    """Why it is not done, or what is to be done yet."""


_Checking = Annotated[CheckParameters, Query()]
_Planning = Annotated[RepairParameters, Query()]
_Executing = Annotated[ExecutionParameters, Query()]


def router(repair: IndexRepair) -> APIRouter:
    routes = guarded_router("delayed index")

    for path, topic_of, version in TOPIC_PATHS:
        _add_topic_routes(routes, repair, path, topic_of, version)

    @routes.get(f"{NAMESPACE_PATH}/delayedIndex/fsck")
    @takes(Right.STATE)
    def check_delayed_indexes_of_namespace(namespace: V2Namespace, parameters: _Checking) -> CheckAnswer:
        """The same of every topic of a namespace."""
        return CheckAnswer.model_validate(repair.checker.check(namespace, parameters.options()))

    @routes.get(f"{NAMESPACE_PATH}/delayedIndex/repair")
    @takes(Right.STATE)
    def plan_delayed_index_repairs_of_namespace(namespace: V2Namespace, parameters: _Planning) -> PlanAnswer:
        """The same of every topic of a namespace."""
        return PlanAnswer.model_validate(repair.plan(namespace, parameters.options(), parameters.kinds))

    @routes.post(f"{NAMESPACE_PATH}/delayedIndex/repair")
    @takes(Right.CHANGE)
    def repair_delayed_indexes_of_namespace(namespace: V2Namespace, parameters: _Executing) -> list[RepairedAnswer]:
        """The same of every topic of a namespace."""
        return _repaired(repair, namespace, parameters)

    return routes


def _add_topic_routes(
    routes: APIRouter, repair: IndexRepair, path: str, topic_of: Callable[..., Any], version: str
) -> None:
    @routes.get(f"{path}/delayedIndex/fsck", name=f"{version}check_delayed_index")
    @takes(Right.STATE)
    def check_topic(topic: Annotated[TopicName, Depends(topic_of)], parameters: _Checking) -> CheckAnswer:
        """What is wrong with the delayed indexes of a topic. Loads nothing.

        404: no such topic; one that was deleted may have orphans.
        """
        return CheckAnswer.model_validate(repair.checker.check(topic, parameters.options()))

    @routes.get(f"{path}/delayedIndex/repair", name=f"{version}plan_delayed_index_repair")
    @takes(Right.STATE)
    def plan_topic(topic: Annotated[TopicName, Depends(topic_of)], parameters: _Planning) -> PlanAnswer:
        """What would be done about what is wrong; the hash is what is approved."""
        return PlanAnswer.model_validate(repair.plan(topic, parameters.options(), parameters.kinds))

    @routes.post(f"{path}/delayedIndex/repair", name=f"{version}repair_delayed_index")
    @takes(Right.CHANGE)
    def repair_topic(topic: Annotated[TopicName, Depends(topic_of)], parameters: _Executing) -> list[RepairedAnswer]:
        """Carry out a plan, found by the same parameters, if its hash is still the approved one.

        409: it is another plan now, or a broker has a topic of it loaded. 405: the deletion service is needed and off.
        Nothing was changed then.
        """
        return _repaired(repair, topic, parameters)


def _repaired(repair: IndexRepair, scope: TopicName | str, parameters: ExecutionParameters) -> list[RepairedAnswer]:
    done = repair.execute(scope, parameters.options(), parameters.kinds, parameters.plan)
    return [RepairedAnswer.model_validate(each) for each in done]


def build_router(builder: IndexBuilder) -> APIRouter:
    routes = guarded_router("delayed index")
    for path, topic_of, version in TOPIC_PATHS:

        @routes.post(f"{path}/delayedIndex/build", name=f"{version}build_delayed_index")
        @takes(Right.CHANGE)
        def build_delayed_index(
            topic: Annotated[TopicName, Depends(topic_of)], parameters: Annotated[BuildParameters, Query()]
        ) -> BuildAnswer:
            """Write the buckets of an unloaded topic's backlog, so that its next load reads them and not the backlog.

            Without ``plan`` only what would be written. 409: a broker has the topic loaded, the brokers do not run the
            bucket tracker, or the plan is another one by now.
            """
            if parameters.plan is None:
                plan = builder.plan(topic, parameters.subscription)
                planned = [_built(build) for build in plan.subscriptions]
                return BuildAnswer(plan=plan.hash, executed=False, subscriptions=planned)
            built = builder.execute(topic, parameters.subscription, parameters.plan)
            written = [_built(one.build, one.ledgers, one.outcome) for one in built]
            return BuildAnswer(plan=parameters.plan, executed=True, subscriptions=written)

    return routes


def _built(
    build: SubscriptionBuild, ledgers: tuple[int, ...] = (), outcome: PointerOutcome | None = None
) -> BuiltSubscriptionAnswer:
    written = ledgers or (None,) * len(build.buckets)
    return BuiltSubscriptionAnswer(
        topic=str(build.index.topic),
        subscription=build.index.subscription,
        outcome=outcome,
        buckets=[_built_bucket(bucket, at) for bucket, at in zip(build.buckets, written, strict=True)],
        covered_ledger_ids=list(build.covered),
        left_out=[LeftOutAnswer(ledger_id=id_, reason=why) for id_, why in build.left_out.items()],
    )


def _built_bucket(bucket: PlannedBucket, ledger_id: int | None) -> BuiltBucketAnswer:
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
