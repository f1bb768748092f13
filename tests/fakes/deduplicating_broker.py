"""Brokers that judge what is published as ``MessageDeduplication`` does, and that die, forget and lose answers.

A batch is judged when it comes, and stored when it is written: `FakeDeduplicatingBrokers.hold` keeps writes back, so
that what is pushed is not yet persisted. Several topics, one broker process: `die` takes all of it down.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pulsar_sidecar.deduplication.publishing.messages import Batch, OutgoingMessage
from pulsar_sidecar.deduplication.publishing.ports import Receipt
from pulsar_sidecar.model.errors import ProducerBusyError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName

MAX_MESSAGE_BYTES = 5 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as it lies in the topic; of a chunk ``messages`` is empty but for the last."""

    position: Position
    producer: str
    sequence_id: int
    highest_sequence_id: int
    messages: tuple[OutgoingMessage, ...]


@dataclass(slots=True)
class FakeTopic:
    """``pushed`` and ``persisted`` are the broker's two maps; ``writing`` is pushed and not yet stored."""

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
        """What a broker answers of an empty topic."""
        return Position(LedgerId(self.ledger_id), EntryId(-1))

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for entry in self.entries for message in entry.messages]

    @property
    def sequence_ids(self) -> list[int | None]:
        return [message.sequence_id for entry in self.entries for message in entry.messages]

    def write(self, count: int) -> None:
        """Store so many of the entries that are being written, and answer them."""
        for _ in range(min(count, len(self.writing))):
            producer, entry = self.writing.popleft()
            self.entries.append(entry)
            self.persisted[entry.producer] = max(entry.sequence_id, entry.highest_sequence_id)
            if producer is not None:
                producer.answer(Receipt(entry.sequence_id, entry.position))

    def fail_writes(self) -> None:
        """Bookies refuse: producers are closed, and pushed falls back (``resetHighestSequenceIdPushed``)."""
        self.writing.clear()
        self.disconnect("the broker closed the producer")
        self.pushed = dict(self.persisted)

    def reload(self, stored: int) -> None:
        """The topic is loaded anew, after ``stored`` more of the writes got through; the maps come from its entries."""
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
        """All that is stored is deleted, and what comes next lies in a new ledger."""
        self.entries.clear()
        self.ledger_id += 1
        self.entry_id = 0

    def make_again(self) -> None:
        """Deleted and created again."""
        self.disconnect("the topic was deleted")
        self.writing.clear()
        self.pushed, self.persisted = {}, {}
        self.trim()

    def forget(self, name: str) -> None:
        """As after the inactivity timeout, or beyond 10,000 producers."""
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
        partition_counts: of partitioned topics; every other topic has none.
        hold: writes are stored one at a time while a producer waits, or by `FakeTopic.write`; not at once.
        lost_answers: so many of the next answers never arrive, and their connections break.
        refusals: raised by the next openings, one each.
        step: called with each thing that happens; a test raises in it.
        sent: every batch that came, with its producer's name.
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
        """The broker process ends; ``stored`` of each topic's pending writes got through."""
        for topic in self.topics.values():
            topic.reload(stored)
