"""Each record once, in order, on real brokers: they are killed, topics move, responses and publishers are lost."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pulsar
import pytest
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnections, TopicOwners
from pulsar_sidecar.adapters.pulsar_wire.producers import OpenProducer
from pulsar_sidecar.adapters.pulsar_wire.sequenced_batches import entries_of
from pulsar_sidecar.bootstrap.exactly_once import open_reader
from pulsar_sidecar.features.publishing.messages import Batch, BatchLimits, NameTakenError, Outcome, OutgoingMessage
from pulsar_sidecar.features.publishing.partition_publisher import PublishTimeouts
from pulsar_sidecar.features.publishing.publisher import ExactlyOncePublisher
from pulsar_sidecar.features.publishing.reader import ReadPosition
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.cluster.exactly_once import CLOCK, LosingAnswers, Setup, exactly_once_setup
from tests.cluster.reading_into_sqlite import killed_after, opened
from tests.cluster.running import ClusterUnderTest

RECORD_BYTES = 37
LARGE_BYTES = 12 * 1024 * 1024


@pytest.fixture(scope="module")
def setup(cluster: ClusterUnderTest) -> Iterator[Setup]:
    with exactly_once_setup(cluster) as one:
        yield one


def record(number: int) -> OutgoingMessage:
    """Return a file's record, whose id is its offset."""
    return OutgoingMessage(b"record %d" % number, number * RECORD_BYTES, event_time_ms=number + 1)


def publish(publisher: ExactlyOncePublisher, numbers: range) -> None:
    for number in numbers:
        publisher.publish(record(number))


def numbers_in(messages: list[pulsar.Message]) -> list[int]:
    return [int(message.data().split()[1]) for message in messages]


def demand_each_once_in_order(setup: Setup, topic: TopicName, partitions: int, count: int) -> None:
    names = [topic.partition(index) for index in range(partitions)] or [topic]
    stored = [numbers_in(setup.stored(name)) for name in names]
    for numbers in stored:
        assert numbers == sorted(set(numbers)), "in order, and none twice"
    assert sorted(number for numbers in stored for number in numbers) == list(range(count)), "and none is missing"


def test_brokers_are_killed_and_topics_move(setup: Setup) -> None:
    topic = setup.topic(partitions=3)

    def move() -> None:
        for partition in (0, 1, 2):
            setup.unload(topic.partition(partition))
        owner = setup.owner(topic.partition(0))
        setup.cluster.kill(owner)
        setup.cluster.restart(owner)
        setup.unload_namespace()

    with setup.publisher(topic) as publisher:
        count = 500
        publish(publisher, range(count))
        # A broker that goes before its first receipt cannot be distinguished from one that has forgotten.
        publisher.flush()
        with ThreadPoolExecutor(1) as mover:
            moving = mover.submit(move)
            while not moving.done() or count < 20_000:
                publish(publisher, range(count, count + 500))
                count += 500
            moving.result()
        publisher.flush()
        counts = publisher.counts
    assert counts[Outcome.STORED] + counts[Outcome.STORED_BEFORE_ANSWER_LOST] == count
    assert counts[Outcome.DUPLICATE] == 0
    demand_each_once_in_order(setup, topic, 3, count)


def test_answers_are_lost(setup: Setup) -> None:
    topic = setup.topic()
    network = LosingAnswers(setup.producers, every=7)
    with setup.publisher(topic, producers=network) as publisher:
        publish(publisher, range(3_000))
        publisher.flush()
        assert publisher.counts[Outcome.STORED_BEFORE_ANSWER_LOST] > 0
    assert network.lost > 3
    demand_each_once_in_order(setup, topic, 0, 3_000)


def test_without_deduplication_the_same_stores_duplicates(setup: Setup) -> None:
    topic = setup.topic()
    setup.admin.set_policy(topic, "deduplicationEnabled", False)
    with pytest.raises(ConflictError, match="set-deduplication"):
        until_refused(lambda: setup.publisher(topic).close())
    deceived = LosingAnswers(setup.producers, every=7, lie=True)
    with setup.publisher(topic, producers=deceived) as publisher:
        publish(publisher, range(3_000))
    numbers = numbers_in(setup.stored(topic))
    assert len(numbers) > len(set(numbers))


def until_refused(attempt: Callable[[], None]) -> None:
    """Brokers apply a policy within moments, not at once."""
    for _ in range(100):
        attempt()
        CLOCK.wait_seconds(0.2)


def test_a_publisher_that_died_is_replaced_by_one_with_other_batches(setup: Setup) -> None:
    topic = setup.topic(partitions=3)
    first = setup.publisher(topic)
    publish(first, range(2_345))
    first.abandon()
    with setup.publisher(topic, messages=130) as second:
        lasts = [second.last_sequence_id_of(partition) for partition in range(3)]
        publish(second, range(4_000))
        second.flush()
        assert second.counts[Outcome.DUPLICATE] >= 2_000
        assert second.counts[Outcome.STORED] + second.counts[Outcome.DUPLICATE] == 4_000
    assert max(lasts) % RECORD_BYTES == 0
    demand_each_once_in_order(setup, topic, 3, 4_000)


def test_large_messages_arrive_whole_and_once(setup: Setup) -> None:
    topic = setup.topic()
    network = LosingAnswers(setup.producers, every=3)
    large = {4, 5, 9}
    with setup.publisher(topic, messages=2, producers=network) as publisher:
        for number in range(12):
            payload = b"record %d " % number + (b"x" * LARGE_BYTES if number in large else b"")
            publisher.publish(OutgoingMessage(payload, number))
            if number == 3:
                publisher.flush()  # as above
            if number == 9:
                setup.unload(topic)
    stored = setup.stored(topic)
    assert numbers_in(stored) == list(range(12))
    assert [len(message.data()) > LARGE_BYTES for message in stored] == [number in large for number in range(12)]


# --- half a message ------------------------------------------------------------------------------------------------

HALF = Batch([OutgoingMessage(b"record 1 " + b"x" * LARGE_BYTES, 1)], 1, 1)


def with_first_chunk(setup: Setup, bearing: int) -> TopicName:
    """Return a topic with message 0 and half of message 1, whose entry bears the id 0 or 1."""
    topic = setup.topic()
    with setup.publisher(topic) as publisher:
        publisher.publish(record(0))
    with ExitStack() as stack:
        connections = stack.enter_context(closing(BinaryConnections(ClientCredentials(), TlsOptions(), CLOCK)))
        owners = TopicOwners(setup.cluster.addresses.broker_service_url, connections)
        connection = stack.enter_context(connections.using(owners.of(topic)))
        producer = OpenProducer(connection, topic, "loader")
        first = next(entries_of(HALF, 0, "loader", CLOCK.now_ms(), connection.max_message_bytes, "half"))
        first.metadata.sequence_id = bearing
        producer.send(first.metadata, first.payload, is_chunk=True, judged_by=1)
        producer.receipt()
        producer.leave()
    setup.unload(topic)
    return topic


def test_half_a_message_in_the_topic_does_not_hide_the_whole(setup: Setup) -> None:
    topic = with_first_chunk(setup, bearing=0)
    with setup.publisher(topic) as publisher:
        assert publisher.last_sequence_id == 0
        publisher.publish(HALF.messages[0])
    assert numbers_in(setup.stored(topic)) == [0, 1]


def test_a_chunk_that_bears_the_messages_own_id_hides_it(setup: Setup) -> None:
    """Java and C++ clients send such chunks: the broker takes half a message for the whole, and refuses the whole."""
    topic = with_first_chunk(setup, bearing=1)
    with setup.publisher(topic) as publisher:
        assert publisher.last_sequence_id == 1
        publisher.publish(HALF.messages[0])
        publisher.publish(record(2))
        publisher.flush()
        assert publisher.counts == {Outcome.STORED: 1, Outcome.DUPLICATE: 1}
    assert numbers_in(setup.stored(topic)) == [0, 2]


# --- names ---------------------------------------------------------------------------------------------------------


def test_a_second_publisher_of_the_name_is_refused_while_the_first_does_something_else(setup: Setup) -> None:
    topic = setup.topic()
    with setup.publisher(topic) as first:
        publish(first, range(150))
        with pytest.raises(NameTakenError):
            ExactlyOncePublisher(
                setup.producers, CLOCK, topic, producer_name="loader", timeouts=PublishTimeouts(takeover_seconds=7)
            )
        publish(first, range(150, 300))
    demand_each_once_in_order(setup, topic, 0, 300)


def test_a_name_that_the_broker_assigns_outlives_an_unload(setup: Setup) -> None:
    topic = setup.topic(partitions=3)
    with ExactlyOncePublisher(setup.producers, CLOCK, topic, limits=BatchLimits(messages=10)) as publisher:
        name = publisher.producer_name
        for number in range(300):
            publisher.publish(OutgoingMessage(b"record %d" % number, key=f"key {number}"))
            if number == 100:
                publisher.flush()  # as above
            if number == 150:
                setup.unload_namespace()
        publisher.flush()
        assert publisher.producer_name == name
    demand_each_once_in_order(setup, topic, 3, 300)


def test_topics_that_brokers_never_deduplicate_are_refused(setup: Setup) -> None:
    system = parse_topic_name(f"{setup.namespace}/__change_events")
    with pytest.raises(InvalidInputError, match="system topic"):
        setup.publisher(system)


# --- why not the client --------------------------------------------------------------------------------------------


def test_the_client_names_only_a_batchs_lowest_id_so_that_a_resuming_program_doubles_the_rest(setup: Setup) -> None:
    topic = setup.topic()
    send_by_client(setup, topic, range(10))
    assert last_sequence_id(setup, topic) == 0
    setup.unload(topic)
    assert last_sequence_id(setup, topic) == 0
    send_by_client(setup, topic, range(1, 10))
    assert sorted(numbers_in(setup.stored(topic))) == sorted([*range(10), *range(1, 10)])


def last_sequence_id(setup: Setup, topic: TopicName) -> int:
    opened = setup.producers.open(topic, "by-client")
    opened.close()
    return opened.last_sequence_id


def send_by_client(setup: Setup, topic: TopicName, numbers: range) -> None:
    """Send the records as one batch."""
    batching = {"batching_enabled": True, "batching_max_messages": len(numbers), "batching_max_publish_delay_ms": 5_000}
    with closing(setup.client.create_producer(str(topic), "by-client", **batching)) as producer:
        for number in numbers:
            producer.send_async(b"record %d" % number, None, sequence_id=number)
        producer.flush()


# --- the reading half ----------------------------------------------------------------------------------------------


def test_a_program_that_is_killed_at_every_step_applies_each_message_once(setup: Setup, tmp_path: Path) -> None:
    """SIGKILL at another of the five steps each time, in the middle of a batch."""
    topic = setup.topic(partitions=3)
    with setup.publisher(topic) as publisher:
        publish(publisher, range(400))
    url, database = setup.cluster.addresses.broker_service_url, tmp_path / "totals.db"
    rounds = 0
    while killed_after(151 + rounds, url, str(topic), database):
        rounds += 1
        if rounds == 2:
            setup.unload(topic.partition(0))
    assert rounds > 7
    with closing(opened(database)) as results:
        totals = dict(results.execute("select * from totals"))
    assert totals == {"record": 400} | {str(number): 1 for number in range(400)}


def test_a_reader_resumes_after_any_kind_of_message(setup: Setup) -> None:
    """Within a batch, behind a single message, and behind one in chunks."""
    topic = setup.topic()
    with setup.publisher(topic, messages=4) as publisher:
        for number in range(9):
            publisher.publish(
                OutgoingMessage(b"record %d " % number + b"x" * (LARGE_BYTES * (number in (5, 8))), number)
            )
    url = setup.cluster.addresses.broker_service_url
    after: dict[int, ReadPosition] = {}
    for number in range(9):
        with open_reader(url, str(topic), after) as reader:
            found = reader.read(30)
            assert found is not None
            assert int(found.payload.split()[1]) == number
            after = {0: ReadPosition.parse(str(found.position))}
    with open_reader(url, str(topic), after) as reader:
        assert reader.read(2) is None


def test_a_reader_whose_position_is_trimmed_refuses(setup: Setup) -> None:
    topic = setup.topic()
    with setup.publisher(topic) as publisher:
        publish(publisher, range(10))
    url = setup.cluster.addresses.broker_service_url
    with open_reader(url, str(topic)) as reader:
        found = reader.read(30)
        assert found is not None
    setup.trim_and_forget(topic, [topic])
    with setup.publisher(topic, "another") as publisher:
        publish(publisher, range(10, 12))
    with (
        open_reader(url, str(topic), {0: found.position}) as reader,
        pytest.raises(ConflictError, match=r"no longer holds the message at .* longer retention"),
    ):
        reader.read(30)
