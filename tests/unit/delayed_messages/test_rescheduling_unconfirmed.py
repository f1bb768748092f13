"""Publishing again when receipts are lost, logs are slow and others continue: nothing is lost or blocked."""

from collections.abc import Collection
from itertools import pairwise

import pytest
import structlog
from pulsar_sidecar.backlog.ports import EntryAnswer
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus, Cause
from pulsar_sidecar.features.delayed_messages.workflow import rescheduling as workflow
from pulsar_sidecar.features.delayed_messages.workflow.rescheduling import INTENT_PROPERTY
from pulsar_sidecar.model.errors import OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.observability.tracing import add_request, identified

from tests.fakes.delayed_messages import at
from tests.fakes.rescheduling import DUE_MS, NEW_MS, Rescheduling, only


@pytest.fixture
def rescheduling() -> Rescheduling:
    return Rescheduling()


def test_a_copy_that_is_stored_late_is_found_when_asked_again_or_by_the_leading_sidecar(
    rescheduling: Rescheduling,
) -> None:
    late: list[EntryAnswer] = []

    def hold_back() -> None:
        late.append(rescheduling.cluster.entries.pop(at(2)))
        raise OutcomeUnknownError("no receipt")

    rescheduling.cluster.interrupt("republish", hold_back)
    assert only(rescheduling.reschedule()) == (CancellationStatus.UNKNOWN, Cause.UNCONFIRMED)
    rescheduling.live(8_000)
    rescheduling.cluster.entries[at(2)] = late[0]
    rescheduling.live(8_000)
    assert rescheduling.subscription.acked == {at(0)}, (
        "the leading sidecar has found the copy and cancelled the message"
    )
    assert rescheduling.reschedule().message_id == "7:2:-1"


def lose_receipt(rescheduling: Rescheduling, unreadable: Position | None = None, *, stored: bool = True) -> None:
    """The next copies get no receipt; one entry beside them cannot be read."""

    def lose() -> None:
        if unreadable is not None:
            rescheduling.cluster.entries[unreadable] = Unreadable("no bookie")
        raise OutcomeUnknownError("no receipt")

    rescheduling.cluster.interrupt("republish", lose, before=not stored, each=True)


def test_unreadable_entry_does_not_prove_that_no_copy_exists(rescheduling: Rescheduling) -> None:
    lose_receipt(rescheduling, unreadable=at(2), stored=False)
    with pytest.raises(TemporaryError, match="could not be read"):
        rescheduling.reschedule()
    rescheduling.cluster.before = lambda call: None
    rescheduling.live()
    assert rescheduling.cluster.compacted() == {}, (
        "the intent is over, and forgotten although it could not be gone on with"
    )


def test_an_old_message_that_could_not_be_cancelled_is_cancelled_later(rescheduling: Rescheduling) -> None:
    facts = rescheduling.cluster.entries[at(0)]
    hidden = {at(0): Unreadable("no bookie")}
    rescheduling.cluster.interrupt("republish", lambda: rescheduling.cluster.entries.update(hidden))
    done = rescheduling.reschedule()
    assert (done.message_id, only(done)) == ("7:2:-1", (CancellationStatus.REFUSED, Cause.UNREADABLE))
    rescheduling.cluster.entries[at(0)] = facts
    rescheduling.live(10_000)
    assert rescheduling.subscription.acked == {at(0)}
    assert rescheduling.copies == [at(2)]


def test_a_copy_is_found_beside_what_cannot_be_read(rescheduling: Rescheduling) -> None:
    lose_receipt(rescheduling, unreadable=at(3))
    assert rescheduling.reschedule().message_id == "7:2:-1"


def test_unreadable_entry_is_read_again(rescheduling: Rescheduling) -> None:
    lose_receipt(rescheduling, stored=False)
    rescheduling.reschedule()
    rescheduling.cluster.before = lambda call: None
    intent = rescheduling.sidecar.feature._store.intents.all()[0]
    (copied,) = rescheduling.cluster.publish(1, NEW_MS, properties={INTENT_PROPERTY: intent.token})
    rescheduling.cluster.publish(1, DUE_MS)
    facts, rescheduling.cluster.entries[copied] = rescheduling.cluster.entries[copied], Unreadable("no bookie")
    rescheduling.live(10_000)
    rescheduling.cluster.entries[copied] = facts
    rescheduling.live(10_000)
    assert rescheduling.reschedule().message_id == f"{copied}:-1"
    assert at(0) in rescheduling.subscription.acked


def test_the_leading_sidecar_reads_nothing_twice_and_everything_in_portions(
    rescheduling: Rescheduling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflow, "_READ_AT_ONCE", 10)
    lose_receipt(rescheduling, stored=False)
    rescheduling.reschedule()
    rescheduling.cluster.before = lambda call: None
    rescheduling.cluster.publish(100, DUE_MS)
    read: list[Position] = []
    original = rescheduling.cluster.read

    def note(topic: TopicName, positions: Collection[Position], *, max_age_seconds: float = 0.0) -> object:
        read.extend(positions)
        return original(topic, positions, max_age_seconds=max_age_seconds)

    monkeypatch.setattr(rescheduling.cluster, "read", note)
    rescheduling.cluster.pass_ms(6_000)
    rescheduling.sidecar.round()
    assert len(read) == 40
    for _ in range(60):
        rescheduling.cluster.pass_ms(1_000, 1_000)
        rescheduling.sidecar.round()
    assert sorted(read) == [at(entry) for entry in range(2, 102)], "each entry once"


def test_an_unconfirmed_copy_is_looked_for_less_and_less_often_and_logged_once(
    rescheduling: Rescheduling, capsys: pytest.CaptureFixture[str]
) -> None:
    lose_receipt(rescheduling, stored=False)
    rescheduling.reschedule()
    looks: list[int] = []
    rescheduling.cluster.before = lambda call: (
        looks.append(rescheduling.cluster.clock.now_ms()) if call == "state" else None
    )
    for _ in range(110):
        rescheduling.cluster.pass_ms(1_000, 1_000)
        rescheduling.sidecar.round()
    waits = [later - earlier for earlier, later in pairwise(looks)]
    assert waits == sorted(waits)
    assert waits[-1] >= 30_000
    assert capsys.readouterr().out.count("message not republished") == 1


def test_message_dispatched_during_reschedule_keeps_its_copy(rescheduling: Rescheduling) -> None:
    rescheduling.cluster.subscribe("idle", consumers=0)
    rescheduling.cluster.interrupt("republish", lambda: rescheduling.cluster._deliver(rescheduling.subscription, at(0)))
    done = rescheduling.reschedule(in_ms=DUE_MS + 60_000)
    assert {one.subscription: one.proof for one in done.outcome.verdicts} == {
        "s": CancellationStatus.TOO_LATE,
        "idle": CancellationStatus.ACKED,
    }
    assert done.message_id == "7:2:-1"
    assert at(2) not in rescheduling.subscription.acked
    again = rescheduling.reschedule(in_ms=DUE_MS + 60_000)
    assert again.message_id == "7:2:-1"
    assert {one.subscription: one.proof for one in again.outcome.verdicts} == {
        "s": CancellationStatus.UNKNOWN,
        "idle": CancellationStatus.ACKED,
    }


def test_an_unknown_old_message_is_not_reported_as_cancelled(rescheduling: Rescheduling) -> None:
    rescheduling.cluster.interrupt("republish", lambda: rescheduling.subscription.acked.add(at(0)))
    rescheduling.reschedule()
    again = rescheduling.reschedule()
    assert only(again) == (CancellationStatus.UNKNOWN, Cause.UNWATCHED)
    del rescheduling.cluster.subscriptions_["s"]
    assert only(rescheduling.reschedule()) == (CancellationStatus.UNKNOWN, Cause.UNWATCHED)


def test_sidecar_resuming_after_a_takeover_loses_nothing(rescheduling: Rescheduling) -> None:
    rescheduling.cluster.interrupt("republish", lambda: rescheduling.other.live(DUE_MS + 20_000, 1_000))
    done = rescheduling.reschedule(in_ms=DUE_MS + 60_000)
    assert done.message_id == "7:2:-1"
    rescheduling.live()
    assert rescheduling.subscription.deliveries == {at(1): 1, at(2): 1}


def test_a_cancellation_that_came_before_the_intent_counts(rescheduling: Rescheduling) -> None:
    rescheduling.cluster.interrupt("append", lambda: rescheduling.other.cancel(0), before=True)
    assert only(rescheduling.reschedule()) == (CancellationStatus.REFUSED, Cause.CANCELLED)
    rescheduling.live()
    assert rescheduling.subscription.deliveries == {at(1): 1}
    assert rescheduling.cluster.compacted() == {}


def test_message_nearly_due_after_a_slow_append_stays(rescheduling: Rescheduling) -> None:
    rescheduling.cluster.interrupt("append", lambda: rescheduling.cluster.pass_ms(DUE_MS - 3_500, 500))
    assert only(rescheduling.reschedule(in_ms=DUE_MS + 60_000)) == (CancellationStatus.TOO_LATE, Cause.DUE)
    assert rescheduling.copies == []
    assert rescheduling.cluster.compacted() == {}


def test_an_intent_whose_receipt_is_lost_does_not_block_the_message(rescheduling: Rescheduling) -> None:
    rescheduling.cluster.interrupt("append", TemporaryError("no receipt"))
    with pytest.raises(TemporaryError, match="no receipt"):
        rescheduling.reschedule()
    assert rescheduling.cluster.compacted() == {}
    assert rescheduling.reschedule().message_id == "7:2:-1"


def test_sidecar_behind_the_log_publishes_nothing(rescheduling: Rescheduling) -> None:
    rescheduling.cluster.interrupt("append", rescheduling.sidecar.disconnect)
    with pytest.raises(TemporaryError, match="does not keep up"):
        rescheduling.reschedule()
    assert rescheduling.copies == []
    assert rescheduling.cluster.compacted() == {}


def test_resumed_reschedule_logs_the_original_request_id(rescheduling: Rescheduling) -> None:
    lose_receipt(rescheduling, stored=False)
    with identified("r-1"):
        rescheduling.reschedule()
    with structlog.testing.capture_logs([add_request]) as lines:
        for _ in range(10):
            rescheduling.cluster.pass_ms(1_000, 1_000)
            rescheduling.sidecar.round()
    found = {line["request_id"] for line in lines if line["event"] == "message not republished"}
    assert found == {"r-1"}
