"""Readers of topics through their own brokers, which read back what a producer has published.

Invariant: a reading reaches the entry that was the topic's last one when the reading began; one that stops before is an
error.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnection, TopicOwners, server_error
from pulsar_sidecar.adapters.pulsar_wire.encoding import metadata_of
from pulsar_sidecar.adapters.pulsar_wire.message_rows import MessageRows
from pulsar_sidecar.features.duplicates.rows import MessageKind, MessageRow, PayloadState
from pulsar_sidecar.features.publishing.resume import StoredRecord, Tail
from pulsar_sidecar.model.clocks import Clock, attempts
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerEntry
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.progress import LongWork, ReportWork
from pulsar_sidecar.model.topic_stats import TopicInternalStats, TopicStats
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

_PERMITS: Final = 5_000
_MOST_RECORDS: Final = 200_000
"""Number of newest records kept for comparison when a topic is read from its beginning."""
_EARLIEST: Final = 2**64 - 1
"""-1 as an unsigned number: ``MessageId.earliest``, and brokers' response for an empty topic's last message."""
_TIMEOUT_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.5

_Found = TypeVar("_Found")


class BrokerTopicTails:
    """`TopicTails`; after a topic moves, the reading starts again.

    For an empty topic the binary protocol returns -1:-1, and ``internal_stats`` (the admin REST service) has its
    ledger. Brokers hide messages after the first one of an open transaction from consumers until the transaction ends;
    ``stats`` counts such transactions.
    """

    def __init__(
        self,
        owners: TopicOwners,
        internal_stats: Callable[[TopicName], TopicInternalStats],
        stats: Callable[[TopicName], TopicStats],
        clock: Clock,
        report: ReportWork = lambda doing, done, total: None,
    ) -> None:
        self._owners = owners
        self._internal_stats = internal_stats
        self._stats = stats
        self._clock = clock
        self._report = report

    def last_position(self, topic: TopicName) -> Position:
        last = self._reading(topic, None, lambda reader: reader.last_position())
        return last or self._position_before_first(topic)

    def read_back(self, topic: TopicName, start: Position | None, producer_name: str) -> Tail:
        stats = self._internal_stats(topic)
        total = _entries_from(start, stats)

        def read(reader: _TailReader) -> Tail | None:
            work = LongWork(f"reading {topic} back, entries", total, self._report, self._clock)
            return reader.tail(start, producer_name, self._last_shown(reader, topic, stats.last_confirmed), work)

        return self._reading(topic, start, read) or Tail((), self._position_before_first(topic))

    def _last_shown(self, reader: "_TailReader", topic: TopicName, end: Position) -> Position | None:
        """Return the last entry that consumers get, or None; raise `TemporaryError` if one up to ``end`` is hidden."""
        reader.last_position()  # A topic that was just loaded responds once it knows its transactions.
        open_transactions = self._stats(topic).open_transactions
        last = reader.last_position()
        if open_transactions and (last is None or last < end):
            raise TemporaryError(f"{open_transactions} transactions are open and hide the messages after them")
        return last

    def _position_before_first(self, topic: TopicName) -> Position:
        stats = self._internal_stats(topic)
        return Position(max(stats.ledgers, default=stats.last_confirmed.ledger_id), EntryId(-1))

    def _reading(self, topic: TopicName, start: Position | None, read: "Callable[[_TailReader], _Found]") -> _Found:
        failure: Exception | None = None
        for _ in attempts(self._clock, _TIMEOUT_SECONDS, _PAUSE_SECONDS):
            try:
                with self._owners.using(topic, own=True) as connection:
                    return read(_TailReader(connection, topic, "reading-back", start=start, permits=_PERMITS))
            except (OSError, TemporaryError) as error:
                failure = error
        raise TemporaryError(f"{topic} cannot be read back ({failure}); try again") from failure


def _entries_from(start: Position | None, stats: TopicInternalStats) -> int:
    """Return the approximate number of entries from ``start`` on: the count of the ledger that is written to lags."""
    last = stats.last_confirmed
    first_ledger = -1 if start is None else start.ledger_id
    before = sum(count for ledger_id, count in stats.ledgers.items() if first_ledger <= ledger_id < last.ledger_id)
    return max(0, before + last.entry_id + 1 - (0 if start is None else max(0, start.entry_id)))


class TopicReader:
    """A non-durable consumer, from joining to the end of its connection; it leaves nothing behind."""

    def __init__(
        self,
        connection: BinaryConnection,
        topic: TopicName,
        purpose: str,
        *,
        start: Position | None = None,
        compacted: bool = False,
        permits: int,
    ) -> None:
        """Join with ``purpose`` in the subscription's name; ``permits`` is the number of messages in flight."""
        self._connection = connection
        self._doing = f"reading {topic}"
        self._permits = permits
        self._used_permits = 0
        self._id = connection.next_id()
        self._held: deque[tuple[api.BaseCommand, bytes]] = deque()
        ledger_id, entry_id = start or (_EARLIEST, _EARLIEST)
        command = api.CommandSubscribe(
            topic=str(topic),
            subscription=f"pulsar-sidecar-{purpose}-{secrets.token_hex(8)}",
            subType=api.CommandSubscribe.Exclusive,
            consumer_id=self._id,
            durable=False,
            start_message_id=api.MessageIdData(ledgerId=ledger_id, entryId=entry_id),
            read_compacted=compacted,
            initialPosition=api.CommandSubscribe.Earliest,
            force_topic_creation=False,
        )
        connection.request(command, api.BaseCommand.SUCCESS, self._doing, self._hold)

    def last_position(self) -> Position | None:
        """Return the last message's position, by the broker's response; None for an empty topic."""
        command = api.CommandGetLastMessageId(consumer_id=self._id)
        wanted = api.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE
        answer = self._connection.request(command, wanted, self._doing, self._hold)
        found = answer.getLastMessageIdResponse.last_message_id
        if _EARLIEST in (found.ledgerId, found.entryId):
            return None
        return Position(LedgerId(found.ledgerId), EntryId(found.entryId))

    def _received(self) -> tuple[api.BaseCommand, bytes]:
        """Return the next message or other command; raises as `BinaryConnection.receive`."""
        if self._held:
            return self._held.popleft()
        command, message = self._connection.receive()
        self._check(command)
        return command, message

    def _permitted(self, messages: int) -> Sequence[Message]:
        """Return the command that grants new permits after this many messages, once enough are used up."""
        self._used_permits += messages
        if self._used_permits < self._permits // 2:
            return ()
        used, self._used_permits = self._used_permits, 0
        return [api.CommandFlow(consumer_id=self._id, messagePermits=used)]

    def _hold(self, command: api.BaseCommand, message: bytes) -> None:
        """Hold messages that arrive before the response to a request for `_received`."""
        self._check(command)
        if command.type == api.BaseCommand.MESSAGE:
            self._held.append((command, message))

    def _check(self, command: api.BaseCommand) -> None:
        if command.type == api.BaseCommand.ERROR:
            raise server_error(self._doing, command.error)
        if command.type == api.BaseCommand.CLOSE_CONSUMER:
            raise TemporaryError(f"{self._doing}: the broker closed the reader; the topic is moving")


class _TailReader(TopicReader):
    def tail(self, start: Position | None, producer_name: str, last: Position | None, work: LongWork) -> Tail | None:
        """Return the tail up to the entry ``last``, included; None for an empty topic, whose last entry is None."""
        if last is None:
            return None
        records: deque[StoredRecord] = deque(maxlen=_MOST_RECORDS if start is None else None)
        first: Position | None = None
        if start is not None and start > last:
            return Tail((), None)
        for done, (position, rows) in enumerate(self._entries(last, producer_name)):
            work.has_done(done)
            first = first or position
            for row in rows:
                if row.kind is MessageKind.MESSAGE and row.is_compared:
                    is_read = row.payload_state is PayloadState.READ
                    records.append(StoredRecord(row.sequence_id, position, row.payload_hash if is_read else None))
        return Tail(tuple(records), first)

    def _entries(self, last: Position, producer_name: str) -> "Iterator[tuple[Position, Sequence[MessageRow]]]":
        """Yield each entry up to the last, with its rows if it is the producer's; others' entries are not decoded."""
        read = MessageRows()
        self._connection.send(*self._permitted(_PERMITS))
        seen: Position | None = None
        while seen is None or seen < last:
            command, message = self._received()
            if command.type != api.BaseCommand.MESSAGE:
                continue
            found = command.message.message_id
            seen = Position(LedgerId(found.ledgerId), EntryId(found.entryId))
            metadata, _ = metadata_of(message)
            self._connection.send(*self._permitted(metadata.num_messages_in_batch))
            yield seen, read.of(LedgerEntry(*seen, message)) if metadata.producer_name == producer_name else ()
