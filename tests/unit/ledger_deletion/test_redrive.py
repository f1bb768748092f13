"""Dead letters are shown as they are, and leave the topic only when their copy is stored."""

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo, encode_record, record_document
from pulsar_sidecar.features.ledger_deletion.results import RedriveResult
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import ORIGIN_MESSAGE_ID, REASON, RECONSUMETIMES
from pulsar_sidecar.features.ledger_deletion.send import list_dead_letters, redrive
from pulsar_sidecar.features.ledger_deletion.steps import Steps
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.clock import FakeClock
from tests.fakes.deletion_topics import FakeDeletionTopics

TOPIC = parse_topic_name("persistent://public/default/orders")
DLQ, PENDING = DeletionTopic.DEAD_LETTER, DeletionTopic.PENDING


@pytest.fixture
def topics() -> FakeDeletionTopics:
    return FakeDeletionTopics(FakeClock())


def record(ledger_id: int) -> PendingDeleteLedgerInfo:
    return PendingDeleteLedgerInfo(TOPIC, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, LedgerId(ledger_id))


def bury(topics: FakeDeletionTopics, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        properties = {RECONSUMETIMES: "11", REASON: "too-young: 5 ms", ORIGIN_MESSAGE_ID: f"1:{ledger_id}:0"}
        topics.put(DLQ, encode_record(record(ledger_id)), key=str(TOPIC), properties=properties)


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
    assert first.record == record_document(record(7))
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
    assert payloads(topics, DLQ) == [encode_record(record(3))]


def test_chosen_ledgers_are_found_wherever_they_wait(topics: FakeDeletionTopics) -> None:
    bury(topics, *range(25), 99)
    topics.put(DLQ, b"poison")
    assert drive(topics, {LedgerId(99), LedgerId(3), LedgerId(1_000)}, 10) == RedriveResult(redriven=2, left=25)
    assert payloads(topics, PENDING) == sorted([encode_record(record(3)), encode_record(record(99))])
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
