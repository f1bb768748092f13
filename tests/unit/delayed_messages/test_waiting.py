"""Waiting messages, read a page at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.backlog.ports import Chunk
from pulsar_sidecar.backlog.waiting import SubscriptionBacklog, WaitingReader, parse_backlog_position
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.topic_stats import SubscriptionType

from tests.fakes.delayed_messages import TOPIC, FakeCluster, at


def reader(cluster: FakeCluster) -> WaitingReader:
    return WaitingReader(cluster, cluster, cluster.clock)


def all_pages(cluster: FakeCluster, limit: int, subscription: str | None = None) -> dict[str, SubscriptionBacklog]:
    """Every page, added up."""
    totals: dict[str, SubscriptionBacklog] = {}
    after = None
    while True:
        page = reader(cluster).waiting(TOPIC, subscription, after, limit)
        assert page.entries_read <= limit
        for part in page.subscriptions:
            total = totals.setdefault(part.subscription, SubscriptionBacklog(part.subscription, part.type))
            total.delayed += part.delayed
            total.due += part.due
            total.undelayed += part.undelayed
            total.unreadable += part.unreadable
            total.by_due_second.update(part.by_due_second)
        if page.after is None:
            assert page.entries_left == 0
            return totals
        after = parse_backlog_position(page.after)
        assert str(after) == page.after


@given(
    st.lists(st.sampled_from(["later", "due", "now", "lost", "trimmed"]), max_size=30),
    st.sets(st.integers(0, 29)),
    st.sets(st.integers(0, 29)),
    st.integers(1, 12),
)
def test_every_entry_that_is_not_acknowledged_is_counted_once(
    kinds: list[str], acked: set[int], others: set[int], limit: int
) -> None:
    cluster = FakeCluster()
    for kind in kinds:
        (position,) = cluster.publish(1, {"later": 60_000, "due": 0, "now": None}.get(kind, 1))
        if kind == "lost":
            cluster.entries[position] = Unreadable("no bookie")
        elif kind == "trimmed":
            cluster.entries[position] = Absent()
    for name, entries in (("one", acked), ("other", others)):
        cluster.subscribe(name).acked = {at(entry) for entry in entries if entry < len(kinds)}
    totals = all_pages(cluster, limit)
    for name, entries in (("one", acked), ("other", others)):
        left = [kind for entry, kind in enumerate(kinds) if entry not in entries]
        total = totals[name]
        assert (total.delayed, total.due) == (left.count("later"), left.count("due"))
        assert (total.undelayed, total.unreadable) == (left.count("now"), left.count("lost"))
        assert sum(total.by_due_second.values()) == total.delayed


def test_next_and_last_are_by_due_time() -> None:
    cluster = FakeCluster()
    now_ms = cluster.clock.now_ms()
    for delay in (50_000, 20_000, 90_000):
        cluster.publish(1, delay)
    cluster.subscribe("s")
    (part,) = reader(cluster).waiting(TOPIC, "s", None, 100).subscriptions
    assert part.next is not None
    assert part.last is not None
    assert (part.next.message_id, part.next.deliver_at) == (str(at(1)), now_ms + 20_000)
    assert (part.last.message_id, part.last.deliver_at) == (str(at(2)), now_ms + 90_000)
    assert part.by_due_second == {(now_ms + delay) // 1000: 1 for delay in (50_000, 20_000, 90_000)}


def test_chunked_message_counts_once_and_markers_are_skipped() -> None:
    cluster = FakeCluster()
    for number in range(3):
        cluster.publish(1, chunk=Chunk("uuid", number, 3))
    cluster.publish(1, marker=True)
    cluster.publish(1, messages_in_batch=5)
    cluster.subscribe("s")
    (part,) = reader(cluster).waiting(TOPIC, "s", None, 100).subscriptions
    assert part.delayed == 1 + 5


def test_readers_and_brokers_own_cursors_are_left_out() -> None:
    cluster = FakeCluster()
    cluster.publish(2)
    cluster.subscribe("s", type=SubscriptionType.FAILOVER)
    cluster.subscribe("a reader", durable=False)
    cluster.subscribe("__compaction")
    (part,) = reader(cluster).waiting(TOPIC, None, None, 100).subscriptions
    assert (part.subscription, part.type, part.delayed) == ("s", SubscriptionType.FAILOVER, 2)
    compaction = reader(cluster).waiting(TOPIC, "__compaction", None, 100).subscriptions
    assert [found.subscription for found in compaction] == ["__compaction"], "unless it is asked for by name"


def test_missing_topic_is_reported() -> None:
    cluster = FakeCluster()
    cluster.subscribe("s")
    with pytest.raises(NotFoundError, match="no durable subscription"):
        reader(cluster).waiting(TOPIC, "nobody", None, 10)
    with pytest.raises(NotFoundError, match="no topic"):
        reader(cluster).waiting(parse_topic_name("nowhere"), None, None, 10)


@pytest.mark.parametrize(
    "text", ["", "1:2", "1:2:3:4", "a:1:2", "0:-1:2", "0:1:-2", "٣:1:2", "0:1:" + "9" * 30, " 0:1:2"]
)
def test_invalid_backlog_position_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_backlog_position(text)
