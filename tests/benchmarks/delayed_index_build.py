"""Loading a topic of delayed messages: by reading its backlog, from a broker's buckets, and after `build`; as forecast.

Every contender has the same messages in a topic of its own. The time is that from the first consumer's arrival after
an unload until the broker counts every message as delayed; the memory is what the broker then reports of its queues.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path

from pulsar_sidecar.adapters.bookkeeper.stored_cursors import BookieLedgerLengths
from pulsar_sidecar.features.delayed_index.inspection.forecast import Forecaster
from pulsar_sidecar.features.delayed_index.maintenance.attach import RECHECK_SECONDS
from pulsar_sidecar.features.delayed_index.results.inspection import LoadCost
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT

from tests.benchmarks.clusters import SERVER_OPTIONS, wait_until_quiet
from tests.cluster.buckets import BUCKETS
from tests.cluster.delays import SHARED, DelayedTopic, now_ms
from tests.cluster.index_building import IndexBuilding
from tests.cluster.patience import until
from tests.cluster.running import LocalClusterUnderTest
from tests.cluster.topics import unique
from tests.reporting import Table

NAME = "delayed-index-build"
_SUBSCRIPTION = "s"
_DELAY_MS = 3_600_000
_SPREAD_MS = 3_600_000
_WARM_MESSAGES = 20_000
_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 300.0
_ROLLOVER = {"managedLedgerMinLedgerRolloverTimeMinutes": "0"}


class _Index(Enum):
    """Index of the loaded topic."""

    NONE = "no bucket"
    BROKERS = "the broker's buckets"
    BUILT = "after `build`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, nargs="+", default=[50_000, 200_000], help="in each topic")


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    notes = [f"`build` waits {RECHECK_SECONDS:.0f} s after the change before it looks at the brokers again."]
    head = ["messages", "", "load, seconds", "forecast", "entries forecast", "queues, MB", "forecast", "building"]
    tables = []
    for title, conf, contenders in (
        ("bucket tracker", BUCKETS, tuple(_Index)),
        ("in-memory tracker", {}, (_Index.NONE,)),
    ):
        with _cluster(conf) as setup:
            for index in contenders:
                setup.row(_WARM_MESSAGES, index)
            rows = [setup.row(messages, index) for messages in arguments.messages for index in contenders]
        tables.append(Table(f"Loads on the {title}", head, rows, notes))
    return tables


@contextmanager
def _cluster(conf: dict[str, str]) -> Iterator["_Setup"]:
    with tempfile.TemporaryDirectory(prefix="pulsar-sidecar-build-") as scratch, ExitStack() as stack:
        spec = ClusterSpec(
            Path(scratch) / "cluster", java_options=SERVER_OPTIONS, ends_with_starter=True, broker_conf=conf | _ROLLOVER
        )
        yield _Setup(LocalClusterUnderTest(stack.enter_context(LocalCluster.up(spec))), stack)


class _Setup:
    def __init__(self, cluster: LocalClusterUnderTest, stack: ExitStack) -> None:
        self._cluster = cluster
        building = IndexBuilding(cluster, stack)
        self._builder, self._stored = building.builder, building.stored
        lengths = BookieLedgerLengths(building.bookkeeper.store, building.bookkeeper.entries, DEFAULT_LEDGERS_ROOT)
        configured = building.trackers.configured
        self._forecaster = Forecaster(self._stored, lengths, lambda: configured(None), SystemClock())

    def row(self, messages: int, index: _Index) -> list[str]:
        """One load, as a row of the table."""
        topic = DelayedTopic(self._cluster.addresses, parse_topic_name(f"persistent://public/default/build-{unique()}"))
        try:
            topic.subscribe(_SUBSCRIPTION, SHARED)
            first = now_ms() + _DELAY_MS
            due = [first + number * 7919 % _SPREAD_MS for number in range(messages)]
            if index is _Index.BROKERS:
                with topic.consuming(_SUBSCRIPTION, SHARED, consumers=1):
                    topic.send(messages, due)
                    until(lambda: self._delayed(topic)[0] == messages, "the broker indexes every message")
            else:
                topic.send(messages, due)
            topic.unload()
            built = self._built(topic) if index is _Index.BUILT else ""
            forecast = self._forecaster.of_topic(topic.topic).total
            wait_until_quiet(self._cluster.addresses)
            seconds, memory_bytes = self._loaded(topic, messages)
            return [f"{messages:,}", index.value, f"{seconds:.2f}", *_foretold(forecast, memory_bytes), built]
        finally:
            topic.close()

    def _loaded(self, topic: DelayedTopic, messages: int) -> tuple[float, int]:
        started = time.monotonic()
        with topic.consuming(_SUBSCRIPTION, SHARED, consumers=1):
            while self._delayed(topic)[0] < messages:
                assert time.monotonic() - started < _PATIENCE_SECONDS
                time.sleep(_POLL_SECONDS)
            return time.monotonic() - started, self._delayed(topic)[1]

    def _delayed(self, topic: DelayedTopic) -> tuple[int, int]:
        stats = topic.stats()["subscriptions"][_SUBSCRIPTION]
        return stats["msgDelayed"], stats["delayedMessageIndexSizeInBytes"]

    def _built(self, topic: DelayedTopic) -> str:
        started = time.monotonic()
        plan = self._builder.plan(topic.topic)
        planned = time.monotonic()
        self._builder.execute(topic.topic, None, plan.hash)
        ended = time.monotonic()
        buckets = sum(len(each.buckets) for each in plan.subscriptions)
        return f"{buckets} buckets: plan {planned - started:.1f} s, execute {ended - planned:.1f} s"


def _foretold(forecast: LoadCost, memory_bytes: int) -> list[str]:
    return [
        f"{forecast.seconds:.2f}",
        f"{forecast.entries:,}",
        f"{memory_bytes / 1e6:.2f}",
        f"{forecast.memory_bytes / 1e6:.2f}",
    ]
