"""Loading a topic of delayed messages: after its buckets were built, and by reading its backlog.

Every contender has the same messages in a topic of its own, whose subscription never had a consumer. The time is that
from the first consumer's arrival until the broker counts every message as delayed.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pulsar_sidecar.delayed_delivery.index.maintenance.attach import SETTLE_SECONDS
from pulsar_sidecar.delayed_delivery.index.maintenance.build import IndexBuilder
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.names import parse_topic_name

from tests.benchmarks.reporting import Table
from tests.benchmarks.stage import SERVER_OPTIONS, wait_until_quiet
from tests.cluster.buckets import BUCKETS
from tests.cluster.delays import SHARED, DelayedTopic, now_ms
from tests.cluster.index_building import IndexBuilding
from tests.cluster.running import LocalClusterUnderTest
from tests.cluster.topics import unique

NAME = "delayed-index-build"
_SUBSCRIPTION = "s"
_DELAY_MS = 3_600_000
_SPREAD_MS = 3_600_000
_WARM_MESSAGES = 20_000
_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 300.0
_CONF = {**BUCKETS, "managedLedgerMinLedgerRolloverTimeMinutes": "0"}


@dataclass(frozen=True, slots=True)
class _Run:
    name: str
    load_seconds: float
    build: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=200_000, help="delayed messages in each topic")


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with tempfile.TemporaryDirectory(prefix="pulsar-sidecar-build-") as scratch, ExitStack() as stack:
        spec = ClusterSpec(
            Path(scratch) / "cluster", java_options=SERVER_OPTIONS, ends_with_starter=True, broker_conf=_CONF
        )
        cluster = LocalClusterUnderTest(stack.enter_context(LocalCluster.up(spec)))
        builder = IndexBuilding(cluster, stack).builder
        for build in (False, True):
            _measured(cluster, builder, "", _WARM_MESSAGES, build=build)
        without = _measured(cluster, builder, "reading the backlog", arguments.messages, build=False)
        after = _measured(cluster, builder, "after `build`", arguments.messages, build=True)
    rows = [[one.name, f"{one.load_seconds:.2f} s", one.build] for one in (without, after)]
    rows[1][0] += f" ({without.load_seconds / after.load_seconds:.1f} times faster)"
    title = f"A topic of {arguments.messages:,} delayed messages, loaded on the bucket tracker"
    notes = [f"Building waits {SETTLE_SECONDS:.0f} s after the change before it looks at the brokers again."]
    return [Table(title, ["", "until every message is delayed", "building"], rows, notes)]


def _measured(cluster: LocalClusterUnderTest, builder: IndexBuilder, name: str, messages: int, *, build: bool) -> _Run:
    with _topic(cluster) as topic:
        topic.subscribe(_SUBSCRIPTION, SHARED)
        first = now_ms() + _DELAY_MS
        topic.send(messages, [first + number * 7919 % _SPREAD_MS for number in range(messages)])
        topic.unload()
        told = _built(builder, topic) if build else ""
        wait_until_quiet(cluster.addresses)
        started = time.monotonic()
        with topic.consuming(_SUBSCRIPTION, SHARED, consumers=1):
            while topic.stats()["subscriptions"][_SUBSCRIPTION]["msgDelayed"] < messages:
                assert time.monotonic() - started < _PATIENCE_SECONDS
                time.sleep(_POLL_SECONDS)
            return _Run(name, time.monotonic() - started, told)


def _built(builder: IndexBuilder, topic: DelayedTopic) -> str:
    started = time.monotonic()
    plan = builder.plan(topic.topic)
    planned = time.monotonic()
    builder.execute(topic.topic, None, plan.hash)
    ended = time.monotonic()
    buckets = sum(len(each.buckets) for each in plan.subscriptions)
    return f"{buckets} buckets: plan {planned - started:.1f} s, execute {ended - planned:.1f} s"


@contextmanager
def _topic(cluster: LocalClusterUnderTest) -> Iterator[DelayedTopic]:
    topic = DelayedTopic(cluster.addresses, parse_topic_name(f"persistent://public/default/build-{unique()}"))
    try:
        yield topic
    finally:
        topic.close()
