"""The topics of the service in memory; re-exports the fakes of brokers.

Invariant: these fakes allow only what a cluster allows; ``tests/contract/test_deletion_topics.py`` runs one suite on
both. A stored message stays until it is acknowledged, whichever client closes or crashes; a test requests every fault
by name.
"""

import threading
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace

from pulsar_sidecar.features.ledger_deletion.ports import (
    Backlog,
    DeletionTopic,
    Delivery,
    OutgoingMessage,
    PublishResult,
)
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import DELAY_TIME
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import ConflictError, TemporaryError

from tests.fakes.brokers import FakeLiveOwners, FakeTopicAdmin, TopicDeletion
from tests.fakes.hooks import AnswerLostError, Hooks
from tests.fakes.stored_messages import MessageLog, StoredMessage, check_ids, message_logs

__all__ = [
    "FakeDeadLetters",
    "FakeDeletionTopics",
    "FakeLiveOwners",
    "FakePendingDeletions",
    "FakePublisher",
    "FakeTopicAdmin",
    "Hooks",
    "StoredMessage",
    "TopicDeletion",
]


class FakeDeletionTopics:
    """The four topics, shared by all sidecars of a test, with hooks and inspection besides the port's methods.

    ``nack_delay_ms`` is the delay of `PendingDeletions.postpone` on ``clock``; ``not_seen_quickly`` is the number of
    first outcomes that a quick reading misses.
    """

    def __init__(self, clock: Clock, *, partitions: int = 4, nack_delay_ms: int = 1000) -> None:
        self.hooks = Hooks()
        self.clock = clock
        self.max_messages = 500
        self.nack_delay_ms = nack_delay_ms
        self.ensured = False
        self.hindrances: list[str] = []
        self.not_seen_quickly = 0
        self.delayed_tracker_stalled = False
        self.lock = threading.RLock()
        self.logs = {topic: message_logs(topic, number, partitions) for number, topic in enumerate(DeletionTopic)}
        self._names: dict[tuple[DeletionTopic, str], FakePublisher] = {}
        self._consumers: list[FakePendingDeletions | FakeDeadLetters] = []

    # Setup and inspection by tests -------------------------------------------------------------------------------

    def put(
        self,
        topic: DeletionTopic,
        payload: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        deliver_after_ms: int | None = None,
    ) -> None:
        """Store a message like a foreign producer."""
        message = OutgoingMessage(payload, key, dict(properties or {}), deliver_after_ms=deliver_after_ms)
        with self.lock:
            self.log_for(topic, key).append(message, "someone-else", self.clock.now_ms())

    def messages(self, topic: DeletionTopic) -> list[StoredMessage]:
        """Return copies of all messages ever stored, including acknowledged ones, partition by partition."""
        with self.lock:
            return [replace(message) for message in self._stored(topic)]

    def waiting(self, topic: DeletionTopic) -> list[StoredMessage]:
        """Return copies of the unacknowledged messages."""
        with self.lock:
            return [replace(message) for message in self._stored(topic) if not message.acknowledged]

    def _stored(self, topic: DeletionTopic) -> Iterator[StoredMessage]:
        return (message for log in self.logs[topic] for message in log.messages)

    def stall_delayed_tracker(self, *, stalled: bool = True) -> None:
        """Keep due delayed messages from delivery."""
        self.delayed_tracker_stalled = stalled

    def lose_receipts_next(self, *, stored: bool, times: int = 1) -> None:
        """Make the next calls of `Publisher.publish` return UNKNOWN for everything, stored or not."""

        def lose() -> None:
            raise AnswerLostError(applied=stored)

        self.hooks.before("publish", lose, times=times)

    def drop_connections(self) -> None:
        """Close all clients, as brokers do after a kill of every sidecar."""
        for consumer in tuple(self._consumers):
            consumer.close()
        for publisher in tuple(self._names.values()):
            publisher.close()

    # The port ----------------------------------------------------------------------------------------------------

    def ensure(self) -> None:
        self.hooks.arrive("ensure")
        self.ensured = True

    def warnings(self) -> Sequence[str]:
        return self.hindrances

    def publisher(self, topic: DeletionTopic, producer_name: str, *, first_use: bool = False) -> "FakePublisher":
        self.hooks.arrive("publisher")
        with self.lock:
            if (topic, producer_name) in self._names:
                raise ConflictError(f"another process publishes as {producer_name} now; choose another name")
            if first_use:
                assert all(message.producer_name != producer_name for message in self.messages(topic)), "used before"
            publisher = FakePublisher(self, topic, producer_name)
            self._names[topic, producer_name] = publisher
            return publisher

    def pending(self) -> "FakePendingDeletions":
        self.hooks.arrive("pending")
        consumer = FakePendingDeletions(self)
        with self.lock:
            self._consumers.append(consumer)
        return consumer

    def dead_letters(self) -> "FakeDeadLetters":
        self.hooks.arrive("dead_letters")
        with self.lock:
            if any(isinstance(consumer, FakeDeadLetters) for consumer in self._consumers):
                raise ConflictError("another listing or redrive of dead letters is running, try again")
            consumer = FakeDeadLetters(self)
            self._consumers.append(consumer)
            return consumer

    def outcomes_since(self, since_ms: int, *, quickly: bool = False) -> Iterator[bytes]:
        self.hooks.arrive("outcomes_since")
        stored = self.messages(DeletionTopic.OUTCOME)[self.not_seen_quickly if quickly else 0 :]
        yield from (message.payload for message in stored if message.publish_time_ms >= since_ms)

    def unacknowledged(self) -> Generator[Delivery, None, None]:
        self.hooks.arrive("unacknowledged")
        with self.lock:
            found = [message.delivery() for message in _of(self, _CONSUMED) if not message.acknowledged]
        yield from sorted(found, key=lambda delivery: delivery.publish_time_ms)

    def backlog(self) -> Backlog:
        self.hooks.arrive("backlog")
        with self.lock:
            waiting = {log.uri: log.waiting() for topic in _CONSUMED for log in self.logs[topic]}
            times = [message.publish_time_ms for messages in waiting.values() for message in messages]
            counts = {uri: len(messages) for uri, messages in waiting.items()}
            dead = sum(len(log.waiting()) for log in self.logs[DeletionTopic.DEAD_LETTER])
            return Backlog(counts, min(times, default=None), self.clock.now_ms(), dead)

    # For the publishers and consumers ----------------------------------------------------------------------------

    def log_for(self, topic: DeletionTopic, key: str | None) -> MessageLog:
        logs = self.logs[topic]
        return logs[zlib.crc32((key or "").encode()) % len(logs)]

    def give_name_free(self, topic: DeletionTopic, producer_name: str) -> None:
        with self.lock:
            self._names.pop((topic, producer_name), None)

    def leave(self, consumer: "FakePendingDeletions | FakeDeadLetters") -> None:
        """Return the consumer's messages to the others."""
        with self.lock:
            if consumer in self._consumers:
                self._consumers.remove(consumer)
            for logs in self.logs.values():
                for message in (message for log in logs for message in log.messages):
                    if message.holder is consumer and not message.acknowledged:
                        message.holder = None
                        message.redelivery_count += 1

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        ids = {delivery.handle for delivery in deliveries}
        with self.lock:
            for message in (message for logs in self.logs.values() for log in logs for message in log.messages):
                if message.message_id in ids:
                    message.acknowledged = True
                    message.holder = None


class FakePublisher:
    """A producer with a stable name, deduplicated by name, partition and sequence id."""

    def __init__(self, topics: FakeDeletionTopics, topic: DeletionTopic, producer_name: str) -> None:
        self._topics = topics
        self._topic = topic
        self._producer_name = producer_name
        self._closed = False

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[PublishResult]:
        check_ids(messages)
        try:
            self._topics.hooks.arrive("publish")
        except AnswerLostError as lost:
            if lost.applied:
                self._store(messages)
            return [PublishResult.UNKNOWN] * len(messages)
        return self._store(messages)

    def close(self) -> None:
        self._closed = True
        self._topics.give_name_free(self._topic, self._producer_name)

    def _store(self, messages: Sequence[OutgoingMessage]) -> list[PublishResult]:
        if self._closed:
            return [PublishResult.NOT_STORED] * len(messages)
        topics = self._topics
        with topics.lock:
            now_ms = topics.clock.now_ms()
            return [
                topics.log_for(self._topic, message.key).append(message, self._producer_name, now_ms)
                for message in messages
            ]


class FakePendingDeletions:
    """A Shared consumer, which holds its messages until it closes or postpones them."""

    def __init__(self, topics: FakeDeletionTopics) -> None:
        self._topics = topics
        self._overdue: set[str] = set()
        self._closed = False

    def receive(self) -> list[Delivery]:
        self._check_open()
        self._topics.hooks.arrive("receive")
        with self._topics.lock:
            found = [message for message in _of(self._topics, _CONSUMED) if self._available(message)]
            taken = found[: self._topics.max_messages]
            for message in taken:
                message.holder = self
            return [message.delivery() for message in taken]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._check_open()
        self._topics.hooks.arrive("acknowledge")
        self._topics.acknowledge(deliveries)

    def postpone(self, deliveries: Sequence[Delivery]) -> None:
        self._check_open()
        self._topics.hooks.arrive("postpone")
        ids = {delivery.handle for delivery in deliveries}
        with self._topics.lock:
            for message in _of(self._topics, _CONSUMED):
                self._overdue.discard(message.message_id if message.message_id in ids else "")
                if message.message_id in ids and message.holder is self:
                    message.holder = None
                    message.redelivery_count += 1
                    message.not_before_ms = self._topics.clock.now_ms() + self._topics.nack_delay_ms

    def overdue(self, late_ms: int, limit: int) -> list[Delivery]:
        self._check_open()
        self._topics.hooks.arrive("overdue")
        due_before_ms = self._topics.clock.now_ms() - late_ms
        with self._topics.lock:
            late = [
                message
                for message in _of(self._topics, (DeletionTopic.RETRY,))
                if not (message.acknowledged or self._holds(message)) and _due_ms(message) < due_before_ms
            ]
            for message in late[:limit]:
                self._overdue.add(message.message_id)
                message.holder = message.holder or self
            return [message.delivery() for message in late[:limit]]

    def close(self) -> None:
        self._closed = True
        self._topics.leave(self)

    def _holds(self, message: StoredMessage) -> bool:
        return message.holder is self or message.message_id in self._overdue

    def _available(self, message: StoredMessage) -> bool:
        now_ms = self._topics.clock.now_ms()
        delayed = message.deliver_at_ms is not None
        if delayed and self._topics.delayed_tracker_stalled:
            return False
        due = message.deliver_at_ms is None or message.deliver_at_ms <= now_ms
        return due and not message.acknowledged and message.holder is None and message.not_before_ms <= now_ms

    def _check_open(self) -> None:
        if self._closed:
            raise TemporaryError("the consumer of pending deletions is closed; open a new one")


class FakeDeadLetters:
    """The exclusive consumer of the dead letters."""

    def __init__(self, topics: FakeDeletionTopics) -> None:
        self._topics = topics
        self._closed = False

    def receive(self, limit: int) -> list[Delivery]:
        self._check_open()
        self._topics.hooks.arrive("receive")
        with self._topics.lock:
            dead = _of(self._topics, (DeletionTopic.DEAD_LETTER,))
            taken = [message for message in dead if not message.acknowledged and message.holder is None][:limit]
            for message in taken:
                message.holder = self
            return [message.delivery() for message in taken]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._check_open()
        self._topics.hooks.arrive("acknowledge")
        self._topics.acknowledge(deliveries)

    def close(self) -> None:
        self._closed = True
        self._topics.leave(self)

    def _check_open(self) -> None:
        if self._closed:
            raise TemporaryError("this reader of the dead letters is closed; open a new one")


_CONSUMED = (DeletionTopic.PENDING, DeletionTopic.RETRY)


def _of(topics: FakeDeletionTopics, kinds: Sequence[DeletionTopic]) -> Iterator[StoredMessage]:
    return (message for kind in kinds for log in topics.logs[kind] for message in log.messages)


def _due_ms(message: StoredMessage) -> int:
    delay = message.properties.get(DELAY_TIME, "0")
    return message.publish_time_ms + (int(delay) if delay.isascii() and delay.isdigit() else 0)
