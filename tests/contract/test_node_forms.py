"""Every form in which brokers write nodes and ledgers when they are configured otherwise than out of the box.

Two brokers compress nodes by different algorithms; both keep the delayed index in buckets, sign entries with a
password, and roll ledgers over after ten entries.
"""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from pulsar_sidecar.model.ledgers import DigestType
from pulsar_sidecar.model.names import TopicName, encode_cursor
from pulsar_sidecar.ownership import paths
from pulsar_sidecar.ownership.claims import BucketClaim, DataClaim, read_claim
from pulsar_sidecar.ownership.references import managed_ledger_references

from tests.cluster.buckets import BUCKETS
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.contract.bookkeeping import ClusterBookkeeping

SMALL_BUCKETS = {**BUCKETS, "delayedDeliveryMinIndexCountPerBucket": "5"}
SIGNED = {"managedLedgerDigestType": "MAC", "managedLedgerPassword": "a password"}
MESSAGES_PER_LEDGER = 10
SHORT_LEDGERS = {
    "managedLedgerMaxEntriesPerLedger": str(MESSAGES_PER_LEDGER),
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
SMALL_NODES_TOO = {
    "managedLedgerInfoCompressionThresholdInBytes": "0",
    "managedCursorInfoCompressionThresholdInBytes": "0",
}
COMPRESSION = {
    "broker-1": {"managedLedgerInfoCompressionType": "ZSTD", "managedCursorInfoCompressionType": "LZ4"},
    "broker-2": {"managedLedgerInfoCompressionType": "SNAPPY", "managedCursorInfoCompressionType": "ZLIB"},
}
WRAPPED = b"\x47\x78"
SUBSCRIPTION = "a b/ü"
TOPICS = 8


@pytest.fixture(scope="module")
def real(special_cluster: ClusterFactory) -> Iterator[ClusterBookkeeping]:
    settings = SMALL_BUCKETS | SIGNED | SHORT_LEDGERS | SMALL_NODES_TOO
    with special_cluster(brokers=2, bookies=1, broker_conf=settings, member_conf=COMPRESSION) as cluster:
        bookkeeping = ClusterBookkeeping(cluster)
        yield bookkeeping
        bookkeeping.close()


@pytest.fixture(scope="module")
def topics(real: ClusterBookkeeping) -> list[TopicName]:
    """Topics with delayed messages in several ledgers; enough of them that both brokers own some."""
    return [_with_buckets(real) for _ in range(TOPICS)]


def _with_buckets(real: ClusterBookkeeping) -> TopicName:
    topic = real.topic()
    cursor = encode_cursor(SUBSCRIPTION)
    with real.delayed(topic, SUBSCRIPTION, timedelta(hours=1)) as send:

        def sealed_two() -> bool:
            for _ in range(MESSAGES_PER_LEDGER):
                send()
            return len(real.cursor(topic, cursor).buckets) >= 2

        until(sealed_two, "two buckets are sealed")
    return topic


def test_both_brokers_wrote(real: ClusterBookkeeping, topics: list[TopicName]) -> None:
    managed_ledgers = [real.node(paths.managed_ledger_path(topic.managed_ledger_name)).data for topic in topics]
    cursors = [
        real.node(paths.cursor_path(topic.managed_ledger_name, encode_cursor(SUBSCRIPTION))).data for topic in topics
    ]
    for nodes in (managed_ledgers, cursors):
        assert {node[:2] for node in nodes} == {WRAPPED}
        assert len({node[6:8] for node in nodes}) == 2, "two algorithms"


def test_every_ledger_is_found_and_names_its_owner(real: ClusterBookkeeping, topics: list[TopicName]) -> None:
    for topic in topics:
        node = real.node(paths.managed_ledger_path(topic.managed_ledger_name))
        ledgers = managed_ledger_references(node.data).ledgers
        assert list(ledgers) == [int(each["ledgerId"]) for each in real.admin("GET", topic, "internalStats")["ledgers"]]
        for ledger_id in ledgers:
            metadata = real.metadata(ledger_id)
            assert metadata.digest_type is DigestType.HMAC
            assert read_claim(metadata.custom_metadata) == DataClaim(topic.managed_ledger_name)
            assert real.entries.readable(ledger_id, metadata) == bool(real.entries.read_tail(ledger_id, metadata, 1))


def test_every_bucket_is_found_and_names_its_owner(real: ClusterBookkeeping, topics: list[TopicName]) -> None:
    for topic in topics:
        for bucket_key, ledger_id in real.cursor(topic, encode_cursor(SUBSCRIPTION)).buckets.items():
            metadata = real.metadata(ledger_id)
            assert read_claim(metadata.custom_metadata) == BucketClaim(topic, SUBSCRIPTION, bucket_key)
            tail = real.entries.read_tail(ledger_id, metadata, 9)
            assert len(tail) == metadata.last_entry_id + 1 >= 2
