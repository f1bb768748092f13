"""One index for several subscriptions: each gets every message once, when it is due, unless it is done with it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pulsar_sidecar.features.delayed_index.settings import Behaviour, TrackerSettings
from pulsar_sidecar.features.delayed_index.tracker.memory_storage import MemoryBucketProperties, MemorySnapshotStorage
from pulsar_sidecar.features.delayed_index.tracker.shared import INDEX_CURSOR, SharedDelayedIndex
from pulsar_sidecar.features.delayed_index.tracker.tracker import BucketDelayedDeliveryTracker
from pulsar_sidecar.model.errors import DisabledError, NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position

from tests.fakes.clock import FakeClock
from tests.unit.delayed_index.tracker.trackers import START_MS, TOPIC

SHARED = TrackerSettings(
    strict=True, min_index_count=2, time_step_ms=20, max_indexes_per_segment=2, max_num_buckets=2, shared_index=True
)
START = Position(LedgerId(0), EntryId(-1))
POSITION = st.builds(Position, st.integers(0, 4).map(LedgerId), st.integers(-1, 4).map(EntryId))


def _index(storage: MemorySnapshotStorage, properties: MemoryBucketProperties, clock: FakeClock) -> SharedDelayedIndex:
    return SharedDelayedIndex(_tracker(SHARED, storage, properties, clock))


def _tracker(
    wanted: TrackerSettings, storage: MemorySnapshotStorage, properties: MemoryBucketProperties, clock: FakeClock
) -> BucketDelayedDeliveryTracker:
    names = {"topic_name": TOPIC, "cursor_name": INDEX_CURSOR}
    return BucketDelayedDeliveryTracker(wanted, storage, properties, clock.now_ms, **names, behaviour=Behaviour.AS_PIP)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 90)), min_size=1, max_size=25),
    st.lists(
        st.one_of(
            st.tuples(st.just("wait"), st.integers(0, 40)),
            st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 9)),
            st.tuples(st.sampled_from(["mark a", "mark b"]), POSITION),
        ),
        max_size=20,
    ),
)
@settings(deadline=None)
def test_every_subscription_gets_every_message_once(
    rows: list[tuple[int, int, int]], steps: list[tuple[str, int | Position]]
) -> None:
    clock = FakeClock(START_MS)
    index = _index(MemorySnapshotStorage(), MemoryBucketProperties(), clock)
    due = {Position(LedgerId(ledger), EntryId(entry)): START_MS + at for ledger, entry, at in sorted(rows)}
    given_to: dict[str, list[Position]] = {"a": [], "b": [], "c": []}
    marked = dict.fromkeys(given_to, START)
    for subscription in given_to:
        index.subscribe(subscription, START)
    for position, at in due.items():
        assert index.tracker.add_message(*position, at)
    asks = [(subscription, 100) for _ in range(2) for subscription in given_to]
    for name, value in [*steps, ("wait", 1_000), *asks]:
        if isinstance(value, Position):
            subscription = name[-1]
            marked[subscription] = max(marked[subscription], value)
            index.subscribe(subscription, marked[subscription])
        elif name == "wait":
            clock.advance_ms(value)
        else:
            positions = index.get_scheduled_messages(name, value)
            assert len(positions) <= value
            assert positions == sorted(positions)
            assert all(due[each] <= clock.now_ms() and each > marked[name] for each in positions)
            given_to[name] += positions
    for subscription, positions in given_to.items():
        assert len(positions) == len(set(positions))
        assert set(positions) >= {each for each in due if each > marked[subscription]}
        assert index.get_scheduled_messages(subscription, 100) == []


def test_its_buckets_belong_to_a_cursor_of_its_own() -> None:
    storage, properties, clock = MemorySnapshotStorage(), MemoryBucketProperties(), FakeClock(START_MS)
    index = _index(storage, properties, clock)
    for ledger in range(3):
        for entry in range(3):
            assert index.tracker.add_message(ledger, entry, START_MS + 50)
    assert {snapshot.owner.cursor_name for snapshot in storage.snapshots.values()} == {INDEX_CURSOR}
    again = _index(storage, properties, clock)
    assert again.tracker.recover() == 6
    again.subscribe("late", START)
    clock.advance_ms(50)
    assert again.get_scheduled_messages("late", 100) == [(ledger, entry) for ledger in (0, 1) for entry in range(3)]


def test_shared_index_requires_opt_in_and_subscribe() -> None:
    parts = (MemorySnapshotStorage(), MemoryBucketProperties(), FakeClock(START_MS))
    with pytest.raises(DisabledError):
        SharedDelayedIndex(_tracker(TrackerSettings(), *parts))
    index = _index(*parts)
    with pytest.raises(NotFoundError):
        index.get_scheduled_messages("unknown", 1)
