"""Producers of a log: they publish keyed records in batches of their own making and wait for the brokers' receipts.

A producer stays open for some seconds, because opening one costs more than publishing a record. Nothing runs in the
background: a producer that a broker has closed meanwhile is noticed when it is used, and replaced.

Invariant: `publish` returns only when a broker has confirmed every record as stored. What was not confirmed is
published again, so a record may be stored twice; of a compacted log's records the last of a key counts.
"""

import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pulsar_sidecar.adapters.pulsar.wire.binary_connections import (
    IDLE_SECONDS,
    MOST_IDLE,
    BinaryConnection,
    BinaryConnections,
    server_error,
)
from pulsar_sidecar.adapters.pulsar.wire.binary_frames import encode_message
from pulsar_sidecar.adapters.pulsar.wire.idle_pool import IdlePool
from pulsar_sidecar.adapters.pulsar.wire.keyed_batches import KeyedBatch, keyed_batches
from pulsar_sidecar.adapters.pulsar.wire.topic_owners import TopicOwners
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.wire import PulsarApi_pb2 as api

_BATCH_RECORDS: Final = 1000
_BATCH_BYTES: Final = 256 * 1024
_BATCHES_IN_FLIGHT: Final = 8
_ATTEMPTS: Final = 3
_PATIENCE_SECONDS: Final = 20.0


class LogProducers:
    """Publishes to one topic; safe for use by several threads, each of which gets a producer of its own."""

    def __init__(self, owners: TopicOwners, connections: BinaryConnections, clock: Clock, topic: TopicName) -> None:
        self._owners = owners
        self._connections = connections
        self._clock = clock
        self._topic = topic
        self._idle: IdlePool[TopicName, _LogProducer] = IdlePool(clock, seconds=IDLE_SECONDS, most=MOST_IDLE)

    def publish(self, records: Sequence[tuple[str, bytes | None]]) -> None:
        """Store all, in order.

        Raises:
            TemporaryError: at least one is not known to be stored.
        """
        left = deque(keyed_batches(records, most_records=_BATCH_RECORDS, most_bytes=_BATCH_BYTES))
        give_up = self._clock.monotonic_seconds() + _PATIENCE_SECONDS
        failure: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                with self._producing() as producer:
                    producer.send(left)
                    return
            except (OSError, SidecarError) as error:
                # The topic may have moved to another broker, or the producer was closed while it was idle.
                self._owners.forget(self._topic)
                failure = error
            if self._clock.monotonic_seconds() > give_up:
                break
        unknown = sum(batch.records for batch in left)
        raise TemporaryError(
            f"{unknown} of {len(records)} records of {self._topic} are not known to be stored ({failure}); try again"
        ) from failure

    def close(self) -> None:
        """Close what is idle; idempotent."""
        self._idle.close()

    @contextmanager
    def _producing(self) -> Iterator["_LogProducer"]:
        producer = self._idle.take(self._topic) or self._open()
        try:
            yield producer
        except BaseException:
            producer.close()
            raise
        self._idle.keep(self._topic, producer)

    def _open(self) -> "_LogProducer":
        connection = self._connections.open(self._owners.of(self._topic))
        try:
            return _LogProducer(connection, self._topic, self._clock)
        except BaseException:
            connection.close()
            raise


class _LogProducer:
    """One producer on a connection of its own; used by one thread at a time."""

    def __init__(self, connection: BinaryConnection, topic: TopicName, clock: Clock) -> None:
        self._connection = connection
        self._topic = topic
        self._clock = clock
        self._name = f"pulsar-sidecar-log-{secrets.token_hex(8)}"
        self._id = connection.next_id()
        self._next_sequence_id = 0
        self._open()

    def send(self, left: "deque[KeyedBatch]") -> None:
        """Publish the batches in order, and take each away once it is stored."""
        in_flight: deque[int] = deque()
        while left:
            if len(in_flight) < min(len(left), _BATCHES_IN_FLIGHT):
                in_flight.append(self._publish(left[len(in_flight)]))
            else:
                self._await_receipt(in_flight.popleft())
                left.popleft()

    def close(self) -> None:
        """Closing the connection makes the broker forget the producer."""
        self._connection.close()

    def _open(self) -> None:
        request_id = self._connection.next_request_id()
        command = api.CommandProducer(
            topic=str(self._topic), producer_id=self._id, request_id=request_id, producer_name=self._name
        )
        self._connection.send(api.BaseCommand(type=api.BaseCommand.PRODUCER, producer=command))
        self._connection.answer_to(request_id, api.BaseCommand.PRODUCER_SUCCESS, f"writing to {self._topic}")

    def _publish(self, batch: KeyedBatch) -> int:
        sequence_id = self._next_sequence_id
        self._next_sequence_id += 1
        command = api.CommandSend(producer_id=self._id, sequence_id=sequence_id, num_messages=batch.records)
        metadata = batch.metadata(self._name, sequence_id, self._clock.now_ms())
        frame = encode_message(api.BaseCommand(type=api.BaseCommand.SEND, send=command), metadata, batch.payload)
        self._connection.send_frame(frame)
        return sequence_id

    def _await_receipt(self, sequence_id: int) -> None:
        receipt = self._receipt()
        if receipt.sequence_id != sequence_id:
            raise TemporaryError(f"a broker confirmed another record of {self._topic} than the one that was sent")

    def _receipt(self) -> api.CommandSendReceipt:
        answer = self._connection.receive()
        if answer.type == api.BaseCommand.ERROR:
            raise server_error(f"writing to {self._topic}", answer.error.error, answer.error.message)
        if answer.type == api.BaseCommand.SEND_ERROR:
            raise server_error(f"writing to {self._topic}", answer.send_error.error, answer.send_error.message)
        if answer.type != api.BaseCommand.SEND_RECEIPT:
            raise TemporaryError(f"the broker closed the producer of {self._topic}; the topic is moving")
        return answer.send_receipt
