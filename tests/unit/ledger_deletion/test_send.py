"""``sendPendingDeleteLedger``: a response for every record, and unknown counts as not sent."""

from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic, Publisher
from pulsar_sidecar.features.ledger_deletion.record import MAX_RECORD_BYTES, PendingDeleteLedgerInfo, parse_record
from pulsar_sidecar.features.ledger_deletion.results import SentLedger
from pulsar_sidecar.features.ledger_deletion.send import OWN_PRODUCERS, check_numbering, refuse_own_topics, send
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType, OffloadContext
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.clock import FakeClock
from tests.fakes.deletion_topics import FakeDeletionTopics

TOPIC = parse_topic_name("persistent://public/default/orders")
PENDING = DeletionTopic.PENDING


@pytest.fixture
def topics() -> FakeDeletionTopics:
    return FakeDeletionTopics(FakeClock())


@pytest.fixture
def publisher(topics: FakeDeletionTopics) -> Publisher:
    return topics.publisher(PENDING, "me")


def record(ledger_id: int) -> PendingDeleteLedgerInfo:
    return PendingDeleteLedgerInfo(TOPIC, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, LedgerId(ledger_id))


def test_every_record_is_sent_by_its_topics_key_and_answered_in_order(
    topics: FakeDeletionTopics, publisher: Publisher
) -> None:
    assert send(publisher, [record(8), record(7)], None) == [
        SentLedger(LedgerId(8), True),
        SentLedger(LedgerId(7), True),
    ]
    assert [parse_record(message.payload).ledger_id for message in topics.messages(PENDING)] == [8, 7]
    assert {message.key for message in topics.messages(PENDING)} == {str(TOPIC)}
    assert send(publisher, [], None) == []


def test_repeated_sequence_ids_do_not_duplicate_records(topics: FakeDeletionTopics, publisher: Publisher) -> None:
    for _ in range(2):
        assert all(answer.sent for answer in send(publisher, [record(7), record(8)], 5))
    assert [message.sequence_id for message in topics.messages(PENDING)] == [5, 6]


@pytest.mark.parametrize("stored", [True, False])
def test_unknown_counts_as_not_sent(topics: FakeDeletionTopics, publisher: Publisher, stored: bool) -> None:
    topics.lose_receipts_next(stored=stored)
    (answer,) = send(publisher, [record(7)], None)
    assert not answer.sent
    assert "again" in (answer.reason or "")


def test_unpublished_record_is_reported_as_not_sent(topics: FakeDeletionTopics, publisher: Publisher) -> None:
    publisher.close()
    (answer,) = send(publisher, [record(7)], None)
    assert not answer.sent
    assert answer.reason
    assert topics.messages(PENDING) == []


@pytest.mark.parametrize("topic", DeletionTopic)
@pytest.mark.parametrize("suffix", ["", "-partition-0"])
def test_the_services_own_topics_are_refused(topic: DeletionTopic, suffix: str, publisher: Publisher) -> None:
    own = parse_topic_name(f"persistent://pulsar/system/{topic.value}{suffix}")
    with pytest.raises(InvalidInputError):
        refuse_own_topics(own)
    with pytest.raises(InvalidInputError):
        send(publisher, [record(7), replace(record(8), topic=own)], None)
    refuse_own_topics(parse_topic_name(f"persistent://public/default/{topic.value}{suffix}"))


def test_a_record_that_no_consumer_would_read_is_refused_with_all(
    topics: FakeDeletionTopics, publisher: Publisher
) -> None:
    metadata = {f"key-{number}": "x" * 8_000 for number in range(MAX_RECORD_BYTES // 8_000 + 1)}
    huge = replace(
        record(8), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=OffloadContext(1, 2, "aws-s3", metadata)
    )
    with pytest.raises(InvalidInputError, match="ledger 8"):
        send(publisher, [record(7), huge], None)
    assert topics.messages(PENDING) == []


@pytest.mark.parametrize(
    ("producer_name", "first_sequence_id"),
    [
        ("me", None),
        (None, 0),
        (f"{OWN_PRODUCERS}vm-8750-pending", 0),
        ("me", -1),
        ("me", MAX_LEDGER_ID - 1),
    ],
)
def test_numbers_that_cannot_be_used_are_refused(producer_name: str | None, first_sequence_id: int | None) -> None:
    with pytest.raises(InvalidInputError):
        check_numbering(producer_name, first_sequence_id, 2)


def test_numbers_that_can_be_used_are_not() -> None:
    check_numbering(None, None, 2)
    check_numbering("me", 0, 2)
    check_numbering("me", MAX_LEDGER_ID - 2, 2)
