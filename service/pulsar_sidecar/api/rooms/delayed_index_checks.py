"""Checking and repairing delayed indexes (PIP-195), of a topic or of a namespace."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi import Query as FromQuery
from pydantic import Field

from pulsar_sidecar.api.paths import NAMESPACE_PATH, TOPIC_PATHS, V2Namespace
from pulsar_sidecar.api.schemas import Answer, PlanHash, Query, Reason, Text
from pulsar_sidecar.delayed_delivery.index.maintenance.attach import PointerOutcome
from pulsar_sidecar.delayed_delivery.index.maintenance.checking import CheckOptions
from pulsar_sidecar.delayed_delivery.index.maintenance.findings import CheckReport, Finding, FindingKind, RepairStep
from pulsar_sidecar.delayed_delivery.index.maintenance.repair import IndexRepair, RepairPlan
from pulsar_sidecar.model.names import TopicName


class CheckParameters(Query):
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
    topic: str | None
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
    ledgers: int | None
    """Ledgers searched for orphans; null if they were not searched."""
    wrong_share_bound: float
    """If every message compared was right: with 95 % confidence no larger share of them is wrong."""


class CheckAnswer(Answer):
    """What a check found; clean without findings."""

    findings: list[FindingAnswer]
    checked: CheckedAnswer
    seconds: float


class ActionAnswer(Answer):
    """What is done about one bucket."""

    step: RepairStep
    topic: Text
    subscription: str
    bucket: str
    ledger_id: int
    reason: str
    """What was found."""


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
    loaded: list[LoadedTopicAnswer]
    """Topics that must be unloaded first."""
    checked: CheckedAnswer


class RepairedAnswer(Answer):
    """What became of one action."""

    action: ActionAnswer
    done: bool
    outcome: PointerOutcome | None
    """What was seen after the cursor was changed; null if it was not."""
    handed_over: bool
    """Whether the deletion service has a record of the ledger."""
    problem: str | None
    """Why it is not done, or what is to be done yet."""


_Checking = Annotated[CheckParameters, FromQuery()]
_Planning = Annotated[RepairParameters, FromQuery()]
_Executing = Annotated[ExecutionParameters, FromQuery()]


def router(repair: IndexRepair) -> APIRouter:
    """The routes of checking and repairing."""
    routes = APIRouter(tags=["delayed index"], responses={"default": {"model": Reason}})

    for path, topic_of, version in TOPIC_PATHS:
        _add_topic_routes(routes, repair, path, topic_of, version)

    @routes.get(f"{NAMESPACE_PATH}/delayedIndex/fsck")
    def check_namespace(namespace: V2Namespace, parameters: _Checking) -> CheckAnswer:
        """The same of every topic of a namespace."""
        return _checked(repair.checker.check(namespace, parameters.options()))

    @routes.get(f"{NAMESPACE_PATH}/delayedIndex/repair")
    def plan_namespace(namespace: V2Namespace, parameters: _Planning) -> PlanAnswer:
        """The same of every topic of a namespace."""
        return _planned(repair.plan(namespace, parameters.options(), parameters.kinds))

    @routes.post(f"{NAMESPACE_PATH}/delayedIndex/repair")
    def repair_namespace(namespace: V2Namespace, parameters: _Executing) -> list[RepairedAnswer]:
        """The same of every topic of a namespace."""
        return _repaired(repair, namespace, parameters)

    return routes


def _add_topic_routes(
    routes: APIRouter, repair: IndexRepair, path: str, topic_of: Callable[..., Any], version: str
) -> None:
    @routes.get(f"{path}/delayedIndex/fsck", name=f"{version}check_delayed_index")
    def check_topic(topic: Annotated[TopicName, Depends(topic_of)], parameters: _Checking) -> CheckAnswer:
        """What is wrong with the delayed indexes of a topic. Loads nothing, unless bookies lack a message.

        404: no such topic; one that was deleted may have orphans.
        """
        return _checked(repair.checker.check(topic, parameters.options()))

    @routes.get(f"{path}/delayedIndex/repair", name=f"{version}plan_delayed_index_repair")
    def plan_topic(topic: Annotated[TopicName, Depends(topic_of)], parameters: _Planning) -> PlanAnswer:
        """What would be done about what is wrong; the hash is what is approved."""
        return _planned(repair.plan(topic, parameters.options(), parameters.kinds))

    @routes.post(f"{path}/delayedIndex/repair", name=f"{version}repair_delayed_index")
    def repair_topic(topic: Annotated[TopicName, Depends(topic_of)], parameters: _Executing) -> list[RepairedAnswer]:
        """Carry out a plan, found by the same parameters, if its hash is still the approved one.

        409: it is another plan now, or a broker has a topic of it loaded. 405: the deletion service is needed and off.
        Nothing was changed then.
        """
        return _repaired(repair, topic, parameters)


def _checked(report: CheckReport) -> CheckAnswer:
    return CheckAnswer(
        findings=_findings(report.findings),
        checked=CheckedAnswer.model_validate(report.checked),
        seconds=round(report.seconds, 3),
    )


def _findings(findings: Iterable[Finding]) -> list[FindingAnswer]:
    return [
        FindingAnswer(
            kind=each.kind,
            topic=None if each.topic is None else str(each.topic),
            subscription=each.subscription,
            bucket=each.bucket,
            ledger_id=each.ledger_id,
            cause=each.cause,
            consequence=each.consequence,
            remedy=each.remedy,
        )
        for each in findings
    ]


def _planned(plan: RepairPlan) -> PlanAnswer:
    return PlanAnswer(
        plan=plan.hash,
        actions=[ActionAnswer.model_validate(each) for each in plan.actions],
        left=_findings(plan.left),
        loaded=[
            LoadedTopicAnswer(
                topic=str(topic), broker=each.broker, clients=None if each.clients is None else list(each.clients)
            )
            for topic, each in plan.loaded.items()
        ],
        checked=CheckedAnswer.model_validate(plan.checked),
    )


def _repaired(repair: IndexRepair, scope: TopicName | str, parameters: ExecutionParameters) -> list[RepairedAnswer]:
    done = repair.execute(scope, parameters.options(), parameters.kinds, parameters.plan)
    return [RepairedAnswer.model_validate(each) for each in done]
