"""The tracker: batches equal single calls, nothing is lost, and nothing is delivered early."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.ports import BucketOwner
from pulsar_sidecar.features.delayed_index.settings import Behaviour, TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes, segment_metadata_of
from pulsar_sidecar.features.delayed_index.tracker.bucket_ranges import CutRange, in_order_of_hash_map
from pulsar_sidecar.features.delayed_index.tracker.sealed_buckets import RecoveryFailedError, TrackerFailedError
from pulsar_sidecar.features.delayed_index.tracker.snapshot_access import BucketOperation
from pulsar_sidecar.features.delayed_index.tracker.tracker import BucketDelayedDeliveryTracker
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.protobuf import DelayedMessageIndexBucketMetadata_pb2 as metadata_pb
from pyroaring import BitMap

from tests.unit.delayed_index.tracker.trackers import CURSOR, START_MS, TOPIC, Site, rows_of, state_of

SETTINGS = st.builds(
    TrackerSettings,
    tick_time_ms=st.sampled_from([1, 10]),
    strict=st.booleans(),
    min_index_count=st.integers(1, 6),
    time_step_ms=st.sampled_from([1, 20, 1000]),
    max_indexes_per_segment=st.sampled_from([-1, 1, 2, 4]),
    max_num_buckets=st.sampled_from([-1, 1, 4, 5]),
)
BEHAVIOURS = st.sampled_from(Behaviour)
ROW = st.tuples(st.integers(-30, 200), st.integers(0, 12), st.integers(0, 5))
STEP = st.one_of(
    st.tuples(st.just("add"), st.lists(ROW, max_size=12)),
    st.tuples(st.just("add"), st.lists(ROW, max_size=12).map(lambda rows: sorted(rows, key=lambda row: row[1:]))),
    st.tuples(st.just("pop"), st.integers(0, 12)),
    st.tuples(st.just("wait"), st.integers(0, 60)),
    st.tuples(st.sampled_from(["tick", "recover", "clear"]), st.just(0)),
)
STEPS = st.lists(STEP, max_size=25)


def test_ranges_come_in_the_order_of_a_hash_map() -> None:
    """Seen at a broker: the last segment that ends with a message is the one that it remembers."""
    cut, closed = CutRange(45, 50), CutRange.closed(BucketKey(LedgerId(25), LedgerId(32)))
    assert in_order_of_hash_map([cut, closed], 2) == [closed, cut]
    assert in_order_of_hash_map([cut, closed], 1) == [closed, cut]
    same_bin = CutRange.closed(BucketKey(LedgerId(2**40), LedgerId(2**41)))
    assert in_order_of_hash_map([same_bin, cut, closed], 16) == [closed, same_bin, cut]
    assert in_order_of_hash_map([cut, same_bin, closed], 16) == [closed, cut, same_bin]


def _add_one_by_one(tracker: BucketDelayedDeliveryTracker, rows: DelayedIndexes) -> list[bool]:
    return [tracker.add_message(ledger, entry, at) for at, ledger, entry in rows_of(rows)]


def _answers(site: Site, steps: list[tuple[str, object]], *, batches: bool) -> list[object]:
    tracker, answers = site.tracker(), []
    for name, value in steps:
        before = site.clock.now_ms()
        try:
            match name, value:
                case "add", list(rows):
                    indexes = DelayedIndexes.of((before + at, ledger, entry) for at, ledger, entry in rows)
                    if batches:
                        answers.append(tracker.add_messages(indexes).tolist())
                    else:
                        answers.append(_add_one_by_one(tracker, indexes))
                case "pop", int(most):
                    answers.append(tracker.get_scheduled_messages(most))
                case "wait", int(milliseconds):
                    site.clock.advance_ms(milliseconds)
                case "tick", _:
                    tracker.tick()
                case "clear", _:
                    tracker.clear()
                case "recover", _:
                    tracker.close()
                    tracker = site.recovered()
        except TrackerFailedError as error:
            answers.append(error.what)
        answers.append(state_of(tracker, site))
    return answers


@given(SETTINGS, BEHAVIOURS, STEPS)
@settings(deadline=None, max_examples=50)
def test_a_batch_does_what_single_calls_do(
    chosen: TrackerSettings, behaviour: Behaviour, steps: list[tuple[str, object]]
) -> None:
    singles = _answers(Site(chosen, behaviour), steps, batches=False)
    assert _answers(Site(chosen, behaviour), steps, batches=True) == singles


class Crash(Exception):  # noqa: N818  it is not an error of anything
    """The process ends here."""


class Failing:
    """Every call of another object, of which one crashes or fails, before or after it takes effect."""

    def __init__(self, real: object, error: Exception) -> None:
        self._real = real
        self._error = error
        self.left = -1
        self.takes_effect = False

    def __getattr__(self, name: str) -> Callable[..., object]:
        method = getattr(self._real, name)

        def call(*args: object) -> object:
            self.left -= 1
            if self.left == 0 and not self.takes_effect:
                raise self._error
            result = method(*args)
            if self.left == 0:
                raise self._error
            return result

        return call


@given(
    SETTINGS,
    st.lists(ROW, min_size=1, max_size=60),
    st.lists(st.tuples(st.integers(1, 40), st.booleans(), st.integers(0, 80)), max_size=4),
    st.sampled_from(["storage", "properties"]),
)
@settings(deadline=None, max_examples=50)
def test_crash_at_any_step_neither_loses_nor_delivers_early(
    chosen: TrackerSettings, rows: list[tuple[int, int, int]], crashes: list[tuple[int, bool, int]], part: str
) -> None:
    """After a restart, a dispatcher adds undelivered messages again; as the PIP has it, no call fails."""
    messages = {row[1:]: START_MS + row[0] for row in sorted(rows, key=lambda row: row[1:])}
    site = Site(chosen, Behaviour.AS_PIP)
    failing = Failing(getattr(site, part), Crash())
    setattr(site, part, failing)
    delivered: set[tuple[int, int]] = set()
    for calls, takes_effect, waits in [*crashes, (0, False, 10_000)]:
        failing.left, failing.takes_effect = calls, takes_effect
        try:
            tracker = site.recovered()
            for position, due in messages.items():
                if position not in delivered and not tracker.add_message(*position, due):
                    assert due <= _cutoff(site)
                    delivered.add(position)
            for _ in range(2):
                site.clock.advance_ms(waits)
                while scheduled := tracker.get_scheduled_messages(7):
                    assert all(messages[tuple(position)] <= _cutoff(site) for position in scheduled)
                    delivered.update(map(tuple, scheduled))
        except Crash:
            pass
    assert delivered == set(messages)
    assert tracker.number_of_delayed_messages == 0
    assert not tracker.has_message_available()


@given(SETTINGS, st.lists(ROW, min_size=1, max_size=60), st.lists(st.integers(1, 60), max_size=3), st.booleans())
@settings(deadline=None, max_examples=50)
def test_failing_storage_neither_loses_nor_delivers_early(
    chosen: TrackerSettings, rows: list[tuple[int, int, int]], failures: list[int], takes_effect: bool
) -> None:
    messages = {row[1:]: START_MS + row[0] for row in sorted(rows, key=lambda row: row[1:])}
    site = Site(replace(chosen, max_num_buckets=-1))
    storage = FailingForAWhile(site.storage)
    setattr(site, "storage", storage)  # noqa: B010  a stand-in of the same shape
    tracker = site.tracker()
    delivered = {position for position, due in messages.items() if not tracker.add_message(*position, due)}
    for wait in [*failures, 10_000]:
        storage.fails = wait % 2 == 1
        site.clock.advance_ms(wait)
        for _ in range(len(messages) + 1):
            scheduled = tracker.get_scheduled_messages(7)
            assert all(messages[tuple(position)] <= _cutoff(site) for position in scheduled)
            delivered.update(map(tuple, scheduled))
    assert delivered == set(messages)


class FailingForAWhile:
    """A storage that cannot be read while ``fails`` is set."""

    def __init__(self, real: object) -> None:
        self._real = real
        self.fails = False

    def __getattr__(self, name: str) -> object:
        if self.fails:
            raise TemporaryError("not now")
        return getattr(self._real, name)


def _cutoff(site: Site) -> int:
    return site.clock.now_ms() + (0 if site.settings.strict else site.settings.tick_time_ms)


SMALL = TrackerSettings(min_index_count=2, time_step_ms=1000, max_indexes_per_segment=1, strict=True)


def _filled(site: Site, ledgers: int, per_ledger: int = 3) -> BucketDelayedDeliveryTracker:
    tracker = site.tracker()
    for ledger in range(ledgers):
        for entry in range(per_ledger):
            assert tracker.add_message(ledger, entry, START_MS + 1 + ledger + 10 * entry)
    return tracker


@pytest.fixture
def site() -> Site:
    return Site(SMALL)


def test_a_bucket_is_sealed_by_the_next_ledger_and_deleted_when_all_is_handed_out(site: Site) -> None:
    tracker = _filled(site, 2)
    assert [bucket.key for bucket in tracker.buckets] == [BucketKey(LedgerId(0), LedgerId(0))]
    assert site.properties.properties == {"#pulsar.internal.delayed.bucket_0_0": "1"}
    assert [len(snapshot.payloads) for snapshot in site.storage.snapshots.values()] == [4]
    assert tracker.contains_message(0, 2)
    assert not tracker.contains_message(0, 3)
    site.clock.advance_ms(1000)
    assert tracker.get_scheduled_messages(4) == [Position(LedgerId(0), EntryId(0)), (0, 1), (1, 0), (1, 1)]
    assert tracker.get_scheduled_messages(4) == [(0, 2), (1, 2)]
    assert not site.storage.snapshots
    assert not site.properties.properties
    assert tracker.number_of_delayed_messages == 0


def test_the_pips_example_of_a_merge() -> None:
    """PIP-195: of five buckets of [5,3,2,4,3] messages the second and the third become one."""
    tracker = Site(replace(SMALL, min_index_count=1, max_num_buckets=5), Behaviour.AS_PIP).recovered()
    for ledger, messages in enumerate([5, 3, 2, 4, 3, 9]):
        for entry in range(messages):
            tracker.add_message(ledger, entry, START_MS + 100)
    assert [bucket.key for bucket in tracker.buckets] == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4)]
    tracker.add_message(6, 0, START_MS + 100)
    assert [bucket.key for bucket in tracker.buckets] == [(0, 0), (1, 2), (3, 3), (4, 4), (5, 5)]


def test_as_broker_stops_where_too_few_buckets_may_be_and_as_pip_does_not() -> None:
    with pytest.raises(TrackerFailedError, match="4 of 2 buckets"):
        _filled(Site(replace(SMALL, max_num_buckets=1)), 3)
    tracker = _filled(Site(replace(SMALL, max_num_buckets=1), Behaviour.AS_PIP), 9)
    assert [bucket.key for bucket in tracker.buckets] == [(0, 6), (7, 7)]


def test_a_failed_row_of_a_batch_is_named_and_those_before_it_are_added() -> None:
    tracker = _filled(Site(replace(SMALL, max_num_buckets=1)), 1)
    batch = DelayedIndexes.of((START_MS + 1, ledger, entry) for ledger in (1, 2) for entry in range(3))
    with pytest.raises(TrackerFailedError) as failed:
        tracker.add_messages(batch)
    assert failed.value.row == 3
    assert tracker.number_of_delayed_messages == 6


def test_a_lost_ledger_costs_a_broker_the_tracker_and_the_pip_time(site: Site) -> None:
    _filled(site, 3)
    del site.storage.snapshots[LedgerId(1)]
    before = copy.deepcopy((site.storage.snapshots, site.properties.properties))
    with pytest.raises(RecoveryFailedError, match="no longer exists"):
        site.recovered()
    assert (site.storage.snapshots, site.properties.properties) == before
    site.behaviour = Behaviour.AS_PIP
    tracker = site.recovered()
    assert tracker.number_of_delayed_messages == 3
    assert list(site.properties.properties) == ["#pulsar.internal.delayed.bucket_1_1"]


def test_a_recovered_bucket_knows_the_length_of_its_snapshot(site: Site) -> None:
    _filled(site, 2)
    assert [bucket.snapshot_bytes for bucket in site.recovered().buckets] == [
        site.storage.snapshots[LedgerId(1)].length
    ]


def test_a_broker_throws_once_it_has_handed_out_more_than_it_counted(site: Site) -> None:
    # A bucket that a later one splits is loaded and counted twice; the later one's range goes, and with it its count.
    for start, end in ((3, 9), (4, 6)):
        segment = DelayedIndexes.of([(START_MS + 100, start, 0)])
        key = BucketKey(LedgerId(start), LedgerId(end))
        stored = site.storage.create_bucket_snapshot(
            [segment_metadata_of(segment)], [segment], BucketOwner(key, TOPIC, CURSOR)
        )
        site.properties.put(str(key), str(stored))
    tracker = site.recovered()
    assert tracker.number_of_delayed_messages == 2
    site.clock.advance_ms(1000)
    with pytest.raises(TrackerFailedError, match="none of -1 counted messages"):
        tracker.get_scheduled_messages(10)
    with pytest.raises(TrackerFailedError):
        tracker.has_message_available()


@pytest.mark.parametrize(
    "properties", [{"#pulsar.internal.delayed.bucket_1": "1"}, {"#pulsar.internal.delayed.bucket_1_2": "no"}]
)
def test_a_pointer_that_cannot_be_read_ends_the_recovery(site: Site, properties: dict[str, str]) -> None:
    site.properties.properties.update(properties)
    with pytest.raises(UndecodableError):
        site.recovered()
    assert site.properties.properties == properties


def claim_every_entry(metadata: bytes) -> bytes:
    message = metadata_pb.SnapshotMetadata.FromString(metadata)
    [ledger_id] = message.metadata_list[0].delayed_index_bit_map
    every_entry = BitMap()
    every_entry.add_range(0, 2**32)
    message.metadata_list[0].delayed_index_bit_map[ledger_id] = every_entry.serialize()
    return message.SerializeToString()


@pytest.mark.parametrize("behaviour", Behaviour)
@pytest.mark.parametrize(
    ("entry", "corrupt", "why"),
    [
        (0, lambda payload: payload[:-1], "are not a SnapshotMetadata"),
        (0, claim_every_entry, "claims 4,294,967,296 entries"),
        (1, lambda payload: payload[:-1], "are not a SnapshotSegment"),
    ],
)
def test_a_damaged_bucket_ends_the_recovery_and_stays(
    site: Site, entry: int, corrupt: Callable[[bytes], bytes], why: str, behaviour: Behaviour
) -> None:
    _filled(site, 3)
    snapshot = site.storage.snapshots[LedgerId(1)]
    payloads = [corrupt(each) if at == entry else each for at, each in enumerate(snapshot.payloads)]
    site.storage.snapshots[LedgerId(1)] = replace(snapshot, payloads=tuple(payloads))
    before = copy.deepcopy((site.storage.snapshots, site.properties.properties))
    site.behaviour = behaviour
    with pytest.raises(RecoveryFailedError, match=why):
        site.recovered()
    assert (site.storage.snapshots, site.properties.properties) == before


def test_a_failed_load_is_tried_again_by_the_next_call(site: Site) -> None:
    storage = FailingForAWhile(site.storage)
    setattr(site, "storage", storage)  # noqa: B010  a stand-in of the same shape
    tracker = _filled(site, 2)
    site.clock.advance_ms(1000)
    storage.fails = True
    assert tracker.get_scheduled_messages(10) == []
    assert tracker.access.operations[BucketOperation.LOAD, False] == 1
    storage.fails = False
    assert len(tracker.get_scheduled_messages(10)) == 6


@pytest.mark.parametrize(("ledger", "entry"), [(-1, 0), (0, -1), (0, 2**32)])
def test_ids_that_cannot_be_are_refused(ledger: int, entry: int) -> None:
    tracker = _filled(Site(SMALL), 1)
    with pytest.raises(InvalidInputError):
        tracker.add_message(ledger, entry, START_MS + 5)
    with pytest.raises(InvalidInputError):
        tracker.add_messages(DelayedIndexes.of([(START_MS + 5, 0, 7), (START_MS + 5, ledger, entry)]))
    assert tracker.number_of_delayed_messages == 3


def test_clearing_deletes_and_closing_does_not(site: Site) -> None:
    tracker = _filled(site, 3)
    tracker.close()
    assert len(site.storage.snapshots) == 2
    recovered = site.recovered()
    assert recovered.number_of_delayed_messages == 6
    recovered.clear()
    assert not site.storage.snapshots
    assert not site.properties.properties
    assert recovered.next_delivery_time() is None
