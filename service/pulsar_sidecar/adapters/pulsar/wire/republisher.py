"""Publishes a stored message again exactly as it is: its payload's bytes, encrypted and compressed as they were.

Only what must change changes: who produced it and when, its due time, and the properties that link it to the old one.
The entries are read from the bookies and sent to the topic's owner by the binary protocol, because a client would
decode them first, and could not give back a schema version or an encryption key.

The copy is not replicated to other clusters: there the old one still waits.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.pulsar.wire.binary_connections import BinaryConnection, BinaryConnections, server_error
from pulsar_sidecar.adapters.pulsar.wire.binary_frames import encode_message
from pulsar_sidecar.adapters.pulsar.wire.message_metadata import metadata_of
from pulsar_sidecar.adapters.pulsar.wire.topic_owners import TopicOwners
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.paths import ledger_path
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import OutcomeUnknownError, PermanentError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.wire import PulsarApi_pb2 as api

_NOT_REPLICATED: Final = "__local__"
"""``TypedMessageBuilderImpl.disableReplication``."""


class BrokerRepublisher:
    """`delayed_delivery.ports.Republisher`; safe for use by several threads."""

    def __init__(
        self,
        store: MetadataStore,
        entries: BookieEntries,
        owners: TopicOwners,
        connections: BinaryConnections,
        clock: Clock,
        ledgers_root: str,
    ) -> None:
        self._store = store
        self._entries = entries
        self._owners = owners
        self._connections = connections
        self._clock = clock
        self._root = ledgers_root

    def republish(
        self, topic: TopicName, entries: Sequence[Position], deliver_at_ms: int | None, properties: Mapping[str, str]
    ) -> str:
        name = f"pulsar-sidecar-reissuing-{secrets.token_hex(8)}"
        parts = [self._changed(self._stored(one), name, deliver_at_ms, properties) for one in entries]
        for sequence_id, (metadata, _) in enumerate(parts):
            metadata.sequence_id = sequence_id if len(parts) == 1 else 0
        try:
            with self._connections.using(self._owners.of(topic)) as connection:
                return _Sending(connection, topic, name).send(parts)
        except (OSError, TemporaryError) as error:
            # The topic may have moved: an owner that cannot be reached must not be remembered.
            self._owners.forget(topic)
            raise TemporaryError(f"no producer could be opened on {topic} ({error}); try again") from error

    def _stored(self, position: Position) -> bytes:
        node = self._store.read(ledger_path(position.ledger_id, self._root))
        if node is None:
            raise PermanentError(
                f"the entry {position} is not on the bookies (any more), so it cannot be published again"
            )
        metadata = decode_ledger_metadata(node.data)
        read = self._entries.read_many(position.ledger_id, metadata, [position.entry_id], bytes)
        found = read.found.get(position.entry_id)
        if found is None:
            raise TemporaryError(f"the entry {position} could not be read; try again")
        return found

    def _changed(
        self, entry: bytes, name: str, deliver_at_ms: int | None, properties: Mapping[str, str]
    ) -> tuple[api.MessageMetadata, bytes]:
        metadata, payload_at = metadata_of(entry)
        metadata.producer_name = name
        metadata.publish_time = self._clock.now_ms()
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
        del metadata.replicate_to[:]
        metadata.replicate_to.append(_NOT_REPLICATED)
        return metadata, entry[payload_at:]


class _Sending:
    """One producer from opening to closing."""

    def __init__(self, connection: BinaryConnection, topic: TopicName, name: str) -> None:
        self._connection = connection
        self._topic = topic
        self._name = name
        self._producer_id = connection.next_id()

    def send(self, parts: Sequence[tuple[api.MessageMetadata, bytes]]) -> str:
        """Send every part, wait for every receipt; the last one's id."""
        self._open(encrypted=any(metadata.encryption_keys for metadata, _ in parts))
        try:
            return self._sent(parts)
        except (OSError, TemporaryError) as error:
            raise OutcomeUnknownError(
                f"the copy may or may not have been published to {self._topic} ({error}); look for it first"
            ) from error

    def _sent(self, parts: Sequence[tuple[api.MessageMetadata, bytes]]) -> str:
        for metadata, payload in parts:
            command = api.CommandSend(
                producer_id=self._producer_id, sequence_id=metadata.sequence_id, is_chunk=len(parts) > 1
            )
            self._connection.send_frame(
                encode_message(api.BaseCommand(type=api.BaseCommand.SEND, send=command), metadata, payload)
            )
        message_id = ""
        for _ in parts:
            message_id = self._receipt()
        self._close()
        return message_id

    def _open(self, *, encrypted: bool) -> None:
        request_id = self._connection.next_request_id()
        command = api.CommandProducer(
            topic=str(self._topic),
            producer_id=self._producer_id,
            request_id=request_id,
            producer_name=self._name,
            encrypted=encrypted,
        )
        self._connection.send(api.BaseCommand(type=api.BaseCommand.PRODUCER, producer=command))
        self._connection.answer_to(request_id, api.BaseCommand.PRODUCER_SUCCESS, f"opening a producer on {self._topic}")

    def _receipt(self) -> str:
        answer = self._connection.receive()
        while not self._is_own_receipt(answer):
            self._check(answer)
            answer = self._connection.receive()
        found = answer.send_receipt.message_id
        index = self._topic.partition_index
        return f"{found.ledgerId}:{found.entryId}:{-1 if index is None else index}"

    def _is_own_receipt(self, answer: api.BaseCommand) -> bool:
        return answer.type == api.BaseCommand.SEND_RECEIPT and answer.send_receipt.producer_id == self._producer_id

    def _check(self, answer: api.BaseCommand) -> None:
        """Raise what a broker says against this producer; what is about others is passed over."""
        refused, closed = answer.send_error, answer.close_producer
        if answer.type == api.BaseCommand.SEND_ERROR and refused.producer_id == self._producer_id:
            raise server_error(f"publishing to {self._topic}", refused.error, refused.message)
        if answer.type == api.BaseCommand.CLOSE_PRODUCER and closed.producer_id == self._producer_id:
            raise OutcomeUnknownError(f"the broker did not confirm the copy on {self._topic}; look for it first")

    def _close(self) -> None:
        """Go; the copy is stored, so it does not matter how the broker takes it."""
        request_id = self._connection.next_request_id()
        close = api.CommandCloseProducer(producer_id=self._producer_id, request_id=request_id)
        try:
            self._connection.send(api.BaseCommand(type=api.BaseCommand.CLOSE_PRODUCER, close_producer=close))
            self._connection.answer_to(request_id, api.BaseCommand.SUCCESS, f"closing a producer on {self._topic}")
        except (OSError, SidecarError):
            self._connection.close()
