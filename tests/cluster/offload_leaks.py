"""Objects that brokers killed during trims and offloads leave in tiered storage.

Until the brokers are killed the object store refuses deletions, so the speed of the machine does not matter: brokers
remove the attempt from the list and die before they retry.
"""

import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import requests
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import managed_ledger_path
from pulsar_sidecar.ownership.references import managed_ledger_references

from tests.cluster.clients import PatientClient
from tests.cluster.offloading import start_offload, topic_url
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.contract.offload_storages import ACCESS_KEY, BUCKET, Refusals, S3Storage

KEYS = {"ACCESS_KEY_ID": ACCESS_KEY.key_id, "ACCESS_KEY_SECRET": ACCESS_KEY.secret}
Copy = tuple[LedgerId, OffloadContext, TopicName]
"""An offload attempt of a topic's ledger."""
_CLOCK = SystemClock()


@contextmanager
def offloading_to(
    bucket: S3Storage,
    special_cluster: ClusterFactory,
    entries_per_ledger: int,
    block_bytes: int = 64 * 1024 * 1024,
    **options: Any,
) -> Iterator[ClusterUnderTest]:
    """Run a cluster that offloads to the bucket, unless a namespace's policy differs."""
    broker_conf = {
        **offload_conf(bucket),
        "managedLedgerOffloadMaxBlockSizeInBytes": str(block_bytes),
        "managedLedgerMaxEntriesPerLedger": str(entries_per_ledger),
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    }
    with pytest.MonkeyPatch.context() as environment:
        for name, value in KEYS.items():
            environment.setenv(name, value)
        with special_cluster(offloaders=True, broker_conf=broker_conf, **options) as cluster:
            yield cluster


def offload_conf(bucket: S3Storage) -> dict[str, str]:
    """Return the settings of brokers that offload to the bucket, with `KEYS` in their environment."""
    metadata = bucket.context(1, 2).driver_metadata
    return {
        "managedLedgerOffloadDriver": metadata["managedLedgerOffloadDriver"],
        "managedLedgerOffloadBucket": BUCKET,
        "managedLedgerOffloadServiceEndpoint": metadata["serviceEndpoint"],
    }


def watching(bucket: S3Storage, mode: str) -> Mapping[str, object]:
    """Return the settings of a sidecar that watches, with access to the bucket."""
    return {
        "ledger_deletion_watch": mode,
        "ledger_deletion_watch_settle_in_seconds": 10,
        "offload_allowed_locations": f"s3://{BUCKET}@{bucket.context(1, 2).driver_metadata['serviceEndpoint']}",
        "s3_managed_ledger_offload_credential_id": ACCESS_KEY.key_id,
        "s3_managed_ledger_offload_credential_secret": ACCESS_KEY.secret,
    }


@dataclass(slots=True)
class OffloadingTopics:
    """Topics that brokers offload to a bucket that refuses on request."""

    cluster: ClusterUnderTest
    bucket: S3Storage
    refusals: Refusals
    brokers: Sequence[str] = ("broker-1",)

    def contexts(self, topic: TopicName) -> dict[LedgerId, OffloadContext]:
        """Return the offload contexts in the topic's list."""
        with ZooKeeperMetadataStore(self.cluster.addresses.metadata_store_url, _CLOCK) as store:
            node = store.read(managed_ledger_path(topic.managed_ledger_name))
        assert node is not None
        ledgers = managed_ledger_references(node.data).ledgers.items()
        return {ledger_id: each.offload for ledger_id, each in ledgers if each.offload is not None}

    def fill(self, topic: TopicName, entries: int, subscription: str) -> None:
        client = PatientClient(self.cluster.addresses)
        try:
            client.subscribe(str(topic), subscription).close()
            producer = client.create_producer(str(topic), batching_enabled=False)
            for number in range(entries):
                producer.send(b"%d" % number)
        finally:
            client.close()

    def offload(self, topic: TopicName) -> None:
        """Start the offload of all ledgers but the last, without a wait."""
        start_offload(topic_url(self.cluster, topic))

    def offload_state(self, topic: TopicName) -> str:
        return str(requests.get(f"{topic_url(self.cluster, topic)}/offload", timeout=30).json()["status"])

    def fail_offload(self, topic: TopicName) -> list[Copy]:
        """Fail an offload after its data, at its index, and return the attempts, all of which are listed."""
        self.refusals.indexes = self.refusals.deletions = True
        self.offload(topic)
        until(lambda: self.offload_state(topic) == "ERROR", f"the offload of {topic} fails", seconds=120)
        self.refusals.indexes = False
        return [(ledger_id, context, topic) for ledger_id, context in self.contexts(topic).items()]

    def leave_trimmed(self, topic: TopicName, subscription: str) -> list[Copy]:
        """Trim all offloaded ledgers from the list while the bucket refuses to delete their objects."""
        self.refusals.deletions = True
        before = self.contexts(topic)
        url = topic_url(self.cluster, topic)
        requests.post(f"{url}/subscription/{subscription}/skip_all", timeout=30).raise_for_status()

        def is_trimmed() -> bool:
            requests.post(f"{url}/trim", timeout=30).raise_for_status()
            return not self.contexts(topic)

        until(is_trimmed, f"the list of {topic} is trimmed")
        return [(ledger_id, context, topic) for ledger_id, context in before.items()]

    def leave_replaced(self, failed: Sequence[Copy]) -> None:
        """Replace failed attempts by further ones while the bucket refuses to delete their objects."""
        self.refusals.deletions = True
        for topic in {topic for _, _, topic in failed}:
            self.offload(topic)
        until(lambda: not self.listed(failed), "other attempts replace those that failed")

    def listed(self, copies: Sequence[Copy]) -> list[Copy]:
        """Return the copies that lists still name."""
        found = {topic: self.contexts(topic) for _, _, topic in copies}
        return [
            each
            for each in copies
            if (now := found[each[2]].get(each[0])) is not None and now.attempt == each[1].attempt
        ]

    def left(self, copies: Sequence[Copy]) -> list[Copy]:
        """Return the copies of which the bucket still has parts."""
        return [each for each in copies if self.bucket.parts(each[0], each[1], each[2].managed_ledger_name)]

    def unnamed(self, topics: Iterable[TopicName]) -> set[str]:
        """Return objects in the bucket that no list of these topics names."""
        contexts = (context for topic in topics for context in self.contexts(topic).values())
        attempts = tuple(str(context.attempt) for context in contexts)
        return {key for key in self.bucket.object_names() if not key.startswith(attempts)}

    def kill_brokers(self) -> None:
        """Kill all brokers at once and restart them; the object store deletes again from then on."""
        for name in self.brokers:
            os.kill(self.cluster.addresses.members[name], signal.SIGKILL)
        self.refusals.deletions = self.refusals.indexes = False
        for name in self.brokers:
            self.cluster.restart(name)
