"""Reads topics for an `ExactlyOnceReader`, by the client's readers (`MessageSource`)."""

from contextlib import suppress

import pulsar

from pulsar_sidecar.adapters.pulsar.errors import translated
from pulsar_sidecar.deduplication.publishing.reader import ReadMessage, ReadPosition
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.names import TopicName


class ClientMessageSource:
    """`MessageSource`; whoever opened the client closes it."""

    def __init__(self, client: pulsar.Client) -> None:
        self._client = client

    def partitions(self, topic: TopicName) -> int:
        with translated(f"asking for the partitions of {topic}"):
            found = self._client.get_topic_partitions(str(topic))
        return 0 if found == [str(topic)] else len(found)

    def open(self, topic: TopicName, partition: int, after: ReadPosition | None) -> "_ClientReading":
        begin = pulsar.MessageId.earliest
        if after is not None:
            begin = pulsar.MessageId(after.partition, after.ledger_id, after.entry_id, after.batch_index)._msg_id
        with translated(f"opening a reader of {topic}"):
            return _ClientReading(self._client.create_reader(str(topic), begin), topic, partition)


class _ClientReading:
    """`Reading`."""

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
    position = ReadPosition(
        LedgerId(place.ledger_id()), EntryId(place.entry_id()), place.partition(), place.batch_index()
    )
    return ReadMessage(
        found.data(),
        found.partition_key() or None,
        found.properties(),
        found.event_timestamp() or None,
        partition,
        position,
    )
