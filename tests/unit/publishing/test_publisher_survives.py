"""A model of publishing: each record is stored once, in order, whatever dies, moves or loses answers."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pulsar_sidecar.features.publishing.messages import BatchLimits, OutgoingMessage, ProducerStateLostError
from pulsar_sidecar.features.publishing.partition_publisher import PublishTimeouts
from pulsar_sidecar.features.publishing.publisher import ExactlyOncePublisher
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.clock import FakeClock
from tests.fakes.deduplicating_broker import FakeDeduplicatingBrokers, FakeTopic

TOPIC = parse_topic_name("public/default/records")
RECORD_BYTES = 10


class Publishing(RuleBasedStateMachine):
    """A program with a list of records; it may be replaced, and continues after the last id that brokers know."""

    def __init__(self) -> None:
        super().__init__()
        self.brokers = FakeDeduplicatingBrokers()
        self.publisher: ExactlyOncePublisher | None = None
        self.published = 0
        """Records handed to any publisher so far."""
        self.handed = 0
        """Records handed to this publisher."""
        self.lasts: list[int] = []
        """Last ids that brokers reported to this publisher at first."""

    @initialize(partitions=st.sampled_from([0, 3]))
    def make_topic(self, partitions: int) -> None:
        self.brokers.partition_counts[TOPIC] = partitions
        self.names = [TOPIC.partition(index) for index in range(partitions)] or [TOPIC]
        for name in self.names:
            self.brokers.topic(name)

    def topics(self) -> list[FakeTopic]:
        return [self.brokers.topic(name) for name in self.names]

    @precondition(lambda self: self.publisher is None)
    @rule(messages=st.integers(1, 4), in_flight=st.integers(1, 3))
    def start(self, messages: int, in_flight: int) -> None:
        limits = BatchLimits(messages=messages, in_flight=in_flight)
        try:
            self.publisher = ExactlyOncePublisher(
                self.brokers, FakeClock(), TOPIC, producer_name="n", limits=limits, timeouts=PublishTimeouts(5.0, 5.0)
            )
        except TemporaryError:
            return
        self.lasts = [self.publisher.last_sequence_id_of(index) for index in range(len(self.names))]
        self.handed = 0 if min(self.lasts) < 0 else min(self.lasts) // RECORD_BYTES

    @precondition(lambda self: self.publisher is not None)
    @rule(count=st.integers(1, 9))
    def publish(self, count: int) -> None:
        assert self.publisher is not None
        for _ in range(count):
            if self.publisher is None:
                return
            record = OutgoingMessage(b"%d" % self.handed, self.handed * RECORD_BYTES)
            self.handed += 1
            self.published = max(self.published, self.handed)
            self._try(lambda record=record: self.publisher.publish(record))

    @precondition(lambda self: self.publisher is not None)
    @rule()
    def flush(self) -> None:
        if self.publisher is not None:
            self._try(self.publisher.flush)

    @precondition(lambda self: self.publisher is not None)
    @rule(rest_of_connection=st.booleans())
    def kill_publisher(self, rest_of_connection: bool) -> None:
        """Killed with -9: what it had not sent is gone, its connection breaks."""
        self.publisher = None
        for topic in self.topics():
            topic.disconnect("the publisher died")

    @rule(hold=st.booleans())
    def bookies_are_slow(self, hold: bool) -> None:
        self.brokers.hold = hold

    @rule(count=st.integers(1, 3))
    def bookies_write(self, count: int) -> None:
        for topic in self.topics():
            topic.write(count)

    @rule()
    def bookies_fail(self) -> None:
        for topic in self.topics():
            topic.fail_writes()

    @rule(stored=st.integers(0, 5))
    def kill_brokers(self, stored: int) -> None:
        self.brokers.die(stored)

    @rule(which=st.integers(0, 2), stored=st.integers(0, 5))
    def move_topic(self, which: int, stored: int) -> None:
        self.topics()[which % len(self.names)].reload(stored)

    @rule(count=st.integers(1, 3))
    def lose_answers(self, count: int) -> None:
        self.brokers.lost_answers = count

    @rule(count=st.integers(1, 9))
    def refuse_connections(self, count: int) -> None:
        self.brokers.refusals.extend(TemporaryError("no broker") for _ in range(count))

    def _try(self, call: object) -> None:
        assert callable(call)
        try:
            call()
        except TemporaryError:
            # It gives up for now; the message is kept.
            self.brokers.refusals.clear()
        except ProducerStateLostError:
            # It cannot know, and the program can: these brokers forget nothing that they have stored.
            pairs = zip(self.topics(), self.lasts, strict=True)
            assert any(not topic.entries or topic.persisted.get("n", -1) < last for topic, last in pairs)
            assert self.publisher is not None
            self.publisher.abandon()
            self.publisher = None

    @invariant()
    def nothing_is_doubled_or_out_of_order(self) -> None:
        if self.publisher is None and not self.published:
            return
        for topic in self.topics():
            ids = [number or 0 for number in topic.sequence_ids]
            assert ids == sorted(set(ids))

    def teardown(self) -> None:
        self.brokers.hold, self.brokers.lost_answers = False, 0
        self.brokers.refusals.clear()
        if self.publisher is None:
            self.start(3, 2)
        assert self.publisher is not None
        for _ in range(3 * len(self.names)):
            self.bookies_write(99)
            self.publish(max(1, self.published - self.handed))
            self.flush()
            if self.publisher is not None:
                break
            self.start(3, 2)
        self.publisher.close()
        stored = sorted(number or 0 for topic in self.topics() for number in topic.sequence_ids)
        assert stored == [number * RECORD_BYTES for number in range(self.published)]
        self.nothing_is_doubled_or_out_of_order()


Publishing.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestPublishing = Publishing.TestCase
