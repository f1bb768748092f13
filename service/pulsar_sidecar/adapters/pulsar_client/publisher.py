"""Publisher of records under a stable name, with one accurate result per message (PIP-6).

Each partition has a producer of its own, opened for its first message; the first partition's is opened at once and
held, so the name belongs to one process at a time.

The client's timeout is off: when it expires, the client forgets its pending messages and continues, so a later
sequence id could be stored while an earlier one is lost, and a resend of the earlier would count as a duplicate. Here
messages are sent in windows in order, the deadline is ours, and a producer that missed it is closed with all it holds.

Ids are read back: in ``pulsar/system`` every topic is a ``SystemTopic``, whose ``isDeduplicationEnabled`` is always
false (4.0.8), whatever its policy is. So an explicit sequence id is also in a property, and before sending the first
one, the publisher reads back the partition's recent messages of the same producer.

Explicit ids are not batched: brokers judge a batch by its lowest sequence id, so they drop a batch that overlaps a
stored one as a whole. Automatic ids jump ahead when a producer opens: messages that an earlier producer of the name
had in flight may be stored late, and other messages must not get their ids.

The key is sent as ordering key: brokers compact every topic in ``pulsar/system`` each minute, and would keep the
last record of every partition key forever; a message without a partition key leaves nothing behind.
"""

import logging
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import _pulsar
import pulsar

from pulsar_sidecar.adapters.pulsar_client.clients import SEQUENCE_ID, messages_since, partitions_of
from pulsar_sidecar.adapters.pulsar_errors import close_quietly, publish_result, translated
from pulsar_sidecar.features.ledger_deletion.ports import OutgoingMessage, PublishResult
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, PermanentError, TemporaryError
from pulsar_sidecar.model.java_strings import java_string_hash

_BATCH_MESSAGES: Final = 500
_BATCH_DELAY_MS: Final = 2
_MAX_IN_FLIGHT: Final = 1_000_000
_JUMP: Final = 2**32
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """Batching, limits and timeouts of publishing.

    Attributes:
        batching: True if messages with automatic ids share entries; False if consumers acknowledge one by one.
        deadline_seconds: longest wait for the receipts of one window.
        window: most messages of one partition in flight.
        resend_window_ms: age up to which the publisher reads back messages of an earlier producer of the name.
    """

    batching: bool
    deadline_seconds: float = 30.0
    window: int = 1000
    resend_window_ms: int = 3_600_000


class Receipts:
    """Results of a fixed number of messages; the client's own threads deliver the receipts.

    Invariant: every message has exactly one result: "not stored" until it is sent, UNKNOWN from then on until its
    receipt comes.
    """

    def __init__(self, count: int) -> None:
        self._results = [PublishResult.NOT_STORED] * count
        self._expected = 0
        self._arrived = threading.Condition()

    def expect(self, index: int) -> Callable[[pulsar.Result, _pulsar.MessageId], None]:
        """Return a message's callback, which never raises, because the client would end the process."""
        with self._arrived:
            self._results[index] = PublishResult.UNKNOWN
            self._expected += 1

        def receipt(result: pulsar.Result, message_id: _pulsar.MessageId) -> None:
            with self._arrived:
                self._results[index] = publish_result(result, message_id.ledger_id())
                self._expected -= 1
                self._arrived.notify_all()

        return receipt

    def set_already_stored(self, index: int) -> None:
        with self._arrived:
            self._results[index] = PublishResult.ALREADY_STORED

    def wait(self, timeout_seconds: float) -> bool:
        with self._arrived:
            return self._arrived.wait_for(lambda: self._expected == 0, timeout_seconds)

    def results_at(self, indexes: Sequence[int]) -> dict[int, PublishResult]:
        with self._arrived:
            return {index: self._results[index] for index in indexes}

    def results(self) -> list[PublishResult]:
        with self._arrived:
            return list(self._results)


_Numbered = Sequence[tuple[int, OutgoingMessage]]
"""Messages with their indexes in the call."""


class TopicPublisher:
    """`ledger_deletion.ports.Publisher` on a topic with or without partitions; safe for use by several threads."""

    def __init__(
        self,
        client: pulsar.Client,
        topic: str,
        producer_name: str,
        settings: PublisherSettings,
        clock: Clock,
        first_use: bool = False,
        most_delay_ms: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Open the first partition's producer; on the name's first use nothing is read back.

        A message with a longer delay than ``most_delay_ms`` is sent without one: brokers would refuse it.

        Raises:
            ConflictError: another process uses the name now.
            TemporaryError: the topic's broker could not be reached.
        """
        self._settings = settings
        self._lock = threading.Lock()
        self._closed = False
        self._partitions = [
            _PartitionProducer(client, uri, producer_name, settings, clock, most_delay_ms, set() if first_use else None)
            for uri in partitions_of(client, topic)
        ]
        self._partitions[0].open(explicit=False)

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[PublishResult]:
        check_ids(messages)
        receipts = Receipts(len(messages))
        waiting: defaultdict[_PartitionProducer, list[tuple[int, OutgoingMessage]]] = defaultdict(list)
        for index, message in enumerate(messages):
            waiting[self._partitions[partition_of(message.key, len(self._partitions))]].append((index, message))
        with self._lock:
            left: Mapping[_PartitionProducer, _Numbered] = {} if self._closed else waiting
            while left:
                left = self._send_windows(left, receipts)
        return receipts.results()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for partition in self._partitions:
                partition.close()

    def _send_windows(
        self, waiting: Mapping["_PartitionProducer", _Numbered], receipts: Receipts
    ) -> dict["_PartitionProducer", _Numbered]:
        """Send one window of each partition; return the messages that may follow it, by partition."""
        windows = {partition: partition.first_window(messages) for partition, messages in waiting.items()}
        sent = {partition: window for partition, window in windows.items() if partition.send(window, receipts)}
        receipts.wait(self._settings.deadline_seconds)
        following = {
            partition: waiting[partition][len(window) :]
            for partition, window in sent.items()
            if partition.check_results(window, receipts)
        }
        return {partition: rest for partition, rest in following.items() if rest}


@dataclass(slots=True, eq=False)
class _PartitionProducer:
    """Producer of one partition; ``stored_ids`` and ``missing_id`` are explicit ids, None if unknown or none."""

    client: pulsar.Client
    uri: str
    producer_name: str
    settings: PublisherSettings
    clock: Clock
    most_delay_ms: Callable[[], int | None]
    stored_ids: set[int] | None
    missing_id: int | None = None
    producer: pulsar.Producer | None = None
    explicit: bool = False
    next_id: int = 0

    def open(self, *, explicit: bool) -> None:
        """Open a producer of the right kind, unless it is open; replace one of the other kind."""
        if self.producer is not None and (self.explicit == explicit or not self.settings.batching):
            return
        self.close()
        batching = self.settings.batching and not explicit
        with translated(f"opening the producer {self.producer_name} on {self.uri}"):
            producer = self.client.create_producer(
                self.uri,
                self.producer_name,
                send_timeout_millis=0,
                max_pending_messages=2 * self.settings.window,
                batching_enabled=batching,
                batching_max_messages=_BATCH_MESSAGES,
                batching_max_publish_delay_ms=_BATCH_DELAY_MS,
                # Records and outcomes of one batch are similar, so compression saves bookies much.
                compression_type=pulsar.CompressionType.LZ4 if batching else pulsar.CompressionType.NONE,
            )
        self.producer, self.explicit = producer, explicit
        jump = _MAX_IN_FLIGHT + secrets.randbelow(_JUMP)
        self.next_id = max(self.next_id, producer.last_sequence_id() + 1) + jump

    def close(self) -> None:
        producer, self.producer = self.producer, None
        if producer is not None:
            close_quietly(producer, f"closing the producer {self.producer_name} on {self.uri}")

    def first_window(self, messages: _Numbered) -> _Numbered:
        """Return the next messages to send: a missing id and those below it alone, so that others can follow."""
        window, missing = messages[: self.settings.window], self.missing_id
        if missing is None:
            return window
        head = [(index, message) for index, message in window if (message.sequence_id or 0) <= missing]
        return head or window

    def send(self, window: _Numbered, receipts: Receipts) -> bool:
        """Send a window; return False if the producer cannot be opened, and nothing was sent."""
        explicit = window[0][1].sequence_id is not None
        try:
            self.open(explicit=explicit)
            if explicit and self.stored_ids is None:
                self.stored_ids = self._read_stored_ids()
        except (ConflictError, TemporaryError, PermanentError) as error:
            _LOGGER.warning("nothing is sent to %s: %s", self.uri, error)
            return False
        for index, message in window:
            self._send_one(index, message, receipts)
        return True

    def check_results(self, window: _Numbered, receipts: Receipts) -> bool:
        """Check a window's results; return False if the messages after it must not be sent."""
        results = receipts.results_at([index for index, _ in window])
        explicit = window[0][1].sequence_id is not None
        if explicit:
            for index, message in window:
                self._note_id(message.sequence_id, results[index])
        if PublishResult.UNKNOWN in results.values():
            self._abandon()
            return False
        return not explicit or all(result.stored for result in results.values())

    def _send_one(self, index: int, message: OutgoingMessage, receipts: Receipts) -> None:
        sequence_id = message.sequence_id
        if sequence_id is not None and self.stored_ids is not None:
            if sequence_id in self.stored_ids:
                receipts.set_already_stored(index)
                return
            if self.missing_id is not None and sequence_id > self.missing_id:
                return
        if self.producer is not None:
            with translated(f"sending to {self.uri}"):
                self.producer._producer.send_async(self._built(message), receipts.expect(index))

    def _built(self, message: OutgoingMessage) -> _pulsar.Message:
        builder = _pulsar.MessageBuilder()
        builder.content(message.payload)
        for name, value in message.properties.items():
            if name != SEQUENCE_ID:
                builder.property(name, value)
        if message.key:
            builder.ordering_key(message.key)
        if message.sequence_id is None:
            builder.sequence_id(self.next_id)
            self.next_id += 1
        else:
            builder.sequence_id(message.sequence_id)
            builder.property(SEQUENCE_ID, str(message.sequence_id))
        if message.event_time_ms is not None:
            builder.event_timestamp(message.event_time_ms)
        most_delay_ms = self.most_delay_ms()
        if message.deliver_after_ms and (most_delay_ms is None or message.deliver_after_ms <= most_delay_ms):
            # The client's own "deliver after" would use this machine's clock, which may be wrong by hours.
            builder.deliver_at(self.clock.now_ms() + message.deliver_after_ms)
        return builder.build()

    def _note_id(self, sequence_id: int | None, result: PublishResult) -> None:
        if sequence_id is None or self.stored_ids is None:
            return
        if result.stored:
            self.stored_ids.add(sequence_id)
            self.missing_id = None if self.missing_id == sequence_id else self.missing_id
        elif self.missing_id is None or sequence_id < self.missing_id:
            self.missing_id = sequence_id

    def _abandon(self) -> None:
        # Its pending messages may or may not be stored; a new producer first queries the broker and reads back.
        producer, self.producer = self.producer, None
        self.stored_ids = None
        if producer is not None:
            # It fails pending messages at once, on this thread. The broker's response may come when the interpreter is
            # shutting down, so no Python callback waits for it.
            producer._producer.close_async(None)

    def _read_stored_ids(self) -> set[int]:
        """Return the explicit ids of this name in the partition's untrimmed messages."""
        since_ms = self.clock.now_ms() - self.settings.resend_window_ms
        with translated(f"reading back what {self.producer_name} has stored in {self.uri}"):
            found = messages_since(self.client, self.uri, since_ms)
            mine = (message for message in found if message.producer_name() == self.producer_name)
            texts = (message.properties().get(SEQUENCE_ID, "") for message in mine)
            return {int(text) for text in texts if text.isascii() and text.isdigit()}


def check_ids(messages: Sequence[OutgoingMessage]) -> None:
    """Refuse messages if only some of them have the caller's sequence ids, or if their ids do not ascend."""
    ids = [message.sequence_id for message in messages if message.sequence_id is not None]
    if ids and len(ids) != len(messages):
        raise InvalidInputError("give every message of a call a sequence id, or none of them")
    if ids and (min(ids) < 0 or any(later <= earlier for earlier, later in pairwise(ids))):
        raise InvalidInputError("sequence ids must not be negative, and must ascend within a call")


def partition_of(key: str | None, partitions: int) -> int:
    """Return the partition of a key, as Java producers choose it (``signSafeMod``); the first without a key."""
    return java_string_hash(key) % partitions if key else 0
