"""Topics with every kind of ledger and with difficult names, and a constantly changing load."""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

import pulsar
import requests
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.cluster.background import running_until
from tests.cluster.cursor_rollovers import CURSOR_ROLLOVERS_CONF
from tests.cluster.patience import OPERATION_SECONDS, until
from tests.cluster.topics import Workload

EVERY_KIND_CONF = {
    "enablePackagesManagement": "true",
    # Brokers store a new compacted ledger's id on the bookies within a second, not within a minute.
    "managedLedgerCursorPositionFlushSeconds": "1",
    **CURSOR_ROLLOVERS_CONF,
    "managedLedgerInfoCompressionType": "LZ4",
    "managedLedgerInfoCompressionThresholdInBytes": "0",
}
"""Brokers' settings for every kind of ledger, with quick rollovers of cursors' ledgers."""

_PACKAGE_BYTES = b"no jar at all" * 1000
_ODD_NAMES = ("named-partition-3", "dots.in..it.", "100%.and%2Fmore", "a space+plus", "x" * 200, "ünïcode~*")
_ODD_CURSORS = ("dot.ted x", "pct%41", "plus+p", "ü")
_PARTITIONS = 3
_RECEIVE_MS = 10_000


@dataclass
class EveryKind:
    """A namespace without trimming, with every kind of ledger, whose contents stay."""

    workload: Workload
    addresses: ClusterAddresses
    namespace: str
    written: dict[TopicName, list[bytes]] = field(default_factory=dict)

    def topic(self, name: str) -> TopicName:
        return parse_topic_name(f"persistent://{self.namespace}/{name}")

    @property
    def everything(self) -> TopicName:
        return self.topic("everything")

    def fill(self) -> None:
        """Create all topics."""
        self.workload.create_namespace(self.namespace)
        self.workload.admin("POST", f"namespaces/{self.namespace}/deduplication", True)
        self.workload.fill_with_everything(self.everything)
        self._fill_odd_names()
        self._fill_partitions()
        self._fill_shadow()
        self._fill_policies()
        self.upload_package()
        for version in ("V1", "V2"):
            assert self.workload.request("GET", "brokers/health", topicVersion=version).ok

    def check(self) -> None:
        """Demand that brokers reopen every topic and read it from beginning to end."""
        for topic in (*self.written, self.everything, self.topic("__change_events")):
            self.workload.unload(topic)
        for topic, payloads in self.written.items():
            assert self.workload.read_all(topic) == payloads, topic
        assert self.workload.read_all(self.everything, compacted=True)
        for topic, versions in ((self.everything, 3), (self.topic("parted"), 2), (self.topic("named-partition-3"), 2)):
            self._demand_schemas(topic, versions)
        self._demand_delayed()
        assert self.download_package() == _PACKAGE_BYTES
        policy = self.workload.admin("GET", self.workload.of_topic(self.everything, "maxConsumers"))
        assert policy == 77, "the topic's policies are lost"

    def upload_package(self) -> None:
        """Upload a function's package, which Pulsar keeps on DistributedLog."""
        answer = requests.post(
            self._package,
            files={
                "metadata": (None, json.dumps({"description": "a tool"}), "application/json"),
                "file": ("tool.jar", _PACKAGE_BYTES, "application/octet-stream"),
            },
            timeout=OPERATION_SECONDS,
        )
        assert answer.status_code < 300, f"{answer.status_code} {answer.text[:300]}"

    def download_package(self) -> bytes:
        answer = requests.get(self._package, timeout=OPERATION_SECONDS)
        answer.raise_for_status()
        return answer.content

    @property
    def _package(self) -> str:
        return f"{self.addresses.web_service_urls[0]}/admin/v3/packages/function/{self.namespace}/tool/v1"

    def _fill_odd_names(self) -> None:
        for name in _ODD_NAMES:
            topic = self.topic(name)
            self.written[topic] = self.workload.fill(topic, 2)
        for cursor in _ODD_CURSORS:
            self.workload.subscribe(self.topic("100%.and%2Fmore"), cursor, acknowledge=1)
        self.workload.store_schemas(self.topic("named-partition-3"), 2)

    def _fill_partitions(self) -> None:
        parted = self.topic("parted")
        self.workload.admin("PUT", self.workload.of_topic(parted, "partitions"), _PARTITIONS)
        self.workload.store_schemas(parted, 2)
        for index in range(_PARTITIONS):
            self.written[parted.partition(index)] = self.workload.fill(parted.partition(index), 2)

    def _fill_shadow(self) -> None:
        """Create a shadow after an unload of its source, because it cannot read entries of an open ledger."""
        source, shadow = self.topic("dots.in..it."), self.topic("shadow")
        self.workload.unload(source)
        self.workload.admin("PUT", self.workload.of_topic(shadow), {"PULSAR.SHADOW_SOURCE": str(source)})
        self.written[shadow] = self.written[source]
        assert self.workload.read_all(shadow) == self.written[source]

    def _fill_policies(self) -> None:
        """Set topic policies, which are in ``__change_events``, and compact it, because brokers read that view."""
        for limit in (75, 76, 77):
            self.workload.admin("POST", self.workload.of_topic(self.everything, "maxConsumers"), limit)
        self.workload.compact(self.topic("__change_events"))

    def _demand_schemas(self, topic: TopicName, versions: int) -> None:
        for version in range(versions):
            self.workload.admin("GET", f"schemas/{topic.namespace}/{_quoted(topic)}/schema/{version}")

    def _demand_delayed(self) -> None:
        """Demand that brokers read the delayed index from its buckets; after a loss they fall back to memory."""
        consumer = self.workload.client.subscribe(
            str(self.everything), "delayed", consumer_type=pulsar.ConsumerType.Shared
        )
        try:
            until(self._delayed, "the delayed messages are known")
        finally:
            consumer.close()

    def _delayed(self) -> bool:
        stats = self.workload.admin("GET", self.workload.of_topic(self.everything, "stats"))
        return bool(stats["subscriptions"]["delayed"]["msgDelayed"] >= 12)


def _quoted(topic: TopicName) -> str:
    return requests.utils.quote(topic.local_name, safe="")


class Churn:
    """Load that creates, rolls, unloads and deletes topics and cursors of its own namespace until it is stopped."""

    def __init__(self, workload: Workload, addresses: ClusterAddresses, namespace: str, rng: random.Random) -> None:
        self._workload = workload
        self._namespace = namespace
        self._rng = rng
        self._stop = threading.Event()
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._client = pulsar.Client(
            addresses.broker_service_url,
            operation_timeout_seconds=10,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )

    @contextmanager
    def running(self, threads: int = 4) -> Iterator["Churn"]:
        """Run the load while the body runs."""
        # Without retention brokers trim acknowledged ledgers.
        self._workload.admin("PUT", f"namespaces/{self._namespace}", {})
        seeds = [self._rng.random() for _ in range(threads)]
        works = [partial(self._work, number, random.Random(seed)) for number, seed in enumerate(seeds)]
        try:
            with running_until(self._stop, works):
                yield self
        finally:
            self._client.close()

    def _work(self, number: int, rng: random.Random) -> None:
        acts: list[Callable[[TopicName, random.Random], None]] = [
            self._roll, self._roll, self._acknowledge, self._acknowledge, self._leave, self._unload, self._delete,
            self._compact, self._store_schema, self._delay,
        ]  # fmt: skip
        while not self._stop.is_set():
            act = rng.choice(acts)
            topic = parse_topic_name(f"persistent://{self._namespace}/churn-{number}-{rng.randrange(4)}")
            try:
                act(topic, rng)
                self.done[act.__name__] += 1
            except (pulsar.PulsarException, requests.RequestException, AssertionError) as error:
                # A broker that closes the topic while a client uses it, as it should.
                self.failed[f"{act.__name__}: {type(error).__name__}"] += 1

    def _roll(self, topic: TopicName, rng: random.Random) -> None:
        producer = self._client.create_producer(str(topic), batching_enabled=False)
        for number in range(rng.randint(1, 8)):
            producer.send(f"{number}".encode(), partition_key=f"key-{number % 2}")
        producer.close()

    def _acknowledge(self, topic: TopicName, rng: random.Random) -> None:
        """Roll the cursor's ledger, and make the broker trim acknowledged ledgers."""
        consumer = self._client.subscribe(str(topic), f"sub-{rng.randrange(2)}", pulsar.ConsumerType.Shared)
        self._roll(topic, rng)
        with suppress(pulsar.Timeout):
            for _ in range(rng.randint(4, 16)):
                consumer.acknowledge(consumer.receive(timeout_millis=200))
        consumer.close()

    def _leave(self, topic: TopicName, rng: random.Random) -> None:
        path = self._workload.of_topic(topic, f"subscription/sub-{rng.randrange(2)}")
        self._workload.request("DELETE", path, force="true")

    def _unload(self, topic: TopicName, rng: random.Random) -> None:
        self._workload.request("PUT", self._workload.of_topic(topic, "unload"))

    def _delete(self, topic: TopicName, rng: random.Random) -> None:
        self._workload.request("DELETE", self._workload.of_topic(topic), force="true")

    def _compact(self, topic: TopicName, rng: random.Random) -> None:
        self._workload.request("PUT", self._workload.of_topic(topic, "compaction"))

    def _store_schema(self, topic: TopicName, rng: random.Random) -> None:
        self._workload.store_schemas(topic, rng.randint(1, 3))

    def _delay(self, topic: TopicName, rng: random.Random) -> None:
        consumer = self._client.subscribe(str(topic), "delayed", pulsar.ConsumerType.Shared)
        producer = self._client.create_producer(str(topic), batching_enabled=False)
        for number in range(9):
            producer.send(b"later", deliver_after=timedelta(hours=1, seconds=number))
        producer.close()
        consumer.close()
