"""Worlds in which crash replays play, and a life in one of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_deletion.second_phase.retry import RetryPolicy
from pulsar_sidecar.ledger_ownership.paths import ledger_path, partitioned_topic_path, under_replication_mark_path
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import TopicName

from tests.fakes.bookkeeper import data_custom_metadata
from tests.fakes.brokers import TopicDeletion
from tests.fakes.world import TopicPlan, World
from tests.unit.ledger_deletion.sidecars import POLICY, RETRY_POLICY, Crash, CrashAt, Sidecar, check, restarted, send

TOPIC = "persistent://public/default/orders"
MAY_BE_SHARED = replace(POLICY, bookkeeper_exclusive=False)
"""A topic's deletion needs no word of an operator about BookKeeper."""


@dataclass(slots=True)
class Setting:
    """A world, the topic to delete in it, and the ledgers that have to be there at the end."""

    world: World
    topic: TopicName
    partitioned: bool = False
    remaining: set[LedgerId] = field(default_factory=set)
    retry_policy: RetryPolicy = RETRY_POLICY
    rate_per_second: float | None = None


Build = Callable[[], Setting]


def standard(*, loaded: bool = False) -> Setting:
    """Ledgers of every kind."""
    world = World()
    plan = TopicPlan(subscriptions=("sub", "a/b"), schema_versions=2, compacted=True, buckets=1, offloaded=(0,))
    topic = world.topic(TOPIC, plan)
    if loaded:
        world.load(topic)
    return Setting(world, topic)


def partitioned(*, loaded: bool = False) -> Setting:
    """Two partitions that share a schema."""
    world = World()
    topic = world.partitioned_topic(TOPIC, 2, TopicPlan(ledgers=2, schema_versions=1, offloaded=(0,)))
    if loaded:
        for index in range(2):
            world.load(topic.partition(index))
    return Setting(world, topic, partitioned=True)


def small() -> Setting:
    """As little as takes every step of a deletion that goes well."""
    world = World()
    topic = world.topic(TOPIC, TopicPlan(ledgers=1, offloaded=(0,)))
    world.load(topic)
    return Setting(world, topic)


def troubled() -> Setting:
    """Where little goes well.

    The broker dies on the way, the last ledger is too young, auto-recovery wants to repair the first one, and the
    record of another can never be settled, since its metadata cannot be read.
    """
    world = World(die_at=1)
    topic = world.topic(TOPIC, TopicPlan(ledgers=1, closed_cursors=True, age_ms=0))
    first = world.listed(topic)[0]
    world.store.put(under_replication_mark_path(first))
    unreadable = world.ledger(data_custom_metadata(topic.managed_ledger_name))
    world.store.put(ledger_path(unreadable), b"no metadata")
    send(world, PendingDeleteLedgerInfo(topic, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, unreadable))
    return Setting(world, topic, remaining={unreadable}, retry_policy=RetryPolicy(600_000, max_redeliver_count=3))


WORLDS: dict[str, Build] = {
    "unloaded": standard,
    "loaded": lambda: standard(loaded=True),
    "partitioned": partitioned,
    "partitioned and loaded": lambda: partitioned(loaded=True),
    "troubled": troubled,
}


def live(setting: Setting, crashes: Sequence[int] = ()) -> list[CrashAt]:
    """Delete the topic and settle everything; each number of ``crashes`` kills one process at that point."""
    lives = [CrashAt(number) for number in crashes] + [CrashAt()]
    world, rate = setting.world, setting.rate_per_second
    policies: dict[str, object] = {
        "policy": MAY_BE_SHARED,
        "retry_policy": setting.retry_policy,
        "rate_per_second": rate,
    }
    sidecar = Sidecar(world, steps=lives[0], **policies)  # type: ignore[arg-type]
    try:
        attempt(sidecar, setting)
        sidecar.work()
    except Crash:
        for steps in lives[1:]:
            try:
                restarted(world, steps=steps, **policies).work()
            except Crash:
                continue
            break
    check(world)
    return lives


def create_again(world: World, topic: TopicName, *, gone: Sequence[int], partitions: int) -> set[LedgerId]:
    """Somebody deletes some partitions and the partitioned topic's node, then creates it with new data in those."""
    for index in gone:
        if world.listed(topic.partition(index)):
            world.delete_by_broker(TopicDeletion(topic.partition(index), partitioned=False, force=True))
    world.remove_node(partitioned_topic_path(topic))
    world.store.put(partitioned_topic_path(topic), b'{"partitions":%d,"deleted":false}' % partitions)
    for index in gone:
        world.topic(str(topic.partition(index)))
    return {ledger_id for index in gone for ledger_id in world.listed(topic.partition(index))}


def attempt(sidecar: Sidecar, setting: Setting) -> bool:
    """Ask for the deletion; False when the caller was told that nothing is known to have begun."""
    try:
        sidecar.delete_topic(setting.topic, partitioned=setting.partitioned)
    except SidecarError:
        return False
    return True
