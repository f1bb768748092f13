"""Cancelling with the sidecar killed at any step, any call failing or losing its answer, and brokers that die.

Whatever happens: what was told to be PERSISTED is never delivered; what was refused is delivered; what nobody asked to
cancel is delivered once; and once faults stop, the log empties itself.
"""

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.delayed_delivery.cancelling import Outcome, Proof
from service.model.errors import OutcomeUnknownError, SidecarError, TemporaryError
from service.model.positions import Position
from tests.fakes.delayed_messages import TOPIC, CrashError, FakeCluster, FakeSidecar, FakeSubscription, at

MESSAGES = 8
WANTED = (1, 2, 5)
DUE_MS = 30_000
THOROUGH = settings.get_current_profile_name() == "thorough"

Fault = Callable[[], BaseException]
FAULTS: dict[str, Fault] = {
    "crash": CrashError,
    "temporary": lambda: TemporaryError("for this test"),
    "unknown": lambda: OutcomeUnknownError("for this test"),
}


class Story:
    """One run: a request, time, faults at numbered calls, and at last the check."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.subscription: FakeSubscription = self.cluster.subscribe()
        self.subscription.stored_at_ms = self.cluster.clock.now_ms()
        self.cluster.publish(MESSAGES, due_in_ms=DUE_MS)
        self.sidecar = FakeSidecar(self.cluster)
        self.told: list[Outcome] = []
        self.seen_persisted: set[Position] = set()
        self.broker_died = False
        self.calls = 0

    def arm(self, faults: dict[tuple[int, bool], Fault]) -> None:
        """Raise at the given calls, before or after their effect."""
        numbers = count()
        current = -1

        def before(_: str) -> None:
            nonlocal current
            current = next(numbers)
            self.calls = current + 1
            if (current, True) in faults:
                raise faults[(current, True)]()

        def after(_: str) -> None:
            if (current, False) in faults:
                raise faults[(current, False)]()

        self.cluster.before, self.cluster.after = before, after

    def disarm(self) -> None:
        self.cluster.before = self.cluster.after = lambda call: None

    def request(self, **options: bool) -> None:
        self._survive(lambda: self.told.extend(self.sidecar.cancel(*WANTED, **options)))

    def live(self, milliseconds: int) -> None:
        for _ in range(0, milliseconds, 500):
            self._survive(lambda: self.sidecar.live(500, 500))
            self._note()

    def kill_broker(self) -> None:
        self.broker_died = True
        self.cluster.crash_broker()

    def _survive(self, step: Callable[[], object]) -> None:
        try:
            step()
        except CrashError:
            self.sidecar = FakeSidecar(self.cluster)
        except SidecarError:
            return

    def _note(self) -> None:
        for entry in WANTED:
            known = self.sidecar.room._memory.find(TOPIC, at(entry))
            self.seen_persisted |= {one.position for one in known if one.proof is Proof.PERSISTED}

    def check(self) -> None:
        delivered = self.subscription.deliveries
        others = [at(entry) for entry in range(MESSAGES) if entry not in WANTED]
        assert all(delivered.get(position, 0) == 1 for position in others), delivered
        assert not self.seen_persisted & delivered.keys(), "PERSISTED and delivered"
        for outcome in self.told:
            for verdict in outcome.verdicts:
                times = delivered.get(outcome.target.position, 0)
                if verdict.proof is Proof.PERSISTED:
                    assert times == 0
                if verdict.proof is Proof.ACKED and not self.broker_died:
                    assert times == 0
                if verdict.proof in (Proof.REFUSED, Proof.NOT_FOUND, Proof.TOO_LATE):
                    assert times == 1
        assert all(delivered.get(at(entry), 0) <= 1 for entry in WANTED)
        assert self.cluster.compacted() == {}, "the log is not empty after the due time"


def run(faults: dict[tuple[int, bool], Fault], broker_dies_after_ms: int | None = None, **options: bool) -> Story:
    story = Story()
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
        if story.told and all(one.verdicts[0].proof.cancelled for one in story.told):
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
    assert story.sidecar.metrics.counts["reasserted"] == len(WANTED)
    story.live(DUE_MS)
    story.check()


def test_another_sidecar_goes_on_where_the_first_one_died() -> None:
    story = Story()

    def die(call: str) -> None:
        if call == "append":
            raise CrashError

    story.cluster.after = die
    story.request()
    story.disarm()
    assert story.cluster.compacted(), "it died after the log and before the acknowledgement"
    assert story.subscription.acked == set()
    story.live(DUE_MS + 5_000)
    story.check()
    assert not story.subscription.deliveries.keys() & {at(entry) for entry in WANTED}


_faults = st.dictionaries(
    st.tuples(st.integers(0, 40), st.booleans()), st.sampled_from(sorted(FAULTS)).map(FAULTS.__getitem__), max_size=6
)


@settings(max_examples=400 if THOROUGH else 25, deadline=None)
@given(faults=_faults, dies=st.none() | st.integers(0, 12).map(lambda n: n * 500), wait=st.booleans())
def test_any_faults_together(faults: dict[tuple[int, bool], Fault], dies: int | None, wait: bool) -> None:
    run(faults, dies, wait_persisted=wait)
