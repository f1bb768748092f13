"""Behaviour of ledger deletion's topics, in memory and on a cluster."""

import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic, Delivery, OutgoingMessage, PublishResult
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import DELAY_TIME
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, TemporaryError

from tests.contract.deletion_topics_subjects import (
    PARTITIONS,
    Subject,
    cluster_subject,
    fake_subject,
    pass_ms,
    receive_for,
    receive_until,
)

STORED, ALREADY_STORED = PublishResult.STORED, PublishResult.ALREADY_STORED
PENDING, RETRY, DEAD_LETTER, OUTCOME = DeletionTopic
EVENT_TIME_MS = 1_700_000_000_123


@pytest.fixture(params=["fake", "cluster"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "fake":
        with fake_subject() as opened:
            yield opened
        return
    with cluster_subject(request.getfixturevalue("cluster").addresses) as opened:
        yield opened


def a_name() -> str:
    """A producer name no earlier test used."""
    return f"test-{uuid.uuid4()}"


def messages(count: int, *, keys: int = 1) -> list[OutgoingMessage]:
    return [
        OutgoingMessage(b"record %d" % number, key=f"persistent://t/n/topic-{number % keys}") for number in range(count)
    ]


def numbered(first: int, count: int) -> list[OutgoingMessage]:
    return [
        OutgoingMessage(b"record %d" % number, key="persistent://t/n/topic", sequence_id=number)
        for number in range(first, first + count)
    ]


def publish(subject: Subject, topic: DeletionTopic, outgoing: list[OutgoingMessage]) -> None:
    publisher = subject.topics.publisher(topic, a_name())
    assert publisher.publish(outgoing) == [STORED] * len(outgoing)
    publisher.close()


def retry(payload: bytes, delay_ms: int) -> OutgoingMessage:
    properties = {DELAY_TIME: str(delay_ms), "REAL_TOPIC": "persistent://pulsar/system/__ledger_deletion"}
    return OutgoingMessage(payload, key="persistent://t/n/topic", properties=properties, deliver_after_ms=delay_ms)


def payloads(deliveries: list[Delivery]) -> list[bytes]:
    return sorted(delivery.payload for delivery in deliveries)


# Setting up ------------------------------------------------------------------------------------------------------


def test_ensure_may_be_repeated_and_raced(subject: Subject) -> None:
    publish(subject, PENDING, messages(3))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda topics: topics.ensure(), [subject.topics, subject.other_sidecar]))
    consumer = subject.topics.pending()
    assert len(receive_until(subject, consumer, 3)) == 3
    consumer.close()


# Publishing ------------------------------------------------------------------------------------------------------


def test_a_record_arrives_as_it_was_sent(subject: Subject) -> None:
    properties = {"a": "1", "ümläut": "ß€"}
    publish(subject, PENDING, [OutgoingMessage(b"\x00\xff{}", key="persistent://t/n/ü", properties=properties)])
    consumer = subject.topics.pending()
    [delivery] = receive_until(subject, consumer, 1)
    assert (delivery.payload, delivery.key, dict(delivery.properties)) == (
        b"\x00\xff{}",
        "persistent://t/n/ü",
        properties,
    )
    assert re.fullmatch(r"\d+:\d+:[0-3](:\d+)?", delivery.message_id)
    assert re.fullmatch(r"persistent://pulsar/system/__ledger_deletion-partition-[0-3]", delivery.topic)
    assert abs(delivery.publish_time_ms - subject.clock.now_ms()) < 60_000
    assert delivery.redelivery_count == 0
    consumer.close()


def test_records_of_one_topic_share_a_partition_and_many_topics_use_all(subject: Subject) -> None:
    publish(subject, PENDING, messages(200, keys=40))
    consumer = subject.topics.pending()
    deliveries = receive_until(subject, consumer, 200)
    partitions: dict[str | None, set[str]] = {}
    for delivery in deliveries:
        partitions.setdefault(delivery.key, set()).add(delivery.topic)
    assert len(deliveries) == 200
    assert all(len(topics) == 1 for topics in partitions.values())
    assert len(set().union(*partitions.values())) == PARTITIONS
    consumer.close()


def test_a_name_belongs_to_one_publisher_at_a_time(subject: Subject) -> None:
    name = a_name()
    publisher = subject.topics.publisher(PENDING, name)
    with pytest.raises(ConflictError):
        subject.other_sidecar.publisher(PENDING, name)
    publisher.close()
    subject.other_sidecar.publisher(PENDING, name).close()


def test_a_resend_after_a_crash_is_no_second_record(subject: Subject) -> None:
    name = a_name()
    first = subject.topics.publisher(PENDING, name)
    assert first.publish(numbered(0, 3)) == [STORED] * 3
    assert first.publish(numbered(0, 3)) == [ALREADY_STORED] * 3
    first.close()
    second = subject.other_sidecar.publisher(PENDING, name)
    assert second.publish(numbered(0, 5)) == [ALREADY_STORED] * 3 + [STORED] * 2
    second.close()
    consumer = subject.topics.pending()
    deliveries = receive_for(subject, consumer, 1500)
    assert payloads(deliveries) == [b"record %d" % number for number in range(5)]
    assert all(not delivery.properties for delivery in deliveries)
    consumer.close()


def test_the_same_ids_under_another_name_are_other_records(subject: Subject) -> None:
    for _ in range(2):
        publish(subject, PENDING, numbered(0, 2))
    consumer = subject.topics.pending()
    assert len(receive_until(subject, consumer, 4)) == 4
    consumer.close()


def test_a_publisher_counts_on_without_ids(subject: Subject) -> None:
    name = a_name()
    for topics in (subject.topics, subject.other_sidecar):
        publisher = topics.publisher(PENDING, name)
        assert publisher.publish(messages(2)) == [STORED] * 2
        assert publisher.publish(messages(2)) == [STORED] * 2
        publisher.close()


@pytest.mark.parametrize("ids", [[1, None], [3, 2], [2, 2], [-1]])
def test_ids_that_make_no_sequence_are_refused(subject: Subject, ids: list[int | None]) -> None:
    publisher = subject.topics.publisher(PENDING, a_name())
    with pytest.raises(InvalidInputError):
        publisher.publish([OutgoingMessage(b"x", sequence_id=number) for number in ids])
    publisher.close()


def test_a_closed_publisher_stores_nothing_and_reports_it(subject: Subject) -> None:
    publisher = subject.topics.publisher(PENDING, a_name())
    publisher.close()
    publisher.close()
    assert publisher.publish(messages(2)) == [PublishResult.NOT_STORED] * 2


def test_publishing_nothing_is_nothing(subject: Subject) -> None:
    publisher = subject.topics.publisher(PENDING, a_name())
    assert publisher.publish([]) == []
    publisher.close()


# Consuming -------------------------------------------------------------------------------------------------------


def test_what_is_acknowledged_does_not_come_again(subject: Subject) -> None:
    publish(subject, PENDING, messages(20, keys=5))
    first = subject.topics.pending()
    deliveries = receive_until(subject, first, 20)
    first.acknowledge(deliveries)
    first.acknowledge(deliveries[:1])
    first.close()
    second = subject.other_sidecar.pending()
    assert receive_for(subject, second, 1000) == []
    second.close()


def test_what_a_closed_consumer_held_goes_to_the_other(subject: Subject) -> None:
    publish(subject, PENDING, messages(20, keys=5))
    first = subject.topics.pending()
    held = receive_until(subject, first, 1)
    second = subject.other_sidecar.pending()
    first.close()
    first.close()
    found = receive_until(subject, second, 20)
    assert held
    assert payloads(found) == sorted(b"record %d" % number for number in range(20))
    second.close()


def test_what_is_held_is_not_handed_out_twice(subject: Subject) -> None:
    publish(subject, PENDING, messages(10, keys=5))
    consumer, other = subject.topics.pending(), subject.other_sidecar.pending()
    found = receive_for(subject, consumer, 1000) + receive_for(subject, other, 1000)
    assert payloads(found) == sorted(b"record %d" % number for number in range(10))
    consumer.close()
    other.close()


def test_a_postponed_record_comes_again_and_its_finished_neighbours_do_not(subject: Subject) -> None:
    publish(subject, PENDING, messages(5))
    consumer = subject.topics.pending()
    deliveries = receive_until(subject, consumer, 5)
    consumer.acknowledge(deliveries[:2])
    consumer.postpone([deliveries[2]])
    consumer.acknowledge([deliveries[3]])
    [again] = receive_for(subject, consumer, 2500)
    assert again.payload == deliveries[2].payload
    assert again.message_id == deliveries[2].message_id
    assert again.redelivery_count >= 1
    consumer.acknowledge([again, deliveries[4]])
    pass_ms(subject, 500)
    consumer.close()
    rest = subject.topics.pending()
    assert receive_for(subject, rest, 1000) == []
    rest.close()


def test_a_closed_consumer_refuses_work(subject: Subject) -> None:
    publish(subject, PENDING, messages(1))
    consumer = subject.topics.pending()
    deliveries = receive_until(subject, consumer, 1)
    consumer.close()
    with pytest.raises(TemporaryError):
        consumer.acknowledge(deliveries)
    with pytest.raises(TemporaryError):
        consumer.receive()


# Retrying --------------------------------------------------------------------------------------------------------


def test_a_retry_arrives_after_its_delay_with_its_properties(subject: Subject) -> None:
    publish(subject, RETRY, [replace(retry(b"later", 1500), event_time_ms=EVENT_TIME_MS)])
    consumer = subject.topics.pending()
    assert receive_for(subject, consumer, 700) == []
    [delivery] = receive_until(subject, consumer, 1)
    assert delivery.payload == b"later"
    assert delivery.event_time_ms == EVENT_TIME_MS
    assert delivery.properties[DELAY_TIME] == "1500"
    assert delivery.topic == "persistent://pulsar/system/__ledger_deletion-RETRY"
    assert re.fullmatch(r"\d+:\d+:-1", delivery.message_id)
    assert subject.clock.now_ms() >= delivery.publish_time_ms + 1400
    consumer.close()


def test_overdue_finds_what_was_due_and_not_delivered(subject: Subject) -> None:
    publish(subject, RETRY, [retry(b"due", 300), retry(b"far", 3_600_000), retry(b"due too", 300), retry(b"now", 0)])
    pass_ms(subject, 1500)
    consumer = subject.topics.pending()
    assert consumer.overdue(60_000, 10) == []
    one = consumer.overdue(500, 1)
    rest = consumer.overdue(500, 10)
    assert payloads(one + rest) == [b"due", b"due too", b"now"]
    assert consumer.overdue(500, 10) == []
    consumer.acknowledge(one + rest)
    assert receive_for(subject, consumer, 1500) == []
    assert consumer.overdue(500, 10) == []
    consumer.close()
    other = subject.other_sidecar.pending()
    assert other.overdue(500, 10) == []
    other.close()


def test_overdue_passes_over_what_is_acknowledged(subject: Subject) -> None:
    publish(subject, RETRY, [retry(b"%d" % number, 200) for number in range(6)])
    consumer = subject.topics.pending()
    deliveries = receive_until(subject, consumer, 6)
    done = [delivery for delivery in deliveries if delivery.payload in (b"0", b"2", b"3", b"5")]
    consumer.acknowledge(done)
    pass_ms(subject, 500)
    consumer.close()
    other = subject.other_sidecar.pending()
    assert payloads(other.overdue(0, 10)) == [b"1", b"4"]
    other.close()


def test_what_waits_is_listed_in_order_and_not_consumed(subject: Subject) -> None:
    publish(subject, RETRY, [retry(b"retried", 3_600_000)])
    pass_ms(subject, 20)
    publish(subject, PENDING, [OutgoingMessage(b"%d" % number, key=str(number)) for number in range(6)])
    with closing(subject.topics.unacknowledged()) as waiting:
        assert payloads(list(waiting)) == [b"0", b"1", b"2", b"3", b"4", b"5", b"retried"]
    consumer = subject.topics.pending()
    deliveries = receive_until(subject, consumer, 6)
    consumer.acknowledge(deliveries)
    pass_ms(subject, 1000)
    consumer.close()
    with closing(subject.topics.unacknowledged()) as waiting:
        assert payloads(list(waiting)) == [b"retried"]


# Dead letters ----------------------------------------------------------------------------------------------------


def test_dead_letters_have_one_user_and_wait_until_acknowledged(subject: Subject) -> None:
    publish(subject, DEAD_LETTER, messages(5))
    first = subject.topics.dead_letters()
    with pytest.raises(ConflictError):
        subject.other_sidecar.dead_letters()
    some = first.receive(2)
    rest = first.receive(10)
    assert subject.topics.backlog().dead_letters == 5
    assert [delivery.payload for delivery in some + rest] == [b"record %d" % number for number in range(5)]
    first.acknowledge(some)
    assert first.receive(10) == []
    first.close()
    second = subject.other_sidecar.dead_letters()
    assert [delivery.payload for delivery in second.receive(10)] == [b"record 2", b"record 3", b"record 4"]
    assert subject.topics.backlog().dead_letters == 3
    second.close()
    second.close()


def test_a_single_dead_letter_can_be_taken(subject: Subject) -> None:
    publish(subject, DEAD_LETTER, messages(5))
    user = subject.topics.dead_letters()
    deliveries = user.receive(10)
    user.acknowledge([deliveries[3]])
    user.close()
    other = subject.other_sidecar.dead_letters()
    assert [delivery.payload for delivery in other.receive(10)] == [b"record %d" % number for number in (0, 1, 2, 4)]
    other.close()


# Outcomes --------------------------------------------------------------------------------------------------------


def test_outcomes_are_read_from_a_time_to_now(subject: Subject) -> None:
    publish(subject, OUTCOME, [OutgoingMessage(b"old")])
    pass_ms(subject, 50)
    since_ms = subject.clock.now_ms()
    pass_ms(subject, 50)
    for number in range(3):
        publish(subject, OUTCOME, [OutgoingMessage(b"new %d.%d" % (number, part)) for part in range(3)])
    found = list(subject.topics.outcomes_since(since_ms))
    assert found == [b"new %d.%d" % (number, part) for number in range(3) for part in range(3)]
    assert b"old" in list(subject.topics.outcomes_since(0))
    assert list(subject.topics.outcomes_since(subject.clock.now_ms() + 60_000)) == []


# Backlog ---------------------------------------------------------------------------------------------------------


def test_the_backlog_is_zero_exactly_when_nothing_waits(subject: Subject) -> None:
    empty = subject.topics.backlog()
    assert (empty.total, empty.oldest_publish_ms) == (0, None)
    assert len(empty.per_topic) == PARTITIONS + 1
    before_ms = subject.clock.now_ms()
    publish(subject, PENDING, messages(30, keys=10))
    publish(subject, RETRY, [retry(b"far", 3_600_000)])
    waiting = subject.topics.backlog()
    assert waiting.total > 0
    assert waiting.per_topic["persistent://pulsar/system/__ledger_deletion-RETRY"] == 1
    assert waiting.oldest_publish_ms is not None
    assert before_ms - 1000 <= waiting.oldest_publish_ms <= subject.clock.now_ms()
    consumer = subject.topics.pending()
    consumer.acknowledge(receive_until(subject, consumer, 30))
    pass_ms(subject, 500)
    assert subject.topics.backlog().total == 1
    consumer.close()
