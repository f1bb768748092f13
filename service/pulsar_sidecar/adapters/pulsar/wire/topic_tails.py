"""Reads back what a producer has published to a topic, through the topic's own broker.

The reader is a consumer without a cursor on disk, which acknowledges nothing and leaves nothing behind. Invariant: what
is answered reaches to the entry that was the topic's last one when the reading began; a reading that stops before is an
error.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from pulsar_sidecar.adapters.pulsar.wire.binary_connections import (
    BinaryConnection,
    TopicOwners,
    server_error,
)
from pulsar_sidecar.adapters.pulsar.wire.message_rows import MessageRows
from pulsar_sidecar.deduplication.publishing.resume import StoredRecord, Tail
from pulsar_sidecar.deduplication.verifying.rows import MessageKind, MessageRow, PayloadState
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerEntry
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import TopicInternalStats
from pulsar_sidecar.wire import PulsarApi_pb2 as api

_PERMITS: Final = 5_000
_MOST_RECORDS: Final = 200_000
"""Of a topic that is read from its beginning, so many of the newest records are kept to be compared."""
_EARLIEST: Final = 2**64 - 1
"""-1 as an unsigned number: ``MessageId.earliest``, and what brokers answer for an empty topic's last message."""
_PATIENCE_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.5

_Found = TypeVar("_Found")


class BrokerTopicTails:
    """`TopicTails`; a topic that moves is read again from the start.

    Of an empty topic the binary protocol answers -1:-1, and ``internal_stats`` (the admin REST service) has its ledger.
    """

    def __init__(
        self, owners: TopicOwners, internal_stats: Callable[[TopicName], TopicInternalStats], clock: Clock
    ) -> None:
        self._owners = owners
        self._internal_stats = internal_stats
        self._clock = clock

    def last_position(self, topic: TopicName) -> Position:
        last = self._reading(topic, None, lambda reader: reader.last_position())
        return last or self._before_the_first(topic)

    def read_back(self, topic: TopicName, start: Position | None, producer_name: str) -> Tail:
        tail = self._reading(topic, start, lambda reader: reader.tail(start, producer_name))
        return tail or Tail((), self._before_the_first(topic))

    def _before_the_first(self, topic: TopicName) -> Position:
        stats = self._internal_stats(topic)
        return Position(max(stats.ledgers, default=stats.last_confirmed.ledger_id), EntryId(-1))

    def _reading(self, topic: TopicName, start: Position | None, read: "Callable[[_Reader], _Found]") -> _Found:
        give_up = self._clock.monotonic_seconds() + _PATIENCE_SECONDS
        while True:
            try:
                with self._owners.using(topic, own=True) as connection:
                    return read(_Reader(connection, topic, start))
            except (OSError, TemporaryError) as error:
                if self._clock.monotonic_seconds() >= give_up:
                    raise TemporaryError(f"{topic} cannot be read back ({error}); try again") from error
                self._clock.wait_seconds(_PAUSE_SECONDS)


class _Reader:
    """One consumer from joining to the end of its connection."""

    def __init__(self, connection: BinaryConnection, topic: TopicName, start: Position | None) -> None:
        self._connection = connection
        self._doing = f"reading back {topic}"
        self._id = connection.next_id()
        self._rows = MessageRows()
        ledger_id, entry_id = start or (_EARLIEST, _EARLIEST)
        command = api.CommandSubscribe(
            topic=str(topic),
            subscription=f"pulsar-sidecar-reading-back-{secrets.token_hex(8)}",
            subType=api.CommandSubscribe.Exclusive,
            consumer_id=self._id,
            durable=False,
            start_message_id=api.MessageIdData(ledgerId=ledger_id, entryId=entry_id),
            initialPosition=api.CommandSubscribe.Earliest,
            force_topic_creation=False,
        )
        connection.request(command, api.BaseCommand.SUCCESS, self._doing, self._check)

    def last_position(self) -> Position | None:
        command = api.CommandGetLastMessageId(consumer_id=self._id)
        wanted = api.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE
        answer = self._connection.request(command, wanted, self._doing, self._check)
        found = answer.getLastMessageIdResponse.last_message_id
        if _EARLIEST in (found.ledgerId, found.entryId):
            return None
        return Position(LedgerId(found.ledgerId), EntryId(found.entryId))

    def tail(self, start: Position | None, producer_name: str) -> Tail | None:
        """None for an empty topic."""
        last = self.last_position()
        if last is None:
            return None
        records: deque[StoredRecord] = deque(maxlen=_MOST_RECORDS if start is None else None)
        first: Position | None = None
        if start is not None and start > last:
            return Tail((), None)
        for position, rows in self._entries(last):
            first = first or position
            records.extend(_record(position, row) for row in rows if _is_of(producer_name, row))
        return Tail(tuple(records), first)

    def _entries(self, last: Position) -> "Iterator[tuple[Position, list[MessageRow]]]":
        """Each entry up to the last, with its rows."""
        permits = _PERMITS
        self._connection.send(api.CommandFlow(consumer_id=self._id, messagePermits=permits))
        seen: Position | None = None
        while seen is None or seen < last:
            command, message = self._connection.receive()
            self._check(command)
            if command.type != api.BaseCommand.MESSAGE:
                continue
            found = command.message.message_id
            seen = Position(LedgerId(found.ledgerId), EntryId(found.entryId))
            rows = list(self._rows.of(LedgerEntry(*seen, message)))
            permits -= rows[0].batch_size
            if permits <= _PERMITS // 2:
                self._connection.send(api.CommandFlow(consumer_id=self._id, messagePermits=_PERMITS - permits))
                permits = _PERMITS
            yield seen, rows

    def _check(self, command: api.BaseCommand, message: bytes = b"") -> None:
        if command.type == api.BaseCommand.ERROR:
            raise server_error(self._doing, command.error)
        if command.type == api.BaseCommand.CLOSE_CONSUMER:
            raise TemporaryError(f"{self._doing}: the broker closed the reader; the topic is moving")


def _is_of(producer_name: str, row: MessageRow) -> bool:
    return row.producer == producer_name and row.kind is MessageKind.MESSAGE and row.is_judged


def _record(position: Position, row: MessageRow) -> StoredRecord:
    is_read = row.payload_state is PayloadState.READ
    return StoredRecord(row.sequence_id, position, row.payload_hash if is_read else None)
