"""Following a log: entries of every form, the end that compaction moves, permits, and how a reading ends."""

from collections.abc import Iterator, Sequence

import pytest

from service.adapters.pulsar.binary_connections import BinaryConnections, BinaryTimeouts
from service.adapters.pulsar.binary_frames import encode_message
from service.adapters.pulsar.credentials import ClientCredentials, TlsOptions
from service.adapters.pulsar.keyed_batches import keyed_batches
from service.adapters.pulsar.log_reader import LogReader
from service.adapters.pulsar.topic_owners import TopicOwners
from service.model.errors import NotFoundError, SidecarError, TemporaryError
from service.wire import PulsarApi_pb2 as api
from tests.fakes.binary_brokers import Answers, BinaryBroker, binary_broker, last_message, refusal, usual
from tests.fakes.clock import FakeClock
from tests.fakes.delayed_messages import TOPIC

Record = tuple[str, bytes | None]
KINDS = api.BaseCommand


def frame(entry_id: int, metadata: api.MessageMetadata, payload: bytes) -> bytes:
    found = api.CommandMessage(consumer_id=1, message_id=api.MessageIdData(ledgerId=5, entryId=entry_id))
    return encode_message(KINDS(type=KINDS.MESSAGE, message=found), metadata, payload)


def batch(entry_id: int, *records: Record) -> bytes:
    (made,) = keyed_batches(records, most_records=1000, most_bytes=1 << 20)
    return frame(entry_id, made.metadata("p", entry_id, 1), made.payload)


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


class Log:
    """A broker that sends its entries at the first permits."""

    def __init__(self, broker: BinaryBroker) -> None:
        self.broker = broker
        self.clock = FakeClock()
        self.connections = BinaryConnections(ClientCredentials(), TlsOptions(), self.clock, BinaryTimeouts(2, 2))
        self.reader = LogReader(TopicOwners(broker.url, self.connections), self.connections, self.clock, TOPIC)
        self.entries: Sequence[bytes | api.BaseCommand] = []
        self.ends: list[tuple[int, int]] = []
        self.read: list[Record] = []
        self.read_when_caught_up: list[Record] | None = None
        broker.answer = self.answer

    def answer(self, of: BinaryBroker, came: api.BaseCommand) -> Answers:
        if came.type == KINDS.GET_LAST_MESSAGE_ID and self.ends:
            ledger_id, entry_id = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
            return [last_message(came.getLastMessageId.request_id, ledger_id, entry_id)]
        if came.type == KINDS.FLOW:
            entries, self.entries = self.entries, []
            return entries
        return [] if came.type == KINDS.ACK else usual(of, came)

    def follow(self) -> None:
        """Until it has caught up."""
        self.reader.follow(self.read.extend, self._caught_up, self._is_over)

    def _caught_up(self) -> None:
        assert self.read_when_caught_up is None
        self.read_when_caught_up = list(self.read)

    def _is_over(self) -> bool:
        return self.read_when_caught_up is not None

    def came(self, kind: int) -> list[api.BaseCommand]:
        return [one for one in self.broker.seen if one.type == kind]


@pytest.fixture
def log() -> Iterator[Log]:
    with binary_broker() as broker:
        world = Log(broker)
        yield world
        world.connections.close()


def test_an_empty_log_is_read_at_once(log: Log) -> None:
    log.follow()
    assert log.read_when_caught_up == []
    (joined,) = log.came(KINDS.SUBSCRIBE)
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
    acked = [one.ack for one in log.came(KINDS.ACK)]
    assert {one.ack_type for one in acked} == {api.CommandAck.Cumulative}


def test_the_end_is_asked_again_when_compaction_took_the_last_message_away(log: Log) -> None:
    log.entries = [batch(0, ("a", b"1"))]
    log.ends = [(5, 3), (5, 0)]
    log.follow()
    assert log.read_when_caught_up == [("a", b"1")]
    assert len(log.came(KINDS.GET_LAST_MESSAGE_ID)) == 2


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
    assert [one.flow.messagePermits for one in log.came(KINDS.FLOW)] == [20_000, 10_000]


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        ([KINDS(type=KINDS.CLOSE_CONSUMER)], TemporaryError),
        (None, TemporaryError),
        ([refusal(2, api.TopicNotFound)], NotFoundError),
    ],
    ids=["closed", "broken", "gone"],
)
def test_a_reading_that_cannot_go_on_says_so(log: Log, ending: Answers, error: type[SidecarError]) -> None:
    log.broker.answer = lambda of, came: ending if came.type == KINDS.FLOW else log.answer(of, came)
    log.ends = [(5, 0)]
    with pytest.raises(error):
        log.follow()
    assert log.read_when_caught_up is None


def test_a_broker_that_falls_silent_is_left(log: Log) -> None:
    log.ends = [(5, 0)]

    def silent(of: BinaryBroker, came: api.BaseCommand) -> Answers:
        log.clock.advance_ms(50_000)
        return [] if of.kinds().count("GET_LAST_MESSAGE_ID") > 1 else log.answer(of, came)

    log.broker.answer = silent
    with pytest.raises(TemporaryError):
        log.follow()
