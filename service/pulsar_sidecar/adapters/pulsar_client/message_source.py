"""Message source of an `ExactlyOnceReader` over the client's readers (`MessageSource`)."""

from contextlib import suppress

import _pulsar
import pulsar

from pulsar_sidecar.adapters.pulsar_client.clients import partitions_of
from pulsar_sidecar.adapters.pulsar_errors import translated
from pulsar_sidecar.features.publishing.reader import ReadMessage, ReadPosition
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api


class ClientMessageSource:
    """`MessageSource`; the caller that opened the client closes it."""

    def __init__(self, client: pulsar.Client) -> None:
        self._client = client

    def partitions(self, topic: TopicName) -> int:
        found = partitions_of(self._client, str(topic))
        return 0 if found == [str(topic)] else len(found)

    def open(self, topic: TopicName, partition: int, start: ReadPosition | None) -> "_ClientReading":
        begin = pulsar.MessageId.earliest
        if start is not None:
            place = start.first_chunk or (start.ledger_id, start.entry_id)
            begin = pulsar.MessageId(start.partition, *place, start.batch_index)._msg_id
        with translated(f"opening a reader of {topic}"):
            reader = self._client.create_reader(str(topic), begin, start_message_id_inclusive=True)
            return _ClientReading(reader, topic, partition)


class _ClientReading:
    """`PartitionReader`."""

    def __init__(self, reader: pulsar.Reader, topic: TopicName, partition: int) -> None:
        self._reader = reader
        self._topic = topic
        self._partition = partition

    def next(self, wait_seconds: float) -> ReadMessage | None:
        with translated(f"reading {self._topic}"):
            try:
                found = self._reader.read_next(max(1, round(wait_seconds * 1000)))
            except pulsar.exceptions.Timeout:
                return None
            return _message(found, self._partition)

    def close(self) -> None:
        with suppress(SidecarError), translated(f"closing a reader of {self._topic}"):
            self._reader.close()


def _message(found: pulsar.Message, partition: int) -> ReadMessage:
    place = found.message_id()
    batch_index = place.batch_index()
    position = ReadPosition(
        LedgerId(place.ledger_id()),
        EntryId(place.entry_id()),
        place.partition(),
        batch_index,
        _first_chunk(place) if batch_index < 0 else None,
    )
    return ReadMessage(
        found.data(),
        found.partition_key() or None,
        found.properties(),
        found.event_timestamp() or None,
        partition,
        position,
    )


def _first_chunk(place: _pulsar.MessageId) -> Position | None:
    """Return the first chunk of a chunked message, whose id names its last: reading has to begin with the first."""
    whole = api.MessageIdData.FromString(place.serialize())
    if not whole.HasField("first_chunk_message_id"):
        return None
    first = whole.first_chunk_message_id
    return Position(LedgerId(first.ledgerId), EntryId(first.entryId))
