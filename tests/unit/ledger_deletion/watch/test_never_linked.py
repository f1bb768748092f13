"""Ledgers that the watch never saw referenced: their age, the window, and the brake."""

from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.watch.control import WatchControlNode
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause, LeakState
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName

from tests.fakes.bookkeeper import data_custom_metadata, managed_ledger_bytes, schema_custom_metadata
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.sidecars import POLICY
from tests.unit.ledger_deletion.watch.leak_causes import crowd, path_of
from tests.unit.ledger_deletion.watch.watching import (
    MINUTE,
    QUICK,
    SOON,
    Watcher,
    appended,
    appended_record,
    kept,
    made,
)

OLD_MS = round(1_000_000 * MINUTE)


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
        assert exclusive.leak(stray).cause is LeakCause.NEVER_LINKED


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
    monkeypatch.setattr("pulsar_sidecar.features.ledger_deletion.workflow.leak_handling._MOST_UNLINKED", 2)
    kept_ones = [fake_pulsar.ledger({}, age_ms=OLD_MS) for _ in range(2)]
    with Watcher(fake_pulsar, QUICK).go(10) as watcher:
        stray = fake_pulsar.ledger(schema_custom_metadata(topic.schema_id), age_ms=OLD_MS)
        watcher.go(3 * MINUTE)
        assert {watcher.state(each) for each in kept_ones} == {LeakState.KEPT}
        assert appended(fake_pulsar) == [stray]


def test_a_ledger_that_is_linked_at_last_was_only_late(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    with Watcher(fake_pulsar).go(10) as watcher:
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


# --- the brake -------------------------------------------------------------------------------------------------------


def never_linked(fake_pulsar: FakePulsar, topic: TopicName, count: int) -> None:
    """Old ledgers that nothing references, and that may be deleted."""
    for _ in range(count):
        fake_pulsar.ledger(schema_custom_metadata(topic.schema_id), age_ms=OLD_MS)


def test_ledgers_that_were_never_linked_are_tracked_within_the_same_bound(
    fake_pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_sidecar.features.ledger_deletion.workflow.leak_tracking._MOST_TRACKED", 0)
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


@pytest.mark.parametrize("withheld", [False, True])
def test_ledgers_that_were_never_linked_brake_before_the_first_is_appended(
    fake_pulsar: FakePulsar, topic: TopicName, withheld: bool
) -> None:
    """After a ``deleteall`` that no sidecar saw; withheld ones would brake again after each change of leader."""
    never_linked(fake_pulsar, topic, 6)
    control = WatchControlNode(fake_pulsar.store)
    if withheld:
        control.hold("public")
    with Watcher(fake_pulsar, made(QUICK, brake_references=5)) as watcher:
        watcher.go(15 * MINUTE)
        assert watcher.status().leaked == {LeakCause.NEVER_LINKED: 6}
        if withheld:
            assert (watcher.status().vanished, watcher.status().braked) == (0, None)
            control.release_hold("public")
            watcher.go(15 * MINUTE)
        assert "6 references" in (watcher.status().braked or "")
        assert appended(fake_pulsar) == []


def test_a_hold_that_is_removed_during_the_judgement_passes_no_brake(
    fake_pulsar: FakePulsar, topic: TopicName, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_linked(fake_pulsar, topic, 6)
    control = WatchControlNode(fake_pulsar.store)
    control.hold("public")
    with Watcher(fake_pulsar, made(QUICK, brake_references=5)).go(10) as watcher:
        tracker = watcher.watch._tracker
        brake_if_needed = tracker.brake_if_needed

        def brake_and_remove(now_ms: int) -> None:
            brake_if_needed(now_ms)
            if watcher.status().leaks == {LeakState.LEAKED: 6} and control.read().holds:
                control.release_hold("public")

        monkeypatch.setattr(tracker, "brake_if_needed", brake_and_remove)
        watcher.go(15 * MINUTE)
        assert control.read().holds == ()
        assert appended(fake_pulsar) == []
        assert "6 references" in (watcher.status().braked or "")
