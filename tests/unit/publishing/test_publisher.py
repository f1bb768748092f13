"""`ExactlyOncePublisher` against brokers that judge duplicates as Pulsar's do."""

from collections.abc import Callable, Iterable

import pytest
from pulsar_sidecar.features.publishing.messages import (
    BatchLimits,
    Confirmation,
    NameTakenError,
    Outcome,
    OutgoingMessage,
    ProducerStateLostError,
)
from pulsar_sidecar.features.publishing.publisher import ExactlyOncePublisher
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, PermanentError, TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.clock import FakeClock
from tests.fakes.deduplicating_broker import FakeDeduplicatingBrokers, FakeTopic

TOPIC = parse_topic_name("public/default/records")
NAME = "loader"
THREE = BatchLimits(messages=3)


@pytest.fixture
def brokers() -> FakeDeduplicatingBrokers:
    return FakeDeduplicatingBrokers()


def opened(brokers: FakeDeduplicatingBrokers, name: str | None = NAME, **options: object) -> ExactlyOncePublisher:
    chosen = {"limits": THREE, **options}
    return ExactlyOncePublisher(brokers, FakeClock(), TOPIC, producer_name=name, **chosen)  # type: ignore[arg-type]


def records(ids: Iterable[int]) -> list[OutgoingMessage]:
    return [OutgoingMessage(b"%d" % number, number) for number in ids]


def publish(publisher: ExactlyOncePublisher, ids: Iterable[int]) -> None:
    for record in records(ids):
        publisher.publish(record)


def publish_and_flush(publisher: ExactlyOncePublisher, ids: Iterable[int]) -> None:
    publish(publisher, ids)
    publisher.flush()


def test_records_are_stored_once_in_order_in_batches(brokers: FakeDeduplicatingBrokers) -> None:
    confirmed: list[Confirmation] = []
    with opened(brokers, on_confirmed=confirmed.append) as publisher:
        publish(publisher, range(0, 80, 10))
        publisher.flush()
        assert publisher.last_sequence_id == 70
    stored = brokers.topic(TOPIC)
    assert stored.sequence_ids == [0, 10, 20, 30, 40, 50, 60, 70]
    assert [(entry.sequence_id, entry.highest_sequence_id) for entry in stored.entries] == [(0, 20), (30, 50), (60, 70)]
    assert [(one.outcome, one.position) for one in confirmed] == [
        (Outcome.STORED, entry.position) for entry in stored.entries
    ]
    assert publisher.counts == {Outcome.STORED: 8}
    assert not stored.connected


def test_an_incomplete_batch_waits_for_flush_or_close(brokers: FakeDeduplicatingBrokers) -> None:
    publisher = opened(brokers)
    publish(publisher, [1])
    assert not brokers.sent
    publisher.close()
    assert brokers.topic(TOPIC).sequence_ids == [1]
    publisher.close()
    with pytest.raises(ConflictError, match="closed"):
        publish(publisher, [2])


def test_leaving_by_an_error_sends_nothing_more(brokers: FakeDeduplicatingBrokers) -> None:
    with pytest.raises(InvalidInputError), opened(brokers) as publisher:
        publish(publisher, [1, 0])
    assert not brokers.sent


def test_large_messages_end_a_batch(brokers: FakeDeduplicatingBrokers) -> None:
    with opened(brokers, limits=BatchLimits(messages=100, size_bytes=1000)) as publisher:
        for number, size in enumerate([10, 10, 2000, 10, 900, 900]):
            publisher.publish(OutgoingMessage(b"x" * size, number))
    assert [len(entry.messages) for entry in brokers.topic(TOPIC).entries] == [2, 1, 1, 1, 1]


# --- names and ids -------------------------------------------------------------------------------------------------


def test_a_broker_assigns_a_name_and_the_publisher_counts(brokers: FakeDeduplicatingBrokers) -> None:
    with opened(brokers, None) as publisher:
        assert publisher.producer_name == "standalone-0-1"
        for _ in range(4):
            publisher.publish(OutgoingMessage(b"x"))
        brokers.die()
        publisher.flush()
    assert brokers.topic(TOPIC).sequence_ids == [0, 1, 2, 3]
    assert {name for name, _ in brokers.sent} == {"standalone-0-1"}


@pytest.mark.parametrize(("initial", "ids"), [(None, [6, 7]), (100, [100, 101])])
def test_counting_begins_after_the_last_one_or_where_asked(
    initial: int | None, ids: list[int], brokers: FakeDeduplicatingBrokers
) -> None:
    with opened(brokers) as publisher:
        publish(publisher, [5])
    with opened(brokers, initial_sequence_id=initial) as publisher:
        for _ in ids:
            publisher.publish(OutgoingMessage(b"x"))
    assert brokers.topic(TOPIC).sequence_ids == [5, *ids]


@pytest.mark.parametrize(("first", "second"), [(None, 1), (1, None)])
def test_ids_are_on_all_messages_or_on_none(
    first: int | None, second: int | None, brokers: FakeDeduplicatingBrokers
) -> None:
    with opened(brokers) as publisher:
        publisher.publish(OutgoingMessage(b"x", first))
        with pytest.raises(InvalidInputError, match="all of them one, or none"):
            publisher.publish(OutgoingMessage(b"x", second))
    assert len(brokers.topic(TOPIC).payloads) == 1


@pytest.mark.parametrize("number", [7, 6, -1, 2**63])
def test_ids_rise_and_are_63_bits(number: int, brokers: FakeDeduplicatingBrokers) -> None:
    with opened(brokers) as publisher:
        publish(publisher, [7])
        with pytest.raises(InvalidInputError):
            publish(publisher, [number])
        publish(publisher, [2**63 - 1])
    assert brokers.topic(TOPIC).sequence_ids == [7, 2**63 - 1]


# --- resuming ------------------------------------------------------------------------------------------------------


def test_publishing_everything_again_stores_only_the_rest(brokers: FakeDeduplicatingBrokers) -> None:
    with opened(brokers) as publisher:
        publish(publisher, range(5))
    with opened(brokers) as publisher:
        assert publisher.last_sequence_id == 4
        publish(publisher, range(9))
        publisher.flush()
        assert publisher.counts == {Outcome.STORED: 4, Outcome.DUPLICATE: 5}
    assert brokers.topic(TOPIC).sequence_ids == list(range(9))
    resent = [batch for _, batch in brokers.sent][2:]
    assert [len(batch.messages) for batch in resent] == [1, 1, 1, 1, 1, 3, 1]


def test_messages_beyond_the_resume_point_wait_for_receipts(brokers: FakeDeduplicatingBrokers) -> None:
    first = opened(brokers)
    publish_and_flush(first, [0])
    brokers.hold = True
    publish(first, range(1, 4))
    topic = brokers.topic(TOPIC)
    assert (topic.pushed, topic.persisted) == ({NAME: 3}, {NAME: 0})
    topic.disconnect("killed")
    publisher = opened(brokers)
    assert publisher.last_sequence_id == 3
    tries: list[str] = []

    def step(happening: str) -> None:
        tries.extend([happening] * happening.startswith("send"))
        if happening == "send 4":
            assert topic.persisted == {NAME: 3}
        if len(tries) == 3:
            tries.append("bookies refuse what was pushed")
            topic.fail_writes()

    brokers.step = step
    publish_and_flush(publisher, range(1, 7))
    assert tries[:3] == ["send 1", "send 1", "send 1"]
    assert topic.sequence_ids == list(range(7))


@pytest.mark.parametrize("got_through", [0, 1])
def test_a_resume_point_is_asked_for_alone(got_through: int, brokers: FakeDeduplicatingBrokers) -> None:
    first = opened(brokers)
    brokers.hold = True
    publish(first, range(3))
    topic = brokers.topic(TOPIC)
    topic.disconnect("killed")
    publisher = opened(brokers)
    topic.write(got_through)
    brokers.sent.clear()
    brokers.step = lambda happening: topic.write(1)
    publish_and_flush(publisher, [2, 3, 4, 5])
    batches = [[message.sequence_id for message in batch.messages] for _, batch in brokers.sent]
    assert batches[-2:] == [[2], [3, 4, 5]]
    assert topic.sequence_ids == list(range(6))


@pytest.mark.parametrize("got_through", [0, 1, 2, 3])
def test_batches_are_sent_again_as_they_were(got_through: int, brokers: FakeDeduplicatingBrokers) -> None:
    with opened(brokers) as publisher:
        publish_and_flush(publisher, [0])
        brokers.hold = True
        publish(publisher, range(1, 10))
        brokers.die(got_through)
        publisher.flush()
        assert publisher.counts[Outcome.STORED_BEFORE_ANSWER_LOST] == 3 * got_through
    assert brokers.topic(TOPIC).sequence_ids == list(range(10))
    batches = [[message.sequence_id for message in batch.messages] for _, batch in brokers.sent]
    assert batches == [[0], *[[1, 2, 3], [4, 5, 6], [7, 8, 9]] * 2]


def test_a_call_gives_up_and_a_later_one_continues(brokers: FakeDeduplicatingBrokers) -> None:
    with opened(brokers) as publisher:
        publish(publisher, [1])
        brokers.topic(TOPIC).disconnect("gone")
        brokers.refusals.extend(TemporaryError("no broker") for _ in range(500))
        with pytest.raises(TemporaryError, match=r"120 s .*no broker.*flush"):
            publisher.flush()
        brokers.refusals.clear()
    assert brokers.topic(TOPIC).sequence_ids == [1]


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["Disabled", "Removing", "Failed"])
def test_a_topic_without_deduplication_is_refused(status: str, brokers: FakeDeduplicatingBrokers) -> None:
    brokers.topic(TOPIC).status = status
    with pytest.raises(ConflictError, match=f"{status}.*set-deduplication --enable"):
        opened(brokers)
    assert not brokers.topic(TOPIC).connected


def test_the_publisher_waits_for_a_loading_topic(brokers: FakeDeduplicatingBrokers) -> None:
    topic = brokers.topic(TOPIC)
    topic.status = "Recovering"
    seen: list[str] = []

    def step(happening: str) -> None:
        seen.append(happening)
        topic.status = "Enabled" if seen.count("status") == 3 else topic.status

    brokers.step = step
    opened(brokers).close()
    assert seen.count("status") == 3


def test_disabled_deduplication_is_noticed_before_a_resend(
    brokers: FakeDeduplicatingBrokers,
) -> None:
    publisher = opened(brokers)
    brokers.lost_answers = 1
    brokers.step = lambda happening: setattr(brokers.topic(TOPIC), "status", "Disabled") if brokers.sent else None
    with pytest.raises(ConflictError, match="Disabled"):
        publish_and_flush(publisher, range(3))
    assert brokers.topic(TOPIC).sequence_ids == [0, 1, 2]
    with pytest.raises(ConflictError, match="Disabled"):
        publisher.close()


def test_nothing_is_resent_to_a_forgetful_broker(brokers: FakeDeduplicatingBrokers) -> None:
    publisher = opened(brokers)
    publish(publisher, range(3))
    publisher.flush()
    brokers.lost_answers = 1
    brokers.step = lambda happening: brokers.topic(TOPIC).forget(NAME) if len(brokers.sent) == 2 else None
    with pytest.raises(ProducerStateLostError, match="confirmed message 2 and now remembers -1"):
        publish_and_flush(publisher, range(3, 6))
    assert brokers.topic(TOPIC).sequence_ids == list(range(6))


FORGETS: list[tuple[str, Callable[[FakeTopic], None]]] = [
    ("the name", lambda topic: topic.forget(NAME)),
    ("the topic", lambda topic: topic.make_again()),
    ("unwritten messages", lambda topic: topic.fail_writes()),
]


@pytest.mark.parametrize(("what", "forget"), FORGETS)
@pytest.mark.parametrize("is_resumed", [False, True])
def test_nothing_is_resent_if_broker_forgot_before_first_receipt(
    what: str, forget: Callable[[FakeTopic], None], *, is_resumed: bool, brokers: FakeDeduplicatingBrokers
) -> None:
    if is_resumed:
        with opened(brokers) as before:
            publish(before, range(3))
    publisher = opened(brokers)
    topic, sent = brokers.topic(TOPIC), len(brokers.sent)
    brokers.lost_answers, brokers.hold = 1, what == "unwritten messages"

    def step(happening: str) -> None:
        if len(brokers.sent) == sent + 1 and not forgotten:
            forgotten.append(happening)
            forget(topic)

    forgotten: list[str] = []
    brokers.step = step
    if is_resumed and brokers.hold:
        publish_and_flush(publisher, range(3, 6))  # It remembers what was stored, so the rest is not.
        assert topic.sequence_ids == [*range(6)]
        return
    with pytest.raises(ProducerStateLostError, match=r"may have stored messages up to 5, .* now remembers -1"):
        publish_and_flush(publisher, range(3, 6))
    assert len(brokers.sent) == sent + 1


@pytest.mark.parametrize(("first", "knows"), [(4, False), (1, False), (2, False), (4, True)])
def test_messages_that_a_predecessor_only_pushed_are_not_skipped(
    first: int, knows: bool, brokers: FakeDeduplicatingBrokers
) -> None:
    """The predecessor's messages 2 to 4 are pushed when this publisher asks, and then bookies fail to write them."""
    publish_and_flush(predecessor := opened(brokers), range(2))
    brokers.hold = True
    publish(predecessor, range(2, 5))
    predecessor.abandon()
    publisher = opened(brokers)
    assert publisher.last_sequence_id_of(0) == 4
    if knows:
        publisher.know_stored(0, 1)
    brokers.topic(TOPIC).fail_writes()
    brokers.hold = False

    if first > 2 and not knows:
        with pytest.raises(ProducerStateLostError, match=r"up to 4, .* now remembers 1"):
            publish_and_flush(publisher, range(first, 8))
        assert brokers.topic(TOPIC).sequence_ids == [0, 1]
    else:
        publish_and_flush(publisher, range(2 if knows else first, 8))
        assert brokers.topic(TOPIC).sequence_ids == [*range(8)]


def test_brokers_may_forget_messages_known_to_be_stored(brokers: FakeDeduplicatingBrokers) -> None:
    """The name is forgotten when it is opened, and the topic is made again before anything is sent."""
    publisher = opened(brokers)
    publisher.know_stored(0, 2)
    brokers.topic(TOPIC).make_again()
    with pytest.raises(ProducerStateLostError):
        publish_and_flush(publisher, range(3, 6))
    assert not brokers.sent


def test_a_connection_lost_before_the_first_message_is_harmless(
    brokers: FakeDeduplicatingBrokers,
) -> None:
    with opened(brokers) as publisher:
        brokers.topic(TOPIC).disconnect("the broker was restarted")
        publish(publisher, range(3))
    assert brokers.topic(TOPIC).sequence_ids == [0, 1, 2]


def test_a_second_publisher_of_the_name_is_refused_after_a_while(brokers: FakeDeduplicatingBrokers) -> None:
    with opened(brokers) as first:
        with pytest.raises(NameTakenError, match="stop the other publisher"):
            opened(brokers)
        publish(first, range(3))
    assert brokers.topic(TOPIC).sequence_ids == [0, 1, 2]


def test_the_rest_of_a_dead_publisher_is_waited_for(brokers: FakeDeduplicatingBrokers) -> None:
    opened(brokers)
    openings: list[str] = []

    def step(happening: str) -> None:
        openings.append(happening)
        if len(openings) == 4:
            brokers.topic(TOPIC).disconnect("its connection is dead")

    brokers.step = step
    opened(brokers).close()


def test_a_shared_producer_name_is_noticed(brokers: FakeDeduplicatingBrokers) -> None:
    first = opened(brokers)
    publish(first, [1])
    brokers.topic(TOPIC).disconnect("frozen for too long")
    with opened(brokers) as second:
        publish(second, [5])
    with pytest.raises(NameTakenError, match="another publisher"):
        first.flush()


def test_a_refusal_ends_the_publisher(brokers: FakeDeduplicatingBrokers) -> None:
    publisher = opened(brokers)
    brokers.topic(TOPIC).disconnect("gone")
    brokers.refusals.append(PermanentError("terminated"))
    publish(publisher, [1])
    for call in (publisher.flush, publisher.flush, publisher.close):
        with pytest.raises(PermanentError, match="terminated"):
            call()


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("non-persistent://public/default/records", NAME),
        ("pulsar/system/records", NAME),
        ("public/default/records", "pulsar.repl.west"),
        ("public/default/records", ""),
        ("public/default/records", "a\udcff"),
    ],
)
def test_topics_and_names_without_deduplication_are_refused(
    topic: str, name: str, brokers: FakeDeduplicatingBrokers
) -> None:
    with pytest.raises(InvalidInputError):
        ExactlyOncePublisher(brokers, FakeClock(), parse_topic_name(topic), producer_name=name)
    assert not brokers.topics


# --- partitions ----------------------------------------------------------------------------------------------------


def test_added_partitions_are_noticed(brokers: FakeDeduplicatingBrokers) -> None:
    brokers.partition_counts[TOPIC] = 3
    publisher = opened(brokers, partitions=3)
    brokers.partition_counts[TOPIC] = 4
    brokers.die()
    with pytest.raises(ConflictError, match="has 4 partitions and had 3"):
        publish_and_flush(publisher, range(5))
