"""Reading back what a producer has published, through a broker's binary port."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
from pulsar_sidecar.adapters.pulsar_wire import topic_tails
from pulsar_sidecar.adapters.pulsar_wire.encoding import encode_message
from pulsar_sidecar.adapters.pulsar_wire.topic_tails import BrokerTopicTails
from pulsar_sidecar.features.publishing.resume import StoredRecord, Tail
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.payloads import payload_hash
from pulsar_sidecar.model.topic_stats import TopicInternalStats, TopicStats
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

from tests.fakes.binary_brokers import (
    Answers,
    BinaryBroker,
    closed_consumer,
    last_message,
    owners_at,
    refusal,
    usual,
)
from tests.fakes.clock import FakeClock

TOPIC = parse_topic_name("persistent://public/default/records")
LEDGER = 7
STATS = TopicInternalStats({LedgerId(LEDGER): 0, LedgerId(LEDGER - 2): 9}, Position(LedgerId(LEDGER - 2), EntryId(8)))


def at(entry_id: int) -> Position:
    return Position(LedgerId(LEDGER), EntryId(entry_id))


def batch(producer: str, *ids: int) -> tuple[api.MessageMetadata, bytes]:
    parts = []
    for number in ids:
        single = api.SingleMessageMetadata(payload_size=len(b"%d" % number), sequence_id=number).SerializeToString()
        parts.append(len(single).to_bytes(4, "big") + single + b"%d" % number)
    metadata = api.MessageMetadata(producer_name=producer, sequence_id=ids[0], publish_time=1)
    metadata.num_messages_in_batch = len(ids)
    return metadata, b"".join(parts)


def alone(producer: str, number: int, **more: int | str) -> tuple[api.MessageMetadata, bytes]:
    metadata = api.MessageMetadata(producer_name=producer, sequence_id=number, publish_time=1, **more)  # type: ignore[arg-type]
    return metadata, b"%d" % number


ENTRIES = [
    batch("mine", 0, 10, 20),
    alone("other", 5),
    alone("mine", 30),
    alone("mine", 25, num_chunks_from_msg=2, chunk_id=0, uuid="u"),
    alone("mine", 40, num_chunks_from_msg=2, chunk_id=1, uuid="u"),
    alone("mine", 99, replicated_from="elsewhere"),
    batch("mine", 50, 60),
]


class Topic:
    """Hands out entries from where a consumer begins, no more than it has permits for."""

    def __init__(self, broker: BinaryBroker) -> None:
        self.entries: Sequence[tuple[api.MessageMetadata, bytes]] = ENTRIES
        self.trimmed = 0
        self.hidden = 0
        """So many of the last ones are kept from consumers, as by an open transaction."""
        self.next = 0
        self.failures: list[Answers] = []
        broker.answer = self.answer

    @property
    def shown(self) -> Sequence[tuple[api.MessageMetadata, bytes]]:
        return self.entries[: len(self.entries) - self.hidden]

    def answer(self, broker: BinaryBroker, came: api.BaseCommand) -> Answers:
        kind = api.BaseCommand
        match came.type:
            case kind.SUBSCRIBE:
                if self.failures:
                    return self.failures.pop()
                start = came.subscribe.start_message_id.entryId
                self.next = self.trimmed if start == 2**64 - 1 else max(start, self.trimmed)
                assert not came.subscribe.durable
            case kind.GET_LAST_MESSAGE_ID if len(self.shown) > self.trimmed:
                return [last_message(came.getLastMessageId.request_id, LEDGER, len(self.shown) - 1)]
            case kind.FLOW:
                return [*self._messages(came.flow.consumer_id, came.flow.messagePermits)]
            case _:
                pass
        return usual(broker, came)

    def _messages(self, consumer_id: int, permits: int) -> Iterator[bytes]:
        while permits > 0 and self.next < len(self.shown):
            metadata, payload = self.entries[self.next]
            found = api.MessageIdData(ledgerId=LEDGER, entryId=self.next)
            command = api.CommandMessage(consumer_id=consumer_id, message_id=found)
            whole = api.BaseCommand(type=api.BaseCommand.MESSAGE, message=command)
            yield encode_message(whole, metadata, payload)
            permits -= metadata.num_messages_in_batch
            self.next += 1


@pytest.fixture
def topic(broker: BinaryBroker) -> Topic:
    return Topic(broker)


@dataclass
class Statistics:
    """Responses of the admin REST service; one without open transactions shows hidden messages."""

    topic: Topic
    end: Position
    open_transactions: list[int] = field(default_factory=list)

    def internal_stats(self, topic: TopicName) -> TopicInternalStats:
        return replace(STATS, last_confirmed=self.end)

    def stats(self, topic: TopicName) -> TopicStats:
        if self.open_transactions:
            return TopicStats(None, {}, open_transactions=self.open_transactions.pop())
        self.topic.hidden = 0
        return TopicStats(None, {})


@pytest.fixture
def statistics(topic: Topic) -> Statistics:
    return Statistics(topic, at(6))


@pytest.fixture
def tails(broker: BinaryBroker, statistics: Statistics) -> Iterator[BrokerTopicTails]:
    clock = FakeClock()
    with owners_at(broker, clock, read_seconds=2) as owners:
        yield BrokerTopicTails(owners, statistics.internal_stats, statistics.stats, clock)


def stored(number: int, entry: int, payload: bytes | None = None) -> StoredRecord:
    return StoredRecord(number, at(entry), payload_hash(payload or b"%d" % number))


MINE = (
    *(stored(number, 0) for number in (0, 10, 20)),
    stored(30, 2),
    stored(40, 4, b"2540"),
    *(stored(number, 6) for number in (50, 60)),
)


def test_only_the_producers_own_messages_of_this_cluster(topic: Topic, tails: BrokerTopicTails) -> None:
    assert tails.read_back(TOPIC, None, "mine") == Tail(MINE, at(0))
    assert tails.read_back(TOPIC, None, "nobody") == Tail((), at(0))
    assert tails.last_position(TOPIC) == at(6)


def test_from_an_entry_on(topic: Topic, tails: BrokerTopicTails) -> None:
    assert tails.read_back(TOPIC, at(2), "mine") == Tail(MINE[3:], at(2))
    # Its first chunk is not read, so nothing is known of its payload.
    assert tails.read_back(TOPIC, at(4), "mine") == Tail((StoredRecord(40, at(4), None), *MINE[5:]), at(4))
    assert tails.read_back(TOPIC, at(7), "mine") == Tail((), None)


def test_a_trimmed_and_an_empty_topic(topic: Topic, tails: BrokerTopicTails) -> None:
    topic.trimmed = 2
    assert tails.read_back(TOPIC, at(1), "mine") == Tail(MINE[3:], at(2))
    topic.entries, topic.trimmed = [], 0
    assert tails.read_back(TOPIC, at(1), "mine") == Tail((), at(-1))
    assert tails.last_position(TOPIC) == at(-1)


def test_more_entries_than_permits(topic: Topic, tails: BrokerTopicTails) -> None:
    topic.entries = [batch("mine", *range(number, number + 300)) for number in range(0, 30_000, 300)]
    assert [each.offset for each in tails.read_back(TOPIC, None, "mine").records] == [*range(30_000)]


def test_of_a_whole_topic_the_newest_records_are_kept(
    topic: Topic, tails: BrokerTopicTails, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_tails, "_MOST_RECORDS", 4)
    assert tails.read_back(TOPIC, None, "mine") == Tail(MINE[-4:], at(0))
    assert tails.read_back(TOPIC, at(0), "mine") == Tail(MINE, at(0)), "a checkpoint needs all"


def test_entries_hidden_by_a_transaction_are_awaited(
    topic: Topic, tails: BrokerTopicTails, statistics: Statistics
) -> None:
    topic.hidden, statistics.open_transactions = 5, [1, 2]
    assert tails.read_back(TOPIC, None, "mine") == Tail(MINE, at(0))
    topic.hidden, statistics.open_transactions = len(ENTRIES), [3] * 100
    with pytest.raises(TemporaryError, match=r"cannot be read back \(3 transactions are open and hide"):
        tails.read_back(TOPIC, None, "mine")


def test_entries_after_the_start_of_reading_may_be_hidden(
    topic: Topic, tails: BrokerTopicTails, statistics: Statistics
) -> None:
    topic.hidden, statistics.open_transactions, statistics.end = 4, [1], at(2)
    assert tails.read_back(TOPIC, None, "mine") == Tail(MINE[:4], at(0))


def test_the_last_entries_may_be_markers(topic: Topic, tails: BrokerTopicTails, statistics: Statistics) -> None:
    statistics.end = at(9)
    assert tails.read_back(TOPIC, None, "mine") == Tail(MINE, at(0))


def test_a_topic_that_moves_is_read_again(topic: Topic, tails: BrokerTopicTails) -> None:
    topic.failures = [None, [closed_consumer(1)], None]
    assert tails.read_back(TOPIC, None, "mine") == Tail(MINE, at(0))


def test_a_reading_that_stops_before_the_end_is_an_error(topic: Topic, tails: BrokerTopicTails) -> None:
    topic.failures = [None] * 100
    with pytest.raises(TemporaryError, match="cannot be read back"):
        tails.read_back(TOPIC, None, "mine")


def test_a_refusal_is_final(broker: BinaryBroker, tails: BrokerTopicTails) -> None:
    broker.on(api.BaseCommand.SUBSCRIBE, lambda came: [refusal(came.subscribe.request_id, api.TopicNotFound)])
    with pytest.raises(NotFoundError):
        tails.last_position(TOPIC)


class SlowClock(FakeClock):
    """Each look at it takes a tenth of a second."""

    def monotonic_seconds(self) -> float:
        self.advance_ms(100)
        return super().monotonic_seconds()


@pytest.mark.parametrize(("start", "total"), [(None, 109), (at(40), 60)])
def test_a_long_reading_shows_how_far_it_has_come(
    broker: BinaryBroker, topic: Topic, statistics: Statistics, start: Position | None, total: int
) -> None:
    topic.entries, statistics.end = [alone("mine", number) for number in range(100)], at(99)
    reports: list[tuple[str, int, int]] = []
    with owners_at(broker, FakeClock(), read_seconds=2) as owners:
        tails = BrokerTopicTails(
            owners, statistics.internal_stats, statistics.stats, SlowClock(), lambda *report: reports.append(report)
        )
        tails.read_back(TOPIC, start, "mine")
    assert reports[0] == (f"reading {TOPIC} back, entries", 19, total)
    assert [done for _, done, _ in reports] == list(range(19, 100 - (start.entry_id if start else 0), 5))
