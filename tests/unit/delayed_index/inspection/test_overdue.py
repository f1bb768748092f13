"""Overdue messages: their count, and the reasons that the broker's figures show."""

from dataclasses import replace

import pytest
from pulsar_sidecar.backlog.ports import Chunk, DelayPolicy
from pulsar_sidecar.features.delayed_index.inspection import overdue
from pulsar_sidecar.features.delayed_index.inspection.overdue import OverdueBacklog, OverdueReader, reasons_of
from pulsar_sidecar.features.delayed_index.results.inspection import OverdueReason
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.lookups import Absent
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
        (WORKING, 0, DelayPolicy(), overdue.STUCK_TRACKER),
        (replace(WORKING, delayed_messages=0), 0, DelayPolicy(), None),
        (replace(WORKING, consumers=(), blocked=True, in_replay=3), 9, DelayPolicy(), overdue.NO_CONSUMER),
        (replace(WORKING, blocked=True), 0, DelayPolicy(), overdue.UNACKED_LIMIT),
        (replace(WORKING, consumers=(CONSUMER._replace(blocked=True),)), 0, DelayPolicy(), overdue.UNACKED_LIMIT),
        (WORKING, LIMIT, DelayPolicy(), overdue.STUCK_TRACKER),
        (WORKING, LIMIT + 1, DelayPolicy(), overdue.ACK_STATE_PAUSE),
        (replace(WORKING, type=SubscriptionType.FAILOVER), LIMIT + 1, DelayPolicy(), None),
        (
            replace(WORKING, consumers=(CONSUMER._replace(available_permits=-2),)),
            0,
            DelayPolicy(),
            overdue.NO_PERMITS,
        ),
        (
            replace(WORKING, consumers=(CONSUMER, CONSUMER._replace(available_permits=0))),
            0,
            DelayPolicy(),
            overdue.STUCK_TRACKER,
        ),
        (replace(WORKING, unacked_messages=4), 0, DelayPolicy(), overdue.NOT_ACKNOWLEDGED),
        (replace(WORKING, in_replay=4), 0, DelayPolicy(), overdue.REPLAY_PENDING),
        (WORKING, 0, DelayPolicy(enabled=False), overdue.POLICY_DISABLED),
    ],
)
def test_the_reason_is_what_the_figures_show(
    subscription: Subscription, ranges: int, policy: DelayPolicy, expected: OverdueReason | None
) -> None:
    found = OverdueBacklog(TOPIC, "s", messages=1)
    assert reasons_of(found, subscription, cursor(ranges), policy, LIMIT) == (() if expected is None else (expected,))
    assert reasons_of(OverdueBacklog(TOPIC, "s"), subscription, cursor(ranges), policy, LIMIT) == ()


def test_several_reasons_stand_side_by_side_and_no_pause_without_a_limit() -> None:
    many = replace(WORKING, blocked=True, unacked_messages=3)
    found = OverdueBacklog(TOPIC, "s", messages=1)
    assert reasons_of(found, many, cursor(9), DelayPolicy(), None) == (
        overdue.UNACKED_LIMIT,
        overdue.NOT_ACKNOWLEDGED,
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


def test_due_unacknowledged_messages_count_per_subscription(cluster: FakeCluster) -> None:
    report = reader(cluster).overdue(TOPIC, None, 10_000, 1_000)
    busy, idle = report.subscriptions
    began_ms = report.now_ms - 30_000
    assert (busy.subscription, busy.messages, idle.messages) == ("busy", 5, 6)
    assert (idle.first_due_ms, idle.last_due_ms) == (began_ms + 1_000, began_ms + 2_000)
    assert [one.message_id for one in idle.sample] == [str(at(entry)) for entry in range(3)]
    assert idle.reasons == (overdue.NO_CONSUMER,)
    assert (report.entries_read, report.complete) == (11, True)


def test_messages_in_delivery_or_due_later_do_not_count(cluster: FakeCluster) -> None:
    assert [one.messages for one in reader(cluster).overdue(TOPIC, None, 29_000, 1_000).subscriptions] == [1, 2]


def test_entry_trimmed_during_the_read_is_not_unreadable(cluster: FakeCluster) -> None:
    cluster.entries[at(1)] = Absent()
    (idle,) = reader(cluster).overdue(TOPIC, "idle", 10_000, 1_000).subscriptions
    assert (idle.messages, idle.unreadable) == (5, 0)


def test_entries_due_later_in_a_bucket_are_not_read(cluster: FakeCluster) -> None:
    cluster.ruled_out = {LEDGER: BitMap(range(3, 8))}
    report = reader(cluster).overdue(TOPIC, "idle", 10_000, 6)
    assert ([one.messages for one in report.subscriptions], report.entries_read, report.complete) == ([6], 6, True)
