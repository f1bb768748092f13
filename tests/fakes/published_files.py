"""Fakes for publishing a file: a checkpoint in memory, and tails of fake brokers' topics."""

from dataclasses import dataclass

from pulsar_sidecar.features.publishing.checkpoint import Checkpoint, checkpoint_of
from pulsar_sidecar.features.publishing.resume import StoredRecord, Tail
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.payloads import payload_hash

from tests.fakes.deduplicating_broker import FakeDeduplicatingBrokers


@dataclass(slots=True)
class FakeCheckpoints:
    """`CheckpointStore` with its checkpoint as text, like a file."""

    text: str | None = None
    written: int = 0

    def read(self) -> Checkpoint | None:
        return None if self.text is None else checkpoint_of(self.text)

    def write(self, checkpoint: Checkpoint) -> None:
        self.text = checkpoint.to_json()
        self.written += 1


@dataclass(slots=True)
class FakeTails:
    """`TopicTails` of the entries that fake brokers have stored, without pending ones."""

    brokers: FakeDeduplicatingBrokers
    reads: int = 0

    def last_position(self, topic: TopicName) -> Position:
        found = self.brokers.topic(topic)
        return found.entries[-1].position if found.entries else found.before_the_first

    def read_back(self, topic: TopicName, start: Position | None, producer_name: str) -> Tail:
        self.reads += 1
        found = self.brokers.topic(topic)
        entries = [each for each in found.entries if start is None or each.position >= start]
        records = [
            StoredRecord(message.sequence_id, entry.position, payload_hash(message.payload))
            for entry in entries
            if entry.producer == producer_name
            for message in entry.messages
            if message.sequence_id is not None
        ]
        first = entries[0].position if entries else None if found.entries else found.before_the_first
        return Tail(tuple(records), first)
