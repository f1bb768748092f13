"""Expediting and rescheduling: never a second copy, never a cancelled message brought back, none lost by a crash.

A request is broken off at every call, sidecars crash, two of them are asked at once, and callers ask again.
"""

from collections.abc import Callable, Collection
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.delayed_delivery.cancelling import CancelOptions, Cause, Proof, Target
from service.delayed_delivery.facts import Chunk, EntryFacts, SubscriptionType, Unreadable
from service.delayed_delivery.operating import Reissued
from service.delayed_delivery.reissue_intents import REISSUE_PROPERTY, ReissueIntent, ReissueIntents
from service.delayed_delivery.workflow import reissuing
from service.delayed_delivery.workflow.world import Memory
from service.model.errors import OutcomeUnknownError, SidecarError, TemporaryError, UndecodableError
from service.model.names import TopicName
from service.model.positions import Position
from tests.fakes.delayed_messages import TOPIC, CrashError, FakeCluster, FakeSidecar, FakeSubscription, at

DUE_MS = 120_000
NEW_MS = 60_000
THOROUGH = settings.get_current_profile_name() == "thorough"


class Reissuing:
    """A topic with a few messages, a sidecar, and another one."""

    def __init__(self, messages: int = 2) -> None:
        self.cluster = FakeCluster()
        self.subscription: FakeSubscription = self.cluster.subscribe()
        self.cluster.publish(messages, DUE_MS)
        self.begin_ms = self.cluster.clock.now_ms()
        self.sidecar, self.other = FakeSidecar(self.cluster), FakeSidecar(self.cluster)

    def expedite(self, entry: int = 0, sidecar: FakeSidecar | None = None) -> Reissued:
        return self._reissue(entry, None, sidecar)

    def reschedule(self, entry: int = 0, sidecar: FakeSidecar | None = None, in_ms: int = NEW_MS) -> Reissued:
        return self._reissue(entry, self.begin_ms + in_ms, sidecar)

    def _reissue(self, entry: int, deliver_at_ms: int | None, sidecar: FakeSidecar | None) -> Reissued:
        target = Target(at(entry), self.begin_ms + DUE_MS)
        return (sidecar or self.sidecar).room.reissue(TOPIC, target, deliver_at_ms, CancelOptions())

    def live(self, milliseconds: int = DUE_MS + 20_000, step_ms: int = 1_000) -> None:
        for _ in range(0, milliseconds, step_ms):
            self.sidecar.live(step_ms, step_ms)
            self.other.round()

    @property
    def copies(self) -> list[Position]:
        return sorted(
            position
            for position, facts in self.cluster.entries.items()
            if isinstance(facts, EntryFacts) and "pulsar-sidecar-replaces" in facts.properties
        )


@pytest.fixture
def world() -> Reissuing:
    return Reissuing()


def only(done: Reissued) -> tuple[Proof, Cause | None]:
    (verdict,) = done.outcome.verdicts
    return verdict.proof, verdict.cause


Ask = Callable[[Reissuing], Reissued]
_VERBS: dict[str, Ask] = {"expedite": Reissuing.expedite, "reschedule": Reissuing.reschedule}


@pytest.mark.parametrize("verb", _VERBS)
def test_a_message_is_delivered_once_at_its_new_time(world: Reissuing, verb: str) -> None:
    done = _VERBS[verb](world)
    assert done.message_id == "7:2:-1"
    assert done.outcome.cancelled
    world.live()
    assert world.subscription.deliveries == {at(1): 1, at(2): 1}
    assert world.cluster.compacted() == {}, "nothing is left in the log"


@pytest.mark.parametrize("verb", _VERBS)
def test_asking_again_finds_the_copy_on_any_sidecar(world: Reissuing, verb: str) -> None:
    first = _VERBS[verb](world)
    world.live(3_000)
    again = _VERBS[verb](world)
    world.sidecar, world.other = FakeSidecar(world.cluster), world.sidecar
    assert {first.message_id, again.message_id, _VERBS[verb](world).message_id} == {"7:2:-1"}
    assert again.outcome.cancelled
    world.live()
    assert world.subscription.deliveries == {at(1): 1, at(2): 1}


@pytest.mark.parametrize("verb", _VERBS)
def test_a_cancelled_message_is_not_brought_back(world: Reissuing, verb: str) -> None:
    world.sidecar.cancel(0)
    assert only(_VERBS[verb](world)) == (Proof.REFUSED, Cause.CANCELLED)
    world.live()
    assert world.subscription.deliveries == {at(1): 1}
    assert world.copies == []


@pytest.mark.parametrize("verb", _VERBS)
def test_what_waits_in_the_log_to_be_cancelled_is_not_published(world: Reissuing, verb: str) -> None:
    world.cluster.max_ranges = 0
    world.sidecar.cancel(1, defer=True)
    world.cluster.max_ranges = 10
    done = world.expedite(1) if verb == "expedite" else world.reschedule(1)
    assert only(done) == (Proof.REFUSED, Cause.CANCELLED)
    assert world.copies == []


@pytest.mark.parametrize("verb", _VERBS)
def test_what_a_consumer_acknowledged_is_not_published(world: Reissuing, verb: str) -> None:
    world.subscription.acked.add(at(0))
    assert only(_VERBS[verb](world)) == (Proof.TOO_LATE, Cause.ACKED_BEFORE)
    assert world.copies == []
    assert world.cluster.records == []


@pytest.mark.parametrize("verb", _VERBS)
def test_a_full_acknowledgement_state_is_told_before_anything_is_published(world: Reissuing, verb: str) -> None:
    world.cluster.max_ranges = 0
    world.cluster.publish(1, DUE_MS)
    done = world.expedite(1) if verb == "expedite" else world.reschedule(1)
    assert only(done) == (Proof.REFUSED, Cause.ACK_STATE_FULL)
    world.live()
    assert world.subscription.deliveries == {at(0): 1, at(1): 1, at(2): 1}


def test_another_time_or_another_message_than_the_first_request_is_refused(world: Reissuing) -> None:
    done = world.reschedule()
    other = world.reschedule(in_ms=NEW_MS + 1)
    assert only(other) == (Proof.REFUSED, Cause.REISSUED)
    assert str(done.message_id) in (other.outcome.verdicts[0].reason or "")
    assert only(world.expedite()) == (Proof.REFUSED, Cause.REISSUED)
    wrong = world.sidecar.room.reissue(TOPIC, Target(at(0), 5), done.deliver_at_ms, CancelOptions())
    assert only(wrong) == (Proof.REFUSED, Cause.OTHER_DELIVER_AT)
    some = Target(at(0), None, None, ("s",))
    for target in (some, some._replace(position=at(1))):
        refused = world.sidecar.room.reissue(TOPIC, target, done.deliver_at_ms, CancelOptions())
        assert only(refused) == (Proof.REFUSED, Cause.INVALID)
    assert world.copies == [at(2)]


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER])
def test_where_a_copy_would_be_a_second_delivery_nothing_is_published(world: Reissuing, kind: SubscriptionType) -> None:
    world.cluster.subscribe("once", type=kind)
    assert only(world.reschedule()) == (Proof.REFUSED, Cause.SUBSCRIPTION_TYPE)
    world.live(DUE_MS - 3_500)
    assert only(world.expedite(1)) != (Proof.ACKED, None), "it comes by itself"
    assert world.copies == []


def test_a_copy_that_cannot_be_published_leaves_the_message_as_it_was(world: Reissuing) -> None:
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
    world: Reissuing, stored: bool
) -> None:
    def lose(call: str) -> None:
        if call == "republish":
            raise OutcomeUnknownError("no receipt")

    if stored:
        world.cluster.after = lose
        assert world.expedite().message_id == "7:2:-1"
    else:
        world.cluster.before = lose
        assert only(world.expedite()) == (Proof.UNKNOWN, Cause.UNCONFIRMED)
    world.cluster.before = world.cluster.after = lambda call: None
    again = world.expedite()
    assert (again.message_id is not None) is stored
    world.live()
    assert world.subscription.deliveries == ({at(1): 1, at(2): 1} if stored else {at(0): 1, at(1): 1})
    assert world.cluster.compacted() == {}


def test_a_copy_that_is_stored_late_is_found_when_asked_again_or_by_the_leading_sidecar(world: Reissuing) -> None:
    late: list[EntryFacts] = []

    def hold_back(call: str) -> None:
        if call == "republish":
            held = world.cluster.entries.pop(at(2))
            assert isinstance(held, EntryFacts)
            late.append(held)
            raise OutcomeUnknownError("no receipt")

    world.cluster.after = hold_back
    assert only(world.reschedule()) == (Proof.UNKNOWN, Cause.UNCONFIRMED)
    world.cluster.after = lambda call: None
    world.live(8_000)
    world.cluster.entries[at(2)] = late[0]
    world.live(8_000)
    assert world.subscription.acked == {at(0)}, "the leading sidecar has found the copy and cancelled the message"
    assert world.reschedule().message_id == "7:2:-1"


def lose_receipt(world: Reissuing, unreadable: Position | None = None, *, stored: bool = True) -> None:
    """The next copies get no receipt; one entry beside them cannot be read."""

    def lose(call: str) -> None:
        if call == "republish":
            if unreadable is not None:
                world.cluster.entries[unreadable] = Unreadable("no bookie")
            raise OutcomeUnknownError("no receipt")

    setattr(world.cluster, "after" if stored else "before", lose)


def test_what_cannot_be_read_is_no_sign_that_there_is_no_copy(world: Reissuing) -> None:
    lose_receipt(world, unreadable=at(2), stored=False)
    with pytest.raises(TemporaryError, match="could not be read"):
        world.reschedule()
    world.cluster.before = lambda call: None
    world.live()
    assert world.cluster.compacted() == {}, "the intent is over, and forgotten although it could not be gone on with"


def test_a_copy_is_found_beside_what_cannot_be_read(world: Reissuing) -> None:
    lose_receipt(world, unreadable=at(3))
    assert world.reschedule().message_id == "7:2:-1"


def test_what_could_not_be_read_is_looked_at_again(world: Reissuing) -> None:
    lose_receipt(world, stored=False)
    world.reschedule()
    world.cluster.before = lambda call: None
    intent = world.sidecar.room._memory.intents.all()[0]
    (copied,) = world.cluster.publish(1, NEW_MS, properties={REISSUE_PROPERTY: intent.token})
    world.cluster.publish(1, DUE_MS)
    facts, world.cluster.entries[copied] = world.cluster.entries[copied], Unreadable("no bookie")
    world.live(10_000)
    world.cluster.entries[copied] = facts
    world.live(10_000)
    assert world.reschedule().message_id == f"{copied}:-1"
    assert at(0) in world.subscription.acked


def test_the_leading_sidecar_reads_nothing_twice_and_everything_in_portions(
    world: Reissuing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reissuing, "_READ_AT_ONCE", 10)
    lose_receipt(world, stored=False)
    world.reschedule()
    world.cluster.before = lambda call: None
    world.cluster.publish(100, DUE_MS)
    read: list[Position] = []
    original = world.cluster.read

    def note(topic: TopicName, positions: Collection[Position], *, max_age_seconds: float = 0.0) -> object:
        read.extend(positions)
        return original(topic, positions, max_age_seconds=max_age_seconds)

    monkeypatch.setattr(world.cluster, "read", note)
    world.cluster.pass_ms(6_000)
    world.sidecar.round()
    assert len(read) == 40
    for _ in range(60):
        world.cluster.pass_ms(1_000, 1_000)
        world.sidecar.round()
    assert sorted(read) == [at(entry) for entry in range(2, 102)], "each entry once"


def test_an_unconfirmed_copy_is_looked_for_less_and_less_often_and_told_of_once(
    world: Reissuing, capsys: pytest.CaptureFixture[str]
) -> None:
    lose_receipt(world, stored=False)
    world.reschedule()
    looks: list[int] = []
    world.cluster.before = lambda call: looks.append(world.cluster.clock.now_ms()) if call == "state" else None
    for _ in range(110):
        world.cluster.pass_ms(1_000, 1_000)
        world.sidecar.round()
    waits = [later - earlier for earlier, later in pairwise(looks)]
    assert waits == sorted(waits)
    assert waits[-1] >= 30_000
    assert capsys.readouterr().out.count("a message was not published again") == 1


def test_a_message_that_is_dispatched_meanwhile_keeps_its_copy(world: Reissuing) -> None:
    world.cluster.subscribe("idle", consumers=0)

    def dispatch(call: str) -> None:
        if call == "republish":
            world.cluster.after = lambda call: None
            world.subscription.delivered[at(0)] += 1
            world.subscription.acked.add(at(0))

    world.cluster.after = dispatch
    done = world.reschedule(in_ms=DUE_MS + 60_000)
    assert {one.subscription: one.proof for one in done.outcome.verdicts} == {"s": Proof.TOO_LATE, "idle": Proof.ACKED}
    assert done.message_id == "7:2:-1"
    assert at(2) not in world.subscription.acked
    again = world.reschedule(in_ms=DUE_MS + 60_000)
    assert again.message_id == "7:2:-1"
    assert {one.subscription: one.proof for one in again.outcome.verdicts} == {"s": Proof.UNKNOWN, "idle": Proof.ACKED}


def test_nothing_known_of_the_old_message_is_not_told_as_cancelled(world: Reissuing) -> None:
    def dispatch(call: str) -> None:
        if call == "republish":
            world.subscription.acked.add(at(0))

    world.cluster.after = dispatch
    world.reschedule()
    again = world.reschedule()
    assert only(again) == (Proof.UNKNOWN, Cause.UNWATCHED)
    del world.cluster.subscriptions_["s"]
    assert only(world.reschedule()) == (Proof.UNKNOWN, Cause.UNWATCHED)


def test_who_resumes_after_another_sidecar_went_on_loses_nothing(world: Reissuing) -> None:
    def hang(call: str) -> None:
        if call == "republish":
            world.cluster.after = lambda call: None
            world.other.live(DUE_MS + 20_000, 1_000)

    world.cluster.after = hang
    done = world.reschedule(in_ms=DUE_MS + 60_000)
    assert done.message_id == "7:2:-1"
    world.live()
    assert world.subscription.deliveries == {at(1): 1, at(2): 1}


def test_a_cancellation_that_came_before_the_intent_counts(world: Reissuing) -> None:
    def cancel_elsewhere(call: str) -> None:
        if call == "append":
            world.cluster.before = lambda call: None
            world.other.cancel(0)

    world.cluster.before = cancel_elsewhere
    assert only(world.reschedule()) == (Proof.REFUSED, Cause.CANCELLED)
    world.live()
    assert world.subscription.deliveries == {at(1): 1}
    assert world.cluster.compacted() == {}


def test_what_is_nearly_due_when_the_log_comes_back_is_left_alone(world: Reissuing) -> None:
    def be_slow(call: str) -> None:
        if call == "append":
            world.cluster.after = lambda call: None
            world.cluster.pass_ms(DUE_MS - 3_500, 500)

    world.cluster.after = be_slow
    assert only(world.reschedule(in_ms=DUE_MS + 60_000)) == (Proof.TOO_LATE, Cause.DUE)
    assert world.copies == []
    assert world.cluster.compacted() == {}


def test_an_intent_whose_receipt_is_lost_does_not_block_the_message(world: Reissuing) -> None:
    def lose(call: str) -> None:
        if call == "append":
            world.cluster.after = lambda call: None
            raise TemporaryError("no receipt")

    world.cluster.after = lose
    with pytest.raises(TemporaryError, match="no receipt"):
        world.reschedule()
    assert world.cluster.compacted() == {}
    assert world.reschedule().message_id == "7:2:-1"


def test_who_stops_following_the_log_publishes_nothing(world: Reissuing) -> None:
    def stop(call: str) -> None:
        if call == "append":
            world.cluster.after = lambda call: None
            world.sidecar.room._memory.stop_following()

    world.cluster.after = stop
    with pytest.raises(TemporaryError, match="does not keep up"):
        world.reschedule()
    assert world.copies == []
    assert world.cluster.compacted() == {}


@pytest.mark.parametrize("kind", ["before", "after"])
@pytest.mark.parametrize("call", ["append", "acknowledge", "republish"])
@pytest.mark.parametrize("number", range(4))
def test_what_was_broken_off_and_is_found_only_after_the_due_time_is_not_lost(
    world: Reissuing, call: str, number: int, kind: str
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
        world.sidecar.room._asserter.round()
    world.live()
    delivered = world.subscription.deliveries
    assert delivered.get(at(0), 0) + delivered.get(at(2), 0) >= 1
    assert len(world.copies) <= 1
    assert world.cluster.compacted() == {}


def test_whoever_does_not_follow_the_log_publishes_and_finishes_nothing(world: Reissuing) -> None:
    world.sidecar.disconnect()
    with pytest.raises(TemporaryError, match="log"):
        world.reschedule()
    assert world.copies == []


def test_all_chunks_are_one_copy(world: Reissuing) -> None:
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


def _survive(world: Reissuing, ask: Ask) -> Reissued | None:
    try:
        return ask(world)
    except CrashError:
        world.sidecar = FakeSidecar(world.cluster)
    except SidecarError:
        pass
    return None


def _run(verb: str, faults: dict[tuple[int, bool], str], asked_again: int = 2, between_ms: int = 500) -> int:
    world = Reissuing()
    calls = _arm(world.cluster, faults)
    answers: list[Reissued | None] = []
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
    world = Reissuing()
    numbers = count()

    def ask_the_other(call: str) -> None:
        if next(numbers) == at_call:
            world.cluster.before = lambda call: None
            world.sidecar, world.other = world.other, world.sidecar
            _VERBS[verb](world)

    world.cluster.before = ask_the_other
    _VERBS[verb](world)
    world.cluster.before = lambda call: None
    world.live()
    assert len(world.copies) == 1
    assert world.subscription.deliveries == {at(1): 1, at(2): 1}


# --- what the log holds --------------------------------------------------------------------------------------------


def _intent(token: str, copy: str | None = None) -> ReissueIntent:
    return ReissueIntent(TOPIC, at(0), token, DUE_MS, None, 1, at(5), "somebody", copy)


def test_an_intent_is_read_as_it_was_written() -> None:
    intents = ReissueIntents()
    for one in (_intent("a"), _intent("b", "7:9:-1")):
        intents.apply(*one.encoded())
        assert intents.holds(one)
    assert intents.all() == [_intent("a"), _intent("b", "7:9:-1")]


def test_the_first_intent_counts_until_one_has_a_copy() -> None:
    intents = ReissueIntents()
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
    memory = Memory(cluster)
    memory.apply([(_intent("a").key, value)])
    assert memory.intents.all() == []
    if value:
        with pytest.raises(UndecodableError):
            ReissueIntents().apply(_intent("a").key, value)


def test_what_the_log_no_longer_holds_is_forgotten_when_all_of_it_was_read() -> None:
    memory = Memory(FakeCluster())
    memory.apply([_intent("a").encoded(), _intent("b").encoded()])
    memory.begin_following()
    memory.apply([_intent("b").encoded()])
    memory.note_caught_up(unreadable=1)
    assert len(memory.intents.all()) == 2
    memory.begin_following()
    memory.apply([_intent("b").encoded()])
    memory.note_caught_up()
    assert memory.intents.all() == [_intent("b")]
