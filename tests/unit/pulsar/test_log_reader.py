"""Following a log: entries of every form, the end that compaction moves, permits, and how a reading ends."""

import time
from collections.abc import Iterator, Sequence

import pytest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar_rest.topic_stats import Compaction
from pulsar_sidecar.adapters.pulsar_topics import cancellation_topic
from pulsar_sidecar.adapters.pulsar_topics.cancellation_topic import PulsarCancellationTopic
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import TopicOwners
from pulsar_sidecar.adapters.pulsar_wire.encoding import encode_message, keyed_batches
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

from tests.fakes.binary_brokers import Answers, BinaryBroker, last_message, owners_at, refusal, usual
from tests.fakes.clock import FakeClock
from tests.fakes.delayed_messages import TOPIC

Record = tuple[str, bytes | None]
NEVER_COMPACTED = Compaction(LedgerId(-1), Position(LedgerId(-1), EntryId(-1)))
KINDS = api.BaseCommand


def frame(entry_id: int, metadata: api.MessageMetadata, payload: bytes, ledger_id: int = 5) -> bytes:
    found = api.CommandMessage(consumer_id=1, message_id=api.MessageIdData(ledgerId=ledger_id, entryId=entry_id))
    return encode_message(KINDS(type=KINDS.MESSAGE, message=found), metadata, payload)


def batch(entry_id: int, *records: Record, ledger_id: int = 5) -> bytes:
    (made,) = keyed_batches(records, most_records=1000, most_bytes=1 << 20)
    return frame(entry_id, made.metadata("p", entry_id, 1), made.payload, ledger_id)


def single(entry_id: int, key: str | None, value: bytes, **more: int) -> bytes:
    metadata = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **more)
    if key is not None:
        metadata.partition_key = key
    return frame(entry_id, metadata, value)


def compacted_batch(entry_id: int, left_out: int, key: str, value: bytes) -> bytes:
    """A batch as compaction leaves it: the others are marked, and their payloads are gone."""
    parts = []
    for _ in range(left_out):
        gone = api.SingleMessageMetadata(partition_key="gone", payload_size=0, compacted_out=True).SerializeToString()
        parts.append(len(gone).to_bytes(4, "big") + gone)
    kept = api.SingleMessageMetadata(partition_key=key, payload_size=len(value)).SerializeToString()
    parts.append(len(kept).to_bytes(4, "big") + kept + value)
    metadata = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=left_out + 1)
    return frame(entry_id, metadata, b"".join(parts))


class Compactions(BrokerTopicAdmin):
    def __init__(self, log: "Log") -> None:
        self._log = log

    def compaction(self, topic: TopicName) -> Compaction:
        assert topic == TOPIC
        return self._log.compaction()


class Log:
    """A broker that sends its entries at the first permits."""

    def __init__(self, broker: BinaryBroker, owners: TopicOwners, clock: FakeClock) -> None:
        self.broker, self.clock = broker, clock
        self.compactions: list[Compaction | SidecarError] = [NEVER_COMPACTED]
        self.reader = PulsarCancellationTopic(owners, Compactions(self), self.clock, TOPIC)
        self.entries: Sequence[bytes | api.BaseCommand] = []
        self.ends: list[tuple[int, int]] = []
        self.read: list[Record] = []
        self.read_when_caught_up: list[Record] | None = None
        self.unreadable = 0
        broker.answer = self.answer

    def answer(self, of: BinaryBroker, came: api.BaseCommand) -> Answers:
        if came.type == KINDS.GET_LAST_MESSAGE_ID and self.ends:
            ledger_id, entry_id = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
            return [last_message(came.getLastMessageId.request_id, ledger_id, entry_id)]
        if came.type == KINDS.FLOW:
            entries, self.entries = self.entries, []
            return entries
        return [] if came.type == KINDS.ACK else usual(of, came)

    def compaction(self) -> Compaction:
        found = self.compactions.pop(0) if len(self.compactions) > 1 else self.compactions[0]
        if isinstance(found, SidecarError):
            raise found
        return found

    def follow(self, until_read: int = 0) -> None:
        """Until it has caught up, and this many records have arrived."""
        self.reader.follow(self.read.extend, self._caught_up, lambda: self._is_over() and len(self.read) >= until_read)

    def _caught_up(self, unreadable: int) -> None:
        assert self.read_when_caught_up is None
        self.unreadable = unreadable
        self.read_when_caught_up = list(self.read)

    def _is_over(self) -> bool:
        return self.read_when_caught_up is not None


@pytest.fixture
def log(broker: BinaryBroker) -> Iterator[Log]:
    clock = FakeClock()
    with owners_at(broker, clock, read_seconds=2) as owners:
        yield Log(broker, owners, clock)


def test_empty_log_is_caught_up_immediately(log: Log) -> None:
    log.follow()
    assert log.read_when_caught_up == []
    (joined,) = log.broker.commands(KINDS.SUBSCRIBE)
    assert (joined.subscribe.durable, joined.subscribe.read_compacted) == (False, True)
    assert not joined.subscribe.force_topic_creation


def test_entries_of_every_form_in_order(log: Log) -> None:
    log.entries = [
        batch(0, ("a", b"1"), ("b", b"2"), ("a", None)),
        single(1, "c", b"3"),
        single(2, None, b"no key"),
        single(3, "d", b""),
        frame(4, api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=9), b"?"),
        single(5, "z", b"zipped", compression=1),
        compacted_batch(6, 3, "e", b"5"),
    ]
    log.ends = [(5, 6)]
    log.follow()
    assert log.read_when_caught_up == [
        ("a", b"1"), ("b", b"2"), ("a", None), ("c", b"3"), ("d", None), ("e", b"5")
    ]  # fmt: skip
    assert log.unreadable == 2
    acked = [one.ack for one in log.broker.commands(KINDS.ACK)]
    assert {one.ack_type for one in acked} == {api.CommandAck.Cumulative}


def test_own_records_are_not_decoded_and_a_second_copy_is(log: Log) -> None:
    own: list[Record] = [("a", b"1"), ("b", None)]
    log.reader.append(own)
    log.entries = [batch(0, ("a", b"0")), batch(1, *own), batch(2, *own)]
    log.ends = [(5, 2)]
    log.follow()
    assert log.read_when_caught_up == [("a", b"0"), *own, *own]
    assert [one is another for one, another in zip(log.read[1:], own * 2, strict=True)] == [True, True, False, False]
    log.reader.close()


def test_the_end_is_asked_again_when_compaction_took_the_last_message_away(log: Log) -> None:
    log.entries = [batch(0, ("a", b"1"))]
    log.ends = [(5, 3), (5, 0)]
    log.follow()
    assert log.read_when_caught_up == [("a", b"1")]
    assert len(log.broker.commands(KINDS.GET_LAST_MESSAGE_ID)) == 2


def test_a_slow_answer_about_the_end_is_awaited(log: Log) -> None:
    log.entries = [batch(0, ("a", b"1"))]
    log.ends = [(5, 3), (5, 0)]

    def slow(of: BinaryBroker, came: api.BaseCommand) -> Answers:
        if came.type == KINDS.GET_LAST_MESSAGE_ID:
            time.sleep(0.8)
        return log.answer(of, came)

    log.broker.answer = slow
    log.follow()
    assert log.read_when_caught_up == [("a", b"1")]


def test_messages_that_come_before_the_answer_are_not_lost(log: Log) -> None:
    log.ends = [(5, 1)]

    def late(of: BinaryBroker, came: api.BaseCommand) -> Answers:
        answers = log.answer(of, came)
        if came.type == KINDS.GET_LAST_MESSAGE_ID and answers is not None:
            return [batch(0, ("a", b"1")), batch(1, ("b", b"2")), *answers]
        return answers

    log.broker.answer = late
    log.follow()
    assert log.read_when_caught_up == [("a", b"1"), ("b", b"2")]


def test_permits_are_given_back_for_what_compaction_left_out_too(log: Log) -> None:
    log.entries = [compacted_batch(number, 4_999, "k", b"v") for number in range(3)]
    log.ends = [(5, 2)]
    log.follow()
    assert [one.flow.messagePermits for one in log.broker.commands(KINDS.FLOW)] == [20_000, 10_000]


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        ([KINDS(type=KINDS.CLOSE_CONSUMER)], TemporaryError),
        (None, TemporaryError),
        ([refusal(2, api.TopicNotFound)], NotFoundError),
    ],
    ids=["closed", "broken", "gone"],
)
def test_a_reading_that_cannot_go_on_raises(log: Log, ending: Answers, error: type[SidecarError]) -> None:
    log.broker.answer = lambda of, came: ending if came.type == KINDS.FLOW else log.answer(of, came)
    log.ends = [(5, 0)]
    with pytest.raises(error):
        log.follow()
    assert log.read_when_caught_up is None


def test_a_broker_that_falls_silent_is_left(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation_topic, "_ANSWER_SECONDS", 0.5)
    log.ends = [(5, 0)]

    def silent(of: BinaryBroker, came: api.BaseCommand) -> Answers:
        log.clock.advance_ms(50_000)
        return [] if of.kinds().count("GET_LAST_MESSAGE_ID") > 1 else log.answer(of, came)

    log.broker.answer = silent
    with pytest.raises(TemporaryError):
        log.follow()


# --- compaction ------------------------------------------------------------------------------------------------------


def compacted_up_to(entry_id: int, ledger_id: int = 5) -> Compaction:
    return Compaction(LedgerId(90 + entry_id), Position(LedgerId(ledger_id), EntryId(entry_id)))


def test_a_log_that_is_compacted_while_it_is_read_counts_as_not_read_as_a_whole(log: Log) -> None:
    log.entries, log.ends = [batch(0, ("a", b"1"))], [(5, 0)]
    log.compactions = [compacted_up_to(3), compacted_up_to(7)]
    with pytest.raises(TemporaryError, match="compacted while it was read"):
        log.follow()
    assert (log.read_when_caught_up, log.unreadable) == ([("a", b"1")], 1)


@pytest.mark.parametrize(
    "overtaken",
    [batch(5, ("d", b"4")), compacted_batch(2, 3, "d", b"4")],
    ids=["entries are left out", "records are left out"],
)
def test_a_follower_that_compaction_overtakes_ends(log: Log, overtaken: bytes) -> None:
    log.entries, log.ends = [batch(0, ("a", b"1")), batch(1, ("b", b"2")), overtaken], [(5, 1)]
    log.compactions = [NEVER_COMPACTED, NEVER_COMPACTED, compacted_up_to(4)]
    with pytest.raises(TemporaryError, match="before its reader had read it"):
        log.follow(until_read=3)
    assert log.read == log.read_when_caught_up


def test_a_follower_that_is_overtaken_by_compaction_and_gets_nothing_more_ends(log: Log) -> None:
    log.entries, log.ends = [batch(0, ("a", b"1"))], [(5, 0)]
    log.compactions = [NEVER_COMPACTED, NEVER_COMPACTED, compacted_up_to(4)]
    with pytest.raises(TemporaryError, match="before its reader had read it"):
        log.reader.follow(log.read.extend, lambda unreadable: log.clock.advance_ms(60_000), lambda: False)


def test_a_failed_question_about_compaction_is_asked_again_later(log: Log) -> None:
    log.entries, log.ends = [batch(0, ("a", b"1"))], [(5, 0)]
    log.compactions = [NEVER_COMPACTED, NEVER_COMPACTED, TemporaryError("no broker answered"), compacted_up_to(4)]

    def pass_time() -> bool:
        log.clock.advance_ms(20_000)
        return False

    with pytest.raises(TemporaryError, match="before its reader had read it"):
        log.reader.follow(log.read.extend, lambda unreadable: None, pass_time)


def test_a_follower_goes_on_where_compaction_took_nothing_away_that_it_had_not_read(log: Log) -> None:
    log.entries = [
        batch(0, ("a", b"1")),
        batch(1, ("b", b"2")),
        batch(3, ("c", b"3")),
        single(4, "d", b""),
        batch(0, ("e", b"5"), ledger_id=6),
    ]
    log.ends = [(5, 0)]
    log.compactions = [compacted_up_to(0), compacted_up_to(0), compacted_up_to(1)]
    log.follow(until_read=5)
    assert [key for key, _ in log.read] == ["a", "b", "c", "d", "e"]
