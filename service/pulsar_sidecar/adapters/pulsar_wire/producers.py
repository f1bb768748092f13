"""Producers of entries encoded here, because a client would decode them first, or batch too slowly.

A log's producer stays open for some seconds, because opening one costs more than publishing a record. Nothing runs in
the background: a producer that a broker closed meanwhile fails at its next use, and is replaced.
"""

import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnection, IdlePool, TopicOwners, server_error
from pulsar_sidecar.adapters.pulsar_wire.encoding import KeyedBatch, Record, keyed_batches, metadata_of
from pulsar_sidecar.features.deduplication.inspection.canary import PAYLOAD, DuplicateReceipt, SendAnswer, SendFailure
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import (
    NotAuthenticatedError,
    OutcomeUnknownError,
    PermanentError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

_BATCH_RECORDS: Final = 1000
_BATCH_BYTES: Final = 256 * 1024
_BATCHES_IN_FLIGHT: Final = 8
_MOST_IN_FLIGHT: Final = 64
_ATTEMPTS: Final = 3
_TIMEOUT_SECONDS: Final = 20.0
_NO_POSITION: Final = 2**64 - 1
"""-1 as an unsigned number: the ids in the receipt of a duplicate."""
_NOT_REPLICATED: Final = "__local__"
"""``TypedMessageBuilderImpl.disableReplication``."""


class OpenProducer:
    """A producer on a connection; used by one thread at a time.

    Attributes:
        name: the requested name, or the one assigned by the broker.
        last_sequence_id: the highest id that the broker has pushed for this name, -1 for none.
    """

    def __init__(
        self, connection: BinaryConnection, topic: TopicName, name: str | None, *, encrypted: bool = False
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._id = connection.next_id()
        command = api.CommandProducer(topic=str(topic), producer_id=self._id, producer_name=name, encrypted=encrypted)
        answer = connection.request(command, api.BaseCommand.PRODUCER_SUCCESS, f"opening a producer on {topic}")
        self.name = name or answer.producer_success.producer_name
        self.last_sequence_id = answer.producer_success.last_sequence_id

    def send(
        self,
        metadata: api.MessageMetadata,
        payload: bytes,
        *,
        messages: int = 1,
        is_chunk: bool = False,
        judged_by: int | None = None,
    ) -> None:
        """Send one entry; ``judged_by`` is the sequence id that the broker checks, if it is not the metadata's."""
        command = api.CommandSend(
            producer_id=self._id,
            sequence_id=metadata.sequence_id if judged_by is None else judged_by,
            num_messages=messages,
            is_chunk=is_chunk,
        )
        if metadata.HasField("highest_sequence_id"):
            command.highest_sequence_id = metadata.highest_sequence_id
        self._connection.send_message(command, metadata, payload)

    def receipt(self) -> api.CommandSendReceipt:
        """Return the next receipt of this producer, and skip all other frames."""
        while True:
            answer, _ = self._connection.receive()
            receipt = self.receipt_in(answer)
            if receipt is not None:
                return receipt

    def receipt_in(self, answer: api.BaseCommand) -> api.CommandSendReceipt | None:
        """Return the receipt in a response if it is for this producer; raise if this producer is refused or closed."""
        doing = f"publishing to {self._topic}"
        if answer.type == api.BaseCommand.SEND_RECEIPT and answer.send_receipt.producer_id == self._id:
            return answer.send_receipt
        if answer.type == api.BaseCommand.SEND_ERROR and answer.send_error.producer_id == self._id:
            raise server_error(doing, answer.send_error)
        if answer.type == api.BaseCommand.CLOSE_PRODUCER and answer.close_producer.producer_id == self._id:
            raise TemporaryError(f"{doing}: the broker closed the producer; the topic is moving")
        if answer.type == api.BaseCommand.ERROR:
            raise TemporaryError(str(server_error(doing, answer.error)))
        return None

    def leave(self) -> None:
        self._connection.leave(api.CommandCloseProducer(producer_id=self._id), f"closing a producer on {self._topic}")


def position_in(receipt: api.CommandSendReceipt) -> Position | None:
    """Return the position of a stored message; None for a duplicate, whose receipt has ``-1:-1``."""
    found = receipt.message_id
    if found.ledgerId == _NO_POSITION:
        return None
    return Position(LedgerId(found.ledgerId), EntryId(found.entryId))


# --- a log's records -----------------------------------------------------------------------------------------------


class LogProducers(IdlePool[TopicName, "_LogProducer"]):
    """Producers of keyed records on one topic; safe for use by several threads, each with a producer of its own.

    Invariant: `publish` returns only after a broker has confirmed every record as stored. It retries unconfirmed
        records, so a record may be stored twice; in a compacted log the last record of a key counts.
    """

    def __init__(self, owners: TopicOwners, clock: Clock, topic: TopicName) -> None:
        super().__init__(clock)
        self._owners = owners
        self._topic = topic
        self.in_flight: dict[bytes, Sequence[Record]] = {}
        """Records of published batches by payload: a reader of the log takes them instead of decoding them."""

    def publish(self, records: Sequence[Record]) -> None:
        """Store all records in order; after a `TemporaryError` at least one may not be stored."""
        left = deque(keyed_batches(records, most_records=_BATCH_RECORDS, most_bytes=_BATCH_BYTES))
        if len(self.in_flight) > _MOST_IN_FLIGHT:
            self.in_flight.clear()  # nobody reads them back; whoever begins to decodes them
        self.in_flight.update((batch.payload, batch.records) for batch in left)
        give_up = self._clock.monotonic_seconds() + _TIMEOUT_SECONDS
        failure: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                with self.using(self._topic) as producer:
                    producer.store(left)
                    return
            except (OSError, SidecarError) as error:
                # The topic may have moved to another broker, or the producer was closed while it was idle.
                self._owners.forget(self._topic)
                failure = error
            if self._clock.monotonic_seconds() > give_up:
                break
        unknown = sum(len(batch.records) for batch in left)
        raise TemporaryError(
            f"{unknown} of {len(records)} records of {self._topic} are not confirmed as stored ({failure}); try again"
        ) from failure

    def open(self, topic: TopicName) -> "_LogProducer":
        connection = self._owners.open(topic)
        try:
            return _LogProducer(connection, topic, self._clock)
        except BaseException:
            connection.close()
            raise


class _LogProducer(OpenProducer):
    """A producer on a connection of its own; closing that makes the broker drop the producer."""

    def __init__(self, connection: BinaryConnection, topic: TopicName, clock: Clock) -> None:
        super().__init__(connection, topic, f"pulsar-sidecar-log-{secrets.token_hex(8)}")
        self._clock = clock
        self._next_sequence_id = 0

    @property
    def is_reusable(self) -> bool:
        return self._connection.is_reusable

    def close(self) -> None:
        self._connection.close()

    def store(self, left: "deque[KeyedBatch]") -> None:
        """Publish the batches in order, and remove each once it is stored."""
        in_flight: deque[int] = deque()
        while left:
            if len(in_flight) < min(len(left), _BATCHES_IN_FLIGHT):
                batch, sequence_id = left[len(in_flight)], self._next_sequence_id
                self._next_sequence_id += 1
                metadata = batch.metadata(self.name, sequence_id, self._clock.now_ms())
                self.send(metadata, batch.payload, messages=len(batch.records))
                in_flight.append(sequence_id)
            elif self.receipt().sequence_id == in_flight.popleft():
                left.popleft()
            else:
                raise TemporaryError(
                    f"a broker confirmed a different record of {self._topic} from the one that was sent"
                )


# --- sequence ids of the caller's choice ---------------------------------------------------------------------------


class BrokerDuplicates:
    """`deduplication.inspection.canary.DuplicateSender`."""

    def __init__(self, owners: TopicOwners, clock: Clock) -> None:
        self._owners = owners
        self._clock = clock

    def send_all(self, topic: TopicName, producer_name: str, sequence_ids: Sequence[int]) -> Sequence[SendAnswer]:
        try:
            with self._owners.using(topic) as connection:
                producer = OpenProducer(connection, topic, producer_name)
                answers = [self._send_result(producer, sequence_id) for sequence_id in sequence_ids]
                producer.leave()
                return answers
        except OSError as error:
            raise TemporaryError(f"publishing to {topic} was interrupted ({error}); try again") from error

    def _send_result(self, producer: OpenProducer, sequence_id: int) -> SendAnswer:
        metadata = api.MessageMetadata(
            producer_name=producer.name, sequence_id=sequence_id, publish_time=self._clock.now_ms()
        )
        producer.send(metadata, PAYLOAD)
        try:
            return position_in(producer.receipt()) or DuplicateReceipt()
        except SidecarError as error:
            return SendFailure(str(error))


# --- copies of stored messages -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BrokerRepublisher:
    """`delayed_messages.ports.Republisher`; safe for use by several threads.

    It republishes a message exactly as it is: its payload's bytes, encrypted and compressed as they were. Only the
    producer, the publish time, the due time and the properties that link it to the old message change. The entries come
    from the bookies, because a client does not return a schema version or an encryption key. Brokers do not replicate
    the copy to other clusters: there the old one still waits.
    """

    _store: MetadataStore
    _entries: BookieEntries
    _owners: TopicOwners
    _clock: Clock
    _root: str

    def republish(
        self, topic: TopicName, entries: Sequence[Position], deliver_at_ms: int | None, properties: Mapping[str, str]
    ) -> str:
        name = f"pulsar-sidecar-reissuing-{secrets.token_hex(8)}"
        now_ms = self._clock.now_ms()
        parts = [self._changed(self._stored(one), name, now_ms, deliver_at_ms, properties) for one in entries]
        encrypted = any(metadata.encryption_keys for metadata, _ in parts)
        try:
            with self._owners.using(topic) as connection:
                producer = OpenProducer(connection, topic, name, encrypted=encrypted)
                found = _published(producer, topic, parts)
        except (OSError, TemporaryError) as error:
            raise TemporaryError(f"no producer could be opened on {topic} ({error}); try again") from error
        index = topic.partition_index
        return f"{found.ledgerId}:{found.entryId}:{-1 if index is None else index}"

    def _stored(self, position: Position) -> bytes:
        node = self._store.read(ledger_path(position.ledger_id, self._root))
        if node is None:
            raise PermanentError(
                f"the entry {position} is not, or no longer, on the bookies, so it cannot be published again"
            )
        metadata = decode_ledger_metadata(node.data)
        return self._entries.read(position.ledger_id, metadata, position.entry_id).payload

    def _changed(
        self, entry: bytes, name: str, now_ms: int, deliver_at_ms: int | None, properties: Mapping[str, str]
    ) -> tuple[api.MessageMetadata, bytes]:
        metadata, payload_at = metadata_of(entry)
        metadata.producer_name = name
        metadata.sequence_id = 0
        metadata.publish_time = now_ms
        metadata.ClearField("highest_sequence_id")
        metadata.ClearField("deliver_at_time")
        if deliver_at_ms is not None:
            metadata.deliver_at_time = deliver_at_ms
        if metadata.HasField("uuid"):
            metadata.uuid = f"{name}-0"
        kept = [pair for pair in metadata.properties if pair.key not in properties]
        added = [api.KeyValue(key=key, value=value) for key, value in properties.items()]
        del metadata.properties[:]
        metadata.properties.extend([*kept, *added])
        metadata.replicate_to[:] = [_NOT_REPLICATED]
        return metadata, entry[payload_at:]


def _published(
    producer: OpenProducer, topic: TopicName, parts: Sequence[tuple[api.MessageMetadata, bytes]]
) -> api.MessageIdData:
    """Send every part, wait for every receipt, and leave; return the last message's id."""
    try:
        for metadata, payload in parts:
            producer.send(metadata, payload, is_chunk=len(parts) > 1)
        receipts = [producer.receipt() for _ in parts]
        producer.leave()
        return receipts[-1].message_id
    except (OSError, TemporaryError, NotAuthenticatedError) as error:
        # A challenge whose credential cannot be read proves nothing about sent messages.
        raise OutcomeUnknownError(
            f"the copy may or may not have been published to {topic} ({error}); look for it first"
        ) from error
