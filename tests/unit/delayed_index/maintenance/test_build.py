"""Built buckets hold exactly the messages to delay, are attached only as planned, and leave nothing behind."""

from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.results.maintenance import PointerOutcome
from pulsar_sidecar.features.delayed_index.settings import IN_MEMORY_TRACKER_FACTORY
from pulsar_sidecar.features.delayed_index.tracker.memory_storage import MemoryBucketProperties
from pulsar_sidecar.features.delayed_index.tracker.snapshot_access import BucketOperation
from pulsar_sidecar.features.delayed_index.tracker.tracker import BucketDelayedDeliveryTracker
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, OutcomeUnknownError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerState, OffloadContext
from pulsar_sidecar.ownership.claims import BucketClaim, read_claim
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path

from tests.fakes.bookkeeper import cursor_bytes, ledger_metadata_bytes, managed_ledger_bytes
from tests.fakes.clock import FakeClock
from tests.fakes.delayed_index import TOPIC
from tests.fakes.index_building import DUE, FIRST_BUCKET, PATH, SUBSCRIPTION, IndexToBuild, small_buckets

THREE = {3: [DUE + 5, DUE, 0, DUE + 500], 5: [0, 0], 8: [DUE + 7], 9: [DUE + 8, DUE + 9, DUE + 10]}


@pytest.fixture
def setup() -> IndexToBuild:
    return IndexToBuild(THREE, small_buckets())


def test_buckets_are_sealed_as_a_tracker_seals_them(setup: IndexToBuild) -> None:
    [built] = setup.build()
    assert (built.subscription, built.outcome) == (SUBSCRIPTION, PointerOutcome.DONE)
    assert [bucket.ledger_id for bucket in built.buckets] == [FIRST_BUCKET, FIRST_BUCKET + 1]
    assert setup.named() == {
        str(BucketKey(LedgerId(3), LedgerId(3))): FIRST_BUCKET,
        str(BucketKey(LedgerId(5), LedgerId(9))): FIRST_BUCKET + 1,
    }
    assert setup.indexed() == {position: due for position, due in setup.times.items() if due}
    segments = setup.snapshots.get_bucket_snapshot_segment(LedgerId(FIRST_BUCKET), 1, 2)
    assert [one.deliver_at_ms.tolist() for one in segments] == [[DUE, DUE + 5], [DUE + 500]]


def test_acknowledged_and_covered_entries_get_no_bit() -> None:
    setup = IndexToBuild(THREE, small_buckets(), mark_delete=(3, 0), acknowledged=[(9, 1, 1)])
    setup.topic.seal(SUBSCRIPTION, 700, 7, 8, [(DUE + 7, 8, 0)])
    setup.topic.cursor(SUBSCRIPTION, setup.mark_delete)
    [build] = setup.plan().subscriptions
    assert build.covered == (8,)
    setup.build()
    assert setup.indexed() == {(3, 1): DUE, (3, 3): DUE + 500, (8, 0): DUE + 7, (9, 0): DUE + 8, (9, 2): DUE + 10}
    assert set(setup.named()) == {str(BucketKey(LedgerId(a), LedgerId(b))) for a, b in [(3, 3), (7, 8), (9, 9)]}


def test_offloaded_ledgers_are_left_out_and_those_that_are_acknowledged_not_named() -> None:
    setup = IndexToBuild(THREE, small_buckets(), mark_delete=(5, 0))
    offloaded = {id_: OffloadContext(1, id_, "aws-s3", {}, bookkeeper_deleted=True) for id_ in (3, 5)}
    setup.store.put(managed_ledger_path(TOPIC.managed_ledger_name), managed_ledger_bytes(THREE, offloaded=offloaded))
    for id_ in offloaded:
        setup.store.remove(ledger_path(LedgerId(id_)))
    [build] = setup.plan().subscriptions
    assert build.left_out == {5: "offloaded"}
    setup.build()
    assert set(setup.indexed()) == {(8, 0), (9, 0), (9, 1), (9, 2)}


def test_build_leaves_other_subscriptions_unchanged(setup: IndexToBuild) -> None:
    setup.topic.cursor("another")
    assert len(setup.builder.plan(TOPIC).subscriptions) == 2
    assert len(setup.build()) == 1
    assert len(setup.builder.plan(TOPIC, "another").subscriptions[0].buckets) == 2


def test_a_built_ledger_names_its_bucket(setup: IndexToBuild) -> None:
    setup.build()
    for key, ledger_id in setup.named().items():
        node = setup.store.peek(ledger_path(ledger_id))
        assert node is not None
        claim = read_claim(decode_ledger_metadata(node.data).custom_metadata)
        assert claim == BucketClaim(TOPIC, SUBSCRIPTION, key)


def test_a_backlog_without_delayed_messages_builds_nothing() -> None:
    setup = IndexToBuild({3: [0, 0]}, small_buckets())
    assert [build.buckets for build in setup.plan().subscriptions] == [()]
    assert setup.build() == []
    assert setup.snapshots.created == []


@st.composite
def setups(draw: st.DrawFn) -> IndexToBuild:
    ids = sorted(draw(st.sets(st.integers(1, 30), min_size=1, max_size=8)))
    due = st.one_of(st.just(0), st.integers(DUE, DUE + 400))
    ledgers = {each: draw(st.lists(due, min_size=1, max_size=6)) for each in ids}
    marked = draw(st.sampled_from(ids))
    ranges = draw(st.lists(st.tuples(st.sampled_from(ids), st.integers(0, 5), st.integers(0, 2)), max_size=4))
    setup = IndexToBuild(
        ledgers,
        small_buckets(),
        (marked, draw(st.integers(-1, len(ledgers[marked]) - 1))),
        [(ledger, first, first + more) for ledger, first, more in ranges],
    )
    cuts = sorted(draw(st.sets(st.integers(1, 30), max_size=4)))
    for number, (start, end) in enumerate(list(pairwise(cuts))[::2]):
        setup.topic.seal(SUBSCRIPTION, 700 + number, start, end, [(DUE + 900, start, 77)])
    setup.topic.cursor(SUBSCRIPTION, setup.mark_delete)
    return setup


@given(setups())
def test_every_bit_is_an_entrys_own_due_time_and_no_waiting_one_is_forgotten(setup: IndexToBuild) -> None:
    there = [BucketKey.parse(name) for name in setup.named()]
    before = setup.indexed()
    setup.build()
    expected = {
        position: due
        for position, due in setup.times.items()
        if due
        and position > setup.mark_delete
        and not any(
            position[0] == ledger and first <= position[1] <= last for ledger, first, last in setup.acknowledged
        )
        and not any(position[0] in key for key in there)
    }
    found = setup.indexed()
    assert {position: due for position, due in found.items() if position not in before} == expected
    keys = sorted(BucketKey.parse(name) for name in setup.named())
    assert all(one.end < other.start for one, other in pairwise(keys))


# --- their use by a broker of 4.0.8 ---------------------------------------------------------------------------------


def loaded_by_a_broker(setup: IndexToBuild) -> tuple[BucketDelayedDeliveryTracker, FakeClock]:
    """Return a broker's tracker once it has loaded the topic and read the messages that no bucket has."""
    clock = FakeClock(DUE - 60_000)
    properties = MemoryBucketProperties({name: str(ledger_id) for name, ledger_id in setup.named().items()})
    tracker = BucketDelayedDeliveryTracker(
        setup.settings, setup.snapshots, properties, clock.now_ms, topic_name=str(TOPIC), cursor_name=SUBSCRIPTION
    )
    tracker.recover()
    for (ledger_id, entry_id), due in setup.times.items():
        tracker.add_message(ledger_id, entry_id, due)
    return tracker, clock


def fill_ledgers(tracker: BucketDelayedDeliveryTracker, ledgers: Iterable[int]) -> int:
    """New messages, so that the broker seals a bucket at each ledger after the first one."""
    return sum(tracker.add_message(ledger, entry, DUE + 5_000 + entry) for ledger in ledgers for entry in range(6))


def deliver(tracker: BucketDelayedDeliveryTracker, clock: FakeClock) -> list[Position]:
    clock.advance_ms(3_600_000)
    delivered: list[Position] = []
    while more := tracker.get_scheduled_messages(3):
        delivered += more
    return delivered


@pytest.mark.parametrize("last", range(1, 8))
@pytest.mark.parametrize(("ledgers", "rows", "most"), [(1, 3, 4), (2, 7, 4), (3, 7, 5), (4, 3, 7), (6, 4, 9)])
def test_a_broker_that_merges_never_throws_at_what_was_built(ledgers: int, rows: int, most: int, last: int) -> None:
    backlog = {3 + each: [DUE + each + 10 * row for row in range(rows)] for each in range(ledgers)}
    backlog[3 + ledgers] = [DUE + 10 * row for row in range(last)]
    setup = IndexToBuild(backlog, small_buckets(max_num_buckets=most))
    setup.build()
    tracker, clock = loaded_by_a_broker(setup)
    added = fill_ledgers(tracker, range(100, 100 + most + 3))
    assert tracker.access.operations[BucketOperation.MERGE, True] > 0
    assert len(deliver(tracker, clock)) == len(setup.times) + added


@pytest.mark.parametrize("there", [0, 2])
def test_more_buckets_than_a_broker_keeps_apart_are_refused(there: int) -> None:
    backlog = {3 + each: [DUE + row for row in range(7)] for each in range(5 - there)}
    setup = IndexToBuild(backlog, small_buckets(max_num_buckets=9 if there else -1))
    setup.second_settings = small_buckets(max_num_buckets=5)
    for each in range(there):
        setup.topic.seal(SUBSCRIPTION, 700 + each, 20 + each, 20 + each, [(DUE + 7, 20 + each, 0)])
    setup.topic.cursor(SUBSCRIPTION, setup.mark_delete)
    refused(setup, ConflictError, "would have 5 buckets.*delayedDeliveryMaxNumBuckets=5.*to -1, or to 6 or more")
    setup.second_settings = small_buckets(max_num_buckets=6)
    assert len(setup.build()[0].buckets) == 5 - there


def test_messages_that_get_no_index_do_not_make_a_broker_forget_a_bucket() -> None:
    """The broker reads them itself, and would seal them with newer ones, over the built buckets between."""
    setup = IndexToBuild({3: [DUE], 5: [DUE + row for row in range(6)], 6: [DUE] * 6}, small_buckets())
    offloaded = {3: OffloadContext(1, 3, "aws-s3", {}, bookkeeper_deleted=True)}
    setup.store.put(
        managed_ledger_path(TOPIC.managed_ledger_name), managed_ledger_bytes([3, 5, 6], offloaded=offloaded)
    )
    setup.store.remove(ledger_path(LedgerId(3)))
    setup.build()
    tracker, clock = loaded_by_a_broker(setup)
    added = fill_ledgers(tracker, range(100, 104))
    assert len(deliver(tracker, clock)) == len(setup.times) + added


# --- refusals: nothing is written -----------------------------------------------------------------------------------


def refused(setup: IndexToBuild, error: type[Exception], match: str, plan_hash: str | None = None) -> None:
    named = setup.named()
    with pytest.raises(error, match=match):
        setup.build(plan_hash)
    assert setup.named() == named
    assert setup.bucket_ledgers() == []


@pytest.mark.parametrize(
    ("name", "value", "error", "why"),
    [
        ("loaded", "broker-1", ConflictError, f"broker-1 has {TOPIC} loaded"),
        ("factory", IN_MEMORY_TRACKER_FACTORY, ConflictError, "broker-2 runs .*InMemory.*TrackerFactoryClassName"),
        ("settings", small_buckets(max_num_buckets=3), ConflictError, "NumBuckets=3, .*set -1$"),
        ("unreadable", True, TemporaryError, "no bookie has it"),
    ],
)
def test_impossible_build_is_refused(
    setup: IndexToBuild, name: str, value: object, error: type[Exception], why: str
) -> None:
    setattr(setup, name, value)
    refused(setup, error, why)


def test_ledgers_that_are_open_or_gone_are_refused(setup: IndexToBuild) -> None:
    setup.store.put(ledger_path(LedgerId(9)), ledger_metadata_bytes(LedgerState.OPEN))
    refused(setup, ConflictError, "ledger 9 .*not closed.*topics unload")
    setup.store.remove(ledger_path(LedgerId(8)))
    refused(setup, ConflictError, "ledger 8, which is gone")


@pytest.mark.parametrize(
    ("path", "what"),
    [
        (managed_ledger_path(TOPIC.managed_ledger_name), f"{TOPIC} cannot be read: "),
        (PATH, f"subscription {SUBSCRIPTION} of {TOPIC} cannot be read: "),
    ],
)
def test_nodes_that_cannot_be_read_are_refused_by_name(setup: IndexToBuild, path: str, what: str) -> None:
    setup.store.put(path, b"\xff\xff")
    with pytest.raises(TemporaryError, match=f"^{what}"):
        setup.plan()


def test_a_position_or_a_key_that_cannot_be_read_is_refused_by_name(setup: IndexToBuild) -> None:
    setup.cursors.unreadable = "ledger 4 is away"
    cursor = f"the cursor of {SUBSCRIPTION} on {TOPIC} cannot be read: ledger 4 is away"
    refused(setup, TemporaryError, f"^{cursor}$")
    setup.cursors.unreadable = None
    setup.store.put(PATH, cursor_bytes(buckets={"#pulsar.internal.delayed.bucket_7": 700}))
    refused(setup, ConflictError, "bucket_7' does not name a bucket; .*repair first$")


def test_another_plan_than_the_approved_one_is_refused(setup: IndexToBuild) -> None:
    approved = setup.plan().hash
    assert setup.plan().hash == approved
    setup.topic.cursor(SUBSCRIPTION, setup.mark_delete)
    refused(setup, ConflictError, "not the approved .*review and approve the new plan$", approved)


def test_unrecoverable_buckets_refuse_the_build(setup: IndexToBuild) -> None:
    setup.topic.seal(SUBSCRIPTION, 700, 7, 8, [(DUE + 7, 8, 0)])
    setup.topic.cursor(SUBSCRIPTION, setup.mark_delete)
    setup.bookies.unreadable[700, 0] = "its bookies are away"
    what = f"^the buckets of {SUBSCRIPTION} on {TOPIC} cannot all be used:"
    refused(setup, ConflictError, f"{what} .*bucket_7_8 could not be read.*fsck {TOPIC}, and run its repair")
    setup.store.remove(ledger_path(LedgerId(700)))
    refused(setup, ConflictError, f"{what} ledger 700 does not exist")


# --- failures on the way --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "failure", [TemporaryError("too few bookies"), OutcomeUnknownError("ledger 77 is half written")]
)
def test_bookies_that_fail_at_the_second_bucket_leave_nothing(setup: IndexToBuild, failure: SidecarError) -> None:
    setup.snapshots.fail_after, setup.snapshots.failure = 1, failure
    refused(setup, type(failure), str(failure))
    assert len(setup.snapshots.created) == 1


def test_an_error_names_the_subscriptions_that_were_built_before(setup: IndexToBuild) -> None:
    setup.topic.cursor("z")
    setup.snapshots.fail_after = 2
    attached = f"^too few bookies; the buckets of {SUBSCRIPTION} of {TOPIC} are attached$"
    with pytest.raises(TemporaryError, match=attached):
        setup.builder.execute(TOPIC, None, setup.builder.plan(TOPIC).hash)
    assert len(setup.named()) == 2


def test_a_bucket_that_cannot_be_deleted_again_is_named(setup: IndexToBuild) -> None:
    setup.snapshots.fail_after = 1
    setup.store.fail_next("read", TemporaryError("the store is away"), path=PATH, times=-1)
    left = (
        rf"^too few bookies; ledgers {FIRST_BUCKET} of new buckets are left \(the store is away\); run .* fsck {TOPIC}$"
    )
    with pytest.raises(OutcomeUnknownError, match=left):
        setup.builder.execute(TOPIC, None, setup.plan().hash)


@pytest.mark.parametrize(
    "corrupted",
    [
        [(DUE + 1, 3, 1), (DUE + 5, 3, 0)],
        [(DUE, 4, 1), (DUE + 5, 4, 0)],
        [(DUE, 3, 0), (DUE + 5, 3, 1)],
        [(DUE, 3, 1)],
    ],
)
def test_a_bucket_that_reads_otherwise_than_it_was_written_is_not_attached(
    corrupted: list[tuple[int, int, int]],
) -> None:
    setup = IndexToBuild({3: THREE[3]}, small_buckets())
    setup.snapshots.corrupted = corrupted
    refused(setup, TemporaryError, "does not read back")


@pytest.mark.parametrize(
    ("happen", "error", "why"),
    [
        (lambda setup: setup.topic.cursor(SUBSCRIPTION, setup.mark_delete), ConflictError, "version"),
        (lambda setup: setup.store.remove(PATH), NotFoundError, "is gone"),
    ],
)
def test_failed_cursor_update_leaves_no_bucket(
    setup: IndexToBuild, happen: Callable[[IndexToBuild], None], error: type[Exception], why: str
) -> None:
    approved = setup.plan().hash
    setup.store.before("write", lambda: happen(setup), path=PATH)
    with pytest.raises(error, match=why):
        setup.build(approved)
    assert setup.bucket_ledgers() == []
    assert len(setup.snapshots.created) == 2
    assert setup.store.peek(PATH) is None or setup.named() == {}


def test_a_topic_loaded_while_buckets_are_written_gets_none(setup: IndexToBuild) -> None:
    setup.snapshots.before = lambda: setattr(setup, "loaded", "broker-1")
    refused(setup, ConflictError, f"broker-1 has {TOPIC} loaded")
    assert len(setup.snapshots.created) == 2


def test_a_broker_that_overwrites_the_cursor_is_reported_and_keeps_no_bucket(setup: IndexToBuild) -> None:
    node = setup.store.peek(PATH)
    assert node is not None
    approved = setup.plan().hash

    def overwrite_later() -> None:
        setup.store.before("read", lambda: setup.store.put(PATH, node.data), path=PATH)

    setup.store.before("write", overwrite_later, path=PATH)
    refused(setup, ConflictError, "wrote its own copy.*unload it, and build again", approved)


def test_a_bucket_that_the_cursor_names_after_all_is_not_deleted(setup: IndexToBuild) -> None:
    old = setup.store.peek(PATH)
    assert old is not None
    reads: list[bytes] = []

    def flap() -> None:
        """The response to the first look is a broker's older copy, and then it is the new one again."""
        node = setup.store.peek(PATH)
        assert node is not None
        reads.append(node.data)
        setup.store.put(PATH, old.data if len(reads) == 1 else reads[0])

    setup.store.before("write", lambda: setup.store.before("read", flap, path=PATH, times=2), path=PATH)
    left = rf"{FIRST_BUCKET}, {FIRST_BUCKET + 1} of new buckets are left \(the cursor names them\); run"
    with pytest.raises(OutcomeUnknownError, match=left):
        setup.build()
    assert set(setup.named().values()) == set(setup.bucket_ledgers())


@pytest.mark.parametrize("can_look", [True, False])
def test_a_lost_answer_names_what_may_be_left(setup: IndexToBuild, can_look: bool) -> None:
    approved = setup.plan().hash
    if not can_look:
        away = TemporaryError("the store is away")
        setup.store.before("write", lambda: setup.store.fail_next("read", away, path=PATH))
    setup.store.lose_answer_next("write", applied=False)
    with pytest.raises(OutcomeUnknownError, match=rf"new ledgers: {FIRST_BUCKET}, {FIRST_BUCKET + 1}"):
        setup.build(approved)
    assert len(setup.bucket_ledgers()) == 2, "the cursor may come to name them"
