"""Cursors that constantly switch ledgers, so that a killed broker interrupts some switches."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pulsar
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.cluster.background import running_until
from tests.cluster.topics import Workload

CURSOR_ROLLOVERS_CONF = {
    # Clients send acknowledgements in groups, ten times a second: nearly every group begins another ledger.
    "managedLedgerCursorMaxEntriesPerLedger": "1",
    # Brokers store each at once, not one a second.
    "managedLedgerDefaultMarkDeleteRateLimit": "0",
}
_TOPICS = 4
_SUBSCRIPTIONS = 6
_MESSAGES = 200
_BETWEEN_SECONDS = 0.12
_RECEIVE_MS = 60_000


class CursorRollovers:
    """Acknowledgement of single messages on several subscriptions of several topics."""

    def __init__(self, workload: Workload, namespace: str) -> None:
        workload.admin("PUT", f"namespaces/{namespace}", {})
        self._workload = workload
        self._topics = [parse_topic_name(f"persistent://{namespace}/switching-{number}") for number in range(_TOPICS)]
        self._stop = threading.Event()
        self._acknowledged = Counter(dict.fromkeys(self._topics, 0))

    @property
    def acknowledged(self) -> int:
        """Messages acknowledged on every subscription; about every other one switched the ledger."""
        return min(self._acknowledged.values())

    @contextmanager
    def running(self) -> Iterator[None]:
        """Acknowledge while the body runs, until no messages are left or a broker dies."""
        with running_until(self._stop, [partial(self._work, topic) for topic in self._topics]):
            yield

    def _work(self, topic: TopicName) -> None:
        names = [f"sub-{number}" for number in range(_SUBSCRIPTIONS)]
        subscribe = self._workload.client.subscribe
        consumers = [subscribe(str(topic), name, pulsar.ConsumerType.Shared) for name in names]
        # Publish all first: a topic with a producer waits for its own ledgers.
        self._workload.produce(topic, [b"%d" % number for number in range(_MESSAGES)])
        with suppress(pulsar.PulsarException):
            for _ in range(_MESSAGES):
                for consumer in consumers:
                    consumer.acknowledge(consumer.receive(_RECEIVE_MS))
                self._acknowledged[topic] += 1
                if self._stop.wait(_BETWEEN_SECONDS):
                    break
        for consumer in consumers:
            with suppress(pulsar.PulsarException):
                consumer.close()
