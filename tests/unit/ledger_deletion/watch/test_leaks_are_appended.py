"""The loop from a vanished reference to its record: each cause, the settle time, and the ends of the wait."""

import pytest
from pulsar_sidecar.features.ledger_deletion.watch.evidence import REQUESTED_BY
from pulsar_sidecar.features.ledger_deletion.watch.leaks import LEAKS
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause, LeakState
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import TopicName, encode_cursor

from tests.fakes.bookkeeper import cursor_bytes, cursor_custom_metadata, managed_ledger_bytes
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.replay_settings import MAY_BE_SHARED
from tests.unit.ledger_deletion.watch.leak_causes import (
    CAUSES,
    Act,
    path_of,
    remove_from_list,
    replace_by_offloaded,
    sub_of,
    trim,
)
from tests.unit.ledger_deletion.watch.watching import (
    A_WHILE,
    MINUTE,
    SETTLE_SECONDS,
    SOON,
    Watcher,
    appended,
    appended_record,
    has_signature,
    kept,
    run_second_phase,
)


@pytest.mark.parametrize(("act", "cause"), CAUSES)
def test_unreferenced_ledger_is_appended_only_after_the_wait(
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
        assert 0 <= record.mark.dereferenced_ms - began_ms <= 1_000
        assert record.mark.requested_by == REQUESTED_BY
        leak = watcher.leak(each)
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
    assert watcher.leak(first).cause is LeakCause.COMPACTION
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
        watcher.watch._tracker.most_tracked = 1
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


@pytest.mark.parametrize("stored", [True, False])
def test_lost_receipt_leads_to_another_attempt(
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


def test_evidence_that_a_frozen_leader_writes_late_is_taken_over(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    with Watcher(fake_pulsar).go(10) as frozen:
        (gone,) = fake_pulsar.trim(topic, 1, dies_between=True)
        frozen.go(SOON)
    path = f"{LEAKS}/{gone}"
    late = fake_pulsar.store.peek(path)
    fake_pulsar.store.remove(path)
    with Watcher(fake_pulsar, name="two").go(10) as other:
        assert (other.status().unlinked, other.leak(gone)) == (1, None)
        fake_pulsar.store.put(path, late.data)
        other.go(SETTLE_SECONDS + MINUTE)
        assert appended(fake_pulsar) == [gone]
        assert (other.status().unlinked, other.status().vanished) == (0, 1)
