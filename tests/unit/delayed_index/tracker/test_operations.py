"""Cancellations in the tracker: a canceled message is never handed out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.settings import TrackerSettings
from pulsar_sidecar.features.delayed_index.tracker.operations import CancellableTracker, OperationSnapshots
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import LedgerId

from tests.fakes.clock import FakeClock
from tests.unit.delayed_index.tracker.test_tracker import ROW, SETTINGS
from tests.unit.delayed_index.tracker.trackers import START_MS, rows_of

TICK_MS = 10
SMALL = TrackerSettings(
    tick_time_ms=TICK_MS, strict=True, min_index_count=2, time_step_ms=1000, max_indexes_per_segment=1
)


@given(
    SETTINGS,
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["add", "add", "cancel", "both"]), st.lists(ROW, min_size=1, max_size=8)),
            st.tuples(st.sampled_from(["wait", "pop", "tick", "restart"]), st.integers(0, 60)),
        ),
        max_size=30,
    ),
)
@settings(deadline=None, max_examples=60)
def test_all_but_canceled_messages_are_handed_out(  # noqa: C901  one branch a kind of step
    chosen: TrackerSettings, steps: list[tuple[str, list[tuple[int, int, int]] | int]]
) -> None:
    """After a restart messages are added again, and canceled again: cancellations may have been in no bucket yet."""
    snapshots, clock = OperationSnapshots(), FakeClock(START_MS)
    tracker = CancellableTracker(chosen, snapshots, clock.now_ms)
    due: dict[tuple[int, int], int] = {}
    tracked: set[tuple[int, int]] = set()
    canceled: set[tuple[int, int]] = set()
    handed_out: set[tuple[int, int]] = set()

    def add(position: tuple[int, int]) -> None:
        if tracker.add_message(*position, due[position]):
            tracked.add(position)

    def cancel(position: tuple[int, int]) -> None:
        if position not in handed_out and tracker.cancel_message(*position, due[position]):
            canceled.add(position)

    for name, value in [*steps, ("wait", 1_000), ("pop", 1_000), ("pop", 1_000)]:
        if isinstance(value, list):
            for at, *position in value:
                due.setdefault(tuple(position), START_MS + at)
                for act in {"add": [add], "cancel": [cancel], "both": [cancel, add]}[name]:
                    act(tuple(position))
        elif name == "wait":
            clock.advance_ms(value)
        elif name == "tick":
            tracker.tick()
        elif name == "pop":
            for position in tracker.get_scheduled_messages(value):
                assert position not in canceled
                assert due[position] <= clock.now_ms() + (0 if chosen.strict else chosen.tick_time_ms)
                handed_out.add(tuple(position))
        else:
            tracker.close()
            tracker = CancellableTracker(chosen, snapshots, clock.now_ms)
            tracker.recover()
            for position in sorted(canceled):
                tracker.cancel_message(*position, due[position])
            for position in sorted(tracked - handed_out - canceled):
                if not tracker.add_message(*position, due[position]):
                    handed_out.add(position)
    assert handed_out >= tracked - canceled
    assert tracker.number_of_delayed_messages == 0


def _sealed(snapshots: OperationSnapshots, clock: FakeClock, target: tuple[int, int, int]) -> CancellableTracker:
    """A bucket of ledger 0 with four segments, and with a cancellation of the target, which is not tracked yet."""
    tracker = CancellableTracker(SMALL, snapshots, clock.now_ms)
    for entry in range(4):
        assert tracker.add_message(0, entry, START_MS + 50 + 100 * entry)
    assert tracker.cancel_message(*target)
    assert tracker.add_message(1, 0, START_MS + 60)
    assert [bucket.key for bucket in tracker.buckets] == [BucketKey(0, 0)]
    return tracker


@pytest.mark.parametrize("due_ms", [60, 90, 180, 300, 390, 2_000])
@pytest.mark.parametrize("restart_ms", [0, 55, 170, 360, 1_000])
@pytest.mark.parametrize("is_added_first", [False, True])
def test_a_cancellation_in_a_bucket_outlives_a_restart(due_ms: int, restart_ms: int, is_added_first: bool) -> None:
    snapshots, clock = OperationSnapshots(), FakeClock(START_MS)
    target = (7, 7, START_MS + due_ms)
    tracker = _sealed(snapshots, clock, target)
    if is_added_first:
        tracker.add_message(*target)
    clock.advance_ms(restart_ms)
    handed_out = set(tracker.get_scheduled_messages(100))
    tracker.close()
    tracker = CancellableTracker(SMALL, snapshots, clock.now_ms)
    tracker.recover()
    tracker.add_message(*target)
    for _ in range(60):
        clock.advance_ms(50)
        handed_out.update(tracker.get_scheduled_messages(100))
    assert (7, 7) not in handed_out
    assert handed_out >= {(0, 0), (0, 1), (0, 2), (0, 3)}
    assert not snapshots.snapshots
    assert not snapshots.properties


def test_a_seal_leaves_out_what_was_canceled() -> None:
    snapshots = OperationSnapshots()
    tracker = CancellableTracker(SMALL, snapshots, FakeClock(START_MS).now_ms)
    for entry in range(3):
        assert tracker.add_message(0, entry, START_MS + 100)
    assert tracker.cancel_message(0, 1, START_MS + 100)
    assert tracker.add_message(1, 0, START_MS + 100)
    assert not tracker.contains_message(0, 1)
    assert tracker.number_of_delayed_messages == 3
    assert [rows_of(segment) for segment in snapshots.get_bucket_snapshot_segment(LedgerId(1), 1, 2)] == [
        [(START_MS + 100, 0, 0)],
        [(START_MS + 100, 0, 2)],
    ]


def test_a_cancellation_of_what_is_due_and_not_tracked_is_refused() -> None:
    tracker = CancellableTracker(SMALL, OperationSnapshots(), FakeClock(START_MS).now_ms)
    assert not tracker.cancel_message(1, 1, START_MS)
    with pytest.raises(InvalidInputError):
        tracker.cancel_message(1, -1, START_MS + 5)


def test_a_cancellation_is_forgotten_two_ticks_after_the_message_was_due() -> None:
    clock = FakeClock(START_MS)
    tracker = CancellableTracker(SMALL, OperationSnapshots(), clock.now_ms)
    assert tracker.add_message(1, 1, START_MS + 100)
    assert tracker.cancel_message(1, 1, START_MS + 100)
    assert tracker.number_of_delayed_messages == 0
    for advanced, is_known in ((100 + 2 * TICK_MS - 1, True), (1, False)):
        clock.advance_ms(advanced)
        tracker.tick()
        assert tracker.canceled.contains(1, 1) == is_known


def test_clearing_forgets_cancellations_and_deletes_their_buckets() -> None:
    snapshots, clock = OperationSnapshots(), FakeClock(START_MS)
    tracker = _sealed(snapshots, clock, (7, 7, START_MS + 9_000))
    clock.advance_ms(1_000)
    tracker.get_scheduled_messages(100)
    assert len(snapshots.snapshots) == 1
    tracker.clear()
    assert not snapshots.snapshots
    assert not snapshots.properties
