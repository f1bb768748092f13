"""Producers that name the lowest and the highest sequence id of each batch (`SequencedProducers`).

Each has a connection of its own. One thread for all of them answers brokers' pings while the program does other work:
otherwise brokers would close an idle producer's connection after a minute, and give its name to a second publisher
within five seconds (``AbstractTopic.tryOverwriteOldProducer``).
"""

import secrets
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest, topic_path
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar_rest.topic_stats import parse_deduplication_status
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnection, TopicOwners
from pulsar_sidecar.adapters.pulsar_wire.producers import OpenProducer, position_in
from pulsar_sidecar.adapters.pulsar_wire.sequenced_batches import Entry, entries_of
from pulsar_sidecar.features.publishing.messages import Batch
from pulsar_sidecar.features.publishing.ports import Receipt, SequencedProducer
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, OutcomeUnknownError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName

_BETWEEN_PINGS_SECONDS: Final = 1.0
_SILENCE_SECONDS: Final = 30.0
"""Silence after which a broker that owes receipts counts as dead; even a ping ends it."""
_LEAVING_SECONDS: Final = 2.0


class BrokerSequencedProducers:
    """`SequencedProducers`; `close` ends its thread and closes open producers."""

    def __init__(self, owners: TopicOwners, rest: AdminRest, clock: Clock) -> None:
        self._owners = owners
        self._rest = rest
        self._clock = clock
        self._lock = threading.Lock()
        self._open: set[_BrokerProducer] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._answer_pings, name="answering-pings", daemon=True)
        self._thread.start()

    def open(self, topic: TopicName, name: str | None) -> SequencedProducer:
        self._owners.forget(topic)
        with _connection_errors_translated(topic):
            connection = self._owners.open(topic)
            try:
                producer = _BrokerProducer(connection, topic, name, self._clock)
            except BaseException:
                connection.close()
                raise
        with self._lock:
            self._open = {one for one in self._open if not one.is_closed} | {producer}
        return producer

    def partitions(self, topic: TopicName) -> int:
        found = BrokerTopicAdmin(self._rest).partitions(topic)
        if found is None:
            raise NotFoundError(f"{topic} does not exist; create it and enable deduplication first")
        return found

    def deduplication_status(self, topic: TopicName) -> str:
        params = {"excludePublishers": "true", "excludeConsumers": "true"}
        try:
            return parse_deduplication_status(self._rest.get(topic_path(topic, "/stats"), params), topic)
        except NotFoundError as error:
            # Its producer is open, so the topic is about to move.
            raise TemporaryError(f"{topic} is not loaded ({error}); try again") from error

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        with self._lock:
            still_open, self._open = self._open, set()
        for producer in still_open:
            producer.close()

    def _answer_pings(self) -> None:
        while not self._closed.wait(_BETWEEN_PINGS_SECONDS):
            with self._lock:
                producers = list(self._open)
            for producer in producers:
                producer.answer_pings()


class _BrokerProducer:
    """`SequencedProducer`; its lock lets the other thread answer pings while no thread uses the connection."""

    def __init__(self, connection: BinaryConnection, topic: TopicName, name: str | None, clock: Clock) -> None:
        self._producer = OpenProducer(connection, topic, name)
        self.name, self.last_sequence_id = self._producer.name, self._producer.last_sequence_id
        self._connection = connection
        self._topic = topic
        self._clock = clock
        self._attempt = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._owed: deque[Entry] = deque()
        self._received: deque[Receipt] = deque()
        self._failure: SidecarError | None = None
        self._heard_at = clock.monotonic_seconds()
        self.is_closed = False

    def send(self, batch: Batch, pushed: int) -> None:
        now_ms, most_bytes = self._clock.now_ms(), self._connection.max_message_bytes
        with self._in_use():
            for entry in entries_of(batch, pushed, self.name, now_ms, most_bytes, self._attempt):
                if not self._owed:
                    self._heard_at = self._clock.monotonic_seconds()
                self._owed.append(entry)
                self._producer.send(
                    entry.metadata,
                    entry.payload,
                    messages=len(batch.messages),
                    is_chunk=entry.is_chunk,
                    judged_by=entry.judged_by,
                )

    def receive(self, wait_seconds: float) -> Receipt | None:
        with self._in_use():
            if not self._received:
                self._take(wait_seconds)
            if self._received:
                return self._received.popleft()
            if self._owed and self._clock.monotonic_seconds() - self._heard_at > _SILENCE_SECONDS:
                raise TemporaryError(f"the broker of {self._topic} has been silent for {_SILENCE_SECONDS:g} s")
            return None

    def answer_pings(self) -> None:
        """Answer pings, unless a thread that uses the connection does; keep a failure for the next caller."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._failure is None and not self.is_closed:
                with _connection_errors_translated(self._topic):
                    self._take(0)
        except SidecarError as error:
            self._failure = error
        finally:
            self._lock.release()

    def close(self) -> None:
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            try:
                if self._failure is None and not self._owed:
                    self._connection.wait_at_most(_LEAVING_SECONDS)
                    self._producer.leave()
            finally:
                self._connection.close()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            try:
                with _connection_errors_translated(self._topic):
                    yield
            except SidecarError as error:
                self._failure = error
                raise

    def _take(self, wait_seconds: float) -> None:
        """Take the received frames, or the first one within ``wait_seconds``."""
        while self._connection.has_pending_data(0 if self._received else wait_seconds):
            frame = self._connection.receive_frame()
            self._heard_at = self._clock.monotonic_seconds()
            receipt = None if frame is None else self._producer.receipt_in(frame[0])
            if receipt is not None:
                self._confirm(receipt.sequence_id, position_in(receipt))

    def _confirm(self, sequence_id: int, position: Position | None) -> None:
        if not self._owed or self._owed[0].judged_by != sequence_id:
            raise OutcomeUnknownError(f"a broker confirmed a message of {self._topic} out of order: {sequence_id}")
        entry = self._owed.popleft()
        if entry.is_probe and position is not None:
            raise OutcomeUnknownError(
                f"the broker of {self._topic} stored a chunk of message {sequence_id} that it had before ({position}); "
                "consumers will not see the message twice, but read the topic before you publish more"
            )
        if entry.completes:
            self._received.append(Receipt(sequence_id, position))


@contextmanager
def _connection_errors_translated(topic: TopicName) -> Iterator[None]:
    """Translate connection errors into `TemporaryError`: a failed connection shows nothing about stored messages."""
    try:
        yield
    except OSError as error:
        raise TemporaryError(f"the connection to the broker of {topic} failed ({error})") from error
