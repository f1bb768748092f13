"""What is remembered of cursors may only say yes: everything else is decided on a fresh look."""

from collections import Counter

import pytest

from service.delayed_delivery.cancelling import Cause, Proof
from service.delayed_delivery.facts import Chunk
from service.model.errors import NotFoundError
from tests.fakes.delayed_messages import TOPIC, FakeCluster, FakeSidecar, at

_DUE_IN_MS = 120_000
_WITHIN_MS = 1_999


class Looking:
    """A cluster whose calls are counted, a sidecar, and a first cancellation that has read everything."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.subscription = self.cluster.subscribe()
        self.cluster.publish(20, _DUE_IN_MS)
        self.calls: Counter[str] = Counter()
        self.cluster.before = lambda call: self.calls.update([call])
        self.sidecar = FakeSidecar(self.cluster)
        assert self.proof(0) is Proof.ACKED
        self.calls.clear()

    def proof(self, entry: int) -> Proof:
        ((verdict,),) = [outcome.verdicts for outcome in self.sidecar.cancel(entry)]
        return verdict.proof


@pytest.fixture
def looking() -> Looking:
    return Looking()


def test_a_cursor_is_read_once_for_all_that_is_cancelled_within_two_seconds(looking: Looking) -> None:
    looking.cluster.clock.advance_ms(_WITHIN_MS)
    assert looking.proof(5) is Proof.ACKED
    assert (looking.calls["state"], looking.calls["cursor_names"]) == (0, 1)
    looking.cluster.clock.advance_ms(1)
    assert looking.proof(7) is Proof.ACKED
    assert looking.calls["state"] == 1
    assert looking.subscription.acked == {at(0), at(5), at(7)}


def test_a_subscription_that_was_deleted_meanwhile_is_not_found_and_not_created(looking: Looking) -> None:
    del looking.cluster.subscriptions_["s"]
    looking.cluster.subscribe("other")
    ((verdict,),) = [outcome.verdicts for outcome in looking.sidecar.cancel_at([at(1)], ("s",))]
    assert (verdict.proof, verdict.cause) == (Proof.NOT_FOUND, Cause.NO_SUBSCRIPTION)
    assert looking.calls["acknowledge"] == 0


def test_a_subscription_that_was_created_meanwhile_is_cancelled_on_too(looking: Looking) -> None:
    other = looking.cluster.subscribe("other")
    (outcome,) = looking.sidecar.cancel(1)
    assert {verdict.subscription for verdict in outcome.verdicts} == {"s", "other"}
    assert at(1) in other.acked


def test_a_topic_that_is_gone_is_told(looking: Looking) -> None:
    looking.cluster.topic_exists = False
    with pytest.raises(NotFoundError):
        looking.proof(1)


def test_what_is_known_already_is_looked_at_afresh(looking: Looking) -> None:
    written = len(looking.cluster.records)
    assert looking.proof(0) is Proof.ACKED
    assert looking.calls["state"] == 1
    assert looking.calls["acknowledge"] == 0
    assert len(looking.cluster.records) == written


def test_what_the_remembered_cursor_holds_is_looked_at_afresh(looking: Looking) -> None:
    looking.subscription.acked.add(at(3))
    looking.cluster.state(TOPIC)  # as somebody else reads it
    looking.subscription.acked.remove(at(3))  # and moves the cursor back
    assert looking.proof(3) is Proof.ACKED
    assert at(3) in looking.subscription.acked


def test_what_somebody_else_acknowledged_within_the_moment_is_not_delivered_either(looking: Looking) -> None:
    looking.subscription.acked.add(at(3))
    assert looking.proof(3) is Proof.ACKED
    looking.sidecar.live(_DUE_IN_MS + 5_000, 1_000)
    assert looking.subscription.deliveries == {at(entry): 1 for entry in range(20) if entry not in (0, 3)}


def test_the_limit_of_ranges_is_kept_without_reading_the_cursor(looking: Looking) -> None:
    looking.cluster.max_ranges = 3
    verdicts = [looking.proof(entry) for entry in (2, 4, 6, 8)]
    assert verdicts == [Proof.ACKED, Proof.ACKED, Proof.REFUSED, Proof.REFUSED]
    assert looking.proof(1) is Proof.ACKED, "it joins two ranges and needs no room, as a fresh look shows"
    assert looking.subscription.acked == {at(0), at(1), at(2), at(4)}


def test_what_is_due_soon_is_looked_at_afresh(looking: Looking) -> None:
    looking.cluster.publish(1, 59_999)
    assert looking.proof(20) is Proof.ACKED
    assert (looking.calls["state"], looking.calls["cursor_names"]) == (1, 0)


def test_many_are_looked_at_afresh(looking: Looking) -> None:
    looking.cluster.publish(200, _DUE_IN_MS)
    outcomes = looking.sidecar.cancel(*range(20, 121))
    assert all(outcome.cancelled for outcome in outcomes)
    assert looking.calls["state"] == 1
    assert all(outcome.cancelled for outcome in looking.sidecar.cancel(*range(121, 150)))


def test_chunks_are_looked_for_afresh(looking: Looking) -> None:
    looking.cluster.publish(1, _DUE_IN_MS, chunk=Chunk("u", 0, 2))
    looking.cluster.publish(1, _DUE_IN_MS, chunk=Chunk("u", 1, 2))
    assert looking.proof(21) is Proof.ACKED
    assert {at(20), at(21)} <= looking.subscription.acked


def test_one_bad_among_good_ones_is_told_by_a_fresh_look(looking: Looking) -> None:
    outcomes = looking.sidecar.cancel(1, 99)
    assert [outcome.cancelled for outcome in outcomes] == [True, False]
    assert looking.calls["state"] == 1
