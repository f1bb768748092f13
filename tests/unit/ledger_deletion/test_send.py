"""``sendPendingDeleteLedger``: a response for every record; and dead letters leave their topic only once sent again."""

from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic, Publisher
from pulsar_sidecar.features.ledger_deletion.record import (
    MAX_RECORD_BYTES,
    encode_record,
    parse_record,
    record_document,
)
from pulsar_sidecar.features.ledger_deletion.results import RedriveResult, SentLedger
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import ORIGIN_MESSAGE_ID, REASON, RECONSUMETIMES
from pulsar_sidecar.features.ledger_deletion.send import (
    OWN_PRODUCERS,
    check_numbering,
    list_dead_letters,
    redrive,
    refuse_own_topics,
    send,
)
from pulsar_sidecar.features.ledger_deletion.steps import Steps
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId
from pulsar_sidecar.model.ledgers import LedgerType, OffloadContext
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.clock import FakeClock
from tests.fakes.deletion_topics import FakeDeletionTopics
from tests.unit.ledger_deletion.orphans import PENDING, about

TOPIC = parse_topic_name("persistent://public/default/orders")
DLQ = DeletionTopic.DEAD_LETTER


@pytest.fixture
def topics() -> FakeDeletionTopics:
    return FakeDeletionTopics(FakeClock())


@pytest.fixture
def publisher(topics: FakeDeletionTopics) -> Publisher:
    return topics.publisher(PENDING, "me")


def test_every_record_is_sent_by_its_topics_key_and_answered_in_order(
    topics: FakeDeletionTopics, publisher: Publisher
) -> None:
    assert send(publisher, [about(TOPIC, 8), about(TOPIC, 7)], None) == [
        SentLedger(LedgerId(8), True),
        SentLedger(LedgerId(7), True),
    ]
    assert [parse_record(message.payload).ledger_id for message in topics.messages(PENDING)] == [8, 7]
    assert {message.key for message in topics.messages(PENDING)} == {str(TOPIC)}
    assert send(publisher, [], None) == []


def test_repeated_sequence_ids_do_not_duplicate_records(topics: FakeDeletionTopics, publisher: Publisher) -> None:
    for _ in range(2):
        assert all(answer.sent for answer in send(publisher, [about(TOPIC, 7), about(TOPIC, 8)], 5))
    assert [message.sequence_id for message in topics.messages(PENDING)] == [5, 6]


@pytest.mark.parametrize("stored", [True, False])
def test_unknown_counts_as_not_sent(topics: FakeDeletionTopics, publisher: Publisher, stored: bool) -> None:
    topics.lose_receipts_next(stored=stored)
    (answer,) = send(publisher, [about(TOPIC, 7)], None)
    assert not answer.sent
    assert "again" in (answer.reason or "")


def test_unpublished_record_is_reported_as_not_sent(topics: FakeDeletionTopics, publisher: Publisher) -> None:
    publisher.close()
    (answer,) = send(publisher, [about(TOPIC, 7)], None)
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
        send(publisher, [about(TOPIC, 7), replace(about(TOPIC, 8), topic=own)], None)
    refuse_own_topics(parse_topic_name(f"persistent://public/default/{topic.value}{suffix}"))


def test_a_record_that_no_consumer_would_read_is_refused_with_all(
    topics: FakeDeletionTopics, publisher: Publisher
) -> None:
    metadata = {f"key-{number}": "x" * 8_000 for number in range(MAX_RECORD_BYTES // 8_000 + 1)}
    huge = replace(
        about(TOPIC, 8), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=OffloadContext(1, 2, "aws-s3", metadata)
    )
    with pytest.raises(InvalidInputError, match="ledger 8"):
        send(publisher, [about(TOPIC, 7), huge], None)
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


# --- dead letters ----------------------------------------------------------------------------------------------------


def bury(topics: FakeDeletionTopics, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        properties = {RECONSUMETIMES: "11", REASON: "too-young: 5 ms", ORIGIN_MESSAGE_ID: f"1:{ledger_id}:0"}
        topics.put(DLQ, encode_record(about(TOPIC, ledger_id)), key=str(TOPIC), properties=properties)


def drive(topics: FakeDeletionTopics, ledger_ids: set[LedgerId] | None, limit: int) -> RedriveResult:
    dead, publisher = topics.dead_letters(), topics.publisher(PENDING, "redriver")
    try:
        return redrive(dead, publisher, ledger_ids, limit, Steps())
    finally:
        dead.close()
        publisher.close()


def payloads(topics: FakeDeletionTopics, topic: DeletionTopic) -> list[bytes]:
    return sorted(message.payload for message in topics.waiting(topic))


def test_dead_letters_are_shown_with_their_story(topics: FakeDeletionTopics) -> None:
    bury(topics, 7)
    topics.put(DLQ, b"\xff no record" + b"x" * 10_000, properties={"foreign": "1"})
    first, second = list_dead_letters(topics.dead_letters(), 10)
    assert first.record == record_document(about(TOPIC, 7))
    assert (first.reason, first.tries) == ("too-young: 5 ms", 11)
    assert first.dead_since_ms == topics.clock.now_ms()
    assert second.record is None
    assert second.tries == 0
    assert "another client" in second.reason
    assert len(second.raw) <= 2_000


def test_looking_takes_nothing_away(topics: FakeDeletionTopics) -> None:
    bury(topics, 1, 2, 3)
    dead = topics.dead_letters()
    assert len(list_dead_letters(dead, 2)) == 2
    dead.close()
    assert len(topics.waiting(DLQ)) == 3
    assert len(list_dead_letters(topics.dead_letters(), 5)) == 3


def test_dead_letters_are_listed_page_by_page(topics: FakeDeletionTopics) -> None:
    bury(topics, *range(1, 8))
    pages, after = [], None
    while True:
        dead = topics.dead_letters()
        page = list_dead_letters(dead, 3, after)
        dead.close()
        if not page:
            break
        pages.append([letter.record["ledgerId"] for letter in page if letter.record])
        after = page[-1].message_id
    assert pages == [[1, 2, 3], [4, 5, 6], [7]]


def test_all_go_back_with_a_fresh_count(topics: FakeDeletionTopics) -> None:
    bury(topics, 1, 2)
    assert drive(topics, None, 10) == RedriveResult(redriven=2, left=0)
    assert topics.waiting(DLQ) == []
    for message in topics.waiting(PENDING):
        assert RECONSUMETIMES not in message.properties
        assert message.properties[ORIGIN_MESSAGE_ID].startswith("1:")
        assert message.key == str(TOPIC)


def test_at_most_as_many_as_asked_for_the_oldest_first(topics: FakeDeletionTopics) -> None:
    bury(topics, 1, 2, 3)
    assert drive(topics, None, 2) == RedriveResult(redriven=2, left=0)
    assert payloads(topics, DLQ) == [encode_record(about(TOPIC, 3))]


def test_chosen_ledgers_are_found_wherever_they_wait(topics: FakeDeletionTopics) -> None:
    bury(topics, *range(25), 99)
    topics.put(DLQ, b"poison")
    assert drive(topics, {LedgerId(99), LedgerId(3), LedgerId(1_000)}, 10) == RedriveResult(redriven=2, left=25)
    assert payloads(topics, PENDING) == sorted([encode_record(about(TOPIC, 3)), encode_record(about(TOPIC, 99))])
    assert len(topics.waiting(DLQ)) == 25


def test_the_limit_holds_for_chosen_ledgers_too(topics: FakeDeletionTopics) -> None:
    bury(topics, 5, 5, 5)
    assert drive(topics, {LedgerId(5)}, 2).redriven == 2
    assert len(topics.waiting(DLQ)) == 1


@pytest.mark.parametrize("stored", [True, False])
def test_without_a_receipt_a_dead_letter_stays(topics: FakeDeletionTopics, stored: bool) -> None:
    bury(topics, 1)
    topics.lose_receipts_next(stored=stored)
    assert drive(topics, None, 10) == RedriveResult(redriven=0, left=1)
    assert len(topics.waiting(DLQ)) == 1
    assert drive(topics, None, 10) == RedriveResult(redriven=1, left=0)


def test_an_acknowledgement_that_fails_leaves_two_copies_and_loses_none(topics: FakeDeletionTopics) -> None:
    bury(topics, 1)
    topics.hooks.fail_next("acknowledge", TemporaryError("connection closed"))
    with pytest.raises(TemporaryError):
        drive(topics, None, 10)
    assert len(topics.waiting(DLQ)) == len(topics.waiting(PENDING)) == 1


def test_redrive_without_dead_letters_does_nothing(topics: FakeDeletionTopics) -> None:
    assert drive(topics, None, 10) == RedriveResult(redriven=0, left=0)
    assert drive(topics, {LedgerId(5)}, 10) == RedriveResult(redriven=0, left=0)
    assert topics.messages(PENDING) == []


def test_poison_goes_back_when_all_do(topics: FakeDeletionTopics) -> None:
    topics.put(DLQ, b"poison")
    assert drive(topics, None, 10) == RedriveResult(redriven=1, left=0)
    assert payloads(topics, PENDING) == [b"poison"]
