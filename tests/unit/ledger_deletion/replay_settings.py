"""Settings in which crash replays run, and a life in one of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from pulsar_sidecar.features.ledger_deletion.second_phase.retry import RetryPolicy
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import ledger_path, partitioned_topic_path, under_replication_mark_path

from tests.fakes.bookkeeper import data_custom_metadata
from tests.fakes.brokers import TopicDeletion
from tests.fakes.metadata import Method
from tests.fakes.moving_bundle import MovingBundle
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.orphans import about
from tests.unit.ledger_deletion.sidecars import POLICY, RETRY_POLICY, Crash, CrashAt, Sidecar, check, restarted, send

TOPIC = "persistent://public/default/orders"
MAY_BE_SHARED = replace(POLICY, bookkeeper_exclusive=False)
"""A topic's deletion needs no word of an operator about BookKeeper."""


@dataclass(slots=True)
class Setting:
    """A fake Pulsar, the topic to delete in it, and the ledgers that have to be there at the end."""

    fake_pulsar: FakePulsar
    topic: TopicName
    partitioned: bool = False
    remaining: set[LedgerId] = field(default_factory=set)
    retry_policy: RetryPolicy = RETRY_POLICY
    rate_per_second: float | None = None


Build = Callable[[], Setting]


def standard(*, loaded: bool = False) -> Setting:
    """Ledgers of every kind."""
    fake_pulsar = FakePulsar()
    plan = TopicPlan(subscriptions=("sub", "a/b"), schema_versions=2, compacted=True, buckets=1, offloaded=(0,))
    topic = fake_pulsar.topic(TOPIC, plan)
    if loaded:
        fake_pulsar.load(topic)
    return Setting(fake_pulsar, topic)


def partitioned(*, loaded: bool = False) -> Setting:
    """Two partitions that share a schema."""
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.partitioned_topic(TOPIC, 2, TopicPlan(ledgers=2, schema_versions=1, offloaded=(0,)))
    if loaded:
        for index in range(2):
            fake_pulsar.load(topic.partition(index))
    return Setting(fake_pulsar, topic, partitioned=True)


def with_stale_broker() -> Setting:
    """The bundle has moved, and the broker that lost it writes what it remembers before each call of the store."""
    setting = standard(loaded=True)
    bundle = MovingBundle(setting.fake_pulsar, setting.topic)
    bundle.owner_loses_the_bundle()
    bundle.second_takes_the_bundle()
    bundle.owner_loads()
    for method in get_args(Method):
        setting.fake_pulsar.store.before(method, bundle.others_write, times=-1)
    return setting


def small() -> Setting:
    """Smallest setting that takes every step of a successful deletion."""
    fake_pulsar = FakePulsar()
    topic = fake_pulsar.topic(TOPIC, TopicPlan(ledgers=1, offloaded=(0,)))
    fake_pulsar.load(topic)
    return Setting(fake_pulsar, topic)


def troubled() -> Setting:
    """Setting in which most steps fail.

    The broker dies on the way, the last ledger is too young, auto-recovery wants to repair the first one, and the
    record of another can never be settled, since its metadata cannot be read.
    """
    fake_pulsar = FakePulsar(die_at=1)
    topic = fake_pulsar.topic(TOPIC, TopicPlan(ledgers=1, closed_cursors=True, age_ms=0))
    first = fake_pulsar.listed(topic)[0]
    fake_pulsar.store.put(under_replication_mark_path(first))
    unreadable = fake_pulsar.ledger(data_custom_metadata(topic.managed_ledger_name))
    fake_pulsar.store.put(ledger_path(unreadable), b"no metadata")
    send(fake_pulsar, about(topic, unreadable))
    return Setting(fake_pulsar, topic, remaining={unreadable}, retry_policy=RetryPolicy(600_000, max_redeliver_count=3))


SETTINGS: dict[str, Build] = {
    "unloaded": standard,
    "loaded": lambda: standard(loaded=True),
    "loaded, and a broker that lost the bundle": with_stale_broker,
    "partitioned": partitioned,
    "partitioned and loaded": lambda: partitioned(loaded=True),
    "troubled": troubled,
}


def live(setting: Setting, crashes: Sequence[int] = ()) -> list[CrashAt]:
    """Delete the topic and settle everything; each number of ``crashes`` kills one process at that point."""
    lives = [CrashAt(number) for number in crashes] + [CrashAt()]
    fake_pulsar, rate = setting.fake_pulsar, setting.rate_per_second
    policies: dict[str, object] = {
        "policy": MAY_BE_SHARED,
        "retry_policy": setting.retry_policy,
        "rate_per_second": rate,
    }
    sidecar = Sidecar(fake_pulsar, steps=lives[0], **policies)
    try:
        attempt(sidecar, setting)
        sidecar.work()
    except Crash:
        for steps in lives[1:]:
            try:
                restarted(fake_pulsar, steps=steps, **policies).work()
            except Crash:
                continue
            break
    check(fake_pulsar)
    return lives


def create_again(fake_pulsar: FakePulsar, topic: TopicName, *, gone: Sequence[int], partitions: int) -> set[LedgerId]:
    """An operator deletes some partitions and the partitioned topic's node, then creates it with new data in those."""
    for index in gone:
        if fake_pulsar.listed(topic.partition(index)):
            fake_pulsar.delete_by_broker(TopicDeletion(topic.partition(index), partitioned=False, force=True))
    fake_pulsar.remove_node(partitioned_topic_path(topic))
    fake_pulsar.store.put(partitioned_topic_path(topic), b'{"partitions":%d,"deleted":false}' % partitions)
    for index in gone:
        fake_pulsar.topic(str(topic.partition(index)))
    return {ledger_id for index in gone for ledger_id in fake_pulsar.listed(topic.partition(index))}


def attempt(sidecar: Sidecar, setting: Setting) -> bool:
    """Request the deletion; False when the caller's error is that nothing is known to have begun."""
    try:
        sidecar.delete_topic(setting.topic, partitioned=setting.partitioned)
    except SidecarError:
        return False
    return True
