"""Publishing again when receipts are lost, logs are slow, and others go on meanwhile: nothing lost, nothing blocked."""

from collections.abc import Collection
from itertools import pairwise

import pytest
from pulsar_sidecar.delayed_delivery.cancel.requests import CancellationStatus, Cause
from pulsar_sidecar.delayed_delivery.ports import EntryFacts
from pulsar_sidecar.delayed_delivery.workflow import rescheduling
from pulsar_sidecar.delayed_delivery.workflow.rescheduling import INTENT_PROPERTY
from pulsar_sidecar.model.errors import OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName

from tests.fakes.delayed_messages import at
from tests.fakes.rescheduling import DUE_MS, NEW_MS, Rescheduling, only


@pytest.fixture
def world() -> Rescheduling:
    return Rescheduling()


def test_a_copy_that_is_stored_late_is_found_when_asked_again_or_by_the_leading_sidecar(world: Rescheduling) -> None:
    late: list[EntryFacts] = []

    def hold_back(call: str) -> None:
        if call == "republish":
            held = world.cluster.entries.pop(at(2))
            assert isinstance(held, EntryFacts)
            late.append(held)
            raise OutcomeUnknownError("no receipt")

    world.cluster.after = hold_back
    assert only(world.reschedule()) == (CancellationStatus.UNKNOWN, Cause.UNCONFIRMED)
    world.cluster.after = lambda call: None
    world.live(8_000)
    world.cluster.entries[at(2)] = late[0]
    world.live(8_000)
    assert world.subscription.acked == {at(0)}, "the leading sidecar has found the copy and cancelled the message"
    assert world.reschedule().message_id == "7:2:-1"


def lose_receipt(world: Rescheduling, unreadable: Position | None = None, *, stored: bool = True) -> None:
    """The next copies get no receipt; one entry beside them cannot be read."""

    def lose(call: str) -> None:
        if call == "republish":
            if unreadable is not None:
                world.cluster.entries[unreadable] = Unreadable("no bookie")
            raise OutcomeUnknownError("no receipt")

    setattr(world.cluster, "after" if stored else "before", lose)


def test_what_cannot_be_read_is_no_sign_that_there_is_no_copy(world: Rescheduling) -> None:
    lose_receipt(world, unreadable=at(2), stored=False)
    with pytest.raises(TemporaryError, match="could not be read"):
        world.reschedule()
    world.cluster.before = lambda call: None
    world.live()
    assert world.cluster.compacted() == {}, "the intent is over, and forgotten although it could not be gone on with"


def test_an_old_message_that_could_not_be_cancelled_is_cancelled_later(world: Rescheduling) -> None:
    facts = world.cluster.entries[at(0)]

    def hide(call: str) -> None:
        if call == "republish":
            world.cluster.entries[at(0)] = Unreadable("no bookie")

    world.cluster.after = hide
    done = world.reschedule()
    assert (done.message_id, only(done)) == ("7:2:-1", (CancellationStatus.REFUSED, Cause.UNREADABLE))
    world.cluster.entries[at(0)] = facts
    world.live(10_000)
    assert world.subscription.acked == {at(0)}
    assert world.copies == [at(2)]


def test_a_copy_is_found_beside_what_cannot_be_read(world: Rescheduling) -> None:
    lose_receipt(world, unreadable=at(3))
    assert world.reschedule().message_id == "7:2:-1"


def test_what_could_not_be_read_is_looked_at_again(world: Rescheduling) -> None:
    lose_receipt(world, stored=False)
    world.reschedule()
    world.cluster.before = lambda call: None
    intent = world.sidecar.room._store.intents.all()[0]
    (copied,) = world.cluster.publish(1, NEW_MS, properties={INTENT_PROPERTY: intent.token})
    world.cluster.publish(1, DUE_MS)
    facts, world.cluster.entries[copied] = world.cluster.entries[copied], Unreadable("no bookie")
    world.live(10_000)
    world.cluster.entries[copied] = facts
    world.live(10_000)
    assert world.reschedule().message_id == f"{copied}:-1"
    assert at(0) in world.subscription.acked


def test_the_leading_sidecar_reads_nothing_twice_and_everything_in_portions(
    world: Rescheduling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescheduling, "_READ_AT_ONCE", 10)
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
    world: Rescheduling, capsys: pytest.CaptureFixture[str]
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


def test_a_message_that_is_dispatched_meanwhile_keeps_its_copy(world: Rescheduling) -> None:
    world.cluster.subscribe("idle", consumers=0)

    def dispatch(call: str) -> None:
        if call == "republish":
            world.cluster.after = lambda call: None
            world.subscription.delivered[at(0)] += 1
            world.subscription.acked.add(at(0))

    world.cluster.after = dispatch
    done = world.reschedule(in_ms=DUE_MS + 60_000)
    assert {one.subscription: one.status for one in done.outcome.results} == {
        "s": CancellationStatus.TOO_LATE,
        "idle": CancellationStatus.ACKED,
    }
    assert done.message_id == "7:2:-1"
    assert at(2) not in world.subscription.acked
    again = world.reschedule(in_ms=DUE_MS + 60_000)
    assert again.message_id == "7:2:-1"
    assert {one.subscription: one.status for one in again.outcome.results} == {
        "s": CancellationStatus.UNKNOWN,
        "idle": CancellationStatus.ACKED,
    }


def test_nothing_known_of_the_old_message_is_not_told_as_cancelled(world: Rescheduling) -> None:
    def dispatch(call: str) -> None:
        if call == "republish":
            world.subscription.acked.add(at(0))

    world.cluster.after = dispatch
    world.reschedule()
    again = world.reschedule()
    assert only(again) == (CancellationStatus.UNKNOWN, Cause.UNWATCHED)
    del world.cluster.subscriptions_["s"]
    assert only(world.reschedule()) == (CancellationStatus.UNKNOWN, Cause.UNWATCHED)


def test_who_resumes_after_another_sidecar_went_on_loses_nothing(world: Rescheduling) -> None:
    def hang(call: str) -> None:
        if call == "republish":
            world.cluster.after = lambda call: None
            world.other.live(DUE_MS + 20_000, 1_000)

    world.cluster.after = hang
    done = world.reschedule(in_ms=DUE_MS + 60_000)
    assert done.message_id == "7:2:-1"
    world.live()
    assert world.subscription.deliveries == {at(1): 1, at(2): 1}


def test_a_cancellation_that_came_before_the_intent_counts(world: Rescheduling) -> None:
    def cancel_elsewhere(call: str) -> None:
        if call == "append":
            world.cluster.before = lambda call: None
            world.other.cancel(0)

    world.cluster.before = cancel_elsewhere
    assert only(world.reschedule()) == (CancellationStatus.REFUSED, Cause.CANCELLED)
    world.live()
    assert world.subscription.deliveries == {at(1): 1}
    assert world.cluster.compacted() == {}


def test_what_is_nearly_due_when_the_log_comes_back_is_left_alone(world: Rescheduling) -> None:
    def be_slow(call: str) -> None:
        if call == "append":
            world.cluster.after = lambda call: None
            world.cluster.pass_ms(DUE_MS - 3_500, 500)

    world.cluster.after = be_slow
    assert only(world.reschedule(in_ms=DUE_MS + 60_000)) == (CancellationStatus.TOO_LATE, Cause.DUE)
    assert world.copies == []
    assert world.cluster.compacted() == {}


def test_an_intent_whose_receipt_is_lost_does_not_block_the_message(world: Rescheduling) -> None:
    def lose(call: str) -> None:
        if call == "append":
            world.cluster.after = lambda call: None
            raise TemporaryError("no receipt")

    world.cluster.after = lose
    with pytest.raises(TemporaryError, match="no receipt"):
        world.reschedule()
    assert world.cluster.compacted() == {}
    assert world.reschedule().message_id == "7:2:-1"


def test_who_stops_following_the_log_publishes_nothing(world: Rescheduling) -> None:
    def stop(call: str) -> None:
        if call == "append":
            world.cluster.after = lambda call: None
            world.sidecar.room._store.follows = False

    world.cluster.after = stop
    with pytest.raises(TemporaryError, match="does not keep up"):
        world.reschedule()
    assert world.copies == []
    assert world.cluster.compacted() == {}
