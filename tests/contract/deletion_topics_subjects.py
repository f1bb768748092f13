"""The topics of ledger deletion in memory, and on a cluster whose subscriptions start each test empty."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pulsar_sidecar.adapters.pulsar_client.clients import open_client
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest, topic_path
from pulsar_sidecar.adapters.pulsar_topics.deletion_topics import PulsarDeletionTopics, topic_name
from pulsar_sidecar.adapters.pulsar_topics.pending_consumer import ConsumerSettings
from pulsar_sidecar.adapters.pulsar_topics.topics_setup import DEAD_LETTERS_SUBSCRIPTION
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic, DeletionTopics, Delivery, PendingDeletions
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import SUBSCRIPTION
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import Clock, SystemClock

from tests.fakes.clock import FakeClock
from tests.fakes.deletion_topics import FakeDeletionTopics

PARTITIONS = 4
POSTPONE_MS = 300
_PATIENCE_MS = 60_000
_STEP_MS = 100


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of a test of the topics: two sidecars' views of the same topics, and time."""

    topics: DeletionTopics
    other_sidecar: DeletionTopics
    clock: Clock


_NEVER = threading.Event()


def pass_ms(subject: Subject, milliseconds: int) -> None:
    """Let time pass: really, or on the fake clock."""
    subject.clock.wait_seconds(milliseconds / 1000, _NEVER)


def receive_until(subject: Subject, consumer: PendingDeletions, count: int) -> list[Delivery]:
    """Receive until ``count`` messages came, or patience ends with fewer."""
    found: list[Delivery] = []
    give_up_ms = subject.clock.now_ms() + _PATIENCE_MS
    while len(found) < count and subject.clock.now_ms() < give_up_ms:
        found += consumer.receive()
        pass_ms(subject, _STEP_MS)
    return found


def receive_for(subject: Subject, consumer: PendingDeletions, milliseconds: int) -> list[Delivery]:
    """Everything that comes within a time."""
    found: list[Delivery] = []
    end_ms = subject.clock.now_ms() + milliseconds
    while subject.clock.now_ms() < end_ms:
        found += consumer.receive()
        pass_ms(subject, _STEP_MS)
    return found


@contextmanager
def fake_subject() -> Iterator[Subject]:
    clock = FakeClock()
    topics = FakeDeletionTopics(clock, partitions=PARTITIONS, nack_delay_ms=POSTPONE_MS)
    topics.ensure()
    yield Subject(topics, topics, clock)


@contextmanager
def cluster_subject(addresses: ClusterAddresses) -> Iterator[Subject]:
    """Two clients of the cluster; messages of earlier tests are skipped first."""
    clock = SystemClock()
    settings = ConsumerSettings(postpone_ms=POSTPONE_MS)
    with ZooKeeperMetadataStore(addresses.metadata_store_url, clock) as store:
        rest = AdminRest(addresses.web_service_urls, store=store)
        clients = [open_client(addresses.broker_service_url) for _ in range(2)]
        try:
            mine, other = (PulsarDeletionTopics(client, rest, clock, consumer=settings) for client in clients)
            mine.ensure()
            _skip_everything(rest)
            yield Subject(mine, other, clock)
        finally:
            for client in clients:
                client.close()


def _skip_everything(rest: AdminRest) -> None:
    subscriptions = {
        DeletionTopic.PENDING: SUBSCRIPTION,
        DeletionTopic.RETRY: SUBSCRIPTION,
        DeletionTopic.DEAD_LETTER: DEAD_LETTERS_SUBSCRIPTION,
    }
    for topic, subscription in subscriptions.items():
        rest.change("POST", topic_path(topic_name(topic), f"/subscription/{subscription}/skip_all"))
