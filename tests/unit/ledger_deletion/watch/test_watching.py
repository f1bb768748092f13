"""The loop from a vanished reference to its record: each cause, the settle time, and what is never appended."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from pulsar_sidecar.ledger_deletion.ports import Publisher
from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_deletion.watch.control import CONTROL, WatchControlNode, find_leader
from pulsar_sidecar.ledger_deletion.watch.evidence import REQUESTED_BY, LeakCause
from pulsar_sidecar.ledger_deletion.watch.leaks import LEAKS
from pulsar_sidecar.ledger_deletion.watch.service import LeakState, WatchMode, WatchState
from pulsar_sidecar.ledger_deletion.workflow import leak_tracking
from pulsar_sidecar.ledger_deletion.workflow.leak_tracking import WatchConfiguration
from pulsar_sidecar.ledger_ownership.paths import cursor_path, ledger_path, managed_ledger_path, schema_path
from pulsar_sidecar.model.errors import PermanentError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import TopicName, encode_cursor, parse_topic_name

from tests.fakes.bookkeeper import (
    cursor_bytes,
    cursor_custom_metadata,
    data_custom_metadata,
    managed_ledger_bytes,
    schema_custom_metadata,
)
from tests.fakes.world import TopicPlan, World
from tests.unit.ledger_deletion.sidecars import POLICY, Crash
from tests.unit.ledger_deletion.watch.watching import (
    A_WHILE,
    MINUTE,
    QUICK,
    SETTLE_SECONDS,
    SOON,
    Watcher,
    appended,
    appended_record,
    has_signature,
    kept,
    made,
    settle,
    with_policies,
)
from tests.unit.ledger_deletion.worlds import MAY_BE_SHARED, TOPIC

OLD_MS = round(1_000_000 * MINUTE)
YOUNG = TopicPlan(subscriptions=("sub",), schema_versions=2, buckets=1, offloaded=(0,), age_ms=0)
"""Every ledger was made just now, and some are OPEN: an audit would wait."""


@pytest.fixture
def world() -> World:
    return with_policies(World())


@pytest.fixture
def topic(world: World) -> TopicName:
    return world.topic(TOPIC, YOUNG)


@pytest.fixture
def watcher(world: World, topic: TopicName) -> Iterator[Watcher]:
    with Watcher(world, policy=MAY_BE_SHARED) as watcher:
        yield watcher.go(10)


@pytest.fixture
def quick(world: World, topic: TopicName) -> Iterator[Watcher]:
    with Watcher(world, QUICK, policy=MAY_BE_SHARED) as watcher:
        yield watcher.go(10)


def path_of(topic: TopicName) -> str:
    return managed_ledger_path(topic.managed_ledger_name)


def sub_of(topic: TopicName, subscription: str = "sub") -> str:
    return cursor_path(topic.managed_ledger_name, encode_cursor(subscription))


def remove_from_list(world: World, topic: TopicName, ledger_id: LedgerId) -> None:
    left = [each for each in world.listed(topic) if each != ledger_id]
    world.store.put(path_of(topic), managed_ledger_bytes(left))


# --- each cause, end to end ------------------------------------------------------------------------------------------


def trim(world: World, topic: TopicName) -> set[LedgerId]:
    return set(world.trim(topic, 2, dies_between=True))


def truncate(world: World, topic: TopicName) -> set[LedgerId]:
    """The OPEN one too."""
    return set(world.trim(topic, 3, dies_between=True))


def switch_cursor(world: World, topic: TopicName) -> set[LedgerId]:
    (cursor,) = world.cursors(topic).values()
    custom = cursor_custom_metadata(topic.managed_ledger_name, encode_cursor("sub"))
    fresh = world.ledger(custom, state=LedgerState.OPEN, age_ms=0)
    world.store.put(sub_of(topic), cursor_bytes(fresh, buckets=cursor.buckets))
    assert cursor.cursor_ledger is not None
    return {cursor.cursor_ledger}


def close_cursor(world: World, topic: TopicName) -> set[LedgerId]:
    (cursor,) = world.cursors(topic).values()
    world.store.put(sub_of(topic), cursor_bytes(None, buckets=cursor.buckets))
    assert cursor.cursor_ledger is not None
    return {cursor.cursor_ledger}


def unsubscribe(world: World, topic: TopicName) -> set[LedgerId]:
    (cursor,) = world.cursors(topic).values()
    world.store.remove(sub_of(topic))
    assert cursor.cursor_ledger is not None
    return {cursor.cursor_ledger, *cursor.buckets.values()}


def use_up_bucket(world: World, topic: TopicName) -> set[LedgerId]:
    (cursor,) = world.cursors(topic).values()
    world.store.put(sub_of(topic), cursor_bytes(cursor.cursor_ledger))
    return set(cursor.buckets.values())


def delete_schema(world: World, topic: TopicName) -> set[LedgerId]:
    before = world.referenced()
    world.store.remove(schema_path(topic.schema_id))
    return {each for each, path in before.items() if path == schema_path(topic.schema_id)}


def delete_topic(world: World, topic: TopicName) -> set[LedgerId]:
    before = world.referenced()
    world.store.remove(path_of(topic))
    return {each for each, path in before.items() if path.startswith(path_of(topic))}


def delete_namespace(world: World, topic: TopicName) -> set[LedgerId]:
    world.store.remove("/admin/policies/public/default")
    gone = delete_topic(world, topic)
    return gone | delete_schema(world, topic)


def replace_by_offloaded(world: World, topic: TopicName) -> set[LedgerId]:
    first = world.listed(topic)[0]
    contexts = {first: world.context(first, deleted=True)}
    world.store.put(path_of(topic), managed_ledger_bytes(world.listed(topic), offloaded=contexts))
    return {first}


Act = Callable[[World, TopicName], set[LedgerId]]
CAUSES: list[tuple[Act, LeakCause]] = [
    (trim, LeakCause.TRIM),
    (truncate, LeakCause.TRIM),
    (switch_cursor, LeakCause.CURSOR_SWITCH),
    (close_cursor, LeakCause.CURSOR_SWITCH),
    (unsubscribe, LeakCause.SUBSCRIPTION),
    (use_up_bucket, LeakCause.DELAYED_INDEX),
    (delete_schema, LeakCause.SCHEMA),
    (delete_topic, LeakCause.TOPIC_DELETION),
    (delete_namespace, LeakCause.NAMESPACE_DELETION),
    (replace_by_offloaded, LeakCause.OFFLOAD),
]


@pytest.mark.parametrize(("act", "cause"), CAUSES)
def test_what_lost_its_last_reference_is_appended_after_the_settle_time_and_not_before(
    world: World, topic: TopicName, watcher: Watcher, act: Act, cause: LeakCause
) -> None:
    named_by = world.referenced()
    gone = act(world, topic)
    began_ms = world.clock.now_ms()
    watcher.go(SOON)
    assert set(kept(world)) == gone
    assert {watcher.state(each) for each in gone} == {LeakState.SETTLING}
    watcher.go(SETTLE_SECONDS - SOON - 0.5)
    assert appended(world) == []
    watcher.go(3)
    assert set(appended(world)) == gone
    for each in gone:
        record = appended_record(world, each)
        assert has_signature(world, record)
        assert record.mark.dereferenced_ms is not None
        assert 0 <= record.mark.dereferenced_ms - began_ms <= 1_000
        assert record.mark.requested_by == REQUESTED_BY
        leak = watcher.leak(each)
        assert leak is not None
        assert (leak.state, leak.cause, leak.topic) == (LeakState.APPENDED, cause, str(record.topic))
        assert leak.path == named_by[each]
        assert leak.appended_ms is not None
    assert watcher.status().leaked == {cause: len(gone)}
    assert watcher.status().appended == len(gone)
    settle(world, MAY_BE_SHARED)
    assert not gone & world.ledgers()
    watcher.go(SOON)
    assert {watcher.state(each) for each in gone} == {LeakState.DELETED}
    assert kept(world) == []
    assert len(appended(world)) == len(gone)


def test_a_compacted_ledger_that_a_newer_one_replaced(world: World, watcher: Watcher) -> None:
    topic = world.topic("persistent://public/default/compacted", TopicPlan(subscriptions=()))
    first = world.compact(topic, closed=True, age_ms=0)
    watcher.go(SOON)
    world.compact(topic, closed=True, age_ms=0)
    watcher.go(SETTLE_SECONDS + SOON)
    assert appended(world) == [first]
    leak = watcher.leak(first)
    assert leak is not None
    assert leak.cause is LeakCause.COMPACTION
    settle(world, MAY_BE_SHARED)


def test_a_compacted_ledger_that_only_the_cursors_own_ledger_names(world: World, watcher: Watcher) -> None:
    """A broker that loads the topic may drop the name from the cursor's node."""
    topic = world.topic("persistent://public/default/compacted", TopicPlan(subscriptions=()))
    compacted = world.compact(topic, closed=True, age_ms=0)
    watcher.go(SOON)
    custom = cursor_custom_metadata(topic.managed_ledger_name, encode_cursor("__compaction"))
    own = world.ledger(custom, state=LedgerState.OPEN, age_ms=0)
    world.append_position(own, compacted)
    world.store.put(sub_of(topic, "__compaction"), cursor_bytes(own))
    watcher.go(SOON)
    assert watcher.status().vanished == 0
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert appended(world) == kept(world) == []
    assert watcher.state(compacted) is LeakState.KEPT
    assert watcher.status().vanished == 0


@pytest.mark.parametrize("act", [act for act, _ in CAUSES if act is not replace_by_offloaded])
def test_a_broker_that_deletes_in_time_leaves_nothing(
    world: World, topic: TopicName, watcher: Watcher, act: Act
) -> None:
    changes_before = len(world.store.paths())
    gone = act(world, topic)
    watcher.go(1)
    for each in gone:
        world.remove_ledger(each)
    watcher.go(SETTLE_SECONDS + 2 * SOON)
    assert (appended(world), kept(world)) == ([], [])
    assert watcher.watch.leaks(ended=True) == []
    assert watcher.status().vanished == 0
    assert len(world.store.paths()) <= changes_before


def test_a_broker_that_deletes_late_ends_it(world: World, topic: TopicName, watcher: Watcher) -> None:
    (gone,) = world.trim(topic, 1, dies_between=True)
    watcher.go(60)
    assert kept(world) == [gone]
    world.remove_ledger(gone)
    watcher.go(SETTLE_SECONDS)
    assert (appended(world), kept(world), watcher.state(gone)) == ([], [], LeakState.DELETED)


@pytest.mark.parametrize("after", [1.0, 4.9, 60.0, 199.0])
def test_a_ledger_that_is_linked_again_is_not_appended(
    world: World, topic: TopicName, watcher: Watcher, after: float
) -> None:
    before = world.listed(topic)
    (gone,) = world.trim(topic, 1, dies_between=True)
    watcher.go(after)
    world.store.put(path_of(topic), managed_ledger_bytes(before))
    watcher.go(SETTLE_SECONDS + SOON)
    assert (appended(world), kept(world)) == ([], [])
    assert watcher.state(gone) is (LeakState.LINKED if after > SOON else None)
    # From then on its time begins anew.
    remove_from_list(world, topic, gone)
    watcher.go(SETTLE_SECONDS - 1)
    assert appended(world) == []
    watcher.go(SOON)
    assert appended(world) == [gone]


@pytest.mark.parametrize("is_full", [False, True])
def test_linked_and_dropped_between_two_looks_the_time_begins_anew(
    world: World, topic: TopicName, watcher: Watcher, is_full: bool
) -> None:
    if is_full:
        watcher.watch._tracker._most_tracked = 1
    before = world.listed(topic)
    (gone,) = world.trim(topic, 1, dies_between=True)
    watcher.go(SETTLE_SECONDS - 10)
    world.store.put(path_of(topic), managed_ledger_bytes(before))
    watcher.go(0.3)
    remove_from_list(world, topic, gone)
    watcher.go(SETTLE_SECONDS - 5)
    assert appended(world) == []
    watcher.go(SOON)
    assert appended(world) == [gone]


@pytest.mark.parametrize("events", [True, False])
def test_a_ledger_in_several_lists_leaves_with_the_last_one(world: World, topic: TopicName, events: bool) -> None:
    other = world.topic("persistent://public/default/other", TopicPlan(ledgers=0, subscriptions=()))
    first = world.listed(topic)[0]
    world.store.put(path_of(other), managed_ledger_bytes([first]))
    with Watcher(world) as watcher:
        watcher.changes.is_watchable = events
        watcher.go(10)
        world.store.put(path_of(other), managed_ledger_bytes([]))
        watcher.go(SETTLE_SECONDS + 100)
        assert (appended(world), kept(world)) == ([], [])
        remove_from_list(world, topic, first)
        watcher.go(SETTLE_SECONDS + 100)
        assert appended(world) == [first]


# --- what is never appended ------------------------------------------------------------------------------------------


def test_another_topics_list_is_no_evidence(world: World, topic: TopicName, watcher: Watcher) -> None:
    """A list that named another topic's ledger was made by hand, or was a shadow's."""
    stray = world.ledger(data_custom_metadata("public/default/persistent/elsewhere"), age_ms=0)
    world.store.put(path_of(topic), managed_ledger_bytes([*world.listed(topic), stray]))
    watcher.go(SOON)
    remove_from_list(world, topic, stray)
    watcher.go(SETTLE_SECONDS + MINUTE)
    assert (appended(world), kept(world), watcher.leak(stray)) == ([], [], None)
    assert watcher.status().unlinked == 1


def test_a_shadows_list_is_no_evidence(world: World, topic: TopicName) -> None:
    shadow = world.shadow("persistent://public/default/shadow", topic)
    with Watcher(world) as watcher:
        watcher.go(10)
        gone = world.trim(topic, 2, dies_between=True)
        watcher.go(SETTLE_SECONDS)
        world.store.put(path_of(shadow), managed_ledger_bytes([], properties={"PULSAR.SHADOW_SOURCE": str(topic)}))
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert (appended(world), kept(world)) == ([], [])
        assert set(gone) <= world.ledgers()


UNKNOWN = {
    "no stamp": {},
    "somebody else's": {"application": b"distributedlog"},
    "an unknown component": {"application": b"pulsar", "component": b"whatever"},
    "no topic's": data_custom_metadata("just-a-name"),
}


@pytest.mark.parametrize("stamp", UNKNOWN)
@pytest.mark.parametrize("was_listed", [True, False])
def test_what_this_version_does_not_know_is_never_appended(
    world: World, topic: TopicName, quick: Watcher, stamp: str, was_listed: bool
) -> None:
    stray = world.ledger(UNKNOWN[stamp])
    if was_listed:
        world.store.put(path_of(topic), managed_ledger_bytes([*world.listed(topic), stray]))
        quick.go(SOON)
        remove_from_list(world, topic, stray)
    quick.go(3 * MINUTE)
    quick.go(12 * MINUTE)
    assert (appended(world), kept(world)) == ([], [])
    assert quick.state(stray) is LeakState.KEPT


def test_a_ledger_whose_metadata_is_not_understood_is_never_appended(
    world: World, topic: TopicName, watcher: Watcher
) -> None:
    (first,) = world.trim(topic, 1, dies_between=True)
    world.store.put(ledger_path(first), b"no metadata")
    watcher.go(13 * MINUTE)
    assert appended(world) == []
    assert "its metadata is not understood" in watcher.detail(first)


def test_the_deletion_services_own_topics_are_left_to_their_brokers(world: World) -> None:
    own = world.topic("persistent://pulsar/system/__ledger_deletion-partition-0", TopicPlan(schema_versions=1))
    with Watcher(world) as watcher:
        watcher.go(10)
        gone = {*world.trim(own, 2, dies_between=True), *unsubscribe(world, own)}
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(world) == []
        assert {watcher.state(each) for each in gone} == {LeakState.LEAKED}
        assert {watcher.detail(each) for each in gone} == {"its topic belongs to the deletion service itself"}


def test_a_topic_whose_deletion_is_recorded_is_not_counted_twice(
    world: World, topic: TopicName, watcher: Watcher
) -> None:
    watcher.recorded.add(topic)
    gone = delete_topic(world, topic)
    watcher.go(SETTLE_SECONDS + SOON)
    assert (appended(world), kept(world)) == ([], [])
    assert watcher.status().vanished == 0
    assert watcher.status().unlinked == len(gone)


def test_evidence_is_taken_back_when_a_recorded_deletion_explains_it(
    world: World, topic: TopicName, watcher: Watcher
) -> None:
    before = world.listed(topic)
    (gone,) = world.trim(topic, 1, dies_between=True)
    watcher.go(SOON)
    assert kept(world) == [gone]
    world.store.put(path_of(topic), managed_ledger_bytes(before))
    watcher.go(0.2)
    watcher.recorded.add(topic)
    delete_topic(world, topic)
    watcher.go(SETTLE_SECONDS + SOON)
    assert (appended(world), kept(world)) == ([], [])


def test_the_partition_of_a_topic_whose_deletion_is_recorded(world: World) -> None:
    base = world.partitioned_topic("persistent://public/default/parts", 2)
    with Watcher(world) as watcher:
        watcher.recorded.add(base)
        watcher.go(10)
        delete_topic(world, base.partition(1))
        watcher.go(SETTLE_SECONDS + SOON)
        assert (appended(world), kept(world)) == ([], [])


def test_a_node_that_is_not_understood_protects_as_in_an_audit(
    world: World, topic: TopicName, watcher: Watcher
) -> None:
    broken = parse_topic_name("persistent://public/default/broken")
    world.store.put(path_of(broken), b"\x47\x78\x00")
    (gone,) = world.trim(topic, 1, dies_between=True)
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert appended(world) == []
    assert f"{path_of(broken)} was not read, and may reference it" in watcher.detail(gone)
    assert watcher.status().unreadable_nodes == (path_of(broken),)
    world.store.remove(path_of(broken))
    watcher.go(SOON + 60)
    assert appended(world) == [gone]


def test_a_tenant_that_the_policies_do_not_know_may_be_another_clusters(world: World) -> None:
    foreign = world.topic("persistent://other/space/orders")
    with Watcher(world) as watcher:
        watcher.go(10)
        (gone,) = world.trim(foreign, 1, dies_between=True)
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(world) == []
        assert "/admin/policies does not have its tenant other" in watcher.detail(gone)


# --- the copy that tiered storage replaced ---------------------------------------------------------------------------


def test_a_replaced_copy_stays_while_the_other_one_is_not_whole(
    world: World, topic: TopicName, watcher: Watcher
) -> None:
    (first,) = replace_by_offloaded(world, topic)
    context = world.context(first, deleted=False)
    world.offloaded.put(first, context, topic.managed_ledger_name, parts={"data"})
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert appended(world) == []
    assert "BookKeeper's may be the last one" in watcher.detail(first)
    world.offloaded.put(first, context, topic.managed_ledger_name)
    watcher.go(SOON + 60)
    assert appended(world) == [first]


@pytest.mark.parametrize("error", [PermanentError("no credentials are configured"), TemporaryError("S3 is away")])
def test_tiered_storage_that_cannot_be_asked_keeps_that_ledger_and_holds_up_no_other(
    world: World, topic: TopicName, watcher: Watcher, error: SidecarError
) -> None:
    watcher.offload_error = error
    (first,) = replace_by_offloaded(world, topic)
    other = close_cursor(world, topic)
    watcher.go(SETTLE_SECONDS + SOON)
    assert set(appended(world)) == other
    assert watcher.state(first) is LeakState.KEPT
    assert str(error) in watcher.detail(first)
    watcher.offload_error = None
    watcher.go(SOON + 60)
    assert set(appended(world)) == {first, *other}


# --- never seen referenced -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age_minutes", "after_minutes"), [(0, 12), (2, 10), (9, 3), (11, 2), (1_000, 2)])
def test_a_ledger_that_was_never_linked_waits_for_its_age_and_the_watchs_own_window(
    world: World, watcher: Watcher, topic: TopicName, age_minutes: int, after_minutes: int
) -> None:
    age_ms = int(1000 * MINUTE) * age_minutes
    stray = world.ledger(schema_custom_metadata(topic.schema_id), age_ms=age_ms)
    policy = replace(POLICY, unlinked_min_age_ms=round(10_000 * MINUTE))
    watcher_of_one = Watcher(world, QUICK, name="two", policy=policy)
    watcher.die()
    with watcher_of_one as exclusive:
        exclusive.go(10)
        assert exclusive.status().unlinked == 1
        exclusive.go(after_minutes * MINUTE - 15)
        assert appended(world) == []
        exclusive.go(20)
        assert appended(world) == [stray]
        record = appended_record(world, stray)
        assert (record.mark.signature, record.mark.dereferenced_ms) == (None, None)
        assert kept(world) == []
        leak = exclusive.leak(stray)
        assert leak is not None
        assert leak.cause is LeakCause.NEVER_LINKED


def test_a_ledger_that_was_never_linked_needs_the_word_that_no_other_cluster_is_here(
    world: World, quick: Watcher, topic: TopicName
) -> None:
    stray = world.ledger(schema_custom_metadata(topic.schema_id))
    quick.go(3 * MINUTE)
    quick.go(12 * MINUTE)
    assert appended(world) == []
    assert "bookkeeperExclusiveToCluster" in quick.detail(stray)


def test_ledgers_that_are_kept_take_no_room_from_those_that_were_not_judged(
    world: World, topic: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_sidecar.ledger_deletion.workflow.leak_tracking._MOST_UNLINKED", 2)
    kept_ones = [world.ledger({}, age_ms=OLD_MS) for _ in range(2)]
    with Watcher(world, QUICK) as watcher:
        watcher.go(10)
        stray = world.ledger(schema_custom_metadata(topic.schema_id), age_ms=OLD_MS)
        watcher.go(3 * MINUTE)
        assert {watcher.state(each) for each in kept_ones} == {LeakState.KEPT}
        assert appended(world) == [stray]


def test_a_ledger_that_is_linked_at_last_was_only_late(world: World, topic: TopicName) -> None:
    with Watcher(world) as watcher:
        watcher.go(10)
        late = world.ledger(data_custom_metadata(topic.managed_ledger_name))
        watcher.go(11 * MINUTE)
        world.store.put(path_of(topic), managed_ledger_bytes([*world.listed(topic), late]))
        watcher.go(1)
        assert watcher.status().unlinked == 0
        watcher.go(20 * MINUTE)
        assert (appended(world), watcher.leak(late)) == ([], None)


def test_the_window_goes_on_over_the_walks_in_it(world: World, topic: TopicName) -> None:
    stray = world.ledger(schema_custom_metadata(topic.schema_id), age_ms=OLD_MS)
    with Watcher(world, made(QUICK, walk_interval_ms=30_000)) as watcher:
        watcher.go(110)
        assert watcher.changes.times_armed >= 3
        assert appended(world) == []
        watcher.go(20)
        assert appended(world) == [stray]


def test_a_new_leader_begins_to_count_the_window_anew(world: World, topic: TopicName) -> None:
    stray = world.ledger(schema_custom_metadata(topic.schema_id))
    with Watcher(world) as first:
        first.go(11 * MINUTE)
    with Watcher(world, name="two") as second:
        second.go(11 * MINUTE)
        assert appended(world) == []
        second.go(MINUTE + 60)
        assert appended(world) == [stray]


# --- modes and holds -------------------------------------------------------------------------------------------------


def test_report_shows_what_leaked_and_appends_nothing(world: World, topic: TopicName) -> None:
    with Watcher(world, made(mode=WatchMode.REPORT)) as watcher:
        watcher.go(10)
        gone = trim(world, topic)
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(world) == []
        assert {watcher.state(each) for each in gone} == {LeakState.LEAKED}
        assert watcher.status().leaked == {LeakCause.TRIM: 2}
        assert watcher.status().leaks == {LeakState.LEAKED: 2}
        assert set(kept(world)) == gone
        assert "ledgerDeletionWatch=report" in watcher.detail(next(iter(gone)))


@pytest.mark.parametrize("hold", ["the ledger", "public", "public/default", TOPIC])
def test_what_is_held_is_not_appended_until_it_is_let_go(
    world: World, topic: TopicName, watcher: Watcher, hold: str
) -> None:
    first = world.listed(topic)[0]
    item = str(first) if hold == "the ledger" else hold
    control = WatchControlNode(world.store)
    assert control.hold(item).holds == (item,)
    world.trim(topic, 1, dies_between=True)
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert appended(world) == []
    assert watcher.detail(first) == f"{item} is on the hold list"
    assert watcher.watch.explain(first).hold == item
    control.unhold(item)
    watcher.go(70)
    assert appended(world) == [first]


def test_a_hold_that_comes_during_the_judgement_is_obeyed(
    world: World, topic: TopicName, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = leak_tracking.send

    def send_and_hold(publisher: Publisher, records: Sequence[PendingDeleteLedgerInfo], key: None) -> object:
        answers = sent(publisher, records, key)
        WatchControlNode(world.store).hold("public")
        return answers

    monkeypatch.setattr(leak_tracking, "_JUDGED_AT_ONCE", 1)
    monkeypatch.setattr(leak_tracking, "send", send_and_hold)
    trim(world, topic)
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert len(appended(world)) == 1
    assert watcher.status().leaks[LeakState.LEAKED] == 1


def test_what_cannot_be_sent_is_told_as_leaked_and_sent_later(
    world: World, topic: TopicName, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_ready() -> Publisher:
        raise TemporaryError("the topics are not ready")

    gone = trim(world, topic)
    with monkeypatch.context() as away:
        away.setattr(world.topics, "publisher", lambda *_: not_ready())
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(world) == []
        assert watcher.status().leaks == {LeakState.LEAKED: len(gone)}
        assert watcher.status().detail == "the topics are not ready"
    watcher.go(12)
    assert set(appended(world)) == gone


def test_a_hold_of_something_else_holds_nothing(world: World, topic: TopicName, watcher: Watcher) -> None:
    WatchControlNode(world.store).hold("other")
    gone = trim(world, topic)
    watcher.go(SETTLE_SECONDS + SOON)
    assert set(appended(world)) == gone


# --- the brake -------------------------------------------------------------------------------------------------------


def crowd(world: World, count: int) -> TopicName:
    return world.topic("persistent://public/default/crowd", TopicPlan(ledgers=count, subscriptions=()))


def test_the_brake_holds_until_somebody_resumes(world: World) -> None:
    topic = crowd(world, 60)
    with Watcher(world) as watcher:
        watcher.go(10)
        gone = world.trim(topic, 51, dies_between=True)
        watcher.go(SOON)
        assert "51 references vanished within 10 minutes" in (watcher.status().braked or "")
        assert watcher.status().vanished == 51
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(world) == []
        assert watcher.status().leaks == {LeakState.LEAKED: 51}
        assert watcher.detail(gone[0]).startswith("the brake holds: 51 references vanished")
        WatchControlNode(world.store).resume()
        watcher.go(70)
        assert set(appended(world)) == set(gone)
        assert watcher.status().braked is None


def test_within_the_limit_it_does_not_brake(world: World) -> None:
    topic = crowd(world, 110)
    with Watcher(world) as watcher:
        watcher.go(10)
        gone = world.trim(topic, 50, dies_between=True)
        watcher.go(SETTLE_SECONDS + SOON)
        assert set(appended(world)) == set(gone)
        assert watcher.status().braked is None


def test_what_vanished_is_forgotten_after_ten_minutes(world: World) -> None:
    topic = crowd(world, 200)
    with Watcher(world) as watcher:
        watcher.go(10)
        for _ in range(2):
            world.trim(topic, 40, dies_between=True)
            watcher.go(SOON)
            assert watcher.status().vanished == 40
            watcher.go(601)
            assert watcher.status().vanished == 0
        assert watcher.status().braked is None
        assert len(appended(world)) == 80


def test_what_was_within_the_limit_once_brakes_no_smaller_cluster_later(world: World) -> None:
    topic = crowd(world, 60)
    with Watcher(world) as watcher:
        watcher.go(10)
        world.trim(topic, 40, dies_between=True)
        watcher.go(A_WHILE + SOON)
        world.trim(topic, 15)
        watcher.go(SOON)
        assert (watcher.status().vanished, watcher.status().braked) == (0, None)


def test_the_brake_holds_whoever_leads(world: World) -> None:
    topic = crowd(world, 60)
    with Watcher(world) as first:
        first.go(10)
        world.trim(topic, 51, dies_between=True)
        first.go(SOON)
    with Watcher(world, name="two") as second:
        second.go(SETTLE_SECONDS + A_WHILE)
        assert appended(world) == []
        assert second.status().braked is not None


def test_what_an_earlier_leader_saw_vanish_counts_for_the_next_ones_brake(world: World) -> None:
    topic = crowd(world, 80)
    with Watcher(world) as first:
        first.go(10)
        world.trim(topic, 40, dies_between=True)
        first.go(SOON)
    with Watcher(world, name="two") as second:
        second.go(10)
        world.trim(topic, 30, dies_between=True)
        second.go(SOON)
        assert second.status().vanished == 70
        assert second.status().braked is not None
        second.go(SETTLE_SECONDS + A_WHILE)
        assert appended(world) == []


@pytest.mark.parametrize("number", [1, 25, 51])
def test_a_failure_between_two_pieces_of_evidence_hides_none_from_the_brake(world: World, number: int) -> None:
    topic = crowd(world, 60)
    with Watcher(world) as watcher:
        watcher.go(10)
        creations = iter(range(1, 1_000))

        def fail_once() -> None:
            if next(creations) == number:
                raise TemporaryError("ZooKeeper is away")

        watcher.store.before("create", fail_once, times=-1)
        world.trim(topic, 51, dies_between=True)
        watcher.go(SOON)
        assert watcher.status().vanished == 51
        assert watcher.status().braked is not None


def test_a_brake_that_could_not_be_written_is_tried_again(world: World) -> None:
    topic = crowd(world, 60)
    with Watcher(world) as watcher:
        watcher.go(10)
        watcher.store.fail_next("create", TemporaryError("ZooKeeper is away"), path=CONTROL, times=3)
        world.trim(topic, 51, dies_between=True)
        watcher.go(2 * SOON)
        assert watcher.status().braked is not None
        watcher.go(SETTLE_SECONDS + SOON)
        assert appended(world) == []


def test_a_control_node_that_cannot_be_read_brakes(world: World, topic: TopicName, watcher: Watcher) -> None:
    world.store.put(CONTROL, b"?")
    gone = trim(world, topic)
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert appended(world) == []
    world.store.remove(CONTROL)
    watcher.go(70)
    assert appended(world) == []
    WatchControlNode(world.store).resume()
    watcher.go(70)
    assert set(appended(world)) == gone


LOST = 11 * MINUTE
"""Longer than the brake's window."""


def test_without_its_brake_no_evidence_is_written_beyond_the_limit(world: World) -> None:
    topic = crowd(world, 60)
    with Watcher(world) as first:
        first.go(10)
        first.store.fail_next("create", TemporaryError("ZooKeeper is away"), path=CONTROL, times=1_000)
        world.trim(topic, 51, dies_between=True)
        first.go(SOON)
        assert kept(world) == []
    world.clock.advance_ms(round(1_000 * LOST))
    with Watcher(world, name="two") as second:
        second.go(SETTLE_SECONDS + SOON)
        assert appended(world) == []


def test_it_brakes_before_it_writes_evidence_beyond_the_limit(world: World) -> None:
    """A leader that is killed while it writes, and whose successor comes after the brake's window."""
    topic = crowd(world, 200)
    with Watcher(world) as first:
        first.go(10)
        creations = iter(range(1, 1_000))

        def kill() -> None:
            if next(creations) == 140:
                raise Crash

        first.store.before("create", kill, times=-1)
        world.trim(topic, 180, dies_between=True)
        first.go(SOON)
    assert 100 < len(kept(world)) < 180
    world.clock.advance_ms(round(1_000 * LOST))
    with Watcher(world, name="two") as second:
        second.go(SETTLE_SECONDS + SOON)
        assert appended(world) == []
        assert "180 references" in (second.status().braked or "")


@pytest.mark.parametrize("resumed", [False, True])
def test_evidence_of_a_disaster_counts_however_long_nobody_led(world: World, resumed: bool) -> None:
    topic = crowd(world, 60)
    with Watcher(world) as first:
        first.go(10)
        world.trim(topic, 51, dies_between=True)
        first.go(SOON)
        if resumed:
            WatchControlNode(world.store).resume()
    if not resumed:
        world.store.remove(CONTROL)
    world.clock.advance_ms(round(1_000 * LOST))
    with Watcher(world, name="two") as second:
        second.go(SETTLE_SECONDS + SOON)
        assert len(appended(world)) == (51 if resumed else 0)
        assert ("51 references" in (second.status().braked or "")) is not resumed


def test_it_brakes_where_nothing_can_be_judged(world: World) -> None:
    topic = crowd(world, 60)
    with Watcher(world) as first:
        first.go(10)
        world.trim(topic, 51, dies_between=True)
        first.go(SOON)
    world.store.remove(CONTROL)
    world.clock.advance_ms(round(1_000 * LOST))
    world.owners.hooks.fail_next("views", TemporaryError("no broker answers"), times=1_000)
    with Watcher(world, name="two") as second:
        second.go(SOON)
        assert "51 references" in (second.status().braked or "")


def test_what_vanished_before_an_operator_resumed_does_not_count_when_it_is_proven_later(world: World) -> None:
    topic = crowd(world, 120)
    with Watcher(world) as watcher:
        watcher.go(10)
        world.trim(topic, 51, dies_between=True)
        watcher.go(SOON)
        gone = world.trim(topic, 30, dies_between=True)
        watcher.go(2)
        assert not set(gone) & set(kept(world))
        WatchControlNode(world.store).resume()
        watcher.go(SOON)
        assert set(gone) < set(kept(world))
        assert (watcher.status().vanished, watcher.status().braked) == (0, None)


def test_a_disaster_after_an_earlier_resuming_counts_for_the_next_leader(world: World) -> None:
    """Its brake was lost with the control node, of which an old copy is back, and one more vanished later."""
    topic = crowd(world, 60)
    with Watcher(world) as first:
        first.go(10)
        WatchControlNode(world.store).resume()
        old = world.store.peek(CONTROL)
        assert old is not None
        first.go(5)
        world.trim(topic, 51, dies_between=True)
        first.go(LOST)
        world.trim(topic, 1, dies_between=True)
        first.go(SOON)
    world.store.put(CONTROL, old.data)
    with Watcher(world, name="two") as second:
        second.go(SETTLE_SECONDS + SOON)
        assert appended(world) == []
        assert "51 references" in (second.status().braked or "")


def test_what_was_resumed_is_resumed_for_the_next_leader(world: World) -> None:
    topic = crowd(world, 60)
    with Watcher(world) as first:
        first.go(10)
        world.trim(topic, 51, dies_between=True)
        first.go(SOON)
        WatchControlNode(world.store).resume()
        first.go(5)
        assert first.status().braked is None
    with Watcher(world, name="two") as second:
        second.go(15)
        assert (second.status().braked, second.status().vanished) == (None, 0)


@pytest.mark.parametrize("seconds", [SETTLE_SECONDS, LOST])
@pytest.mark.parametrize("copy", [None, b'{"braked":null,"holds":[]}'])
def test_a_control_node_that_vanished_or_is_an_old_copy_releases_no_brake(
    world: World, copy: bytes | None, seconds: float
) -> None:
    topic = crowd(world, 60)
    with Watcher(world) as watcher:
        watcher.go(10)
        world.trim(topic, 51, dies_between=True)
        watcher.go(SOON + seconds)
        world.store.remove(CONTROL)
        if copy is not None:
            world.store.put(CONTROL, copy)
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(world) == []
        assert "51 references" in (watcher.status().braked or "")


def test_holds_whose_node_vanished_stay_in_force(world: World, topic: TopicName, watcher: Watcher) -> None:
    WatchControlNode(world.store).hold("public")
    trim(world, topic)
    watcher.go(SOON)
    world.store.remove(CONTROL)
    watcher.go(SETTLE_SECONDS + SOON)
    assert appended(world) == []
    assert watcher.status().holds == ("public",)


def test_a_small_cluster_that_loses_every_reference_brakes(world: World) -> None:
    topic = crowd(world, 40)
    with Watcher(world) as watcher:
        watcher.go(10)
        world.store.remove(path_of(topic))
        watcher.go(SETTLE_SECONDS + SOON)
        assert appended(world) == []
        assert "40 references" in (watcher.status().braked or "")


def test_what_a_disaster_takes_beyond_the_most_that_is_tracked_waits_as_if_never_linked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_sidecar.ledger_deletion.workflow.leak_tracking._MOST_TRACKED", 60)
    topic = crowd(world, 100)
    with Watcher(world, made(brake_references=5)) as watcher:
        watcher.go(10)
        world.trim(topic, 90, dies_between=True)
        watcher.go(SETTLE_SECONDS + SOON)
        assert len(kept(world)) == 60
        assert (sum((watcher.status().leaks or {}).values()), watcher.status().unlinked) == (60, 30)
        assert watcher.status().braked is not None
        assert appended(world) == []


def never_linked(world: World, topic: TopicName, count: int) -> None:
    """Old ledgers that nothing references, and that may be deleted."""
    for _ in range(count):
        world.ledger(schema_custom_metadata(topic.schema_id), age_ms=OLD_MS)


def test_ledgers_that_were_never_linked_brake_before_the_first_is_appended(world: World, topic: TopicName) -> None:
    """After a ``deleteall`` that no sidecar saw."""
    never_linked(world, topic, 6)
    with Watcher(world, made(QUICK, brake_references=5)) as watcher:
        watcher.go(15 * MINUTE)
        assert appended(world) == []
        assert watcher.status().leaked == {LeakCause.NEVER_LINKED: 6}
        assert "6 references" in (watcher.status().braked or "")


def test_ledgers_that_were_never_linked_are_tracked_within_the_same_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_sidecar.ledger_deletion.workflow.leak_tracking._MOST_TRACKED", 0)
    strays = {world.ledger({}, age_ms=OLD_MS) for _ in range(12)}
    topic = crowd(world, 20)
    with Watcher(world, made(QUICK, brake_references=1)) as watcher:
        judged: set[LedgerId] = set()
        for _ in range(15):
            watcher.go(MINUTE)
            judged |= {leak.ledger_id for leak in watcher.watch.leaks(ended=False)}
        assert judged == strays, "each has its turn"
        assert (watcher.status().leaks, watcher.status().unlinked) == ({LeakState.KEPT: 5}, 7)
        world.trim(topic, 4, dies_between=True)
        watcher.go(SOON)
        assert len(kept(world)) == 4, "half of the room is left to what vanishes"
        assert watcher.status().braked is not None


def test_never_linked_ledgers_that_are_withheld_brake_nothing(world: World, topic: TopicName) -> None:
    """Old ones would brake again after each change of leader, whatever an operator resumes."""
    never_linked(world, topic, 6)
    WatchControlNode(world.store).hold("public")
    with Watcher(world, made(QUICK, brake_references=5)) as watcher:
        watcher.go(15 * MINUTE)
        assert watcher.status().leaked == {LeakCause.NEVER_LINKED: 6}
        assert (watcher.status().vanished, watcher.status().braked) == (0, None)
        WatchControlNode(world.store).unhold("public")
        watcher.go(15 * MINUTE)
        assert "6 references" in (watcher.status().braked or "")
        assert appended(world) == []


def test_a_hold_that_is_removed_during_the_judgement_passes_no_brake(
    world: World, topic: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_linked(world, topic, 6)
    control = WatchControlNode(world.store)
    control.hold("public")
    with Watcher(world, made(QUICK, brake_references=5)) as watcher:
        watcher.go(10)
        tracker = watcher.watch._tracker
        brake_if_needed = tracker._brake_if_needed

        def brake_and_remove(now_ms: int) -> None:
            brake_if_needed(now_ms)
            if watcher.status().leaks == {LeakState.LEAKED: 6} and control.read().holds:
                control.unhold("public")

        monkeypatch.setattr(tracker, "_brake_if_needed", brake_and_remove)
        watcher.go(15 * MINUTE)
        assert control.read().holds == ()
        assert appended(world) == []
        assert "6 references" in (watcher.status().braked or "")


def test_compacted_ledgers_brake_before_their_evidence_is_written(world: World) -> None:
    topics = [
        world.topic(f"persistent://public/default/compacted-{number}", TopicPlan(subscriptions=()))
        for number in range(20)
    ]
    for topic in topics:
        world.compact(topic, closed=True, age_ms=0)
    with Watcher(world, made(brake_references=9)) as watcher:
        watcher.go(10)
        watcher.store.fail_next("create", TemporaryError("ZooKeeper is away"), path=CONTROL, times=1_000)
        for topic in topics:
            world.compact(topic, closed=True, age_ms=0)
        watcher.go(SOON)
        assert len(kept(world)) == 9


def test_ten_times_as_many_are_tracked_as_the_brake_lets_vanish(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_sidecar.ledger_deletion.workflow.leak_tracking._MOST_TRACKED", 0)
    topic = crowd(world, 100)
    with Watcher(world, made(brake_references=5)) as watcher:
        watcher.go(10)
        world.trim(topic, 90, dies_between=True)
        watcher.go(SOON)
        assert (len(kept(world)), watcher.status().unlinked) == (50, 40)


def test_changes_that_wait_for_upkeep_are_lag(world: World, topic: TopicName, watcher: Watcher) -> None:
    assert (watcher.status().lag_seconds or 0) < 2
    upkeep = watcher.watch._tracker.upkeep

    def slow(now_ms: int) -> None:
        watcher.clock.wait_seconds(300)
        upkeep(now_ms)

    watcher.watch._tracker.upkeep = slow  # type: ignore[method-assign]
    watcher.go(100)
    world.trim(topic, 1)
    assert 90 < (watcher.status().lag_seconds or 0) < 110
    watcher.go(204)
    assert (watcher.status().lag_seconds or 0) > 290


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_the_status_tells_what_is_watched(world: World, topic: TopicName, watcher: Watcher) -> None:
    status = watcher.status()
    assert (status.mode, status.state, status.detail) == (WatchMode.APPEND, WatchState.WATCHING, None)
    assert status.leader is not None
    assert status.leader.name == "one"
    assert status.leader == find_leader(watcher.store)
    assert (status.ledgers, status.references) == (len(world.ledgers()), len(world.referenced()))
    assert status.walked_ms is not None
    assert (status.unlinked, status.vanished, status.brake_limit, status.unreadable_nodes) == (0, 0, 9, ())
    assert status.lag_seconds is not None
    assert watcher.watch.leads


def test_the_leaks_are_told_oldest_first(world: World, topic: TopicName, watcher: Watcher) -> None:
    cursor = close_cursor(world, topic)
    watcher.go(SOON)
    trimmed = trim(world, topic)
    watcher.go(SOON)
    assert [leak.ledger_id for leak in watcher.watch.leaks(ended=False)] == [*cursor, *sorted(trimmed)]


def test_a_ledger_is_explained(world: World, topic: TopicName, watcher: Watcher) -> None:
    first, second, _ = world.listed(topic)
    told = watcher.watch.explain(second)
    assert (told.exists, told.named_by, told.owner, told.leak) == (True, (path_of(topic),), path_of(topic), None)
    assert told.verdict.startswith("ledger-still-in-use: ")
    world.trim(topic, 1, dies_between=True)
    watcher.go(SOON)
    told = watcher.watch.explain(first)
    assert (told.named_by, told.leak) == ((), watcher.leak(first))
    assert told.verdict == "nothing references it, and it may be deleted"
    world.remove_ledger(first)
    watcher.go(SOON)
    told = watcher.watch.explain(first)
    assert (told.exists, told.owner, told.verdict) == (False, None, "the ledger does not exist")
    assert told.leak is not None
    assert told.leak.state is LeakState.DELETED
    stray = world.ledger({})
    assert watcher.watch.explain(stray).verdict == "its metadata does not show that Pulsar made it"


@pytest.mark.parametrize("failing", ["read_many", "publisher"])
def test_a_failure_is_told_while_it_lasts_and_no_longer(
    world: World, topic: TopicName, watcher: Watcher, failing: str
) -> None:
    gone = trim(world, topic)
    watcher.go(SETTLE_SECONDS - 5)
    if failing == "publisher":
        world.topics.hooks.fail_next("publish", TemporaryError("no broker answers"))
    else:
        world.owners.hooks.fail_next("views", TemporaryError("no broker answers"), times=10)
    watcher.go(SOON + 2)
    assert watcher.status().detail == "no broker answers"
    assert appended(world) == []
    watcher.go(2 * SOON)
    assert set(appended(world)) == gone
    assert watcher.status().detail is None
    assert watcher.status().leaked == {LeakCause.TRIM: 2}


@pytest.mark.parametrize("stored", [True, False])
def test_a_receipt_that_was_lost_is_no_receipt(world: World, topic: TopicName, watcher: Watcher, stored: bool) -> None:
    gone = trim(world, topic)
    world.topics.lose_receipts_next(stored=stored)
    watcher.go(SETTLE_SECONDS + SOON)
    assert {watcher.state(each) for each in gone} == {LeakState.LEAKED}
    assert "the broker sent no receipt" in watcher.detail(next(iter(gone)))
    watcher.go(70)
    assert {watcher.state(each) for each in gone} == {LeakState.APPENDED}
    assert set(appended(world)) == gone
    settle(world, MAY_BE_SHARED)
    assert not gone & world.ledgers()


def test_the_defaults_are_those_of_the_settings() -> None:
    defaults = WatchConfiguration()
    assert (defaults.mode, defaults.settle_ms, defaults.brake_references) == (WatchMode.REPORT, 200_000, 1_000)
    assert (defaults.unlinked_min_age_ms, defaults.unlinked_window_ms) == (72 * 3_600_000, 12 * 3_600_000)
    assert (defaults.walk_interval_ms, defaults.nodes_per_second) == (6 * 3_600_000, 20_000)


def test_evidence_that_a_frozen_leader_writes_late_is_taken_over(world: World, topic: TopicName) -> None:
    with Watcher(world) as frozen:
        frozen.go(10)
        (gone,) = world.trim(topic, 1, dies_between=True)
        frozen.go(SOON)
    path = f"{LEAKS}/{gone}"
    late = world.store.peek(path)
    assert late is not None
    world.store.remove(path)
    with Watcher(world, name="two") as other:
        other.go(10)
        assert (other.status().unlinked, other.leak(gone)) == (1, None)
        world.store.put(path, late.data)
        other.go(SETTLE_SECONDS + MINUTE)
        assert appended(world) == [gone]
        assert (other.status().unlinked, other.status().vanished) == (0, 1)
