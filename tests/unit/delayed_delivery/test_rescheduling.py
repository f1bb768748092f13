"""Expediting and rescheduling: never a second copy, never a cancelled message brought back, none lost by a crash.

A request is broken off at every call, sidecars crash, two of them are asked at once, and callers ask again.
"""

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pulsar_sidecar.delayed_delivery.cancel.log_records import RescheduleIntent
from pulsar_sidecar.delayed_delivery.cancel.requests import (
    CancellationStatus,
    CancelOptions,
    Cause,
    Rescheduled,
    Target,
)
from pulsar_sidecar.delayed_delivery.ports import Chunk
from pulsar_sidecar.delayed_delivery.workflow.cancellation_store import CancellationStore, RescheduleIntents
from pulsar_sidecar.model.errors import OutcomeUnknownError, SidecarError, TemporaryError, UndecodableError
from pulsar_sidecar.model.topic_stats import SubscriptionType

from tests.fakes.delayed_messages import TOPIC, CrashError, FakeCluster, FakeSidecar, at
from tests.fakes.rescheduling import DUE_MS, NEW_MS, Rescheduling, only

THOROUGH = settings.get_current_profile_name() == "thorough"


@pytest.fixture
def world() -> Rescheduling:
    return Rescheduling()


Ask = Callable[[Rescheduling], Rescheduled]
_VERBS: dict[str, Ask] = {"expedite": Rescheduling.expedite, "reschedule": Rescheduling.reschedule}


@pytest.mark.parametrize("verb", _VERBS)
def test_a_message_is_delivered_once_at_its_new_time(world: Rescheduling, verb: str) -> None:
    done = _VERBS[verb](world)
    assert done.message_id == "7:2:-1"
    assert done.outcome.cancelled
    world.live()
    assert world.subscription.deliveries == {at(1): 1, at(2): 1}
    assert world.cluster.compacted() == {}, "nothing is left in the log"


@pytest.mark.parametrize("verb", _VERBS)
def test_asking_again_finds_the_copy_on_any_sidecar(world: Rescheduling, verb: str) -> None:
    first = _VERBS[verb](world)
    world.live(3_000)
    again = _VERBS[verb](world)
    world.sidecar, world.other = FakeSidecar(world.cluster), world.sidecar
    assert {first.message_id, again.message_id, _VERBS[verb](world).message_id} == {"7:2:-1"}
    assert again.outcome.cancelled
    world.live()
    assert world.subscription.deliveries == {at(1): 1, at(2): 1}


@pytest.mark.parametrize("verb", _VERBS)
def test_a_cancelled_message_is_not_brought_back(world: Rescheduling, verb: str) -> None:
    world.sidecar.cancel(0)
    assert only(_VERBS[verb](world)) == (CancellationStatus.REFUSED, Cause.CANCELLED)
    world.live()
    assert world.subscription.deliveries == {at(1): 1}
    assert world.copies == []


@pytest.mark.parametrize("verb", _VERBS)
def test_what_waits_in_the_log_to_be_cancelled_is_not_published(world: Rescheduling, verb: str) -> None:
    world.cluster.max_ranges = 0
    world.sidecar.cancel(1, defer=True)
    world.cluster.max_ranges = 10
    done = world.expedite(1) if verb == "expedite" else world.reschedule(1)
    assert only(done) == (CancellationStatus.REFUSED, Cause.CANCELLED)
    assert world.copies == []


@pytest.mark.parametrize("verb", _VERBS)
def test_what_a_consumer_acknowledged_is_not_published(world: Rescheduling, verb: str) -> None:
    world.subscription.acked.add(at(0))
    assert only(_VERBS[verb](world)) == (CancellationStatus.TOO_LATE, Cause.ACKED_BEFORE)
    assert world.copies == []
    assert world.cluster.records == []


@pytest.mark.parametrize("verb", _VERBS)
def test_a_full_acknowledgement_state_is_told_before_anything_is_published(world: Rescheduling, verb: str) -> None:
    world.cluster.max_ranges = 0
    world.cluster.publish(1, DUE_MS)
    done = world.expedite(1) if verb == "expedite" else world.reschedule(1)
    assert only(done) == (CancellationStatus.REFUSED, Cause.ACK_STATE_FULL)
    world.live()
    assert world.subscription.deliveries == {at(0): 1, at(1): 1, at(2): 1}


def test_another_time_or_another_message_than_the_first_request_is_refused(world: Rescheduling) -> None:
    done = world.reschedule()
    other = world.reschedule(in_ms=NEW_MS + 1)
    assert only(other) == (CancellationStatus.REFUSED, Cause.PUBLISHED_AGAIN)
    assert str(done.message_id) in (other.outcome.results[0].reason or "")
    assert only(world.expedite()) == (CancellationStatus.REFUSED, Cause.PUBLISHED_AGAIN)
    wrong = world.sidecar.room.reschedule(TOPIC, Target(at(0), 5), done.deliver_at_ms, CancelOptions())
    assert only(wrong) == (CancellationStatus.REFUSED, Cause.OTHER_DELIVER_AT)
    some = Target(at(0), None, None, ("s",))
    for target in (some, some._replace(position=at(1))):
        refused = world.sidecar.room.reschedule(TOPIC, target, done.deliver_at_ms, CancelOptions())
        assert only(refused) == (CancellationStatus.REFUSED, Cause.INVALID)
    assert world.copies == [at(2)]


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER])
def test_where_a_copy_would_be_a_second_delivery_nothing_is_published(
    world: Rescheduling, kind: SubscriptionType
) -> None:
    world.cluster.subscribe("once", type=kind)
    assert only(world.reschedule()) == (CancellationStatus.REFUSED, Cause.SUBSCRIPTION_TYPE)
    world.live(DUE_MS - 3_500)
    assert only(world.expedite(1)) != (CancellationStatus.ACKED, None), "it comes by itself"
    assert world.copies == []


def test_a_copy_that_cannot_be_published_leaves_the_message_as_it_was(world: Rescheduling) -> None:
    def refuse(call: str) -> None:
        if call == "republish":
            raise TemporaryError("the broker opened no producer")

    world.cluster.before = refuse
    with pytest.raises(TemporaryError):
        world.reschedule()
    assert world.cluster.compacted() == {}
    world.cluster.before = lambda call: None
    assert world.reschedule().message_id == "7:2:-1"


@pytest.mark.parametrize("stored", [True, False])
def test_a_lost_receipt_is_answered_by_looking_for_the_copy_and_never_by_a_second_one(
    world: Rescheduling, stored: bool
) -> None:
    def lose(call: str) -> None:
        if call == "republish":
            raise OutcomeUnknownError("no receipt")

    if stored:
        world.cluster.after = lose
        assert world.expedite().message_id == "7:2:-1"
    else:
        world.cluster.before = lose
        assert only(world.expedite()) == (CancellationStatus.UNKNOWN, Cause.UNCONFIRMED)
    world.cluster.before = world.cluster.after = lambda call: None
    again = world.expedite()
    assert (again.message_id is not None) is stored
    world.live()
    assert world.subscription.deliveries == ({at(1): 1, at(2): 1} if stored else {at(0): 1, at(1): 1})
    assert world.cluster.compacted() == {}


@pytest.mark.parametrize("kind", ["before", "after"])
@pytest.mark.parametrize("call", ["append", "join", "acknowledge", "republish"])
@pytest.mark.parametrize("number", range(4))
def test_what_was_broken_off_and_is_found_only_after_the_due_time_is_not_lost(
    world: Rescheduling, call: str, number: int, kind: str
) -> None:
    left = [number]

    def crash(made: str) -> None:
        if made == call:
            left[0] -= 1
            if left[0] < 0:
                raise CrashError

    setattr(world.cluster, kind, crash)
    _survive(world, lambda world: world.reschedule(in_ms=DUE_MS + 60_000))
    world.cluster.before = world.cluster.after = lambda call: None
    world.cluster.pass_ms(DUE_MS + 10_000, 1_000)
    world.sidecar, world.other = FakeSidecar(world.cluster), FakeSidecar(world.cluster)
    for _ in range(3):  # the cancellation of the old message ends first
        world.cluster.clock.advance_ms(250)
        world.sidecar.room._reconciler.round()
    world.live()
    delivered = world.subscription.deliveries
    assert delivered.get(at(0), 0) + delivered.get(at(2), 0) >= 1
    assert len(world.copies) <= 1
    assert world.cluster.compacted() == {}


def test_whoever_does_not_follow_the_log_publishes_and_finishes_nothing(world: Rescheduling) -> None:
    world.sidecar.disconnect()
    with pytest.raises(TemporaryError, match="log"):
        world.reschedule()
    assert world.copies == []


def test_all_chunks_are_one_copy(world: Rescheduling) -> None:
    world.cluster.publish(1, DUE_MS, chunk=Chunk("u", 0, 2))
    world.cluster.publish(1, DUE_MS, chunk=Chunk("u", 1, 2))
    assert world.reschedule(3).outcome.cancelled
    assert {at(2), at(3)} <= world.subscription.acked


# --- broken off anywhere -------------------------------------------------------------------------------------------

Fault = Callable[[], BaseException]
FAULTS: dict[str, Fault] = {
    "crash": CrashError,
    "temporary": lambda: TemporaryError("for this test"),
    "unknown": lambda: OutcomeUnknownError("for this test"),
}


def _arm(cluster: FakeCluster, faults: dict[tuple[int, bool], str]) -> list[int]:
    """Break off the given calls, before or after their effect; how many there were."""
    numbers, calls = count(), [0]

    def fail(number: int, call: str, *, before: bool) -> None:
        kind = faults.get((number, before))
        if kind is not None:
            # Once a copy has been sent, a broken answer is never told as one that changed nothing.
            raise FAULTS["unknown" if call == "republish" and kind == "temporary" and not before else kind]()

    def begin(call: str) -> None:
        calls[0] = next(numbers)
        fail(calls[0], call, before=True)

    cluster.before = begin
    cluster.after = lambda call: fail(calls[0], call, before=False)
    return calls


def _survive(world: Rescheduling, ask: Ask) -> Rescheduled | None:
    try:
        return ask(world)
    except CrashError:
        world.sidecar = FakeSidecar(world.cluster)
    except SidecarError:
        pass
    return None


def _run(verb: str, faults: dict[tuple[int, bool], str], asked_again: int = 2, between_ms: int = 500) -> int:
    world = Rescheduling()
    calls = _arm(world.cluster, faults)
    answers: list[Rescheduled | None] = []
    for _ in range(asked_again + 1):
        answers.append(_survive(world, _VERBS[verb]))
        _survive(world, lambda world: world.live(between_ms, between_ms))  # type: ignore[func-returns-value,return-value]
    made = calls[0] + 1
    world.cluster.before = world.cluster.after = lambda call: None
    world.live(20_000)
    answers.append(_VERBS[verb](world))
    world.live()
    delivered = world.subscription.deliveries
    assert len(world.copies) <= 1, "a second copy"
    assert sum(delivered.values()) - delivered.pop(at(1)) == 1, f"{delivered}"
    for answer in answers:
        if answer is not None and answer.message_id is not None:
            assert world.copies
    if not world.copies:
        assert delivered == {at(0): 1}
    assert world.cluster.compacted() == {}
    return made


@pytest.mark.parametrize("verb", _VERBS)
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("before", [True, False])
def test_a_request_broken_off_at_any_call_ends_in_one_delivery(verb: str, kind: str, before: bool) -> None:
    calls = _run(verb, {})
    assert calls > 15
    for number in range(min(calls, 40)):
        _run(verb, {(number, before): kind})


_faults = st.dictionaries(st.tuples(st.integers(0, 60), st.booleans()), st.sampled_from(sorted(FAULTS)), max_size=5)


@settings(max_examples=400 if THOROUGH else 25, deadline=None)
@given(verb=st.sampled_from(sorted(_VERBS)), faults=_faults, between_ms=st.sampled_from([500, 4_000, 8_000]))
def test_any_faults_together(verb: str, faults: dict[tuple[int, bool], str], between_ms: int) -> None:
    _run(verb, faults, between_ms=between_ms)


@pytest.mark.parametrize("verb", _VERBS)
def test_two_sidecars_that_are_asked_at_the_same_time_publish_once(verb: str) -> None:
    for number in range(_run(verb, {})):
        _ask_both(verb, number)


def _ask_both(verb: str, at_call: int) -> None:
    world = Rescheduling()
    numbers = count()

    def ask_the_other(call: str) -> None:
        if next(numbers) == at_call:
            world.cluster.before = lambda call: None
            world.sidecar, world.other = world.other, world.sidecar
            _VERBS[verb](world)

    world.cluster.before = ask_the_other
    done = _VERBS[verb](world)
    assert done.message_id == "7:2:-1", done
    world.cluster.before = lambda call: None
    world.live()
    assert len(world.copies) == 1
    assert world.subscription.deliveries == {at(1): 1, at(2): 1}


# --- what the log holds --------------------------------------------------------------------------------------------


def _intent(token: str, copy: str | None = None) -> RescheduleIntent:
    return RescheduleIntent(TOPIC, at(0), token, DUE_MS, None, 1, at(5), "somebody", copy)


def test_an_intent_is_read_as_it_was_written() -> None:
    intents = RescheduleIntents(FakeCluster())
    for one in (_intent("a"), _intent("b", "7:9:-1")):
        intents.apply(*one.encoded())
        assert intents.holds(one)
    assert intents.all() == [_intent("a"), _intent("b", "7:9:-1")]


def test_the_first_intent_counts_until_one_has_a_copy() -> None:
    intents = RescheduleIntents(FakeCluster())
    intents.apply(*_intent("b").encoded())
    intents.apply(*_intent("a").encoded())
    assert intents.valid((TOPIC, at(0))) == _intent("b")
    intents.apply(*_intent("a", "7:9:-1").encoded())
    assert intents.valid((TOPIC, at(0))) == _intent("a", "7:9:-1")
    intents.apply(_intent("a").key, None)
    intents.apply(_intent("b").key, None)
    assert intents.valid((TOPIC, at(0))) is None
    assert intents.all() == []


@pytest.mark.parametrize("value", [b"", b"{}", b"[]", b'{"version": 9}', b'{"version": 1, "after": "x"}', b"\xff"])
def test_what_another_version_wrote_is_left_alone(value: bytes) -> None:
    cluster = FakeCluster()
    store = CancellationStore(cluster)
    store.apply([(_intent("a").key, value)])
    assert store.intents.all() == []
    if value:
        with pytest.raises(UndecodableError):
            RescheduleIntents(FakeCluster()).apply(_intent("a").key, value)


def test_what_the_log_no_longer_holds_is_forgotten_when_all_of_it_was_read() -> None:
    store = CancellationStore(FakeCluster())
    store.apply([_intent("a").encoded(), _intent("b").encoded()])
    store.begin_following()
    store.apply([_intent("b").encoded()])
    store.note_caught_up(unreadable=1)
    assert len(store.intents.all()) == 2
    store.begin_following()
    store.apply([_intent("b").encoded()])
    store.note_caught_up()
    assert store.intents.all() == [_intent("b")]
