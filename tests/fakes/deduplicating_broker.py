"""Brokers that deduplicate like ``MessageDeduplication``, and that die, forget and lose responses.

A broker checks a batch on arrival and stores it with the write: `FakeDeduplicatingBrokers.hold` delays writes, so that
pushed entries are not persisted yet. Several topics share one broker process, which `die` ends.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pulsar_sidecar.features.publishing.messages import Batch, OutgoingMessage
from pulsar_sidecar.features.publishing.ports import Receipt
from pulsar_sidecar.model.errors import ProducerBusyError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName

MAX_MESSAGE_BYTES = 5 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A stored entry; of chunks only the last one has ``messages``."""

    position: Position
    producer: str
    sequence_id: int
    highest_sequence_id: int
    messages: tuple[OutgoingMessage, ...]


@dataclass(slots=True)
class FakeTopic:
    """A topic; ``pushed`` and ``persisted`` are the broker's two maps, ``writing`` is pushed but not stored yet."""

    entries: list[StoredEntry] = field(default_factory=list)
    pushed: dict[str, int] = field(default_factory=dict)
    persisted: dict[str, int] = field(default_factory=dict)
    writing: "deque[tuple[FakeSequencedProducer | None, StoredEntry]]" = field(default_factory=deque)
    connected: "dict[str, FakeSequencedProducer]" = field(default_factory=dict)
    status: str = "Enabled"
    ledger_id: int = 1
    entry_id: int = 0

    @property
    def before_the_first(self) -> Position:
        """Return a broker's last position of an empty topic."""
        return Position(LedgerId(self.ledger_id), EntryId(-1))

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for entry in self.entries for message in entry.messages]

    @property
    def sequence_ids(self) -> list[int | None]:
        return [message.sequence_id for entry in self.entries for message in entry.messages]

    def write(self, count: int) -> None:
        """Store and confirm the first ``count`` pending entries."""
        for _ in range(min(count, len(self.writing))):
            producer, entry = self.writing.popleft()
            self.entries.append(entry)
            self.persisted[entry.producer] = max(entry.sequence_id, entry.highest_sequence_id)
            if producer is not None:
                producer.answer(Receipt(entry.sequence_id, entry.position))

    def fail_writes(self) -> None:
        """Fail the pending writes: close the producers and reset pushed ids (``resetHighestSequenceIdPushed``)."""
        self.writing.clear()
        self.disconnect("the broker closed the producer")
        self.pushed = dict(self.persisted)

    def reload(self, stored: int) -> None:
        """Store ``stored`` pending writes, then load the topic again, with the maps from its entries."""
        self.disconnect("the connection broke")
        self.writing = deque((None, entry) for _, entry in self.writing)
        self.write(stored)
        self.writing.clear()
        self.ledger_id += 1
        self.entry_id = 0
        self.pushed, self.persisted = {}, {}
        for entry in self.entries:
            self.pushed[entry.producer] = self.persisted[entry.producer] = max(
                entry.sequence_id, entry.highest_sequence_id
            )

    def trim(self) -> None:
        """Delete all stored entries and begin a new ledger."""
        self.entries.clear()
        self.ledger_id += 1
        self.entry_id = 0

    def make_again(self) -> None:
        """Delete and recreate the topic."""
        self.disconnect("the topic was deleted")
        self.writing.clear()
        self.pushed, self.persisted = {}, {}
        self.trim()

    def forget(self, name: str) -> None:
        """Forget a producer, as after the inactivity timeout or beyond 10,000 producers."""
        self.pushed.pop(name, None)
        self.persisted.pop(name, None)

    def disconnect(self, reason: str) -> None:
        for producer in [*self.connected.values()]:
            producer.broken = reason
        self.connected.clear()

    def next_position(self) -> Position:
        position = Position(LedgerId(self.ledger_id), EntryId(self.entry_id))
        self.entry_id += 1
        return position


@dataclass(slots=True)
class FakeSequencedProducer:
    """`SequencedProducer`."""

    topic: FakeTopic
    brokers: "FakeDeduplicatingBrokers"
    name: str
    last_sequence_id: int
    broken: str | None = None
    answers: deque[Receipt | Exception] = field(default_factory=deque)

    def answer(self, answer: Receipt | Exception) -> None:
        if self.brokers.lost_answers > 0:
            self.brokers.lost_answers -= 1
            self.topic.connected.pop(self.name, None)
            self.broken = "the connection broke"
        elif self.broken is None:
            self.answers.append(answer)

    def send(self, batch: Batch, pushed: int) -> None:
        self.brokers.step(f"send {batch.first_sequence_id}")
        if self.broken is not None:
            raise TemporaryError(self.broken)
        self.brokers.sent.append((self.name, batch))
        lowest, highest = batch.first_sequence_id, batch.last_sequence_id
        if self.topic.status == "Enabled":
            if lowest <= self.topic.pushed.get(self.name, -1):
                if lowest <= self.topic.persisted.get(self.name, -1):
                    self.answer(Receipt(lowest, None))
                else:
                    self.answer(TemporaryError("Cannot determine whether the message is a duplicate at this time"))
                return
            self.topic.pushed[self.name] = highest
        entry = StoredEntry(self.topic.next_position(), self.name, lowest, highest, tuple(batch.messages))
        self.topic.writing.append((self, entry))
        if not self.brokers.hold:
            self.topic.write(len(self.topic.writing))

    def receive(self, wait_seconds: float) -> Receipt | None:
        self.brokers.step("receive")
        if not self.answers and self.broken is None and wait_seconds:
            self.topic.write(1)
        if self.answers:
            found = self.answers.popleft()
            if isinstance(found, Exception):
                raise found
            return found
        if self.broken is not None:
            raise TemporaryError(self.broken)
        return None

    def close(self) -> None:
        if self.topic.connected.get(self.name) is self:
            del self.topic.connected[self.name]
        self.broken = "this producer is closed"


@dataclass(slots=True)
class FakeDeduplicatingBrokers:
    """`SequencedProducers`.

    Attributes:
        partition_counts: partitions of partitioned topics.
        hold: True to store writes one at a time while a producer waits, or by `FakeTopic.write`, instead of at once.
        lost_answers: number of next responses that never arrive and break their connections.
        refusals: errors of the next openings, one each.
        step: function called with each event, in which a test may raise.
        sent: received batches with their producers' names.
    """

    partition_counts: dict[TopicName, int] = field(default_factory=dict)
    topics: dict[TopicName, FakeTopic] = field(default_factory=dict)
    hold: bool = False
    lost_answers: int = 0
    refusals: deque[Exception] = field(default_factory=deque)
    step: Callable[[str], None] = lambda happening: None
    sent: list[tuple[str, Batch]] = field(default_factory=list)
    names_given: int = 0

    def topic(self, name: TopicName) -> FakeTopic:
        return self.topics.setdefault(name, FakeTopic())

    def open(self, topic: TopicName, name: str | None) -> FakeSequencedProducer:
        self.step(f"open {topic}")
        if self.refusals:
            raise self.refusals.popleft()
        if name is None:
            self.names_given += 1
            name = f"standalone-0-{self.names_given}"
        found = self.topic(topic)
        if name in found.connected:
            raise ProducerBusyError(f"Producer with name '{name}' is already connected to topic '{topic}'")
        producer = FakeSequencedProducer(found, self, name, found.pushed.get(name, -1))
        found.connected[name] = producer
        return producer

    def partitions(self, topic: TopicName) -> int:
        self.step("partitions")
        return self.partition_counts.get(topic, 0)

    def deduplication_status(self, topic: TopicName) -> str:
        self.step("status")
        return self.topic(topic).status

    def die(self, stored: int = 0) -> None:
        """End the broker process after it has stored ``stored`` of each topic's pending writes."""
        for topic in self.topics.values():
            topic.reload(stored)
