"""Cancelling with sidecars killed at any step, any call failing or losing its response, brokers that die, cursors lost.

Whatever happens: what was reported as PERSISTED is never delivered unless its cursor was lost; what was reported as
EXPIRED was not delivered; what was refused is delivered; what was never asked for is delivered; and once faults
stop, the log empties itself.
"""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus, MessageOutcome
from pulsar_sidecar.model.errors import ConflictError, SidecarError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.topic_stats import SubscriptionType
from pulsar_sidecar.server.paths import parse_position

from tests.fakes import delayed_messages as fakes
from tests.fakes.delayed_messages import TOPIC, CrashError, FakeCluster, FakeSidecar, FakeSubscription, at

MESSAGES = 8
WANTED = (1, 2, 5)
DUE_MS = 30_000
THOROUGH = settings.get_current_profile_name() == "thorough"

Fault = Callable[[], BaseException]
FAULTS: dict[str, Fault] = {**fakes.FAULTS, "busy": lambda: ConflictError("ConsumerBusy")}


class Story:
    """One run: a request, time, faults at numbered calls, and at last the check.

    With two sidecars the other one follows the log and goes its rounds too: both believe to lead.
    """

    def __init__(self, kind: SubscriptionType = SubscriptionType.SHARED, sidecars: int = 1) -> None:
        self.cluster = FakeCluster()
        self.subscription: FakeSubscription = self.cluster.subscribe(type=kind)
        self.subscription.stored_at_ms = self.cluster.clock.now_ms()
        self.cluster.publish(MESSAGES, due_in_ms=DUE_MS)
        self.sidecar = FakeSidecar(self.cluster)
        self.others = [FakeSidecar(self.cluster) for _ in range(sidecars - 1)]
        self.answers: list[MessageOutcome] = []
        self.seen_persisted: set[Position] = set()
        self.seen_expired: set[Position] = set()
        self.broker_died = False
        self.calls = 0
        self.cursor_lost = False

    def arm(self, faults: dict[tuple[int, bool], Fault]) -> None:
        """Raise at the given calls, before or after their effect."""

        def fail(*, before: bool, can_be_busy: bool = False) -> None:
            fault = faults.get((self.cluster.calls - 1, before))
            error = fault() if fault else None
            if error is not None and (can_be_busy or not isinstance(error, ConflictError)):
                raise error

        self.cluster.before = lambda call: fail(before=True, can_be_busy=call == "join")
        self.cluster.after = lambda call: fail(before=False)

    def disarm(self) -> None:
        self.calls = self.cluster.calls
        self.cluster.before = self.cluster.after = lambda call: None

    def request(self, **options: bool) -> None:
        self._survive(lambda: self.answers.extend(self.sidecar.cancel(*WANTED, **options)))

    def live(self, milliseconds: int) -> None:
        for _ in range(0, milliseconds, 500):
            self._survive(lambda: self.sidecar.live(500, 500))
            for index in range(len(self.others)):
                self._survive_other(index)
            self._note()

    def kill_broker(self) -> None:
        self.broker_died = True
        self.cluster.crash_broker()

    def lose_cursor(self, *, moved: bool) -> None:
        self.cursor_lost = True
        if moved:
            self.cluster.seek("s")
        else:
            self.cluster.lose_cursor("s")

    def _survive(self, step: Callable[[], object]) -> None:
        try:
            step()
        except CrashError:
            self.sidecar = FakeSidecar(self.cluster)
        except SidecarError:
            return

    def _survive_other(self, index: int) -> None:
        try:
            self.others[index].round()
        except CrashError:
            self.others[index] = FakeSidecar(self.cluster)
        except SidecarError:
            return

    def _note(self) -> None:
        for sidecar in (self.sidecar, *self.others):
            for entry in WANTED:
                known = sidecar.feature._store.index.find(TOPIC, at(entry))
                self.seen_persisted |= {one.position for one in known if one.status is CancellationStatus.PERSISTED}
                self.seen_expired |= {one.position for one in known if one.status is CancellationStatus.EXPIRED}

    def check(self) -> None:
        delivered = self.subscription.deliveries
        others = [at(entry) for entry in range(MESSAGES) if entry not in WANTED]
        if not self.cursor_lost:
            assert all(delivered.get(position, 0) == 1 for position in others), delivered
            assert not self.seen_persisted & delivered.keys(), "PERSISTED and delivered"
        assert delivered.keys() >= set(others)
        assert not self.seen_expired & delivered.keys(), "EXPIRED and delivered"
        for outcome in self.answers:
            for verdict in outcome.verdicts:
                times = delivered.get(parse_position(str(outcome.cancellation_id)), 0)
                if verdict.proof is CancellationStatus.PERSISTED:
                    assert times == 0 or self.cursor_lost
                if verdict.proof is CancellationStatus.ACKED and not self.broker_died:
                    assert times == 0 or self.cursor_lost
                if verdict.proof in (
                    CancellationStatus.REFUSED,
                    CancellationStatus.NOT_FOUND,
                    CancellationStatus.TOO_LATE,
                ):
                    assert times >= 1
        assert self.cursor_lost or all(delivered.get(at(entry), 0) <= 1 for entry in WANTED)
        assert self.cluster.compacted() == {}, "the log is not empty after the due time"


def run(
    faults: dict[tuple[int, bool], Fault],
    broker_dies_after_ms: int | None = None,
    story: Story | None = None,
    **options: bool,
) -> Story:
    story = story or Story()
    story.arm(faults)
    story.request(**options)
    if broker_dies_after_ms is not None:
        story.live(broker_dies_after_ms)
        story.kill_broker()
    story.live(6_000)
    story.disarm()
    story.live(DUE_MS + 5_000)
    story.check()
    return story


def test_without_faults_everything_wanted_is_persisted() -> None:
    story = run({})
    assert story.seen_persisted == {at(entry) for entry in WANTED}
    assert not story.subscription.deliveries.keys() & {at(entry) for entry in WANTED}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("before", [True, False])
def test_a_fault_at_any_call(kind: str, before: bool) -> None:
    calls = run({}).calls
    assert calls > 12
    for number in range(min(calls, 40)):
        story = run({(number, before): FAULTS[kind]})
        if story.answers and all(one.verdicts[0].proof.cancelled for one in story.answers):
            assert not story.subscription.deliveries.keys() & {at(entry) for entry in WANTED}


@pytest.mark.parametrize("dies_after_ms", [0, 500, 1000, 1500, 2500, 5000])
def test_a_broker_that_dies_at_any_time_after_the_answer_delivers_nothing_cancelled(dies_after_ms: int) -> None:
    story = run({}, broker_dies_after_ms=dies_after_ms)
    assert story.subscription.deliveries.keys() == {at(entry) for entry in range(MESSAGES) if entry not in WANTED}


def test_a_cursor_that_lost_everything_gets_its_acknowledgements_back() -> None:
    story = Story()
    story.request(wait_persisted=True)
    story.live(3_000)
    story.cluster.lose_cursor("s")
    story.live(15_000)
    assert story.sidecar.metrics.counts["acknowledged_again"] == len(WANTED)
    story.live(DUE_MS)
    story.check()


def test_another_sidecar_goes_on_where_the_first_one_died() -> None:
    story = Story()

    def die() -> None:
        raise CrashError

    story.cluster.interrupt("append", die)
    story.request()
    story.disarm()
    assert story.cluster.compacted(), "it died after the log and before the acknowledgement"
    assert story.subscription.acked == set()
    story.live(DUE_MS + 5_000)
    story.check()
    assert not story.subscription.deliveries.keys() & {at(entry) for entry in WANTED}


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("before", [True, False])
def test_fault_at_any_call_of_two_concurrent_sidecars(kind: SubscriptionType, fault: str, before: bool) -> None:
    calls = run({}, story=Story(kind, sidecars=2)).calls
    for number in range(min(calls, 30)):
        run({(number, before): FAULTS[fault]}, story=Story(kind, sidecars=2))


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("sidecars", [1, 2])
@pytest.mark.parametrize("before_due_ms", range(-1_000, 8_500, 500))
def test_a_cursor_lost_near_the_due_time(moved: bool, sidecars: int, before_due_ms: int) -> None:
    story = Story(sidecars=sidecars)
    story.request()
    story.live(DUE_MS - before_due_ms)
    story.lose_cursor(moved=moved)
    story.live(before_due_ms + 15_000)
    story.check()


_faults = st.dictionaries(
    st.tuples(st.integers(0, 40), st.booleans()), st.sampled_from(sorted(FAULTS)).map(FAULTS.__getitem__), max_size=6
)


@settings(max_examples=400 if THOROUGH else 25, deadline=None)
@given(faults=_faults, dies=st.none() | st.integers(0, 12).map(lambda n: n * 500), wait=st.booleans())
def test_any_faults_together(faults: dict[tuple[int, bool], Fault], dies: int | None, wait: bool) -> None:
    run(faults, dies, wait_persisted=wait)


@settings(max_examples=400 if THOROUGH else 25, deadline=None)
@given(
    faults=_faults,
    kind=st.sampled_from([SubscriptionType.SHARED, SubscriptionType.KEY_SHARED]),
    lost_before_due_ms=st.integers(-3, 20).map(lambda n: n * 500),
    moved=st.booleans(),
)
def test_any_faults_of_two_sidecars_with_a_cursor_lost_near_the_due_time(
    faults: dict[tuple[int, bool], Fault], kind: SubscriptionType, lost_before_due_ms: int, moved: bool
) -> None:
    story = Story(kind, sidecars=2)
    story.arm(faults)
    story.request()
    story.live(DUE_MS - lost_before_due_ms)
    story.lose_cursor(moved=moved)
    story.live(4_000)
    story.disarm()
    story.live(20_000)
    story.check()
