"""Topics that real brokers deduplicate, a sidecar that inspects them, and their brokers' responses."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.topic_stats import DEDUPLICATION_CURSOR
from pulsar_sidecar.ownership.paths import cursor_path

from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import SidecarProcess, Sidecars
from tests.cluster.topics import Workload, unique

BROKER_CONF = {
    # Snapshots by time would come too late for any test, and by entries not before 100 of them.
    "brokerDeduplicationSnapshotFrequencyInSeconds": "0",
    "brokerDeduplicationEntriesInterval": "100",
    "managedLedgerMaxEntriesPerLedger": "20",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "brokerDeleteInactiveTopicsEnabled": "false",
}


@dataclass(frozen=True, slots=True)
class Setup:
    """A cluster and its sidecar."""

    cluster: ClusterUnderTest
    workload: Workload
    sidecars: Sidecars
    sidecar: SidecarProcess

    @contextmanager
    def namespace(self, deduplication: bool | None = None) -> Iterator[str]:
        """Yield a new namespace with this policy of deduplication."""
        name = f"public/dedup-{unique()}"
        self.workload.admin("PUT", f"namespaces/{name}")
        if deduplication is not None:
            self.workload.admin("POST", f"namespaces/{name}/deduplication", deduplication)
        yield name

    def topic(self, namespace: str) -> TopicName:
        """Create a loaded topic without partitions."""
        topic = parse_topic_name(f"persistent://{namespace}/t-{unique()}")
        self.workload.admin("PUT", self.workload.of_topic(topic))
        self.status(topic)
        return topic

    def status(self, topic: TopicName) -> Any:
        """Return the broker's deduplication status; loads the topic."""
        return self.workload.admin("GET", self.workload.of_topic(topic, "stats"))["deduplicationStatus"]

    def call(self, method: str, path: str, body: object = None, **params: str) -> Any:
        """Call the sidecar, which must succeed."""
        return self.sidecar.call(method, f"/admin/v2/{path}", body, **params)

    def filled(self, namespace: str, entries: int) -> TopicName:
        """Create an unloaded topic with ``entries`` entries."""
        topic = self.topic(namespace)
        self.workload.produce(topic, [b"x" * 100] * entries)
        self.workload.unload(topic)
        return topic

    def stuck(self, namespace: str, **limits: int) -> Any:
        params = {name: str(value) for name, value in limits.items()}
        return self.call("GET", f"namespaces/{namespace}/deduplication/stuck", **params)

    def has_cursor(self, topic: TopicName) -> bool:
        path = cursor_path(topic.managed_ledger_name, DEDUPLICATION_CURSOR)
        return self.workload.store.read(path) is not None

    def replayed(self, topic: TopicName) -> list[int]:
        """Return the numbers of entries that loads of the topic replayed, by the broker's own log."""
        lines = self.cluster.log("broker-1", 100_000)
        return [int(found) for found in re.findall(rf"\[{topic}\] Replaying (\d+) entries", lines)]

    def topics_in(self, namespace: str) -> list[str]:
        found: list[str] = self.workload.admin("GET", f"persistent/{namespace}")
        return [name for name in found if "__change_events" not in name]


@contextmanager
def set_up(cluster: ClusterUnderTest, directory: Path) -> Iterator[Setup]:
    """Yield the setup on a cluster."""
    workload = Workload(cluster)
    sidecars = Sidecars(cluster.addresses, directory)
    try:
        yield Setup(cluster, workload, sidecars, sidecars.start())
    finally:
        sidecars.close()
        workload.close()
