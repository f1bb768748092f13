"""The adaptive limit on simulated stores: it stays in its bounds, finds what others can bear, and never gets stuck."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.ledger_deletion.limiting import HIGHEST_LEVEL, LOWEST_LEVEL, AdaptiveLimit, IdleLatency, percentile
from service.ledger_deletion.workflow.shared_limit import SharedLimit
from service.model.metadata import Allowance
from tests.fakes.clock import FakeClock


@dataclass
class Store:
    """A store that serves one request after the other, and a sidecar that deletes as fast as the limit lets it.

    A probe waits for what is on its way when it arrives: evenly spread between nothing and all of it.
    """

    base_ms: float
    deletion_ms: float
    seed: int = 0
    clock: FakeClock = field(default_factory=FakeClock)
    slowness: float = 1.0
    factor: float = 2.0

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.limit = AdaptiveLimit(self.clock, self.factor)
        self.allowance = Allowance(1, 1)
        self.busy_until_ms = self.resumes_ms = 0.0
        self.levels: list[float] = []
        self.latencies: list[float] = []

    def alone_ms(self) -> float:
        """What a probe takes when nobody else is there: now and then a multiple of the usual."""
        return self.slowness * self.base_ms * (1 + self.dice.expovariate(3))

    def idle(self, seconds: float) -> None:
        self._probe(seconds, busy=False)

    def drain(self, seconds: float) -> None:
        self.levels.clear()
        self.latencies.clear()
        self._probe(seconds, busy=True)

    def _probe(self, seconds: float, *, busy: bool) -> None:
        end = self.clock.monotonic_seconds() + seconds
        while self.clock.monotonic_seconds() < end:
            latency = self.alone_ms()
            if busy:
                latency += self.dice.random() * self._on_its_way() * self.deletion_ms
                self.levels.append(self.limit.readings().level)
                self.latencies.append(latency)
            self.clock.advance_ms(max(1, round(latency)))
            self.limit.observe(latency / 1000)
            self.clock.advance_ms(round(self.limit.probe_interval_seconds() * 1000))

    def _on_its_way(self) -> int:
        now_ms = self.clock.monotonic_seconds() * 1000
        if now_ms >= self.resumes_ms:
            self.allowance = self.limit.allowance()
            self.busy_until_ms = now_ms + self.allowance.multi_size * self.deletion_ms
            rest_ms = self.allowance.rest_seconds * 1000
            self.resumes_ms = self.busy_until_ms + rest_ms if rest_ms else now_ms
        if self.allowance.rest_seconds and now_ms >= self.busy_until_ms:
            return 0
        self.limit.working()
        return self.allowance.multi_size * self.allowance.in_flight


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("base_ms", [0.3, 2.0, 10.0])
@pytest.mark.parametrize("deletion_ms", [0.01, 0.06, 0.5])
def test_others_are_served_in_time_and_what_is_left_is_used(base_ms: float, deletion_ms: float) -> None:
    store = Store(base_ms, deletion_ms)
    alone = [store.alone_ms() for _ in range(5_000)]
    store.idle(30)
    store.drain(20)
    store.drain(30)
    late = 2 * percentile(alone, 0.99)
    assert sum(latency > late for latency in store.latencies) <= 0.015 * len(store.latencies)
    room = min(HIGHEST_LEVEL, (late - 2 * base_ms) / deletion_ms)
    assert mean(store.levels) > 0.5 * room


def test_a_factor_that_allows_more_is_used() -> None:
    levels = []
    for factor in (1.5, 2.0, 4.0):
        store = Store(2.0, 0.2, factor=factor)
        store.idle(30)
        store.drain(10)
        store.drain(30)
        levels.append(mean(store.levels))
    assert levels == sorted(levels)
    assert levels[2] > 2 * levels[0]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("observe"), st.floats(0, 100)),
            st.tuples(st.just("overdue"), st.floats(0, 100)),
            st.tuples(st.just("allowance"), st.just(0.0)),
            st.tuples(st.just("wait"), st.floats(0, 2_000)),
        ),
        max_size=150,
    ),
    st.integers(0, 300),
)
def test_it_never_leaves_its_bounds(events: list[tuple[str, float]], known: int) -> None:
    clock = FakeClock()
    limit = AdaptiveLimit(clock, 2.0)
    for _ in range(known):
        limit.observe(0.001)
    for what, seconds in events:
        if what == "observe":
            limit.observe(seconds)
        elif what == "overdue":
            limit.overdue(seconds)
        elif what == "wait":
            clock.advance_ms(round(seconds * 1000))
        allowance = limit.allowance()
        assert 1 <= allowance.multi_size <= 100
        assert 1 <= allowance.in_flight <= 2
        assert 0 <= allowance.rest_seconds < 0.1
        assert LOWEST_LEVEL <= limit.readings().level <= HIGHEST_LEVEL
        assert 0 < limit.probe_interval_seconds() <= 0.05


def test_it_begins_carefully_and_is_quick_within_seconds() -> None:
    store = Store(1.0, 0.05)
    assert store.limit.allowance().rest_seconds > 0
    store.drain(2)
    assert store.levels[0] == LOWEST_LEVEL
    assert 1 <= store.levels[-1] < 10
    store.drain(3)
    assert store.levels[-1] > 10


def test_a_first_backlog_does_not_begin_with_a_burst() -> None:
    store = Store(1.0, 0.05)
    store.idle(30)
    assert store.limit.allowance() == Allowance(1, 1)


def test_after_a_stall_it_comes_back() -> None:
    store = Store(1.0, 0.05)
    store.idle(30)
    store.drain(20)
    before = mean(store.levels)
    for _ in range(4):
        store.limit.allowance()
        for waited_ms in range(50, 501, 50):
            store.clock.advance_ms(50)
            store.limit.overdue(waited_ms / 1000)
        store.limit.observe(0.5)
    assert store.limit.readings().level < before / 10
    store.drain(10)
    assert store.levels[-1] > before / 2


def test_a_store_that_got_slow_for_other_reasons_does_not_hold_it_up_for_ever() -> None:
    store = Store(1.0, 0.05)
    store.idle(30)
    store.drain(10)
    store.slowness = 20
    store.drain(20)
    assert min(store.levels) == LOWEST_LEVEL
    store.drain(20)
    assert mean(store.levels) > 50


def test_what_was_learnt_long_ago_is_learnt_again_while_it_works() -> None:
    store = Store(5.0, 0.05)
    store.idle(30)
    store.slowness = 0.2
    store.drain(5)
    first = store.limit.readings().idle_p99_ms
    store.clock.advance_ms(600_000)
    store.drain(5)
    again = store.limit.readings().idle_p99_ms
    assert first is not None
    assert again is not None
    assert again < first / 3
    assert store.levels[-1] > 10


def test_half_a_millisecond_more_is_never_late() -> None:
    clock = FakeClock()
    limit = AdaptiveLimit(clock, 2.0)
    for _ in range(100):
        limit.observe(0.0001)
    limit.allowance()
    clock.advance_ms(100)
    limit.observe(0.0006)
    assert limit.readings().level >= 1
    limit.observe(0.00061)
    assert limit.readings().level < 1


def test_a_slow_probe_while_nothing_is_deleted_cuts_nothing() -> None:
    store = Store(1.0, 0.05)
    store.idle(30)
    before = store.limit.readings().level
    store.limit.overdue(5)
    store.limit.observe(5)
    assert store.limit.readings().level == before


def test_without_a_probe_it_works_on_at_a_middling_pace() -> None:
    clock = FakeClock()
    limit = AdaptiveLimit(clock, 2.0)
    assert limit.allowance().rest_seconds > 0
    clock.advance_ms(16_000)
    assert limit.allowance() == Allowance(25, 1)


def test_what_it_does_besides_deleting_is_not_idle_either() -> None:
    store = Store(1.0, 0.05)
    store.idle(30)
    assert store.limit.probe_interval_seconds() == 0.05
    store.limit.working()
    assert store.limit.probe_interval_seconds() == 0.005
    before = store.limit.readings().idle_p99_ms
    for _ in range(99):
        store.limit.observe(1.0)
    assert store.limit.readings().idle_p99_ms == before
    assert store.limit.readings().recent_p99_ms == 1000


def test_while_a_batch_is_in_hand_nothing_is_idle_even_if_the_store_is_let_alone() -> None:
    store = Store(1.0, 0.05)
    store.idle(30)
    before = store.limit.readings()
    store.limit.batch_begins()
    for _ in range(99):
        store.limit.observe(0.1)
    assert store.limit.readings() == before
    store.limit.batch_ends()
    store.clock.advance_ms(499)
    store.limit.observe(0.1)
    assert store.limit.readings().idle_p99_ms == before.idle_p99_ms
    store.idle(1)
    for _ in range(5):
        store.limit.observe(0.1)
    assert store.limit.readings().idle_p99_ms == 100


def test_a_few_probes_are_not_knowledge() -> None:
    idle = IdleLatency()
    for number in range(99):
        idle.add(number, 0.001)
    assert idle.p99_seconds(99) is None
    idle.add(99, 0.001)
    assert idle.p99_seconds(99) == 0.001
    assert idle.p99_seconds(1_000) is None


@given(st.lists(st.floats(0, 100), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_a_value_that_the_share_does_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_threads_share_one() -> None:
    clock = FakeClock()
    shared = SharedLimit(AdaptiveLimit(clock, 2.0))
    for _ in range(100):
        shared.observe(0.001)
    with shared.batch():
        shared.working()
    clock.advance_ms(100)
    shared.overdue(1.0)
    assert shared.readings().idle_p99_ms == 1.0
    assert shared.readings().level < 25
    assert shared.allowance().in_flight == 1
    assert shared.probe_interval_seconds() == 0.005
