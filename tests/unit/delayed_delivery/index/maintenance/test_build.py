"""Built buckets hold exactly what a broker would delay, are attached only as planned, and leave nothing behind."""

from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.maintenance.attach import PointerOutcome
from pulsar_sidecar.delayed_delivery.index.settings import IN_MEMORY_TRACKER_FACTORY
from pulsar_sidecar.delayed_delivery.index.tracker.memory_storage import MemoryBucketProperties
from pulsar_sidecar.delayed_delivery.index.tracker.snapshot_access import BucketOperation
from pulsar_sidecar.delayed_delivery.index.tracker.tracker import BucketDelayedDeliveryTracker
from pulsar_sidecar.ledger_ownership.claims import BucketClaim, read_claim
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.paths import ledger_path, managed_ledger_path
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerState, OffloadContext

from tests.fakes.bookkeeper import cursor_bytes, ledger_metadata_bytes, managed_ledger_bytes
from tests.fakes.clock import FakeClock
from tests.fakes.delayed_index import TOPIC
from tests.fakes.index_building import DUE, FIRST_BUCKET, PATH, SUBSCRIPTION, IndexToBuild, small_buckets

THREE = {3: [DUE + 5, DUE, 0, DUE + 500], 5: [0, 0], 8: [DUE + 7], 9: [DUE + 8, DUE + 9, DUE + 10]}


def test_buckets_are_sealed_as_a_tracker_seals_them() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    [built] = stage.build()
    assert (built.build.index.subscription, built.outcome) == (SUBSCRIPTION, PointerOutcome.DONE)
    assert built.ledgers == (FIRST_BUCKET, FIRST_BUCKET + 1)
    assert stage.named() == {
        str(BucketKey(LedgerId(3), LedgerId(3))): FIRST_BUCKET,
        str(BucketKey(LedgerId(5), LedgerId(9))): FIRST_BUCKET + 1,
    }
    assert stage.indexed() == {position: due for position, due in stage.times.items() if due}
    segments = stage.snapshots.get_bucket_snapshot_segment(LedgerId(FIRST_BUCKET), 1, 2)
    assert [one.deliver_at_ms.tolist() for one in segments] == [[DUE, DUE + 5], [DUE + 500]]


def test_what_is_acknowledged_or_covered_gets_no_bit() -> None:
    stage = IndexToBuild(THREE, small_buckets(), mark_delete=(3, 0), acknowledged=[(9, 1, 1)])
    stage.topic.seal(SUBSCRIPTION, 700, 7, 8, [(DUE + 7, 8, 0)])
    stage.topic.cursor(SUBSCRIPTION, stage.mark_delete)
    [build] = stage.plan().subscriptions
    assert build.covered == (8,)
    stage.build()
    assert stage.indexed() == {(3, 1): DUE, (3, 3): DUE + 500, (8, 0): DUE + 7, (9, 0): DUE + 8, (9, 2): DUE + 10}
    assert set(stage.named()) == {str(BucketKey(LedgerId(a), LedgerId(b))) for a, b in [(3, 3), (7, 8), (9, 9)]}


def test_offloaded_ledgers_are_left_out_and_those_that_are_acknowledged_not_named() -> None:
    stage = IndexToBuild(THREE, small_buckets(), mark_delete=(5, 0))
    offloaded = {id_: OffloadContext(1, id_, "aws-s3", {}, bookkeeper_deleted=True) for id_ in (3, 5)}
    stage.store.put(managed_ledger_path(TOPIC.managed_ledger_name), managed_ledger_bytes(THREE, offloaded=offloaded))
    for id_ in offloaded:
        stage.store.remove(ledger_path(LedgerId(id_)))
    [build] = stage.plan().subscriptions
    assert build.left_out == {5: "offloaded"}
    stage.build()
    assert set(stage.indexed()) == {(8, 0), (9, 0), (9, 1), (9, 2)}


def test_one_subscription_is_built_and_the_others_are_as_they_were() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.topic.cursor("another")
    assert len(stage.builder.plan(TOPIC).subscriptions) == 2
    assert len(stage.build()) == 1
    assert len(stage.builder.plan(TOPIC, "another").subscriptions[0].buckets) == 2


def test_a_built_ledger_names_its_bucket() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.build()
    for key, ledger_id in stage.named().items():
        node = stage.store.peek(ledger_path(ledger_id))
        assert node is not None
        claim = read_claim(decode_ledger_metadata(node.data).custom_metadata)
        assert claim == BucketClaim(TOPIC, SUBSCRIPTION, key)


def test_a_backlog_without_delayed_messages_builds_nothing() -> None:
    stage = IndexToBuild({3: [0, 0]}, small_buckets())
    assert [build.buckets for build in stage.plan().subscriptions] == [()]
    assert stage.build() == []
    assert stage.snapshots.created == []


@st.composite
def stages(draw: st.DrawFn) -> IndexToBuild:
    ids = sorted(draw(st.sets(st.integers(1, 30), min_size=1, max_size=8)))
    due = st.one_of(st.just(0), st.integers(DUE, DUE + 400))
    ledgers = {each: draw(st.lists(due, min_size=1, max_size=6)) for each in ids}
    marked = draw(st.sampled_from(ids))
    ranges = draw(st.lists(st.tuples(st.sampled_from(ids), st.integers(0, 5), st.integers(0, 2)), max_size=4))
    stage = IndexToBuild(
        ledgers,
        small_buckets(),
        (marked, draw(st.integers(-1, len(ledgers[marked]) - 1))),
        [(ledger, first, first + more) for ledger, first, more in ranges],
    )
    cuts = sorted(draw(st.sets(st.integers(1, 30), max_size=4)))
    for number, (start, end) in enumerate(list(pairwise(cuts))[::2]):
        stage.topic.seal(SUBSCRIPTION, 700 + number, start, end, [(DUE + 900, start, 77)])
    stage.topic.cursor(SUBSCRIPTION, stage.mark_delete)
    return stage


@given(stages())
def test_every_bit_is_an_entrys_own_due_time_and_no_waiting_one_is_forgotten(stage: IndexToBuild) -> None:
    there = [BucketKey.parse(name) for name in stage.named()]
    before = stage.indexed()
    stage.build()
    expected = {
        position: due
        for position, due in stage.times.items()
        if due
        and position > stage.mark_delete
        and not any(
            position[0] == ledger and first <= position[1] <= last for ledger, first, last in stage.acknowledged
        )
        and not any(position[0] in key for key in there)
    }
    found = stage.indexed()
    assert {position: due for position, due in found.items() if position not in before} == expected
    keys = sorted(BucketKey.parse(name) for name in stage.named())
    assert all(one.end < other.start for one, other in pairwise(keys))


# --- what a broker of 4.0.8 does with them --------------------------------------------------------------------------


def loaded_by_a_broker(stage: IndexToBuild) -> tuple[BucketDelayedDeliveryTracker, FakeClock]:
    """What a broker's tracker is once it has loaded the topic and read what no bucket has a bit of."""
    clock = FakeClock(DUE - 60_000)
    properties = MemoryBucketProperties({name: str(ledger_id) for name, ledger_id in stage.named().items()})
    tracker = BucketDelayedDeliveryTracker(
        stage.settings, stage.snapshots, properties, clock.now_ms, topic_name=str(TOPIC), cursor_name=SUBSCRIPTION
    )
    tracker.recover()
    for (ledger_id, entry_id), due in stage.times.items():
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
    stage = IndexToBuild(backlog, small_buckets(max_num_buckets=most))
    stage.build()
    tracker, clock = loaded_by_a_broker(stage)
    added = fill_ledgers(tracker, range(100, 100 + most + 3))
    assert tracker.access.operations[BucketOperation.MERGE, True] > 0
    assert len(deliver(tracker, clock)) == len(stage.times) + added


@pytest.mark.parametrize("there", [0, 2])
def test_more_buckets_than_a_broker_keeps_apart_are_refused(there: int) -> None:
    backlog = {3 + each: [DUE + row for row in range(7)] for each in range(5 - there)}
    stage = IndexToBuild(backlog, small_buckets(max_num_buckets=9 if there else -1))
    stage.second_settings = small_buckets(max_num_buckets=5)
    for each in range(there):
        stage.topic.seal(SUBSCRIPTION, 700 + each, 20 + each, 20 + each, [(DUE + 7, 20 + each, 0)])
    stage.topic.cursor(SUBSCRIPTION, stage.mark_delete)
    refused(stage, ConflictError, "would have 5 buckets.*delayedDeliveryMaxNumBuckets=5.*to -1, or to 6 or more")
    stage.second_settings = small_buckets(max_num_buckets=6)
    assert len(stage.build()[0].ledgers) == 5 - there


def test_messages_that_get_no_index_do_not_make_a_broker_forget_a_bucket() -> None:
    """It reads them itself, and would seal them with newer ones, over the built buckets between."""
    stage = IndexToBuild({3: [DUE], 5: [DUE + row for row in range(6)], 6: [DUE] * 6}, small_buckets())
    offloaded = {3: OffloadContext(1, 3, "aws-s3", {}, bookkeeper_deleted=True)}
    stage.store.put(
        managed_ledger_path(TOPIC.managed_ledger_name), managed_ledger_bytes([3, 5, 6], offloaded=offloaded)
    )
    stage.store.remove(ledger_path(LedgerId(3)))
    stage.build()
    tracker, clock = loaded_by_a_broker(stage)
    added = fill_ledgers(tracker, range(100, 104))
    assert len(deliver(tracker, clock)) == len(stage.times) + added


# --- refusals: nothing is written -----------------------------------------------------------------------------------


def refused(stage: IndexToBuild, error: type[Exception], match: str, plan_hash: str | None = None) -> None:
    named = stage.named()
    with pytest.raises(error, match=match):
        stage.build(plan_hash)
    assert stage.named() == named
    assert stage.bucket_ledgers() == []


def test_a_loaded_topic_is_refused() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.loaded = "broker-1"
    refused(stage, ConflictError, f"broker-1 has {TOPIC} loaded")


def test_one_broker_without_the_bucket_tracker_is_enough_to_refuse() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.factory = IN_MEMORY_TRACKER_FACTORY
    refused(stage, ConflictError, "broker-2 runs .*InMemory.*set delayedDeliveryTrackerFactoryClassName")


def test_settings_that_stop_dispatch_are_refused() -> None:
    refused(IndexToBuild(THREE, small_buckets(max_num_buckets=3)), ConflictError, "NumBuckets=3, .*set -1$")


def test_a_ledger_that_is_not_closed_is_refused() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.store.put(ledger_path(LedgerId(9)), ledger_metadata_bytes(LedgerState.OPEN))
    refused(stage, ConflictError, "ledger 9 .*not closed.*topics unload")


def test_a_ledger_that_is_gone_is_refused() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.store.remove(ledger_path(LedgerId(8)))
    refused(stage, ConflictError, "ledger 8, which is gone")


def test_entries_that_cannot_be_read_are_refused() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.unreadable = True
    refused(stage, TemporaryError, "no bookie has it")


@pytest.mark.parametrize(
    ("path", "what"),
    [
        (managed_ledger_path(TOPIC.managed_ledger_name), f"{TOPIC} cannot be read: "),
        (PATH, f"subscription {SUBSCRIPTION} of {TOPIC} cannot be read: "),
    ],
)
def test_nodes_that_cannot_be_read_are_refused_by_name(path: str, what: str) -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.store.put(path, b"\xff\xff")
    with pytest.raises(TemporaryError, match=f"^{what}"):
        stage.plan()


def test_a_position_or_a_key_that_cannot_be_read_is_refused_by_name() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.cursors.unreadable = "ledger 4 is away"
    cursor = f"the cursor of {SUBSCRIPTION} on {TOPIC} cannot be read: ledger 4 is away"
    refused(stage, TemporaryError, f"^{cursor}$")
    stage.cursors.unreadable = None
    stage.store.put(PATH, cursor_bytes(buckets={"#pulsar.internal.delayed.bucket_7": 700}))
    refused(stage, ConflictError, "bucket_7' does not name a bucket; .*repair first$")


def test_another_plan_than_the_approved_one_is_refused() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    approved = stage.plan().hash
    assert stage.plan().hash == approved
    stage.topic.cursor(SUBSCRIPTION, stage.mark_delete)
    refused(stage, ConflictError, "approved: .*look at the new plan and approve that$", approved)


def test_a_subscription_or_topic_that_is_not_there() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    with pytest.raises(NotFoundError, match=f"there is no subscription another on {TOPIC}"):
        stage.builder.plan(TOPIC, "another")
    with pytest.raises(NotFoundError):
        stage.builder.plan(TOPIC.partition(3), None)


@pytest.mark.parametrize("name", ["pulsar.dedup", "__compaction", "pulsar.repl.other"])
def test_cursors_that_brokers_keep_for_themselves_get_no_index(name: str) -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.topic.cursor(name)
    with pytest.raises(NotFoundError, match=f"there is no subscription {name} on {TOPIC}"):
        stage.builder.plan(TOPIC, name)


def lose_the_ledger(stage: IndexToBuild) -> None:
    stage.store.remove(ledger_path(LedgerId(700)))


def lose_entry_0(stage: IndexToBuild) -> None:
    del stage.bookies.payloads[700, 0]


def cut_entry_0(stage: IndexToBuild) -> None:
    stage.bookies.payloads[700, 0] = stage.bookies.payloads[700, 0][:-1]


def hide_entry_0(stage: IndexToBuild) -> None:
    stage.bookies.unreadable[700, 0] = "its bookies are away"


def overlap(stage: IndexToBuild) -> None:
    stage.topic.seal(SUBSCRIPTION, 701, 8, 9, [(DUE + 8, 9, 0)])
    stage.topic.cursor(SUBSCRIPTION, stage.mark_delete)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lose_the_ledger, "ledger 700 does not exist, so a broker falls back to the in-memory tracker"),
        (lose_entry_0, "ledger 700 has no entry 0, so a broker falls back to the in-memory tracker"),
        (cut_entry_0, "bucket_7_8 could not be read"),
        (hide_entry_0, "bucket_7_8 could not be read"),
        (overlap, "bucket_7_8 and .*bucket_8_9 overlap"),
    ],
)
def test_nothing_is_built_beside_buckets_that_a_broker_does_not_recover(
    spoil: Callable[[IndexToBuild], None], why: str
) -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.topic.seal(SUBSCRIPTION, 700, 7, 8, [(DUE + 7, 8, 0)])
    stage.topic.cursor(SUBSCRIPTION, stage.mark_delete)
    spoil(stage)
    refused(
        stage, ConflictError, f"^the buckets of {SUBSCRIPTION} on {TOPIC} .*{why}.*fsck {TOPIC}, and run its repair"
    )


# --- what goes wrong on the way -------------------------------------------------------------------------------------


def test_bookies_that_fail_at_the_second_bucket_leave_nothing() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.snapshots.fail_after = 1
    refused(stage, TemporaryError, "too few bookies")
    assert len(stage.snapshots.created) == 1


def test_an_error_names_the_subscriptions_that_were_built_before() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.topic.cursor("z")
    stage.snapshots.fail_after = 2
    attached = f"^too few bookies; the buckets of {SUBSCRIPTION} of {TOPIC} are attached$"
    with pytest.raises(TemporaryError, match=attached):
        stage.builder.execute(TOPIC, None, stage.builder.plan(TOPIC).hash)
    assert len(stage.named()) == 2


def test_a_half_written_bucket_is_reported_and_the_others_are_deleted() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.snapshots.fail_after = 1
    stage.snapshots.failure = OutcomeUnknownError("ledger 77 is half written")
    refused(stage, OutcomeUnknownError, "ledger 77")
    assert len(stage.snapshots.created) == 1


def test_a_bucket_that_cannot_be_deleted_again_is_named() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.snapshots.fail_after = 1
    stage.store.fail_next("read", TemporaryError("the store is away"), path=PATH, times=-1)
    left = (
        rf"^too few bookies; ledgers {FIRST_BUCKET} of new buckets are left \(the store is away\); run .* fsck {TOPIC}$"
    )
    with pytest.raises(OutcomeUnknownError, match=left):
        stage.builder.execute(TOPIC, None, stage.plan().hash)


@pytest.mark.parametrize(
    "damage",
    [
        [(DUE + 1, 3, 1), (DUE + 5, 3, 0)],
        [(DUE, 4, 1), (DUE + 5, 4, 0)],
        [(DUE, 3, 0), (DUE + 5, 3, 1)],
        [(DUE, 3, 1)],
    ],
)
def test_a_bucket_that_reads_otherwise_than_it_was_written_is_not_attached(damage: list[tuple[int, int, int]]) -> None:
    stage = IndexToBuild({3: THREE[3]}, small_buckets())
    stage.snapshots.damage = damage
    refused(stage, TemporaryError, "read otherwise")


def test_a_topic_loaded_while_its_buckets_are_written_keeps_no_bucket() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    approved = stage.plan().hash
    stage.snapshots.before = lambda: setattr(stage, "loaded", "broker-1")
    refused(stage, ConflictError, f"broker-1 has {TOPIC} loaded", approved)
    assert len(stage.snapshots.created) == 2


def test_a_cursor_that_changes_meanwhile_keeps_no_bucket() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    node = stage.store.peek(PATH)
    assert node is not None
    stage.store.before("write", lambda: stage.store.put(PATH, node.data), path=PATH)
    refused(stage, ConflictError, "version")


def test_a_broker_that_overwrites_the_cursor_is_reported_and_keeps_no_bucket() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    node = stage.store.peek(PATH)
    assert node is not None
    approved = stage.plan().hash

    def overwrite_later() -> None:
        stage.store.before("read", lambda: stage.store.put(PATH, node.data), path=PATH)

    stage.store.before("write", overwrite_later, path=PATH)
    refused(stage, ConflictError, "wrote its own copy.*unload it, and build again", approved)


def test_a_bucket_that_the_cursor_names_after_all_is_not_deleted() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    old = stage.store.peek(PATH)
    assert old is not None
    reads: list[bytes] = []

    def flap() -> None:
        """The answer to the first look is a broker's older copy, and then it is the new one again."""
        node = stage.store.peek(PATH)
        assert node is not None
        reads.append(node.data)
        stage.store.put(PATH, old.data if len(reads) == 1 else reads[0])

    stage.store.before("write", lambda: stage.store.before("read", flap, path=PATH, times=2), path=PATH)
    left = rf"{FIRST_BUCKET}, {FIRST_BUCKET + 1} of new buckets are left \(the cursor names them\); run"
    with pytest.raises(OutcomeUnknownError, match=left):
        stage.build()
    assert set(stage.named().values()) == set(stage.bucket_ledgers())


def test_buckets_of_a_subscription_that_is_gone_are_deleted_again() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.store.before("write", lambda: stage.store.remove(PATH), path=PATH)
    with pytest.raises(NotFoundError, match="is gone"):
        stage.build()
    assert stage.bucket_ledgers() == []
    assert len(stage.snapshots.created) == 2


@pytest.mark.parametrize("can_look", [True, False])
def test_a_lost_answer_names_what_may_be_left(can_look: bool) -> None:
    stage = IndexToBuild(THREE, small_buckets())
    approved = stage.plan().hash
    if not can_look:
        away = TemporaryError("the store is away")
        stage.store.before("write", lambda: stage.store.fail_next("read", away, path=PATH))
    stage.store.lose_answer_next("write", applied=False)
    with pytest.raises(OutcomeUnknownError, match=rf"new ledgers: {FIRST_BUCKET}, {FIRST_BUCKET + 1}"):
        stage.build(approved)
    assert len(stage.bucket_ledgers()) == 2, "the cursor may come to name them"


def test_a_topic_loaded_just_afterwards_is_reported() -> None:
    stage = IndexToBuild(THREE, small_buckets())
    stage.load_at_the_change()
    [built] = stage.build()
    assert built.outcome is PointerOutcome.LOADED_MEANWHILE
    assert len(stage.named()) == 2
