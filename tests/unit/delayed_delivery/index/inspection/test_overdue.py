"""What is due and not acknowledged: how it is counted, and which reasons the broker's figures show."""

from dataclasses import replace

import pytest
from pulsar_sidecar.delayed_delivery.index.inspection.overdue import Overdue, OverdueReader, OverdueReason, reasons_of
from pulsar_sidecar.delayed_delivery.ports import Chunk, DelayPolicy
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges
from pulsar_sidecar.model.topic_stats import ConnectedConsumer, Cursor, Subscription, SubscriptionType
from pyroaring import BitMap

from tests.fakes.delayed_messages import BEFORE_ALL, LEDGER, TOPIC, FakeCluster, at

SHARED = SubscriptionType.SHARED
CONSUMER = ConnectedConsumer("c", "client", None, available_permits=10)
WORKING = Subscription("s", SHARED, (CONSUMER,), delayed_messages=5)
LIMIT = 3


def cursor(ranges: int) -> Cursor:
    holes = [EntryRange(LEDGER, EntryId(2 * n + 1), EntryId(2 * n + 1)) for n in range(ranges)]
    return Cursor(PositionRanges(BEFORE_ALL, holes), ranges, at(0), LedgerId(99), EntryId(0))


@pytest.mark.parametrize(
    ("subscription", "ranges", "policy", "expected"),
    [
        (WORKING, 0, DelayPolicy(), OverdueReason.STUCK_TRACKER),
        (replace(WORKING, delayed_messages=0), 0, DelayPolicy(), None),
        (replace(WORKING, consumers=(), blocked=True, in_replay=3), 9, DelayPolicy(), OverdueReason.NO_CONSUMER),
        (replace(WORKING, blocked=True), 0, DelayPolicy(), OverdueReason.UNACKED_LIMIT),
        (replace(WORKING, consumers=(CONSUMER._replace(blocked=True),)), 0, DelayPolicy(), OverdueReason.UNACKED_LIMIT),
        (WORKING, LIMIT, DelayPolicy(), OverdueReason.STUCK_TRACKER),
        (WORKING, LIMIT + 1, DelayPolicy(), OverdueReason.ACK_STATE_PAUSE),
        (replace(WORKING, type=SubscriptionType.FAILOVER), LIMIT + 1, DelayPolicy(), None),
        (
            replace(WORKING, consumers=(CONSUMER._replace(available_permits=-2),)),
            0,
            DelayPolicy(),
            OverdueReason.NO_PERMITS,
        ),
        (
            replace(WORKING, consumers=(CONSUMER, CONSUMER._replace(available_permits=0))),
            0,
            DelayPolicy(),
            OverdueReason.STUCK_TRACKER,
        ),
        (replace(WORKING, unacked_messages=4), 0, DelayPolicy(), OverdueReason.NOT_ACKNOWLEDGED),
        (replace(WORKING, in_replay=4), 0, DelayPolicy(), OverdueReason.REPLAY_PENDING),
        (WORKING, 0, DelayPolicy(enabled=False), OverdueReason.POLICY_DISABLED),
    ],
)
def test_the_reason_is_what_the_figures_show(
    subscription: Subscription, ranges: int, policy: DelayPolicy, expected: OverdueReason | None
) -> None:
    found = Overdue(TOPIC, "s", messages=1)
    assert reasons_of(found, subscription, cursor(ranges), policy, LIMIT) == (() if expected is None else (expected,))
    assert reasons_of(Overdue(TOPIC, "s"), subscription, cursor(ranges), policy, LIMIT) == ()


def test_several_reasons_stand_side_by_side_and_no_pause_without_a_limit() -> None:
    many = replace(WORKING, blocked=True, unacked_messages=3)
    found = Overdue(TOPIC, "s", messages=1)
    assert reasons_of(found, many, cursor(9), DelayPolicy(), None) == (
        OverdueReason.UNACKED_LIMIT,
        OverdueReason.NOT_ACKNOWLEDGED,
    )


@pytest.fixture
def cluster() -> FakeCluster:
    """Two subscriptions; of ten messages five are due, one of which ``busy`` has acknowledged."""
    cluster = FakeCluster()
    late = cluster.publish(2, 1_000)
    cluster.publish(1, 2_000, messages_in_batch=4)
    cluster.publish(5, 600_000)
    cluster.publish(2, 1_500, chunk=Chunk("u", 0, 2))
    cluster.publish(1, None)
    cluster.subscribe("busy").acked = {late[0]}
    cluster.subscribe("idle", consumers=0)
    cluster.clock.advance_ms(30_000)
    return cluster


def reader(cluster: FakeCluster) -> OverdueReader:
    return OverdueReader(cluster, cluster, cluster, lambda topic: 10_000, cluster.clock)


def test_what_is_due_and_unacknowledged_counts_for_each_subscription(cluster: FakeCluster) -> None:
    report = reader(cluster).overdue(TOPIC, None, 10_000, 1_000)
    busy, idle = report.subscriptions
    began_ms = report.now_ms - 30_000
    assert (busy.subscription, busy.messages, idle.messages) == ("busy", 5, 6)
    assert (idle.first_due_ms, idle.last_due_ms) == (began_ms + 1_000, began_ms + 2_000)
    assert [one.position.entry_id for one in idle.sample] == [0, 1, 2]
    assert idle.reasons == (OverdueReason.NO_CONSUMER,)
    assert (report.entries_read, report.complete) == (11, True)


def test_what_may_be_on_its_way_and_what_is_due_later_does_not_count(cluster: FakeCluster) -> None:
    assert [one.messages for one in reader(cluster).overdue(TOPIC, None, 29_000, 1_000).subscriptions] == [1, 2]


def test_unreadable_entries_are_reported_and_so_is_a_limit_before_the_end(cluster: FakeCluster) -> None:
    cluster.entries[at(1)] = Unreadable("no bookie")
    report = reader(cluster).overdue(TOPIC, "idle", 10_000, 3)
    (idle,) = report.subscriptions
    assert (idle.messages, idle.unreadable, report.entries_read, report.complete) == (5, 1, 3, False)


def test_an_entry_that_was_trimmed_meanwhile_is_not_unreadable(cluster: FakeCluster) -> None:
    cluster.entries[at(1)] = Absent()
    (idle,) = reader(cluster).overdue(TOPIC, "idle", 10_000, 1_000).subscriptions
    assert (idle.messages, idle.unreadable) == (5, 0)


def test_what_a_bucket_places_later_is_not_read(cluster: FakeCluster) -> None:
    cluster.ruled_out = {LEDGER: BitMap(range(3, 8))}
    report = reader(cluster).overdue(TOPIC, "idle", 10_000, 6)
    assert ([one.messages for one in report.subscriptions], report.entries_read, report.complete) == ([6], 6, True)


def test_a_subscription_that_is_not_there_is_not_found(cluster: FakeCluster) -> None:
    with pytest.raises(NotFoundError):
        reader(cluster).overdue(TOPIC, "nobody", 0, 10)
