"""The Shared consumer of pending deletions: batches in, single acknowledgements out.

Brokers' settings decide the redelivery of batches: with ``acknowledgmentAtBatchIndexLevelEnabled`` off (the default) an
entry is acknowledged when all of its messages are, and is redelivered as a whole. So a crash, and a postponed message,
redeliver its neighbours too. One consumer recognises the finished ones and acknowledges them again without returning
them, and does not return messages in progress twice; another sidecar does get them twice, which the workflow must
tolerate, as any redelivery. The client sends acknowledgements in groups, every 100 ms: one that is lost with its
connection causes a redelivery too. An operator who rewinds the subscription gets recent records handled again only
after the sidecars are restarted.

The consumer finds overdue retries, which are due and were not delivered, on the retry topic without the broker's
delayed tracker: a message is overdue when by its own properties it was due, and the subscription's progress, read
first, does not show it acknowledged. That only reads, and where very many wait, only some of them at each look.
"""

import concurrent.futures
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import _pulsar
import pulsar
from cachetools import LRUCache

from pulsar_sidecar.adapters.pulsar_client.clients import delivery_of, handle_of, position_of
from pulsar_sidecar.adapters.pulsar_errors import close_quietly, translated
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.features.ledger_deletion.ports import Delivery
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import MAX_EARLY_MS, SUBSCRIPTION, due_ms
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges

_REMEMBERED_ENTRIES: Final = 20_000
_MOST_BYTES: Final = 10 * 1024 * 1024
_FULL_BATCH_MS: Final = 200
"""Longest wait for a full batch, after which the consumer receives a smaller one."""
_GRACE_SECONDS: Final = 10.0
"""Extra time that a busy machine may take to respond."""
_READ_TIMEOUT_MS: Final = 10_000
_BEFORE_ALL: Final = Position(LedgerId(-1), EntryId(-1))


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Batch size, redelivery delay and name of a pending consumer.

    Attributes:
        max_messages: most messages of one `receive`.
        postpone_ms: delay of a postponed message's redelivery.
        consumer_name: name in brokers' stats; None lets the broker choose.
        most_read: most retries that one `overdue` reads; the next one reads on.
    """

    max_messages: int = 500
    postpone_ms: int = 1000
    consumer_name: str | None = None
    most_read: int = 50_000


class SharedPendingDeletions:
    """`ledger_deletion.ports.PendingDeletions` on the pending and the retry topic."""

    def __init__(
        self,
        client: pulsar.Client,
        admin: BrokerTopicAdmin,
        topics: Sequence[TopicName],
        clock: Clock,
        settings: ConsumerSettings,
    ) -> None:
        """Subscribe to the topics, of which the last is the retry topic; ``clock`` is the brokers'."""
        policy = pulsar.ConsumerBatchReceivePolicy(settings.max_messages, _MOST_BYTES, _FULL_BATCH_MS)
        names = [str(topic) for topic in topics]
        with translated(f"subscribing to {', '.join(names)}"):
            self._consumer = client.subscribe(
                names,
                SUBSCRIPTION,
                pulsar.ConsumerType.Shared,
                receiver_queue_size=settings.max_messages,
                consumer_name=settings.consumer_name,
                negative_ack_redelivery_delay_ms=settings.postpone_ms,
                initial_position=pulsar.InitialPosition.Earliest,
                batch_receive_policy=policy,
            )
        self._batches = BatchReceiver(self._consumer, _FULL_BATCH_MS)
        self._client = client
        self._admin = admin
        self._retry = topics[-1]
        self._most_read = settings.most_read
        self._read_until = _BEFORE_ALL
        self._clock = clock
        self._held: dict[str, _pulsar.MessageId] = {}
        self._finished = FinishedMessages(_REMEMBERED_ENTRIES)
        self._lock = threading.Lock()
        self._closed = False

    def receive(self) -> list[Delivery]:
        self._check_open()
        with translated("receiving pending deletions"):
            messages = self._batches.receive()
        deliveries = [delivery_of(message) for message in messages]
        with self._lock, translated("acknowledging a pending deletion again"):
            fresh = [delivery for delivery in deliveries if self._is_fresh(delivery)]
        now_ms = self._clock.now_ms()
        # Brokers without delayed delivery deliver retries at once: the consumer postpones them until they are due.
        self.postpone([delivery for delivery in fresh if is_early(delivery, now_ms)])
        return [delivery for delivery in fresh if not is_early(delivery, now_ms)]

    def _is_fresh(self, delivery: Delivery) -> bool:
        """Return True if the consumer should return a message: it is neither finished nor in progress here."""
        message_id = handle_of(delivery)
        if self._finished.holds(delivery.message_id):
            self._consumer.acknowledge(message_id)
            return False
        fresh = delivery.message_id not in self._held
        # After a redelivery only the newest copy's acknowledgement counts.
        self._held[delivery.message_id] = message_id
        return fresh

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._check_open()
        with translated("acknowledging a pending deletion"):
            for delivery in deliveries:
                # One at a time, so that another thread's messages need not wait for thousands of acknowledgements.
                with self._lock:
                    message_id = self._held.get(delivery.message_id) or handle_of(delivery)
                    self._consumer.acknowledge(message_id)
                    self._finished.add(delivery.message_id)
                    self._held.pop(delivery.message_id, None)

    def postpone(self, deliveries: Sequence[Delivery]) -> None:
        self._check_open()
        with self._lock, translated("postponing pending deletions"):
            for delivery in deliveries:
                message_id = self._held.pop(delivery.message_id, handle_of(delivery))
                self._consumer.negative_acknowledge(message_id)

    def overdue(self, late_ms: int, limit: int) -> list[Delivery]:
        self._check_open()
        with self._lock:
            held = frozenset(self._held)
        progress = self._admin.internal_stats(self._retry).cursor(SUBSCRIPTION).acknowledged
        due_before_ms = self._clock.now_ms() - late_ms
        found: list[Delivery] = []
        after, self._read_until = self._read_until, _BEFORE_ALL
        with closing(unacknowledged(self._client, self._retry, progress, after)) as deliveries:
            for number, delivery in enumerate(deliveries, 1):
                # No later message can have been due earlier, because no delay is negative.
                if delivery.publish_time_ms >= due_before_ms or len(found) >= limit:
                    break
                if due_ms(delivery) < due_before_ms and delivery.message_id not in held:
                    found.append(delivery)
                if number == self._most_read:
                    self._read_until = position_of(handle_of(delivery))
                    break
        with self._lock:
            for delivery in found:
                self._held.setdefault(delivery.message_id, handle_of(delivery))
        return found

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._batches.close()
            close_quietly(self._consumer, "closing the consumer of pending deletions")

    def _check_open(self) -> None:
        if self._closed:
            raise TemporaryError("the consumer of pending deletions is closed; open a new one")


def unacknowledged(
    client: pulsar.Client, topic: TopicName, progress: PositionRanges, after: Position = _BEFORE_ALL
) -> Generator[Delivery, None, None]:
    """Yield the messages of a topic without partitions, or of a partition, that are not in ``progress``; only reads."""
    start = max(after, progress.mark_delete)
    place = pulsar.MessageId(-1, start.ledger_id, start.entry_id, -1)
    with translated(f"reading {topic}"), closing(client.create_reader(str(topic), place)) as reader:
        while reader.has_message_available():
            message = reader.read_next(_READ_TIMEOUT_MS)
            if position_of(message.message_id()) not in progress:
                yield delivery_of(message)


class BatchReceiver:
    """Receiver of one consumer's batches with a timeout on the monotonic clock; not for several threads.

    The client measures the wait for a batch by the wall clock (``ConsumerImplBase::doBatchReceiveTimeTask``), so it
    would wait an hour after the clock was set back by an hour.
    """

    def __init__(self, consumer: pulsar.Consumer, timeout_ms: int, grace_seconds: float = _GRACE_SECONDS) -> None:
        self._consumer = consumer
        self._longest_seconds = timeout_ms / 1000 + grace_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="receiving")

    def receive(self) -> list[pulsar.Message]:
        """Return the next batch, empty when nothing came; on a `TemporaryError` close the consumer and open another."""
        batch = self._thread.submit(self._consumer.batch_receive)
        try:
            return batch.result(self._longest_seconds)
        except concurrent.futures.TimeoutError as error:
            raise TemporaryError(
                f"no batch within {self._longest_seconds:.0f} s; was the clock set back? A new consumer is opened"
            ) from error

    def close(self) -> None:
        """Start no more calls; do not wait for a call in flight, which ends with the consumer."""
        self._thread.shutdown(wait=False)


class FinishedMessages:
    """Messages that this consumer acknowledged already, by their ids; an LRU cache of entries.

    An entry's messages are the bits of one number: with a set for each of thousands of entries, a backlog of a million
    records took over a hundred megabytes.
    """

    def __init__(self, entries: int) -> None:
        self._places: LRUCache[str, int] = LRUCache(entries)

    def add(self, message_id: str) -> None:
        entry, place = _entry_and_place(message_id)
        self._places[entry] = self._places.get(entry, 0) | place

    def holds(self, message_id: str) -> bool:
        entry, place = _entry_and_place(message_id)
        return bool(self._places.get(entry, 0) & place)


def _entry_and_place(message_id: str) -> tuple[str, int]:
    """Return ``ledgerId:entryId:partitionIndex`` and the bit of the index in its batch, the lowest without a batch."""
    ledger_id, entry_id, partition, *index = message_id.split(":")
    return f"{ledger_id}:{entry_id}:{partition}", 1 << (int(index[0]) + 1 if index else 0)


def is_early(delivery: Delivery, now_ms: int) -> bool:
    """Return True for a retry that came long before it was due, from a broker without delayed delivery.

    A publish time in the future comes from a machine with a wrong clock, and proves nothing.
    """
    return delivery.publish_time_ms - MAX_EARLY_MS <= now_ms < due_ms(delivery) - MAX_EARLY_MS
