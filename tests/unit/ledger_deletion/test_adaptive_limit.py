"""The adaptive limit: an ordinary law that keeps its bounds, goes by deletions' own harm only, and never gets stuck."""

import contextlib
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.ledger_deletion.second_phase.limits import (
    FIRST_LEVEL,
    HIGHEST_LEVEL,
    LOWEST_LEVEL,
    AdaptiveLimit,
    percentile,
)
from pulsar_sidecar.model.errors import TemporaryError

from tests.fakes.clock import FakeClock


@dataclass
class Store:
    """A store that serves one request after the other, and a sidecar that deletes as fast as the limit lets it.

    A probe waits for the requests in flight when it arrives: evenly spread between nothing and all of it.
    """

    base_ms: float
    deletion_ms: float
    seed: int = 0
    factor: float = 2.0
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.limit = AdaptiveLimit(self.clock, self.factor)
        self.levels: list[float] = []
        self.latencies: list[float] = []

    def alone_ms(self) -> float:
        """Return a probe's latency without other clients: now and then a multiple of the usual."""
        return self.base_ms * (1 + self.rng.expovariate(3))

    def idle(self, seconds: float) -> None:
        end = self.clock.monotonic_seconds() + seconds
        while self.clock.monotonic_seconds() < end:
            self.probe(self.alone_ms())
            self.clock.advance_ms(round(self.limit.probe_interval_seconds() * 1000))

    def drain(self, seconds: float) -> None:
        self.levels.clear()
        self.latencies.clear()
        end = self.clock.monotonic_seconds() + seconds
        while self.clock.monotonic_seconds() < end:
            most = self.limit.most_in_flight()
            latency_ms = self.alone_ms() + self.rng.random() * most * self.deletion_ms
            with self.limit.sending():
                self.probe(latency_ms)
            self.levels.append(self.limit.readings().level)
            self.latencies.append(latency_ms)
            self.clock.advance_ms(round(self.limit.probe_interval_seconds() * 1000))

    def probe(self, latency_ms: float) -> None:
        self.clock.advance_ms(max(1, round(latency_ms)))
        self.limit.observe(latency_ms / 1000)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def limit(clock: FakeClock) -> AdaptiveLimit:
    return AdaptiveLimit(clock, 2.0)


def observe_while_deleting(limit: AdaptiveLimit, *seconds: float) -> None:
    with limit.sending():
        for each in seconds:
            limit.observe(each)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


# --- the law -----------------------------------------------------------------------------------------------------


def test_level_starts_at_8_and_grows_by_1_per_8_probes(limit: AdaptiveLimit) -> None:
    assert limit.most_in_flight() == 8
    observe_while_deleting(limit, *[0.0099] * 8)
    assert limit.most_in_flight() == 9


@pytest.mark.parametrize(("seconds", "level"), [(0.010, 8.125), (0.0101, 4.0), (0.1, 4.0), (0.1001, 1.0), (20.0, 1.0)])
def test_a_late_probe_halves_it_and_a_stall_takes_it_to_one(limit: AdaptiveLimit, seconds: float, level: float) -> None:
    observe_while_deleting(limit, seconds)
    assert limit.readings().level == level


@pytest.mark.parametrize(
    ("idle_ms", "factor", "late_ms"), [(1, 2.0, 10), (4, 3.0, 15), (8, 2.0, 16), (8, 1.5, 12), (45, 2.0, 90)]
)
def test_late_is_a_multiple_of_idle_which_counts_as_five_milliseconds_at_least(
    idle_ms: int, factor: float, late_ms: float
) -> None:
    clock = FakeClock()
    limit = AdaptiveLimit(clock, factor)
    clock.advance_ms(1_000)
    for _ in range(100):
        limit.observe(idle_ms / 1000)
    observe_while_deleting(limit, late_ms / 1000)
    assert limit.readings().level > FIRST_LEVEL
    observe_while_deleting(limit, late_ms / 1000 + 0.0001)
    assert limit.readings().level < FIRST_LEVEL


def test_a_stall_is_one_however_slow_the_store_was_before(clock: FakeClock, limit: AdaptiveLimit) -> None:
    clock.advance_ms(1_000)
    for _ in range(100):
        limit.observe(0.4)
    observe_while_deleting(limit, 0.1)
    assert limit.readings().level > FIRST_LEVEL
    observe_while_deleting(limit, 0.11)
    assert limit.readings().level == LOWEST_LEVEL


def test_old_idle_latencies_are_forgotten() -> None:
    store = Store(100.0, 0.05)
    store.idle(60)
    assert (store.limit.readings().idle_p99_ms or 0) > 100
    store.base_ms = 1
    store.idle(25)
    assert (store.limit.readings().idle_p99_ms or 100) < 10


def test_an_unanswered_probe_is_a_stall_before_its_answer_comes(clock: FakeClock, limit: AdaptiveLimit) -> None:
    with limit.sending(), limit.probing():
        clock.advance_ms(100)
        assert limit.most_in_flight() == FIRST_LEVEL
        clock.advance_ms(50)
        assert limit.most_in_flight() == 1


def test_a_probe_that_failed_says_nothing(clock: FakeClock, limit: AdaptiveLimit) -> None:
    with limit.sending():
        with contextlib.suppress(TemporaryError), limit.probing():
            clock.advance_ms(150)
            raise TemporaryError("no answer")
        assert limit.most_in_flight() == FIRST_LEVEL


def test_without_any_answer_to_a_probe_it_is_one(clock: FakeClock, limit: AdaptiveLimit) -> None:
    clock.advance_ms(5_000)
    assert limit.most_in_flight() == 8
    clock.advance_ms(1)
    assert limit.most_in_flight() == 1
    observe_while_deleting(limit, *[0.001] * 80)
    assert limit.most_in_flight() == 11


# --- only deletions' own load counts ---------------------------------------------------------------------------------


def test_lateness_with_nothing_on_its_way_changes_nothing(clock: FakeClock, limit: AdaptiveLimit) -> None:
    """A batch asks all brokers: on a machine that all share, the probes are late then, and no deletion is to blame."""
    before = limit.readings()
    with limit.batch():
        for seconds in (0.05, 0.2, 0.02, 1.0) * 50:
            with limit.probing():
                clock.advance_ms(round(seconds * 1000))
                assert limit.most_in_flight() == FIRST_LEVEL
        assert limit.readings() == before
        with limit.sending():
            clock.advance_ms(5)
    # This one was sent when the last deletion had been answered.
    clock.advance_ms(50)
    limit.observe(0.05)
    assert limit.readings() == before


def test_a_deletion_that_was_on_its_way_for_a_part_of_a_probe_counts(clock: FakeClock, limit: AdaptiveLimit) -> None:
    clock.advance_ms(10)
    with limit.sending():
        clock.advance_ms(10)
    clock.advance_ms(10)
    limit.observe(0.03)
    assert limit.readings().level == 4
    assert limit.readings().recent_p99_ms == 30


def test_probes_are_frequent_only_around_deletions() -> None:
    store = Store(1.0, 0.05)
    with store.limit.sending():
        assert store.limit.probe_interval_seconds() == 0.005
    store.clock.advance_ms(90)
    assert store.limit.probe_interval_seconds() == 0.005, "the next deletion is about to be sent"
    store.clock.advance_ms(20)
    assert store.limit.probe_interval_seconds() == 0.05
    store.clock.advance_ms(900)
    assert store.limit.probe_interval_seconds() == 0.2


def test_idle_latency_excludes_batches_and_the_second_after() -> None:
    store = Store(1.0, 0.05)
    store.idle(30)
    before = store.limit.readings()
    assert before.idle_p99_ms is not None
    assert store.limit.probe_interval_seconds() == 0.2
    with store.limit.batch():
        assert store.limit.probe_interval_seconds() == 0.05
        for _ in range(99):
            store.probe(100)
    store.clock.advance_ms(1_050)
    store.limit.observe(0.1)
    assert store.limit.readings() == before
    store.clock.advance_ms(1_000)
    for _ in range(5):
        store.probe(100)
    assert store.limit.readings().idle_p99_ms == 100


def test_a_few_probes_are_not_knowledge(clock: FakeClock, limit: AdaptiveLimit) -> None:
    clock.advance_ms(1_000)
    for _ in range(99):
        limit.observe(0.5)
    assert limit.readings().idle_p99_ms is None
    limit.observe(0.5)
    assert limit.readings().idle_p99_ms == 500


# --- simulated stores --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base_ms", [0.3, 2.0, 10.0])
@pytest.mark.parametrize("deletion_ms", [0.01, 0.2, 0.5])
def test_others_are_served_in_time_and_what_is_left_is_used(base_ms: float, deletion_ms: float) -> None:
    store = Store(base_ms, deletion_ms)
    alone = [store.alone_ms() for _ in range(5_000)]
    store.idle(30)
    store.drain(20)
    store.drain(60)
    late = 2 * max(5.0, percentile(alone, 0.99))
    assert percentile(store.latencies, 0.98) <= late
    room = min(HIGHEST_LEVEL, (late - 2 * base_ms) / deletion_ms)
    assert mean(store.levels) > 0.5 * room


def test_after_a_stall_it_comes_back_within_seconds() -> None:
    store = Store(1.0, 0.05)
    store.idle(30)
    store.drain(20)
    assert store.levels[-1] == HIGHEST_LEVEL
    observe_while_deleting(store.limit, 0.5)
    assert store.limit.most_in_flight() == 1
    store.drain(5)
    assert store.levels[-1] == HIGHEST_LEVEL


def test_a_store_that_got_slow_for_other_reasons_does_not_hold_it_up_for_ever() -> None:
    store = Store(1.0, 0.05)
    store.idle(30)
    store.base_ms = 30
    store.drain(20)
    assert store.levels[-1] == LOWEST_LEVEL
    store.idle(60)
    store.drain(20)
    assert store.levels[-1] > 5


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("observe"), st.floats(0, 100)),
            st.tuples(st.just("probe"), st.floats(0, 2)),
            st.tuples(st.just("delete"), st.floats(0, 1)),
            st.tuples(st.just("wait"), st.floats(0, 2_000)),
        ),
        max_size=150,
    ),
    st.floats(1.1, 1_000),
)
def test_level_never_leaves_its_bounds(events: list[tuple[str, float]], factor: float) -> None:
    clock = FakeClock()
    limit = AdaptiveLimit(clock, factor)
    for what, seconds in events:
        if what == "observe":
            limit.observe(seconds)
        elif what == "probe":
            with limit.probing():
                clock.advance_ms(round(seconds * 1000))
                assert 1 <= limit.most_in_flight() <= 50
        elif what == "wait":
            clock.advance_ms(round(seconds * 1000))
        else:
            with limit.sending():
                clock.advance_ms(round(seconds * 1000))
                limit.observe(seconds)
        assert 1 <= limit.most_in_flight() <= 50
        assert LOWEST_LEVEL <= limit.readings().level <= HIGHEST_LEVEL
        assert 0 < limit.probe_interval_seconds() <= 0.2


@given(st.lists(st.floats(0, 100), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_a_value_that_the_share_does_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)
