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
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.replay_settings import MAY_BE_SHARED, TOPIC
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
    run_second_phase,
    with_policies,
)

OLD_MS = round(1_000_000 * MINUTE)
YOUNG = TopicPlan(subscriptions=("sub",), schema_versions=2, buckets=1, offloaded=(0,), age_ms=0)
"""Every ledger was made just now, and some are OPEN: an audit would wait."""


@pytest.fixture
def fake_pulsar() -> FakePulsar:
    return with_policies(FakePulsar())


@pytest.fixture
def topic(fake_pulsar: FakePulsar) -> TopicName:
    return fake_pulsar.topic(TOPIC, YOUNG)


@pytest.fixture
def watcher(fake_pulsar: FakePulsar, topic: TopicName) -> Iterator[Watcher]:
    with Watcher(fake_pulsar, policy=MAY_BE_SHARED) as watcher:
        yield watcher.go(10)


@pytest.fixture
def quick(fake_pulsar: FakePulsar, topic: TopicName) -> Iterator[Watcher]:
    with Watcher(fake_pulsar, QUICK, policy=MAY_BE_SHARED) as watcher:
        yield watcher.go(10)


def path_of(topic: TopicName) -> str:
    return managed_ledger_path(topic.managed_ledger_name)


def sub_of(topic: TopicName, subscription: str = "sub") -> str:
    return cursor_path(topic.managed_ledger_name, encode_cursor(subscription))


def remove_from_list(fake_pulsar: FakePulsar, topic: TopicName, ledger_id: LedgerId) -> None:
    left = [each for each in fake_pulsar.listed(topic) if each != ledger_id]
    fake_pulsar.store.put(path_of(topic), managed_ledger_bytes(left))


# --- each cause, end to end ------------------------------------------------------------------------------------------


def trim(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    return set(fake_pulsar.trim(topic, 2, dies_between=True))


def truncate(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    """The OPEN one too."""
    return set(fake_pulsar.trim(topic, 3, dies_between=True))


def switch_cursor(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    (cursor,) = fake_pulsar.cursors(topic).values()
    custom = cursor_custom_metadata(topic.managed_ledger_name, encode_cursor("sub"))
    fresh = fake_pulsar.ledger(custom, state=LedgerState.OPEN, age_ms=0)
    fake_pulsar.store.put(sub_of(topic), cursor_bytes(fresh, buckets=cursor.buckets))
    assert cursor.cursor_ledger is not None
    return {cursor.cursor_ledger}


def close_cursor(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    (cursor,) = fake_pulsar.cursors(topic).values()
    fake_pulsar.store.put(sub_of(topic), cursor_bytes(None, buckets=cursor.buckets))
    assert cursor.cursor_ledger is not None
    return {cursor.cursor_ledger}


def unsubscribe(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    (cursor,) = fake_pulsar.cursors(topic).values()
    fake_pulsar.store.remove(sub_of(topic))
    assert cursor.cursor_ledger is not None
    return {cursor.cursor_ledger, *cursor.buckets.values()}


def use_up_bucket(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    (cursor,) = fake_pulsar.cursors(topic).values()
    fake_pulsar.store.put(sub_of(topic), cursor_bytes(cursor.cursor_ledger))
    return set(cursor.buckets.values())


def delete_schema(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    before = fake_pulsar.referenced()
    fake_pulsar.store.remove(schema_path(topic.schema_id))
    return {each for each, path in before.items() if path == schema_path(topic.schema_id)}


def delete_topic(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    before = fake_pulsar.referenced()
    fake_pulsar.store.remove(path_of(topic))
    return {each for each, path in before.items() if path.startswith(path_of(topic))}


def delete_namespace(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    fake_pulsar.store.remove("/admin/policies/public/default")
    gone = delete_topic(fake_pulsar, topic)
    return gone | delete_schema(fake_pulsar, topic)


def replace_by_offloaded(fake_pulsar: FakePulsar, topic: TopicName) -> set[LedgerId]:
    first = fake_pulsar.listed(topic)[0]
    contexts = {first: fake_pulsar.context(first, deleted=True)}
    fake_pulsar.store.put(path_of(topic), managed_ledger_bytes(fake_pulsar.listed(topic), offloaded=contexts))
    return {first}


Act = Callable[[FakePulsar, TopicName], set[LedgerId]]
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
def test_what_lost_its_last_reference_is_appended_after_the_wait_and_not_before(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, act: Act, cause: LeakCause
) -> None:
    named_by = fake_pulsar.referenced()
    gone = act(fake_pulsar, topic)
    began_ms = fake_pulsar.clock.now_ms()
    watcher.go(SOON)
    assert set(kept(fake_pulsar)) == gone
    assert {watcher.state(each) for each in gone} == {LeakState.SETTLING}
    watcher.go(SETTLE_SECONDS - SOON - 0.5)
    assert appended(fake_pulsar) == []
    watcher.go(3)
    assert set(appended(fake_pulsar)) == gone
    for each in gone:
        record = appended_record(fake_pulsar, each)
        assert has_signature(fake_pulsar, record)
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
    run_second_phase(fake_pulsar, MAY_BE_SHARED)
    assert not gone & fake_pulsar.ledgers()
    watcher.go(SOON)
    assert {watcher.state(each) for each in gone} == {LeakState.DELETED}
    assert kept(fake_pulsar) == []
    assert len(appended(fake_pulsar)) == len(gone)


def test_a_compacted_ledger_that_a_newer_one_replaced(fake_pulsar: FakePulsar, watcher: Watcher) -> None:
    topic = fake_pulsar.topic("persistent://public/default/compacted", TopicPlan(subscriptions=()))
    first = fake_pulsar.compact(topic, closed=True, age_ms=0)
    watcher.go(SOON)
    fake_pulsar.compact(topic, closed=True, age_ms=0)
    watcher.go(SETTLE_SECONDS + SOON)
    assert appended(fake_pulsar) == [first]
    leak = watcher.leak(first)
    assert leak is not None
    assert leak.cause is LeakCause.COMPACTION
    run_second_phase(fake_pulsar, MAY_BE_SHARED)


def test_a_compacted_ledger_that_only_the_cursors_own_ledger_names(fake_pulsar: FakePulsar, watcher: Watcher) -> None:
    """A broker that loads the topic may drop the name from the cursor's node."""
    topic = fake_pulsar.topic("persistent://public/default/compacted", TopicPlan(subscriptions=()))
    compacted = fake_pulsar.compact(topic, closed=True, age_ms=0)
    watcher.go(SOON)
    custom = cursor_custom_metadata(topic.managed_ledger_name, encode_cursor("__compaction"))
    own = fake_pulsar.ledger(custom, state=LedgerState.OPEN, age_ms=0)
    fake_pulsar.append_position(own, compacted)
    fake_pulsar.store.put(sub_of(topic, "__compaction"), cursor_bytes(own))
    watcher.go(SOON)
    assert watcher.status().vanished == 0
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert appended(fake_pulsar) == kept(fake_pulsar) == []
    assert watcher.state(compacted) is LeakState.KEPT
    assert watcher.status().vanished == 0


@pytest.mark.parametrize("act", [act for act, _ in CAUSES if act is not replace_by_offloaded])
def test_a_broker_that_deletes_in_time_leaves_nothing(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, act: Act
) -> None:
    changes_before = len(fake_pulsar.store.paths())
    gone = act(fake_pulsar, topic)
    watcher.go(1)
    for each in gone:
        fake_pulsar.remove_ledger(each)
    watcher.go(SETTLE_SECONDS + 2 * SOON)
    assert (appended(fake_pulsar), kept(fake_pulsar)) == ([], [])
    assert watcher.watch.leaks(ended=True) == []
    assert watcher.status().vanished == 0
    assert len(fake_pulsar.store.paths()) <= changes_before


def test_a_broker_that_deletes_late_ends_it(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    (gone,) = fake_pulsar.trim(topic, 1, dies_between=True)
    watcher.go(60)
    assert kept(fake_pulsar) == [gone]
    fake_pulsar.remove_ledger(gone)
    watcher.go(SETTLE_SECONDS)
    assert (appended(fake_pulsar), kept(fake_pulsar), watcher.state(gone)) == ([], [], LeakState.DELETED)


@pytest.mark.parametrize("after", [1.0, 4.9, 60.0, 199.0])
def test_a_ledger_that_is_linked_again_is_not_appended(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, after: float
) -> None:
    before = fake_pulsar.listed(topic)
    (gone,) = fake_pulsar.trim(topic, 1, dies_between=True)
    watcher.go(after)
    fake_pulsar.store.put(path_of(topic), managed_ledger_bytes(before))
    watcher.go(SETTLE_SECONDS + SOON)
    assert (appended(fake_pulsar), kept(fake_pulsar)) == ([], [])
    assert watcher.state(gone) is (LeakState.LINKED if after > SOON else None)
    # From then on its time begins anew.
    remove_from_list(fake_pulsar, topic, gone)
    watcher.go(SETTLE_SECONDS - 1)
    assert appended(fake_pulsar) == []
    watcher.go(SOON)
    assert appended(fake_pulsar) == [gone]


@pytest.mark.parametrize("is_full", [False, True])
def test_linked_and_dropped_between_two_looks_the_time_begins_anew(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, is_full: bool
) -> None:
    if is_full:
        watcher.watch._tracker._most_tracked = 1
    before = fake_pulsar.listed(topic)
    (gone,) = fake_pulsar.trim(topic, 1, dies_between=True)
    watcher.go(SETTLE_SECONDS - 10)
    fake_pulsar.store.put(path_of(topic), managed_ledger_bytes(before))
    watcher.go(0.3)
    remove_from_list(fake_pulsar, topic, gone)
    watcher.go(SETTLE_SECONDS - 5)
    assert appended(fake_pulsar) == []
    watcher.go(SOON)
    assert appended(fake_pulsar) == [gone]


@pytest.mark.parametrize("events", [True, False])
def test_a_ledger_in_several_lists_leaves_with_the_last_one(
    fake_pulsar: FakePulsar, topic: TopicName, events: bool
) -> None:
    other = fake_pulsar.topic("persistent://public/default/other", TopicPlan(ledgers=0, subscriptions=()))
    first = fake_pulsar.listed(topic)[0]
    fake_pulsar.store.put(path_of(other), managed_ledger_bytes([first]))
    with Watcher(fake_pulsar) as watcher:
        watcher.changes.is_watchable = events
        watcher.go(10)
        fake_pulsar.store.put(path_of(other), managed_ledger_bytes([]))
        watcher.go(SETTLE_SECONDS + 100)
        assert (appended(fake_pulsar), kept(fake_pulsar)) == ([], [])
        remove_from_list(fake_pulsar, topic, first)
        watcher.go(SETTLE_SECONDS + 100)
        assert appended(fake_pulsar) == [first]


# --- what is never appended ------------------------------------------------------------------------------------------


def test_another_topics_list_is_no_evidence(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    """A list that named another topic's ledger was made by hand, or was a shadow's."""
    stray = fake_pulsar.ledger(data_custom_metadata("public/default/persistent/elsewhere"), age_ms=0)
    fake_pulsar.store.put(path_of(topic), managed_ledger_bytes([*fake_pulsar.listed(topic), stray]))
    watcher.go(SOON)
    remove_from_list(fake_pulsar, topic, stray)
    watcher.go(SETTLE_SECONDS + MINUTE)
    assert (appended(fake_pulsar), kept(fake_pulsar), watcher.leak(stray)) == ([], [], None)
    assert watcher.status().unlinked == 1


def test_a_shadows_list_is_no_evidence(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    shadow = fake_pulsar.shadow("persistent://public/default/shadow", topic)
    with Watcher(fake_pulsar) as watcher:
        watcher.go(10)
        gone = fake_pulsar.trim(topic, 2, dies_between=True)
        watcher.go(SETTLE_SECONDS)
        fake_pulsar.store.put(
            path_of(shadow), managed_ledger_bytes([], properties={"PULSAR.SHADOW_SOURCE": str(topic)})
        )
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert (appended(fake_pulsar), kept(fake_pulsar)) == ([], [])
        assert set(gone) <= fake_pulsar.ledgers()


UNKNOWN = {
    "no stamp": {},
    "somebody else's": {"application": b"distributedlog"},
    "an unknown component": {"application": b"pulsar", "component": b"whatever"},
    "no topic's": data_custom_metadata("just-a-name"),
}


@pytest.mark.parametrize("stamp", UNKNOWN)
@pytest.mark.parametrize("was_listed", [True, False])
def test_what_this_version_does_not_know_is_never_appended(
    fake_pulsar: FakePulsar, topic: TopicName, quick: Watcher, stamp: str, was_listed: bool
) -> None:
    stray = fake_pulsar.ledger(UNKNOWN[stamp])
    if was_listed:
        fake_pulsar.store.put(path_of(topic), managed_ledger_bytes([*fake_pulsar.listed(topic), stray]))
        quick.go(SOON)
        remove_from_list(fake_pulsar, topic, stray)
    quick.go(3 * MINUTE)
    quick.go(12 * MINUTE)
    assert (appended(fake_pulsar), kept(fake_pulsar)) == ([], [])
    assert quick.state(stray) is LeakState.KEPT


def test_a_ledger_whose_metadata_is_not_understood_is_never_appended(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    (first,) = fake_pulsar.trim(topic, 1, dies_between=True)
    fake_pulsar.store.put(ledger_path(first), b"no metadata")
    watcher.go(13 * MINUTE)
    assert appended(fake_pulsar) == []
    assert "its metadata is not understood" in watcher.detail(first)


def test_the_deletion_services_own_topics_are_left_to_their_brokers(fake_pulsar: FakePulsar) -> None:
    own = fake_pulsar.topic("persistent://pulsar/system/__ledger_deletion-partition-0", TopicPlan(schema_versions=1))
    with Watcher(fake_pulsar) as watcher:
        watcher.go(10)
        gone = {*fake_pulsar.trim(own, 2, dies_between=True), *unsubscribe(fake_pulsar, own)}
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(fake_pulsar) == []
        assert {watcher.state(each) for each in gone} == {LeakState.LEAKED}
        assert {watcher.detail(each) for each in gone} == {"its topic belongs to the deletion service itself"}


def test_a_topic_whose_deletion_is_recorded_is_not_counted_twice(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    watcher.recorded.add(topic)
    gone = delete_topic(fake_pulsar, topic)
    watcher.go(SETTLE_SECONDS + SOON)
    assert (appended(fake_pulsar), kept(fake_pulsar)) == ([], [])
    assert watcher.status().vanished == 0
    assert watcher.status().unlinked == len(gone)


def test_evidence_is_taken_back_when_a_recorded_deletion_explains_it(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    before = fake_pulsar.listed(topic)
    (gone,) = fake_pulsar.trim(topic, 1, dies_between=True)
    watcher.go(SOON)
    assert kept(fake_pulsar) == [gone]
    fake_pulsar.store.put(path_of(topic), managed_ledger_bytes(before))
    watcher.go(0.2)
    watcher.recorded.add(topic)
    delete_topic(fake_pulsar, topic)
    watcher.go(SETTLE_SECONDS + SOON)
    assert (appended(fake_pulsar), kept(fake_pulsar)) == ([], [])


def test_the_partition_of_a_topic_whose_deletion_is_recorded(fake_pulsar: FakePulsar) -> None:
    base = fake_pulsar.partitioned_topic("persistent://public/default/parts", 2)
    with Watcher(fake_pulsar) as watcher:
        watcher.recorded.add(base)
        watcher.go(10)
        delete_topic(fake_pulsar, base.partition(1))
        watcher.go(SETTLE_SECONDS + SOON)
        assert (appended(fake_pulsar), kept(fake_pulsar)) == ([], [])


def test_a_node_that_is_not_understood_protects_as_in_an_audit(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    broken = parse_topic_name("persistent://public/default/broken")
    fake_pulsar.store.put(path_of(broken), b"\x47\x78\x00")
    (gone,) = fake_pulsar.trim(topic, 1, dies_between=True)
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert appended(fake_pulsar) == []
    assert f"{path_of(broken)} was not read, and may reference it" in watcher.detail(gone)
    assert watcher.status().unreadable_nodes == (path_of(broken),)
    fake_pulsar.store.remove(path_of(broken))
    watcher.go(SOON + 60)
    assert appended(fake_pulsar) == [gone]


def test_a_tenant_that_the_policies_do_not_know_may_be_another_clusters(fake_pulsar: FakePulsar) -> None:
    foreign = fake_pulsar.topic("persistent://other/space/orders")
    with Watcher(fake_pulsar) as watcher:
        watcher.go(10)
        (gone,) = fake_pulsar.trim(foreign, 1, dies_between=True)
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(fake_pulsar) == []
        assert "/admin/policies does not have its tenant other" in watcher.detail(gone)


# --- the copy that tiered storage replaced ---------------------------------------------------------------------------


def test_a_replaced_copy_stays_while_the_other_one_is_not_whole(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    (first,) = replace_by_offloaded(fake_pulsar, topic)
    context = fake_pulsar.context(first, deleted=False)
    fake_pulsar.offloaded.put(first, context, topic.managed_ledger_name, parts={"data"})
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert appended(fake_pulsar) == []
    assert "BookKeeper's may be the last one" in watcher.detail(first)
    fake_pulsar.offloaded.put(first, context, topic.managed_ledger_name)
    watcher.go(SOON + 60)
    assert appended(fake_pulsar) == [first]


@pytest.mark.parametrize("error", [PermanentError("no credentials are configured"), TemporaryError("S3 is away")])
def test_tiered_storage_that_cannot_be_asked_keeps_that_ledger_and_holds_up_no_other(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, error: SidecarError
) -> None:
    watcher.offload_error = error
    (first,) = replace_by_offloaded(fake_pulsar, topic)
    other = close_cursor(fake_pulsar, topic)
    watcher.go(SETTLE_SECONDS + SOON)
    assert set(appended(fake_pulsar)) == other
    assert watcher.state(first) is LeakState.KEPT
    assert str(error) in watcher.detail(first)
    watcher.offload_error = None
    watcher.go(SOON + 60)
    assert set(appended(fake_pulsar)) == {first, *other}


# --- never seen referenced -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age_minutes", "after_minutes"), [(0, 12), (2, 10), (9, 3), (11, 2), (1_000, 2)])
def test_a_ledger_that_was_never_linked_waits_for_its_age_and_the_watchs_own_window(
    fake_pulsar: FakePulsar, watcher: Watcher, topic: TopicName, age_minutes: int, after_minutes: int
) -> None:
    age_ms = int(1000 * MINUTE) * age_minutes
    stray = fake_pulsar.ledger(schema_custom_metadata(topic.schema_id), age_ms=age_ms)
    policy = replace(POLICY, unlinked_min_age_ms=round(10_000 * MINUTE))
    watcher_of_one = Watcher(fake_pulsar, QUICK, name="two", policy=policy)
    watcher.die()
    with watcher_of_one as exclusive:
        exclusive.go(10)
        assert exclusive.status().unlinked == 1
        exclusive.go(after_minutes * MINUTE - 15)
        assert appended(fake_pulsar) == []
        exclusive.go(20)
        assert appended(fake_pulsar) == [stray]
        record = appended_record(fake_pulsar, stray)
        assert (record.mark.signature, record.mark.dereferenced_ms) == (None, None)
        assert kept(fake_pulsar) == []
        leak = exclusive.leak(stray)
        assert leak is not None
        assert leak.cause is LeakCause.NEVER_LINKED


def test_a_ledger_that_was_never_linked_needs_the_word_that_no_other_cluster_is_here(
    fake_pulsar: FakePulsar, quick: Watcher, topic: TopicName
) -> None:
    stray = fake_pulsar.ledger(schema_custom_metadata(topic.schema_id))
    quick.go(3 * MINUTE)
    quick.go(12 * MINUTE)
    assert appended(fake_pulsar) == []
    assert "bookkeeperExclusiveToCluster" in quick.detail(stray)


def test_ledgers_that_are_kept_take_no_room_from_those_that_were_not_judged(
    fake_pulsar: FakePulsar, topic: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_sidecar.ledger_deletion.workflow.leak_tracking._MOST_UNLINKED", 2)
    kept_ones = [fake_pulsar.ledger({}, age_ms=OLD_MS) for _ in range(2)]
    with Watcher(fake_pulsar, QUICK) as watcher:
        watcher.go(10)
        stray = fake_pulsar.ledger(schema_custom_metadata(topic.schema_id), age_ms=OLD_MS)
        watcher.go(3 * MINUTE)
        assert {watcher.state(each) for each in kept_ones} == {LeakState.KEPT}
        assert appended(fake_pulsar) == [stray]


def test_a_ledger_that_is_linked_at_last_was_only_late(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    with Watcher(fake_pulsar) as watcher:
        watcher.go(10)
        late = fake_pulsar.ledger(data_custom_metadata(topic.managed_ledger_name))
        watcher.go(11 * MINUTE)
        fake_pulsar.store.put(path_of(topic), managed_ledger_bytes([*fake_pulsar.listed(topic), late]))
        watcher.go(1)
        assert watcher.status().unlinked == 0
        watcher.go(20 * MINUTE)
        assert (appended(fake_pulsar), watcher.leak(late)) == ([], None)


def test_the_window_goes_on_over_the_walks_in_it(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    stray = fake_pulsar.ledger(schema_custom_metadata(topic.schema_id), age_ms=OLD_MS)
    with Watcher(fake_pulsar, made(QUICK, walk_interval_ms=30_000)) as watcher:
        watcher.go(110)
        assert watcher.changes.times_armed >= 3
        assert appended(fake_pulsar) == []
        watcher.go(20)
        assert appended(fake_pulsar) == [stray]


def test_a_new_leader_begins_to_count_the_window_anew(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    stray = fake_pulsar.ledger(schema_custom_metadata(topic.schema_id))
    with Watcher(fake_pulsar) as first:
        first.go(11 * MINUTE)
    with Watcher(fake_pulsar, name="two") as second:
        second.go(11 * MINUTE)
        assert appended(fake_pulsar) == []
        second.go(MINUTE + 60)
        assert appended(fake_pulsar) == [stray]


# --- modes and holds -------------------------------------------------------------------------------------------------


def test_report_shows_what_leaked_and_appends_nothing(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    with Watcher(fake_pulsar, made(mode=WatchMode.REPORT)) as watcher:
        watcher.go(10)
        gone = trim(fake_pulsar, topic)
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(fake_pulsar) == []
        assert {watcher.state(each) for each in gone} == {LeakState.LEAKED}
        assert watcher.status().leaked == {LeakCause.TRIM: 2}
        assert watcher.status().leaks == {LeakState.LEAKED: 2}
        assert set(kept(fake_pulsar)) == gone
        assert "ledgerDeletionWatch=report" in watcher.detail(next(iter(gone)))


@pytest.mark.parametrize("hold", ["the ledger", "public", "public/default", TOPIC])
def test_what_is_held_is_not_appended_until_it_is_let_go(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, hold: str
) -> None:
    first = fake_pulsar.listed(topic)[0]
    item = str(first) if hold == "the ledger" else hold
    control = WatchControlNode(fake_pulsar.store)
    assert control.hold(item).holds == (item,)
    fake_pulsar.trim(topic, 1, dies_between=True)
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert appended(fake_pulsar) == []
    assert watcher.detail(first) == f"{item} is on the hold list"
    assert watcher.watch.explain(first).hold == item
    control.unhold(item)
    watcher.go(70)
    assert appended(fake_pulsar) == [first]


def test_a_hold_that_comes_during_the_judgement_is_obeyed(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = leak_tracking.send

    def send_and_hold(publisher: Publisher, records: Sequence[PendingDeleteLedgerInfo], key: None) -> object:
        answers = sent(publisher, records, key)
        WatchControlNode(fake_pulsar.store).hold("public")
        return answers

    monkeypatch.setattr(leak_tracking, "_JUDGED_AT_ONCE", 1)
    monkeypatch.setattr(leak_tracking, "send", send_and_hold)
    trim(fake_pulsar, topic)
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert len(appended(fake_pulsar)) == 1
    assert watcher.status().leaks[LeakState.LEAKED] == 1


def test_what_cannot_be_sent_is_reported_as_leaked_and_sent_later(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_ready() -> Publisher:
        raise TemporaryError("the topics are not ready")

    gone = trim(fake_pulsar, topic)
    with monkeypatch.context() as away:
        away.setattr(fake_pulsar.topics, "publisher", lambda *_: not_ready())
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(fake_pulsar) == []
        assert watcher.status().leaks == {LeakState.LEAKED: len(gone)}
        assert watcher.status().detail == "the topics are not ready"
    watcher.go(12)
    assert set(appended(fake_pulsar)) == gone


def test_a_hold_of_something_else_holds_nothing(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    WatchControlNode(fake_pulsar.store).hold("other")
    gone = trim(fake_pulsar, topic)
    watcher.go(SETTLE_SECONDS + SOON)
    assert set(appended(fake_pulsar)) == gone


# --- the brake -------------------------------------------------------------------------------------------------------


def crowd(fake_pulsar: FakePulsar, count: int) -> TopicName:
    return fake_pulsar.topic("persistent://public/default/crowd", TopicPlan(ledgers=count, subscriptions=()))


def test_the_brake_holds_until_an_operator_resumes(fake_pulsar: FakePulsar) -> None:
    topic = crowd(fake_pulsar, 60)
    with Watcher(fake_pulsar) as watcher:
        watcher.go(10)
        gone = fake_pulsar.trim(topic, 51, dies_between=True)
        watcher.go(SOON)
        assert "51 references vanished within 10 minutes" in (watcher.status().braked or "")
        assert watcher.status().vanished == 51
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(fake_pulsar) == []
        assert watcher.status().leaks == {LeakState.LEAKED: 51}
        assert watcher.detail(gone[0]).startswith("the brake holds: 51 references vanished")
        WatchControlNode(fake_pulsar.store).resume()
        watcher.go(70)
        assert set(appended(fake_pulsar)) == set(gone)
        assert watcher.status().braked is None


def test_within_the_limit_it_does_not_brake(fake_pulsar: FakePulsar) -> None:
    topic = crowd(fake_pulsar, 110)
    with Watcher(fake_pulsar) as watcher:
        watcher.go(10)
        gone = fake_pulsar.trim(topic, 50, dies_between=True)
        watcher.go(SETTLE_SECONDS + SOON)
        assert set(appended(fake_pulsar)) == set(gone)
        assert watcher.status().braked is None


def test_what_vanished_is_forgotten_after_ten_minutes(fake_pulsar: FakePulsar) -> None:
    topic = crowd(fake_pulsar, 200)
    with Watcher(fake_pulsar) as watcher:
        watcher.go(10)
        for _ in range(2):
            fake_pulsar.trim(topic, 40, dies_between=True)
            watcher.go(SOON)
            assert watcher.status().vanished == 40
            watcher.go(601)
            assert watcher.status().vanished == 0
        assert watcher.status().braked is None
        assert len(appended(fake_pulsar)) == 80


def test_what_was_within_the_limit_once_brakes_no_smaller_cluster_later(fake_pulsar: FakePulsar) -> None:
    topic = crowd(fake_pulsar, 60)
    with Watcher(fake_pulsar) as watcher:
        watcher.go(10)
        fake_pulsar.trim(topic, 40, dies_between=True)
        watcher.go(A_WHILE + SOON)
        fake_pulsar.trim(topic, 15)
        watcher.go(SOON)
        assert (watcher.status().vanished, watcher.status().braked) == (0, None)


def test_the_brake_holds_whichever_sidecar_leads(fake_pulsar: FakePulsar) -> None:
    topic = crowd(fake_pulsar, 60)
    with Watcher(fake_pulsar) as first:
        first.go(10)
        fake_pulsar.trim(topic, 51, dies_between=True)
        first.go(SOON)
    with Watcher(fake_pulsar, name="two") as second:
        second.go(SETTLE_SECONDS + A_WHILE)
        assert appended(fake_pulsar) == []
        assert second.status().braked is not None


def test_what_an_earlier_leader_saw_vanish_counts_for_the_next_ones_brake(fake_pulsar: FakePulsar) -> None:
    topic = crowd(fake_pulsar, 80)
    with Watcher(fake_pulsar) as first:
        first.go(10)
        fake_pulsar.trim(topic, 40, dies_between=True)
        first.go(SOON)
    with Watcher(fake_pulsar, name="two") as second:
        second.go(10)
        fake_pulsar.trim(topic, 30, dies_between=True)
        second.go(SOON)
        assert second.status().vanished == 70
        assert second.status().braked is not None
        second.go(SETTLE_SECONDS + A_WHILE)
        assert appended(fake_pulsar) == []


@pytest.mark.parametrize("number", [1, 25, 51])
def test_a_failure_between_two_pieces_of_evidence_hides_none_from_the_brake(
    fake_pulsar: FakePulsar, number: int
) -> None:
    topic = crowd(fake_pulsar, 60)
    with Watcher(fake_pulsar) as watcher:
        watcher.go(10)
        creations = iter(range(1, 1_000))

        def fail_once() -> None:
            if next(creations) == number:
                raise TemporaryError("ZooKeeper is away")

        watcher.store.before("create", fail_once, times=-1)
        fake_pulsar.trim(topic, 51, dies_between=True)
        watcher.go(SOON)
        assert watcher.status().vanished == 51
        assert watcher.status().braked is not None


def test_a_brake_that_could_not_be_written_is_tried_again(fake_pulsar: FakePulsar) -> None:
    topic = crowd(fake_pulsar, 60)
    with Watcher(fake_pulsar) as watcher:
        watcher.go(10)
        watcher.store.fail_next("create", TemporaryError("ZooKeeper is away"), path=CONTROL, times=3)
        fake_pulsar.trim(topic, 51, dies_between=True)
        watcher.go(2 * SOON)
        assert watcher.status().braked is not None
        watcher.go(SETTLE_SECONDS + SOON)
        assert appended(fake_pulsar) == []


def test_a_control_node_that_cannot_be_read_brakes(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    fake_pulsar.store.put(CONTROL, b"?")
    gone = trim(fake_pulsar, topic)
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert appended(fake_pulsar) == []
    fake_pulsar.store.remove(CONTROL)
    watcher.go(70)
    assert appended(fake_pulsar) == []
    WatchControlNode(fake_pulsar.store).resume()
    watcher.go(70)
    assert set(appended(fake_pulsar)) == gone


LOST = 11 * MINUTE
"""Longer than the brake's window."""


def test_without_its_brake_no_evidence_is_written_beyond_the_limit(fake_pulsar: FakePulsar) -> None:
    topic = crowd(fake_pulsar, 60)
    with Watcher(fake_pulsar) as first:
        first.go(10)
        first.store.fail_next("create", TemporaryError("ZooKeeper is away"), path=CONTROL, times=1_000)
        fake_pulsar.trim(topic, 51, dies_between=True)
        first.go(SOON)
        assert kept(fake_pulsar) == []
    fake_pulsar.clock.advance_ms(round(1_000 * LOST))
    with Watcher(fake_pulsar, name="two") as second:
        second.go(SETTLE_SECONDS + SOON)
        assert appended(fake_pulsar) == []


def test_it_brakes_before_it_writes_evidence_beyond_the_limit(fake_pulsar: FakePulsar) -> None:
    """A leader that is killed while it writes, and whose successor comes after the brake's window."""
    topic = crowd(fake_pulsar, 200)
    with Watcher(fake_pulsar) as first:
        first.go(10)
        creations = iter(range(1, 1_000))

        def kill() -> None:
            if next(creations) == 140:
                raise Crash

        first.store.before("create", kill, times=-1)
        fake_pulsar.trim(topic, 180, dies_between=True)
        first.go(SOON)
    assert 100 < len(kept(fake_pulsar)) < 180
    fake_pulsar.clock.advance_ms(round(1_000 * LOST))
    with Watcher(fake_pulsar, name="two") as second:
        second.go(SETTLE_SECONDS + SOON)
        assert appended(fake_pulsar) == []
        assert "180 references" in (second.status().braked or "")


@pytest.mark.parametrize("resumed", [False, True])
def test_evidence_of_a_disaster_counts_however_long_there_was_no_leader(fake_pulsar: FakePulsar, resumed: bool) -> None:
    topic = crowd(fake_pulsar, 60)
    with Watcher(fake_pulsar) as first:
        first.go(10)
        fake_pulsar.trim(topic, 51, dies_between=True)
        first.go(SOON)
        if resumed:
            WatchControlNode(fake_pulsar.store).resume()
    if not resumed:
        fake_pulsar.store.remove(CONTROL)
    fake_pulsar.clock.advance_ms(round(1_000 * LOST))
    with Watcher(fake_pulsar, name="two") as second:
        second.go(SETTLE_SECONDS + SOON)
        assert len(appended(fake_pulsar)) == (51 if resumed else 0)
        assert ("51 references" in (second.status().braked or "")) is not resumed


def test_it_brakes_where_nothing_can_be_judged(fake_pulsar: FakePulsar) -> None:
    topic = crowd(fake_pulsar, 60)
    with Watcher(fake_pulsar) as first:
        first.go(10)
        fake_pulsar.trim(topic, 51, dies_between=True)
        first.go(SOON)
    fake_pulsar.store.remove(CONTROL)
    fake_pulsar.clock.advance_ms(round(1_000 * LOST))
    fake_pulsar.owners.hooks.fail_next("views", TemporaryError("no broker answers"), times=1_000)
    with Watcher(fake_pulsar, name="two") as second:
        second.go(SOON)
        assert "51 references" in (second.status().braked or "")


def test_what_vanished_before_an_operator_resumed_does_not_count_when_it_is_proven_later(
    fake_pulsar: FakePulsar,
) -> None:
    topic = crowd(fake_pulsar, 120)
    with Watcher(fake_pulsar) as watcher:
        watcher.go(10)
        fake_pulsar.trim(topic, 51, dies_between=True)
        watcher.go(SOON)
        gone = fake_pulsar.trim(topic, 30, dies_between=True)
        watcher.go(2)
        assert not set(gone) & set(kept(fake_pulsar))
        WatchControlNode(fake_pulsar.store).resume()
        watcher.go(SOON)
        assert set(gone) < set(kept(fake_pulsar))
        assert (watcher.status().vanished, watcher.status().braked) == (0, None)


def test_a_disaster_after_an_earlier_resuming_counts_for_the_next_leader(fake_pulsar: FakePulsar) -> None:
    """Its brake was lost with the control node, of which an old copy is back, and one more vanished later."""
    topic = crowd(fake_pulsar, 60)
    with Watcher(fake_pulsar) as first:
        first.go(10)
        WatchControlNode(fake_pulsar.store).resume()
        old = fake_pulsar.store.peek(CONTROL)
        assert old is not None
        first.go(5)
        fake_pulsar.trim(topic, 51, dies_between=True)
        first.go(LOST)
        fake_pulsar.trim(topic, 1, dies_between=True)
        first.go(SOON)
    fake_pulsar.store.put(CONTROL, old.data)
    with Watcher(fake_pulsar, name="two") as second:
        second.go(SETTLE_SECONDS + SOON)
        assert appended(fake_pulsar) == []
        assert "51 references" in (second.status().braked or "")


def test_what_was_resumed_is_resumed_for_the_next_leader(fake_pulsar: FakePulsar) -> None:
    topic = crowd(fake_pulsar, 60)
    with Watcher(fake_pulsar) as first:
        first.go(10)
        fake_pulsar.trim(topic, 51, dies_between=True)
        first.go(SOON)
        WatchControlNode(fake_pulsar.store).resume()
        first.go(5)
        assert first.status().braked is None
    with Watcher(fake_pulsar, name="two") as second:
        second.go(15)
        assert (second.status().braked, second.status().vanished) == (None, 0)


@pytest.mark.parametrize("seconds", [SETTLE_SECONDS, LOST])
@pytest.mark.parametrize("copy", [None, b'{"braked":null,"holds":[]}'])
def test_a_control_node_that_vanished_or_is_an_old_copy_releases_no_brake(
    fake_pulsar: FakePulsar, copy: bytes | None, seconds: float
) -> None:
    topic = crowd(fake_pulsar, 60)
    with Watcher(fake_pulsar) as watcher:
        watcher.go(10)
        fake_pulsar.trim(topic, 51, dies_between=True)
        watcher.go(SOON + seconds)
        fake_pulsar.store.remove(CONTROL)
        if copy is not None:
            fake_pulsar.store.put(CONTROL, copy)
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(fake_pulsar) == []
        assert "51 references" in (watcher.status().braked or "")


def test_holds_whose_node_vanished_stay_in_force(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    WatchControlNode(fake_pulsar.store).hold("public")
    trim(fake_pulsar, topic)
    watcher.go(SOON)
    fake_pulsar.store.remove(CONTROL)
    watcher.go(SETTLE_SECONDS + SOON)
    assert appended(fake_pulsar) == []
    assert watcher.status().holds == ("public",)


def test_a_small_cluster_that_loses_every_reference_brakes(fake_pulsar: FakePulsar) -> None:
    topic = crowd(fake_pulsar, 40)
    with Watcher(fake_pulsar) as watcher:
        watcher.go(10)
        fake_pulsar.store.remove(path_of(topic))
        watcher.go(SETTLE_SECONDS + SOON)
        assert appended(fake_pulsar) == []
        assert "40 references" in (watcher.status().braked or "")


def test_what_a_disaster_takes_beyond_the_most_that_is_tracked_waits_as_if_never_linked(
    fake_pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_sidecar.ledger_deletion.workflow.leak_tracking._MOST_TRACKED", 60)
    topic = crowd(fake_pulsar, 100)
    with Watcher(fake_pulsar, made(brake_references=5)) as watcher:
        watcher.go(10)
        fake_pulsar.trim(topic, 90, dies_between=True)
        watcher.go(SETTLE_SECONDS + SOON)
        assert len(kept(fake_pulsar)) == 60
        assert (sum((watcher.status().leaks or {}).values()), watcher.status().unlinked) == (60, 30)
        assert watcher.status().braked is not None
        assert appended(fake_pulsar) == []


def never_linked(fake_pulsar: FakePulsar, topic: TopicName, count: int) -> None:
    """Old ledgers that nothing references, and that may be deleted."""
    for _ in range(count):
        fake_pulsar.ledger(schema_custom_metadata(topic.schema_id), age_ms=OLD_MS)


def test_ledgers_that_were_never_linked_brake_before_the_first_is_appended(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    """After a ``deleteall`` that no sidecar saw."""
    never_linked(fake_pulsar, topic, 6)
    with Watcher(fake_pulsar, made(QUICK, brake_references=5)) as watcher:
        watcher.go(15 * MINUTE)
        assert appended(fake_pulsar) == []
        assert watcher.status().leaked == {LeakCause.NEVER_LINKED: 6}
        assert "6 references" in (watcher.status().braked or "")


def test_ledgers_that_were_never_linked_are_tracked_within_the_same_bound(
    fake_pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_sidecar.ledger_deletion.workflow.leak_tracking._MOST_TRACKED", 0)
    strays = {fake_pulsar.ledger({}, age_ms=OLD_MS) for _ in range(12)}
    topic = crowd(fake_pulsar, 20)
    with Watcher(fake_pulsar, made(QUICK, brake_references=1)) as watcher:
        judged: set[LedgerId] = set()
        for _ in range(15):
            watcher.go(MINUTE)
            judged |= {leak.ledger_id for leak in watcher.watch.leaks(ended=False)}
        assert judged == strays, "each has its turn"
        assert (watcher.status().leaks, watcher.status().unlinked) == ({LeakState.KEPT: 5}, 7)
        fake_pulsar.trim(topic, 4, dies_between=True)
        watcher.go(SOON)
        assert len(kept(fake_pulsar)) == 4, "half of the room is left to what vanishes"
        assert watcher.status().braked is not None


def test_never_linked_ledgers_that_are_withheld_brake_nothing(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    """Old ones would brake again after each change of leader, whatever an operator resumes."""
    never_linked(fake_pulsar, topic, 6)
    WatchControlNode(fake_pulsar.store).hold("public")
    with Watcher(fake_pulsar, made(QUICK, brake_references=5)) as watcher:
        watcher.go(15 * MINUTE)
        assert watcher.status().leaked == {LeakCause.NEVER_LINKED: 6}
        assert (watcher.status().vanished, watcher.status().braked) == (0, None)
        WatchControlNode(fake_pulsar.store).unhold("public")
        watcher.go(15 * MINUTE)
        assert "6 references" in (watcher.status().braked or "")
        assert appended(fake_pulsar) == []


def test_a_hold_that_is_removed_during_the_judgement_passes_no_brake(
    fake_pulsar: FakePulsar, topic: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_linked(fake_pulsar, topic, 6)
    control = WatchControlNode(fake_pulsar.store)
    control.hold("public")
    with Watcher(fake_pulsar, made(QUICK, brake_references=5)) as watcher:
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
        assert appended(fake_pulsar) == []
        assert "6 references" in (watcher.status().braked or "")


def test_compacted_ledgers_brake_before_their_evidence_is_written(fake_pulsar: FakePulsar) -> None:
    topics = [
        fake_pulsar.topic(f"persistent://public/default/compacted-{number}", TopicPlan(subscriptions=()))
        for number in range(20)
    ]
    for topic in topics:
        fake_pulsar.compact(topic, closed=True, age_ms=0)
    with Watcher(fake_pulsar, made(brake_references=9)) as watcher:
        watcher.go(10)
        watcher.store.fail_next("create", TemporaryError("ZooKeeper is away"), path=CONTROL, times=1_000)
        for topic in topics:
            fake_pulsar.compact(topic, closed=True, age_ms=0)
        watcher.go(SOON)
        assert len(kept(fake_pulsar)) == 9


def test_ten_times_as_many_are_tracked_as_the_brake_lets_vanish(
    fake_pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_sidecar.ledger_deletion.workflow.leak_tracking._MOST_TRACKED", 0)
    topic = crowd(fake_pulsar, 100)
    with Watcher(fake_pulsar, made(brake_references=5)) as watcher:
        watcher.go(10)
        fake_pulsar.trim(topic, 90, dies_between=True)
        watcher.go(SOON)
        assert (len(kept(fake_pulsar)), watcher.status().unlinked) == (50, 40)


def test_changes_that_wait_for_upkeep_are_lag(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    assert (watcher.status().lag_seconds or 0) < 2
    upkeep = watcher.watch._tracker.upkeep

    def slow(now_ms: int) -> None:
        watcher.clock.wait_seconds(300)
        upkeep(now_ms)

    watcher.watch._tracker.upkeep = slow  # type: ignore[method-assign]
    watcher.go(100)
    fake_pulsar.trim(topic, 1)
    assert 90 < (watcher.status().lag_seconds or 0) < 110
    watcher.go(204)
    assert (watcher.status().lag_seconds or 0) > 290


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_the_status_names_what_is_watched(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    status = watcher.status()
    assert (status.mode, status.state, status.detail) == (WatchMode.APPEND, WatchState.WATCHING, None)
    assert status.leader is not None
    assert status.leader.name == "one"
    assert status.leader == find_leader(watcher.store)
    assert (status.ledgers, status.references) == (len(fake_pulsar.ledgers()), len(fake_pulsar.referenced()))
    assert status.walked_ms is not None
    assert (status.unlinked, status.vanished, status.brake_limit, status.unreadable_nodes) == (0, 0, 9, ())
    assert status.lag_seconds is not None
    assert watcher.watch.leads


def test_the_leaks_are_listed_oldest_first(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    cursor = close_cursor(fake_pulsar, topic)
    watcher.go(SOON)
    trimmed = trim(fake_pulsar, topic)
    watcher.go(SOON)
    assert [leak.ledger_id for leak in watcher.watch.leaks(ended=False)] == [*cursor, *sorted(trimmed)]


def test_a_ledger_is_explained(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    first, second, _ = fake_pulsar.listed(topic)
    explained = watcher.watch.explain(second)
    assert (explained.exists, explained.named_by, explained.owner, explained.leak) == (
        True,
        (path_of(topic),),
        path_of(topic),
        None,
    )
    assert explained.verdict.startswith("ledger-still-in-use: ")
    fake_pulsar.trim(topic, 1, dies_between=True)
    watcher.go(SOON)
    explained = watcher.watch.explain(first)
    assert (explained.named_by, explained.leak) == ((), watcher.leak(first))
    assert explained.verdict == "nothing references it, and it may be deleted"
    fake_pulsar.remove_ledger(first)
    watcher.go(SOON)
    explained = watcher.watch.explain(first)
    assert (explained.exists, explained.owner, explained.verdict) == (False, None, "the ledger does not exist")
    assert explained.leak is not None
    assert explained.leak.state is LeakState.DELETED
    stray = fake_pulsar.ledger({})
    assert watcher.watch.explain(stray).verdict == "its metadata does not show that Pulsar made it"


@pytest.mark.parametrize("failing", ["read_many", "publisher"])
def test_a_failure_is_reported_while_it_lasts_and_no_longer(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, failing: str
) -> None:
    gone = trim(fake_pulsar, topic)
    watcher.go(SETTLE_SECONDS - 5)
    if failing == "publisher":
        fake_pulsar.topics.hooks.fail_next("publish", TemporaryError("no broker answers"))
    else:
        fake_pulsar.owners.hooks.fail_next("views", TemporaryError("no broker answers"), times=10)
    watcher.go(SOON + 2)
    assert watcher.status().detail == "no broker answers"
    assert appended(fake_pulsar) == []
    watcher.go(2 * SOON)
    assert set(appended(fake_pulsar)) == gone
    assert watcher.status().detail is None
    assert watcher.status().leaked == {LeakCause.TRIM: 2}


@pytest.mark.parametrize("stored", [True, False])
def test_a_receipt_that_was_lost_is_no_receipt(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, stored: bool
) -> None:
    gone = trim(fake_pulsar, topic)
    fake_pulsar.topics.lose_receipts_next(stored=stored)
    watcher.go(SETTLE_SECONDS + SOON)
    assert {watcher.state(each) for each in gone} == {LeakState.LEAKED}
    assert "the broker sent no receipt" in watcher.detail(next(iter(gone)))
    watcher.go(70)
    assert {watcher.state(each) for each in gone} == {LeakState.APPENDED}
    assert set(appended(fake_pulsar)) == gone
    run_second_phase(fake_pulsar, MAY_BE_SHARED)
    assert not gone & fake_pulsar.ledgers()


def test_the_defaults_are_those_of_the_settings() -> None:
    defaults = WatchConfiguration()
    assert (defaults.mode, defaults.settle_ms, defaults.brake_references) == (WatchMode.REPORT, 200_000, 1_000)
    assert (defaults.unlinked_min_age_ms, defaults.unlinked_window_ms) == (72 * 3_600_000, 12 * 3_600_000)
    assert (defaults.walk_interval_ms, defaults.nodes_per_second) == (6 * 3_600_000, 20_000)


def test_evidence_that_a_frozen_leader_writes_late_is_taken_over(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    with Watcher(fake_pulsar) as frozen:
        frozen.go(10)
        (gone,) = fake_pulsar.trim(topic, 1, dies_between=True)
        frozen.go(SOON)
    path = f"{LEAKS}/{gone}"
    late = fake_pulsar.store.peek(path)
    assert late is not None
    fake_pulsar.store.remove(path)
    with Watcher(fake_pulsar, name="two") as other:
        other.go(10)
        assert (other.status().unlinked, other.leak(gone)) == (1, None)
        fake_pulsar.store.put(path, late.data)
        other.go(SETTLE_SECONDS + MINUTE)
        assert appended(fake_pulsar) == [gone]
        assert (other.status().unlinked, other.status().vanished) == (0, 1)
