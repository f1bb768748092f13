"""Each answer rests on a cursor that was read for it, and on the subscriptions that exist now."""

from collections import Counter

import pytest
from pulsar_sidecar.delayed_delivery.cancel.requests import CancellationStatus, Cause, SubscriptionResult
from pulsar_sidecar.model.errors import NotFoundError

from tests.fakes.delayed_messages import FakeCluster, FakeSidecar, at

_DUE_IN_MS = 120_000


class Looking:
    """A cluster whose calls are counted, a sidecar, and a first cancellation that has read everything."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.subscription = self.cluster.subscribe()
        self.cluster.publish(20, _DUE_IN_MS)
        self.calls: Counter[str] = Counter()
        self.cluster.before = lambda call: self.calls.update([call])
        self.sidecar = FakeSidecar(self.cluster)
        assert self.cancel(0).status is CancellationStatus.ACKED
        self.calls.clear()

    def cancel(self, entry: int) -> SubscriptionResult:
        ((verdict,),) = [outcome.results for outcome in self.sidecar.cancel(entry)]
        return verdict


@pytest.fixture
def looking() -> Looking:
    return Looking()


def test_a_cursor_is_read_for_each_cancellation(looking: Looking) -> None:
    assert [looking.cancel(entry).status for entry in (5, 7)] == [CancellationStatus.ACKED, CancellationStatus.ACKED]
    assert looking.calls["state"] == 2
    assert looking.subscription.acked == {at(0), at(5), at(7)}


def test_what_a_consumer_acknowledged_a_moment_ago_is_too_late(looking: Looking) -> None:
    looking.subscription.acked.add(at(3))
    verdict = looking.cancel(3)
    assert (verdict.status, verdict.cause) == (CancellationStatus.TOO_LATE, Cause.ACKED_BEFORE)
    assert looking.calls["join"] == 0


def test_a_subscription_that_was_deleted_meanwhile_is_not_found_and_not_created(looking: Looking) -> None:
    del looking.cluster.subscriptions_["s"]
    looking.cluster.subscribe("other")
    ((verdict,),) = [outcome.results for outcome in looking.sidecar.cancel_at([at(1)], ("s",))]
    assert (verdict.status, verdict.cause) == (CancellationStatus.NOT_FOUND, Cause.NO_SUBSCRIPTION)
    assert looking.calls["join"] == 0


def test_a_subscription_that_was_created_meanwhile_is_cancelled_on_too(looking: Looking) -> None:
    other = looking.cluster.subscribe("other")
    (outcome,) = looking.sidecar.cancel(1)
    assert {verdict.subscription for verdict in outcome.results} == {"s", "other"}
    assert at(1) in other.acked


def test_a_topic_that_is_gone_is_told(looking: Looking) -> None:
    looking.cluster.topic_exists = False
    with pytest.raises(NotFoundError):
        looking.cancel(1)


def test_the_limit_of_ranges_is_kept(looking: Looking) -> None:
    looking.cluster.max_ranges = 3
    statuses = [looking.cancel(entry).status for entry in (2, 4, 6, 8)]
    assert statuses == [
        CancellationStatus.ACKED,
        CancellationStatus.ACKED,
        CancellationStatus.REFUSED,
        CancellationStatus.REFUSED,
    ]
    assert looking.cancel(1).status is CancellationStatus.ACKED, "it joins two ranges and needs no room"
    assert looking.subscription.acked == {at(0), at(1), at(2), at(4)}
