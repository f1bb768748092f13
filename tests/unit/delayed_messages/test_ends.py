"""Ends of cancellations: EXPIRED only for messages that certainly were not delivered."""

from collections.abc import Callable

import pytest
from pulsar_sidecar.backlog.ports import DelayPolicy
from pulsar_sidecar.features.delayed_messages.cancel.reconcile import continue_watch
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus as Status
from pulsar_sidecar.features.delayed_messages.results import Cause, KnownCancellation
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import ConnectedConsumer, Subscription, SubscriptionType, TopicInternalStats

from tests.fakes.delayed_messages import TOPIC, FakeCluster, FakeSidecar, FakeSubscription, at

_DUE_MS = 60_000
_LOSSES: dict[str, Callable[[FakeCluster], None]] = {
    "cursor lost": lambda cluster: cluster.lose_cursor("s"),
    "cursor moved": lambda cluster: cluster.seek("s"),
    "broker died": lambda cluster: cluster.crash_broker(),
}


class Ending:
    """One message that is cancelled, the time until it is due, and its report afterwards."""

    def __init__(self, consumers: int = 1) -> None:
        self.cluster = FakeCluster()
        self.subscription: FakeSubscription = self.cluster.subscribe(consumers=consumers)
        self.cluster.publish(1, _DUE_MS)
        self.due_ms = self.cluster.clock.now_ms() + _DUE_MS
        self.sidecar = FakeSidecar(self.cluster)
        ((verdict,),) = [outcome.verdicts for outcome in self.sidecar.cancel(0)]
        assert verdict.proof is Status.ACKED

    def live_until(self, before_due_ms: int) -> None:
        self.sidecar.live(self.due_ms - before_due_ms - self.cluster.clock.now_ms())

    @property
    def known(self) -> KnownCancellation:
        (known,) = self.sidecar.feature.cancellations(TOPIC, at(0))
        return known


@pytest.mark.parametrize("loss", _LOSSES)
@pytest.mark.parametrize("before_due_ms", [*range(0, 5_250, 250), 6_000, 9_000, 20_000])
@pytest.mark.parametrize("stored", [True, False])
def test_a_message_that_was_delivered_is_never_called_expired(loss: str, before_due_ms: int, stored: bool) -> None:
    ending = Ending()
    if not stored:
        ending.subscription.stored = set()
        ending.subscription.stored_at_ms = ending.due_ms + 60_000  # the broker does not get round to it
    ending.live_until(before_due_ms)
    _LOSSES[loss](ending.cluster)
    ending.live_until(-10_000)
    delivered = bool(ending.subscription.deliveries)
    if delivered:
        assert ending.known.proof in (Status.UNKNOWN, Status.RACED)
    if ending.known.proof is Status.EXPIRED:
        assert not delivered
    if before_due_ms >= 9_000:
        assert ending.known.proof is Status.EXPIRED, "what was lost long before is acknowledged again in time"


def test_a_lost_cursor_just_before_the_due_time_is_reported_as_unknown_by_all_sidecars() -> None:
    ending = Ending()
    other = FakeSidecar(ending.cluster)
    ending.live_until(1_500)
    ending.cluster.lose_cursor("s")
    ending.live_until(-10_000)
    assert ending.subscription.deliveries == {at(0): 1}
    assert (ending.known.proof, ending.known.cause) == (Status.UNKNOWN, Cause.UNWATCHED)
    assert other.feature.cancellations(TOPIC, at(0)) == [ending.known]
    assert (ending.sidecar.metrics.counts["UNKNOWN"], ending.sidecar.metrics.counts["EXPIRED"]) == (1, 0)
    assert ending.cluster.compacted() == {}


def test_a_lost_acknowledgement_at_the_end_is_counted_as_a_failure() -> None:
    ending = Ending()
    ending.subscription.keeps = True
    ending.live_until(1_500)
    ending.cluster.lose_cursor("s")
    ending.live_until(-10_000)
    assert (ending.known.proof, ending.known.cause) == (Status.RACED, Cause.LOST)
    assert ending.sidecar.metrics.counts[Cause.LOST.value] == 1


def test_a_subscription_that_cannot_be_asked_is_counted_at_each_try() -> None:
    def unreachable(_topic: TopicName) -> DelayPolicy:
        raise TemporaryError("no broker answers")

    ending = Ending()
    ending.cluster.delay_policy = unreachable  # type: ignore[method-assign]
    ending.live_until(1_500)
    assert ending.sidecar.metrics.counts["reconcile_failed"] > 1
    assert ending.known.proof is Status.ACKED


@pytest.mark.parametrize("consumers", [0, 1])
def test_an_undisturbed_cancellation_expires_with_and_without_consumers(consumers: int) -> None:
    ending = Ending(consumers)
    ending.live_until(-10_000)
    assert ending.known.proof is Status.EXPIRED
    assert ending.subscription.deliveries == {}


def test_deliveries_of_other_messages_do_not_matter_to_a_consumer_that_stays() -> None:
    ending = Ending()
    for lead_ms in range(0, 6_000, 500):
        ending.cluster.publish(1, _DUE_MS - lead_ms)
    ending.live_until(-10_000)
    assert len(ending.subscription.deliveries) == 12
    assert ending.known.proof is Status.EXPIRED


def test_end_while_no_sidecar_ran_is_unknown() -> None:
    ending = Ending()
    ending.live_until(20_000)
    ending.cluster.pass_ms(15_000)
    ending.cluster.lose_cursor("s")
    ending.cluster.pass_ms(15_000)
    assert ending.subscription.deliveries == {at(0): 1}
    ending.sidecar = FakeSidecar(ending.cluster)
    ending.sidecar.live(5_000)
    assert ending.known.proof is Status.UNKNOWN


def test_cancellation_acknowledged_again_in_time_expires() -> None:
    ending = Ending()
    ending.live_until(8_000)
    ending.cluster.lose_cursor("s")
    ending.live_until(-10_000)
    assert ending.sidecar.metrics.counts["acknowledged_again"] == 1
    assert ending.known.proof is Status.EXPIRED
    assert ending.subscription.deliveries == {}


def test_a_new_leader_does_not_go_by_what_it_watched_before_others_led() -> None:
    ending = Ending()
    ending.live_until(10_000)
    ending.sidecar.feature._reconciler.begin_leading()
    ending.cluster.pass_ms(9_000)
    ending.live_until(-10_000)
    assert ending.known.proof is Status.UNKNOWN


# --- whether a cursor was watched ----------------------------------------------------------------------------------

STAYS = ConnectedConsumer("c", "client", "2026-11-23T05:00:00Z")
COMES = ConnectedConsumer("c", "client", "2026-11-23T05:00:05Z")


def _found(*consumers: ConnectedConsumer, out: int = 0) -> Subscription:
    return Subscription("s", SubscriptionType.SHARED, consumers, out)


def _state(*ledgers: int, terminated: bool = False) -> TopicInternalStats:
    return TopicInternalStats({LedgerId(one): 1 for one in ledgers}, at(0), {}, terminated=terminated)


@pytest.mark.parametrize(
    ("found", "state", "goes_on"),
    [
        (_found(STAYS, out=9), _state(8, 9), True),
        (_found(STAYS._replace(connected_since=None), out=9), _state(8), False),
        (_found(STAYS, COMES, out=9), _state(8), True),
        (_found(STAYS._replace(available_permits=3, blocked=True), out=9), _state(8), True),
        (_found(COMES, out=5), _state(8), True),
        (_found(COMES, out=6), _state(8), False),
        (_found(out=5), _state(8), True),
        (_found(out=5), _state(9), False),
        (_found(out=5), _state(8, terminated=True), False),
        (_found(out=5), _state(), False),
    ],
)
def test_a_consumer_that_stayed_or_nothing_handed_out_shows_that_a_cursor_kept_what_it_held(
    found: Subscription, state: TopicInternalStats, goes_on: bool
) -> None:
    first = continue_watch(None, _found(STAYS, out=5), _state(8), 1_000)
    assert first.since_ms == 1_000
    assert continue_watch(first, found, state, 2_000).since_ms == (1_000 if goes_on else 2_000)
