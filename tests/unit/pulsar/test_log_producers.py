"""Records of a log as batches of our own making, and what a producer does when a broker refuses or falls silent."""

import struct
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import TopicOwners
from pulsar_sidecar.adapters.pulsar_wire.encoding import KeyedBatch, keyed_batches
from pulsar_sidecar.adapters.pulsar_wire.producers import BrokerDuplicates, LogProducers
from pulsar_sidecar.features.deduplication.inspection.canary import DuplicateReceipt, SendFailure
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

from tests.fakes.binary_brokers import (
    Answers,
    BinaryBroker,
    closed_producer,
    owners_at,
    receipt,
    refusal,
    send_error,
    usual,
)
from tests.fakes.clock import FakeClock
from tests.fakes.delayed_messages import TOPIC

Record = tuple[str, bytes | None]
records_of = st.lists(st.tuples(st.text(max_size=200), st.none() | st.binary(max_size=400)), max_size=40)


def decoded(batch: KeyedBatch) -> Iterator[Record]:
    """Decode a batch like any client of Pulsar."""
    rest = batch.payload
    for _ in batch.records:
        (length,) = struct.unpack_from(">I", rest)
        metadata = api.SingleMessageMetadata.FromString(rest[4 : 4 + length])
        value = rest[4 + length : 4 + length + metadata.payload_size]
        rest = rest[4 + length + metadata.payload_size :]
        yield metadata.partition_key, value or None
    assert not rest


@given(records=records_of, most_records=st.integers(1, 10), most_bytes=st.integers(1, 2_000))
def test_batches_hold_every_record_in_order(records: list[Record], most_records: int, most_bytes: int) -> None:
    batches = list(keyed_batches(records, most_records=most_records, most_bytes=most_bytes))
    assert [one for batch in batches for one in decoded(batch)] == [(key, value or None) for key, value in records]
    assert [one for batch in batches for one in batch.records] == records
    assert all(0 < len(batch.records) <= most_records for batch in batches)
    assert all(len(batch.records) == 1 or len(batch.payload) <= most_bytes for batch in batches)


def test_a_batchs_metadata_holds_what_readers_need() -> None:
    (batch,) = keyed_batches([("a", b"1"), ("b", None)], most_records=9, most_bytes=9_999)
    metadata = batch.metadata("p", 7, 123)
    assert (metadata.num_messages_in_batch, metadata.uncompressed_size) == (2, len(batch.payload))
    assert (metadata.producer_name, metadata.sequence_id, metadata.publish_time) == ("p", 7, 123)


# --- publishing ----------------------------------------------------------------------------------------------------

MANY: list[Record] = [(f"key {number}", b"x" * 100) for number in range(20_500)]


class Log:
    def __init__(self, broker: BinaryBroker, owners: TopicOwners, clock: FakeClock) -> None:
        self.broker, self.clock = broker, clock
        self.producers = LogProducers(owners, self.clock, TOPIC)

    @property
    def sent(self) -> list[tuple[int, int]]:
        return [(came.send.sequence_id, came.send.num_messages) for came in self.broker.commands(api.BaseCommand.SEND)]


@pytest.fixture
def log(broker: BinaryBroker) -> Iterator[Log]:
    clock = FakeClock()
    with owners_at(broker, clock) as owners:
        opened = Log(broker, owners, clock)
        yield opened
        opened.producers.close()


def test_records_are_stored_in_batches_by_a_producer_that_stays(log: Log) -> None:
    log.producers.publish(MANY)
    assert [number for number, _ in log.sent] == list(range(21))
    assert sum(count for _, count in log.sent) == len(MANY)
    log.producers.publish([("key", None)])
    assert log.broker.kinds().count("PRODUCER") == 1
    log.clock.advance_ms(16_000)
    log.producers.publish([("key", None)])
    assert log.broker.kinds().count("PRODUCER") == 2, "a producer that was idle so long may have missed a ping"


@pytest.mark.parametrize(
    "answer",
    [
        lambda came: None,
        lambda came: [],
        lambda came: [closed_producer(came)],
        lambda came: [send_error(came, api.PersistenceError)],
    ],
    ids=["broken", "silent", "closed", "refused"],
)
def test_unconfirmed_records_are_resent_by_another_producer(
    log: Log, answer: Callable[[api.BaseCommand], Answers]
) -> None:
    log.broker.on(api.BaseCommand.SEND, answer, times=1)
    log.producers.publish([("a", b"1")])
    assert log.sent == [(0, 1), (0, 1)]
    opened = log.broker.commands(api.BaseCommand.PRODUCER)
    assert len({came.producer.producer_name for came in opened}) == 2
    assert log.broker.kinds().count("LOOKUP") == 2, "the topic may have moved"


def test_records_that_no_broker_takes_are_an_error_with_their_number(log: Log) -> None:
    log.broker.on(api.BaseCommand.PRODUCER, lambda came: [refusal(came.producer.request_id, api.TopicNotFound)])
    with pytest.raises(TemporaryError, match="2 of 2 records"):
        log.producers.publish([("a", b"1"), ("b", b"2")])


def test_only_what_is_left_is_sent_again(log: Log) -> None:
    def fail_late(came: api.BaseCommand) -> Answers:
        first = log.broker.kinds().count("PRODUCER") == 1
        return None if came.send.sequence_id == 10 and first else usual(log.broker, came)

    log.broker.on(api.BaseCommand.SEND, fail_late)
    log.producers.publish(MANY)
    again = log.sent[log.sent.index((10, 1000)) + 1 :]
    assert sum(count for _, count in again) >= 10_500
    assert sum(count for _, count in log.sent) < 2 * len(MANY)


# --- sequence ids of one's own ---------------------------------------------------------------------------------------


NOWHERE = 2**64 - 1


@pytest.fixture
def duplicates(broker: BinaryBroker) -> Iterator[BrokerDuplicates]:
    with owners_at(broker) as owners:
        yield BrokerDuplicates(owners, FakeClock())


def test_each_answer_is_of_its_type(broker: BinaryBroker, duplicates: BrokerDuplicates) -> None:
    sent: list[int] = []

    def answer(came: api.BaseCommand) -> Answers:
        sent.append(came.send.sequence_id)
        if len(sent) == 3:
            return [send_error(came, api.UnknownError)]
        return [receipt(came, 7, 0) if len(sent) == 1 else receipt(came, NOWHERE, NOWHERE)]

    broker.on(api.BaseCommand.SEND, answer)
    first, second, third = duplicates.send_all(TOPIC, "p", [4, 4, 5])
    assert (first, second, sent) == (Position(LedgerId(7), EntryId(0)), DuplicateReceipt(), [4, 4, 5])
    assert isinstance(third, SendFailure)
    assert "for this test" in third.reason
    assert broker.kinds()[-1] == "CLOSE_PRODUCER"


def test_broken_connection_raises_temporary_error(broker: BinaryBroker, duplicates: BrokerDuplicates) -> None:
    broker.on(api.BaseCommand.SEND, lambda came: None)
    with pytest.raises(TemporaryError, match="was interrupted"):
        duplicates.send_all(TOPIC, "p", [0, 0])


def test_a_topic_that_has_moved_is_looked_up_again(broker: BinaryBroker, duplicates: BrokerDuplicates) -> None:
    broker.on(api.BaseCommand.PRODUCER, lambda came: [refusal(came.producer.request_id, api.ServiceNotReady)])
    for _ in range(2):
        with pytest.raises(TemporaryError, match="ServiceNotReady"):
            duplicates.send_all(TOPIC, "p", [0])
    assert broker.kinds().count("LOOKUP") == 2
