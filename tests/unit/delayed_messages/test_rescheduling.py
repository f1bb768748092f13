"""Expediting and rescheduling: never a second copy, never a cancelled message brought back, none lost by a crash.

A request is broken off at every call, sidecars crash, two of them get it at once, and callers retry.
"""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pulsar_sidecar.backlog.ports import Chunk
from pulsar_sidecar.features.delayed_messages.cancel.log_records import RescheduleIntent
from pulsar_sidecar.features.delayed_messages.cancel.requests import CancelOptions, Target
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus, Cause, RescheduleResult
from pulsar_sidecar.features.delayed_messages.workflow.cancellation_store import CancellationStore, RescheduleIntents
from pulsar_sidecar.model.errors import SidecarError, TemporaryError, UndecodableError
from pulsar_sidecar.model.topic_stats import SubscriptionType

from tests.fakes.delayed_messages import FAULTS, TOPIC, CrashError, FakeCluster, FakeSidecar, at
from tests.fakes.rescheduling import DUE_MS, NEW_MS, Rescheduling, only

THOROUGH = settings.get_current_profile_name() == "thorough"


@pytest.fixture
def rescheduling() -> Rescheduling:
    return Rescheduling()


Ask = Callable[[Rescheduling], RescheduleResult]
_VERBS: dict[str, Ask] = {"expedite": Rescheduling.expedite, "reschedule": Rescheduling.reschedule}


@pytest.mark.parametrize("verb", _VERBS)
def test_a_message_is_delivered_once_at_its_new_time(rescheduling: Rescheduling, verb: str) -> None:
    done = _VERBS[verb](rescheduling)
    assert done.message_id == "7:2:-1"
    assert done.outcome.cancelled
    rescheduling.live()
    assert rescheduling.subscription.deliveries == {at(1): 1, at(2): 1}
    assert rescheduling.cluster.compacted() == {}, "nothing is left in the log"


@pytest.mark.parametrize("verb", _VERBS)
def test_asking_again_finds_the_copy_on_any_sidecar(rescheduling: Rescheduling, verb: str) -> None:
    first = _VERBS[verb](rescheduling)
    rescheduling.live(3_000)
    again = _VERBS[verb](rescheduling)
    rescheduling.sidecar, rescheduling.other = FakeSidecar(rescheduling.cluster), rescheduling.sidecar
    assert {first.message_id, again.message_id, _VERBS[verb](rescheduling).message_id} == {"7:2:-1"}
    assert again.outcome.cancelled
    rescheduling.live()
    assert rescheduling.subscription.deliveries == {at(1): 1, at(2): 1}


@pytest.mark.parametrize("verb", _VERBS)
def test_a_cancelled_message_is_not_brought_back(rescheduling: Rescheduling, verb: str) -> None:
    rescheduling.sidecar.cancel(0)
    assert only(_VERBS[verb](rescheduling)) == (CancellationStatus.REFUSED, Cause.CANCELLED)
    rescheduling.live()
    assert rescheduling.subscription.deliveries == {at(1): 1}
    assert rescheduling.copies == []


@pytest.mark.parametrize("verb", _VERBS)
def test_message_with_pending_cancellation_is_not_republished(rescheduling: Rescheduling, verb: str) -> None:
    rescheduling.cluster.max_ranges = 0
    rescheduling.sidecar.cancel(1, defer=True)
    rescheduling.cluster.max_ranges = 10
    done = rescheduling.expedite(1) if verb == "expedite" else rescheduling.reschedule(1)
    assert only(done) == (CancellationStatus.REFUSED, Cause.CANCELLED)
    assert rescheduling.copies == []


@pytest.mark.parametrize("verb", _VERBS)
def test_acknowledged_message_is_not_published_again(rescheduling: Rescheduling, verb: str) -> None:
    rescheduling.subscription.acked.add(at(0))
    assert only(_VERBS[verb](rescheduling)) == (CancellationStatus.TOO_LATE, Cause.ACKED_BEFORE)
    assert rescheduling.copies == []
    assert rescheduling.cluster.records == []


@pytest.mark.parametrize("verb", _VERBS)
def test_a_full_acknowledgement_state_is_reported_before_anything_is_published(
    rescheduling: Rescheduling, verb: str
) -> None:
    rescheduling.cluster.max_ranges = 0
    rescheduling.cluster.publish(1, DUE_MS)
    done = rescheduling.expedite(1) if verb == "expedite" else rescheduling.reschedule(1)
    assert only(done) == (CancellationStatus.REFUSED, Cause.ACK_STATE_FULL)
    rescheduling.live()
    assert rescheduling.subscription.deliveries == {at(0): 1, at(1): 1, at(2): 1}


def test_another_time_or_another_message_than_the_first_request_is_refused(rescheduling: Rescheduling) -> None:
    done = rescheduling.reschedule()
    other = rescheduling.reschedule(in_ms=NEW_MS + 1)
    assert only(other) == (CancellationStatus.REFUSED, Cause.PUBLISHED_AGAIN)
    assert str(done.message_id) in (other.outcome.verdicts[0].reason or "")
    assert only(rescheduling.expedite()) == (CancellationStatus.REFUSED, Cause.PUBLISHED_AGAIN)
    wrong = rescheduling.sidecar.feature.reschedule(TOPIC, Target(at(0), 5), done.deliver_at, CancelOptions())
    assert only(wrong) == (CancellationStatus.REFUSED, Cause.OTHER_DELIVER_AT)
    some = Target(at(0), None, None, ("s",))
    for target in (some, some._replace(position=at(1))):
        refused = rescheduling.sidecar.feature.reschedule(TOPIC, target, done.deliver_at, CancelOptions())
        assert only(refused) == (CancellationStatus.REFUSED, Cause.INVALID)
    assert rescheduling.copies == [at(2)]


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER])
def test_exclusive_and_failover_subscriptions_prevent_a_copy(
    rescheduling: Rescheduling, kind: SubscriptionType
) -> None:
    rescheduling.cluster.subscribe("once", type=kind)
    assert only(rescheduling.reschedule()) == (CancellationStatus.REFUSED, Cause.SUBSCRIPTION_TYPE)
    rescheduling.live(DUE_MS - 3_500)
    assert only(rescheduling.expedite(1)) != (CancellationStatus.ACKED, None), "it comes by itself"
    assert rescheduling.copies == []


def test_a_copy_that_cannot_be_published_leaves_the_message_as_it_was(rescheduling: Rescheduling) -> None:
    rescheduling.cluster.interrupt("republish", TemporaryError("the broker opened no producer"), before=True)
    with pytest.raises(TemporaryError):
        rescheduling.reschedule()
    assert rescheduling.cluster.compacted() == {}
    assert rescheduling.reschedule().message_id == "7:2:-1"


@pytest.mark.parametrize("kind", ["before", "after"])
@pytest.mark.parametrize("call", ["append", "join", "acknowledge", "republish"])
@pytest.mark.parametrize("number", range(4))
def test_reschedule_resumed_after_due_time_loses_no_message(
    rescheduling: Rescheduling, call: str, number: int, kind: str
) -> None:
    left = [number]

    def crash(made: str) -> None:
        if made == call:
            left[0] -= 1
            if left[0] < 0:
                raise CrashError

    setattr(rescheduling.cluster, kind, crash)
    _survive(rescheduling, lambda rescheduling: rescheduling.reschedule(in_ms=DUE_MS + 60_000))
    rescheduling.cluster.before = rescheduling.cluster.after = lambda call: None
    rescheduling.cluster.pass_ms(DUE_MS + 10_000, 1_000)
    rescheduling.sidecar, rescheduling.other = FakeSidecar(rescheduling.cluster), FakeSidecar(rescheduling.cluster)
    for _ in range(3):  # the cancellation of the old message ends first
        rescheduling.cluster.clock.advance_ms(250)
        rescheduling.sidecar.feature._reconciler.round()
    rescheduling.live()
    delivered = rescheduling.subscription.deliveries
    assert delivered.get(at(0), 0) + delivered.get(at(2), 0) >= 1
    assert len(rescheduling.copies) <= 1
    assert rescheduling.cluster.compacted() == {}


def test_a_sidecar_that_does_not_follow_the_log_publishes_and_finishes_nothing(rescheduling: Rescheduling) -> None:
    rescheduling.sidecar.disconnect()
    with pytest.raises(TemporaryError, match="log"):
        rescheduling.reschedule()
    assert rescheduling.copies == []


def test_all_chunks_are_one_copy(rescheduling: Rescheduling) -> None:
    rescheduling.cluster.publish(1, DUE_MS, chunk=Chunk("u", 0, 2))
    rescheduling.cluster.publish(1, DUE_MS, chunk=Chunk("u", 1, 2))
    assert rescheduling.reschedule(3).outcome.cancelled
    assert {at(2), at(3)} <= rescheduling.subscription.acked


# --- broken off anywhere -------------------------------------------------------------------------------------------


def _arm(cluster: FakeCluster, faults: dict[tuple[int, bool], str]) -> None:
    """Break off the given calls, before or after their effect."""

    def fail(call: str, *, before: bool) -> None:
        kind = faults.get((cluster.calls - 1, before))
        if kind is not None:
            # Once a copy has been sent, a broken response is never reported as one that changed nothing.
            raise FAULTS["unknown" if call == "republish" and kind == "temporary" and not before else kind]()

    cluster.before = lambda call: fail(call, before=True)
    cluster.after = lambda call: fail(call, before=False)


def _survive(rescheduling: Rescheduling, ask: Ask) -> RescheduleResult | None:
    try:
        return ask(rescheduling)
    except CrashError:
        rescheduling.sidecar = FakeSidecar(rescheduling.cluster)
    except SidecarError:
        pass
    return None


def _run(verb: str, faults: dict[tuple[int, bool], str], asked_again: int = 2, between_ms: int = 500) -> int:
    rescheduling = Rescheduling()
    _arm(rescheduling.cluster, faults)
    answers: list[RescheduleResult | None] = []
    for _ in range(asked_again + 1):
        answers.append(_survive(rescheduling, _VERBS[verb]))
        _survive(rescheduling, lambda rescheduling: rescheduling.live(between_ms, between_ms))  # type: ignore[func-returns-value,return-value]
    made = rescheduling.cluster.calls
    rescheduling.cluster.before = rescheduling.cluster.after = lambda call: None
    rescheduling.live(20_000)
    answers.append(_VERBS[verb](rescheduling))
    rescheduling.live()
    delivered = rescheduling.subscription.deliveries
    assert len(rescheduling.copies) <= 1, "a second copy"
    assert sum(delivered.values()) - delivered.pop(at(1)) == 1, f"{delivered}"
    for answer in answers:
        if answer is not None and answer.message_id is not None:
            assert rescheduling.copies
    if not rescheduling.copies:
        assert delivered == {at(0): 1}
    assert rescheduling.cluster.compacted() == {}
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
    rescheduling = Rescheduling()

    def ask_the_other(call: str) -> None:
        if rescheduling.cluster.calls - 1 == at_call:
            rescheduling.cluster.before = lambda call: None
            rescheduling.sidecar, rescheduling.other = rescheduling.other, rescheduling.sidecar
            _VERBS[verb](rescheduling)

    rescheduling.cluster.before = ask_the_other
    done = _VERBS[verb](rescheduling)
    assert done.message_id == "7:2:-1", done
    rescheduling.cluster.before = lambda call: None
    rescheduling.live()
    assert len(rescheduling.copies) == 1
    assert rescheduling.subscription.deliveries == {at(1): 1, at(2): 1}


# --- contents of the log -------------------------------------------------------------------------------------------


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
def test_intents_of_other_versions_are_ignored(value: bytes) -> None:
    cluster = FakeCluster()
    store = CancellationStore(cluster)
    store.apply([(_intent("a").key, value)])
    assert store.intents.all() == []
    if value:
        with pytest.raises(UndecodableError):
            RescheduleIntents(FakeCluster()).apply(_intent("a").key, value)


def test_intents_missing_from_a_complete_read_are_forgotten() -> None:
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
