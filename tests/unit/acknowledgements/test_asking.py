"""Asking for states, setting and removing the policy, and what is remembered for the metrics."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits
from pulsar_sidecar.features.acknowledgements.states import DetailOptions
from pulsar_sidecar.features.acknowledgements.workflow import (
    MOST_SUBSCRIPTIONS,
    REMEMBERED_SECONDS,
    AckStateService,
)
from pulsar_sidecar.model.errors import ConflictError, TemporaryError
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.runtime import TopicWatch

from tests.cluster.acknowledging import positions_in
from tests.fakes.acknowledging_broker import LEDGER, FakeAcknowledgingBroker, FakeCursor, FakeTopic
from tests.fakes.clock import FakeClock
from tests.unit.acknowledgements.test_stored import at

TOPIC = parse_topic_name("persistent://public/default/orders")
ALL = DetailOptions(ranges=1_000)


@pytest.fixture
def broker() -> FakeAcknowledgingBroker:
    return furnished(FakeAcknowledgingBroker(AckStateLimits(max_unacked_ranges=3)))


def furnished(broker: FakeAcknowledgingBroker) -> FakeAcknowledgingBroker:
    broker.topics[TOPIC] = FakeTopic(100, {"s": FakeCursor(), "other": FakeCursor(type="Failover")})
    return broker


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def states(broker: FakeAcknowledgingBroker, clock: FakeClock) -> Iterator[AckStateService]:
    found = broker.service(clock)
    yield found
    found.close()


@given(
    st.lists(st.one_of(st.integers(0, 99), st.just("store")), max_size=40),
    st.integers(1, 8),
    st.booleans(),
)
def test_exactly_what_is_predicted_comes_again(steps: list[int | str], limit: int, dense: bool) -> None:
    broker = furnished(FakeAcknowledgingBroker(AckStateLimits(max_unacked_ranges=limit, as_long_array=dense)))
    states = broker.service()
    for step in steps:
        if step == "store":
            broker.store(TOPIC, "s")
        else:
            broker.acknowledge(TOPIC, "s", int(step))
    (state,) = states.ack_states(TOPIC, "s", ALL)
    memory = broker.topics[TOPIC].subscriptions["s"].memory
    before = {at(LEDGER, entry) for entry in range(100) if at(LEDGER, entry) in memory}
    broker.crash()
    recovered = broker.topics[TOPIC].subscriptions["s"].memory
    again = {position for position in before if position not in recovered}
    assert positions_in(state.after_crash.ranges) == again
    assert state.after_crash.entries == len(again)
    states.close()


def test_each_partition_answers_for_itself(broker: FakeAcknowledgingBroker, states: AckStateService) -> None:
    base = parse_topic_name("partitioned")
    broker.partitioned[base] = 3
    for index in range(3):
        broker.topics[base.partition(index)] = FakeTopic(10, {"s": FakeCursor()})
    broker.acknowledge(base.partition(1), "s", 4)
    found = states.ack_states(base, "s", ALL)
    assert [(state.topic, state.non_contiguous_deleted_messages_ranges) for state in found] == [
        (str(base.partition(0)), 0),
        (str(base.partition(1)), 1),
        (str(base.partition(2)), 0),
    ]
    del broker.topics[base.partition(2)]
    assert len(states.ack_states(base, "s", ALL)) == 2, "a partition that nobody has used yet has no state"


def test_moved_cursor_is_read_again(broker: FakeAcknowledgingBroker, states: AckStateService) -> None:
    failures = [TemporaryError("it moved"), TemporaryError("it moved")]

    def fail(call: str) -> None:
        if call == "stored" and failures:
            raise failures.pop()

    broker.before = fail
    assert len(states.ack_states(TOPIC, "s", ALL)) == 1
    failures += [TemporaryError("it moved")] * 3
    with pytest.raises(TemporaryError, match="it moved"):
        states.ack_states(TOPIC, "s", ALL)


def test_only_so_much_is_remembered_and_only_for_a_while(broker: FakeAcknowledgingBroker, clock: FakeClock) -> None:
    states = broker.service(clock)
    topics = [parse_topic_name(f"t{number}") for number in range(MOST_SUBSCRIPTIONS + 5)]
    for topic in topics:
        broker.topics[topic] = FakeTopic(1, {"s": FakeCursor()})
        states.ack_states(topic, "s", DetailOptions())
    assert [state.topic for state in states.recent()] == [str(topic) for topic in topics[5:]]
    clock.advance_ms(int(REMEMBERED_SECONDS * 1000) - 1)
    broker.acknowledge(topics[5], "s", 0)
    states.ack_states(topics[5], "s", DetailOptions())
    clock.advance_ms(2)
    (state,) = states.recent()
    assert (state.topic, state.non_contiguous_deleted_messages_ranges) == (str(topics[5]), 1)
    states.close()


def test_watched_topics_are_asked_about_again_and_again(broker: FakeAcknowledgingBroker, clock: FakeClock) -> None:
    states = broker.service(clock)
    missing: TopicName = parse_topic_name("nowhere")
    looked = threading.Semaphore(0)
    defects = [RuntimeError("a defect")]

    def look(call: str) -> None:
        if call == "stats" and defects:
            raise defects.pop()
        if call == "stats":
            looked.release()

    broker.before = look
    watch = TopicWatch("watch", lambda topic: states.ack_states(topic, None, ALL), [missing, TOPIC], 0.001, clock)
    with closing(watch):
        watch.start()
        assert all(looked.acquire(timeout=60) for _ in range(3))
    watch.close()
    states.close()
    assert {state.subscription for state in states.recent()} == {"s", "other"}


def test_topic_watch_without_topics_starts_no_thread(clock: FakeClock) -> None:
    watch = TopicWatch("watch", str, [], 1, clock)
    watch.start()
    watch.close()


def test_a_shadow_that_endangers_its_source_is_not_loaded_to_answer(
    broker: FakeAcknowledgingBroker, states: AckStateService
) -> None:
    broker.endangered[TOPIC] = "persistent://public/default/source"
    for ask in (lambda: states.ack_states(TOPIC, None, ALL), lambda: states.topic_pause(TOPIC)):
        with pytest.raises(ConflictError, match="shadow of persistent://public/default/source without infinite"):
            ask()
