"""The brake on the running watch: its counts across leaders and failures, and how an operator resumes."""

import pytest
from pulsar_sidecar.features.ledger_deletion.watch.control import CONTROL, WatchControlNode
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakState
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.names import TopicName

from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.sidecars import Crash
from tests.unit.ledger_deletion.watch.leak_causes import crowd, trim
from tests.unit.ledger_deletion.watch.watching import (
    A_WHILE,
    MINUTE,
    SETTLE_SECONDS,
    SOON,
    Watcher,
    appended,
    kept,
    made,
)


@pytest.fixture
def crowded(fake_pulsar: FakePulsar) -> TopicName:
    return crowd(fake_pulsar, 60)


def test_the_brake_holds_until_an_operator_resumes(fake_pulsar: FakePulsar, crowded: TopicName) -> None:
    with Watcher(fake_pulsar).go(10) as watcher:
        gone = fake_pulsar.trim(crowded, 51, dies_between=True)
        watcher.go(SOON)
        assert "51 references vanished within 10 minutes" in (watcher.status().braked or "")
        assert watcher.status().vanished == 51
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(fake_pulsar) == []
        assert watcher.status().leaks == {LeakState.LEAKED: 51}
        assert watcher.detail(gone[0]).startswith("the brake is engaged: 51 references vanished")
        WatchControlNode(fake_pulsar.store).resume()
        watcher.go(70)
        assert set(appended(fake_pulsar)) == set(gone)
        assert watcher.status().braked is None


def test_within_the_limit_it_does_not_brake(fake_pulsar: FakePulsar) -> None:
    topic = crowd(fake_pulsar, 110)
    with Watcher(fake_pulsar).go(10) as watcher:
        gone = fake_pulsar.trim(topic, 50, dies_between=True)
        watcher.go(SETTLE_SECONDS + SOON)
        assert set(appended(fake_pulsar)) == set(gone)
        assert watcher.status().braked is None


def test_vanished_references_are_forgotten_after_ten_minutes(fake_pulsar: FakePulsar) -> None:
    topic = crowd(fake_pulsar, 200)
    with Watcher(fake_pulsar).go(10) as watcher:
        for _ in range(2):
            fake_pulsar.trim(topic, 40, dies_between=True)
            watcher.go(SOON)
            assert watcher.status().vanished == 40
            watcher.go(601)
            assert watcher.status().vanished == 0
        assert watcher.status().braked is None
        assert len(appended(fake_pulsar)) == 80


def test_loss_within_the_limit_does_not_brake_later(fake_pulsar: FakePulsar, crowded: TopicName) -> None:
    with Watcher(fake_pulsar).go(10) as watcher:
        fake_pulsar.trim(crowded, 40, dies_between=True)
        watcher.go(A_WHILE + SOON)
        fake_pulsar.trim(crowded, 15)
        watcher.go(SOON)
        assert (watcher.status().vanished, watcher.status().braked) == (0, None)


def test_losses_seen_by_an_earlier_leader_count_for_the_next(fake_pulsar: FakePulsar) -> None:
    topic = crowd(fake_pulsar, 80)
    with Watcher(fake_pulsar).go(10) as first:
        fake_pulsar.trim(topic, 40, dies_between=True)
        first.go(SOON)
    with Watcher(fake_pulsar, name="two").go(10) as second:
        fake_pulsar.trim(topic, 30, dies_between=True)
        second.go(SOON)
        assert second.status().vanished == 70
        assert second.status().braked is not None
        second.go(SETTLE_SECONDS + A_WHILE)
        assert appended(fake_pulsar) == []


@pytest.mark.parametrize("number", [1, 25, 51])
def test_a_failure_between_two_pieces_of_evidence_hides_none_from_the_brake(
    fake_pulsar: FakePulsar, crowded: TopicName, number: int
) -> None:
    with Watcher(fake_pulsar).go(10) as watcher:
        creations = iter(range(1, 1_000))

        def fail_once() -> None:
            if next(creations) == number:
                raise TemporaryError("ZooKeeper is away")

        watcher.store.before("create", fail_once, times=-1)
        fake_pulsar.trim(crowded, 51, dies_between=True)
        watcher.go(SOON)
        assert watcher.status().vanished == 51
        assert watcher.status().braked is not None


def test_a_brake_that_could_not_be_written_is_tried_again(fake_pulsar: FakePulsar, crowded: TopicName) -> None:
    with Watcher(fake_pulsar).go(10) as watcher:
        watcher.store.fail_next("create", TemporaryError("ZooKeeper is away"), path=CONTROL, times=3)
        fake_pulsar.trim(crowded, 51, dies_between=True)
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


def test_without_its_brake_no_evidence_is_written_beyond_the_limit(fake_pulsar: FakePulsar, crowded: TopicName) -> None:
    with Watcher(fake_pulsar).go(10) as first:
        first.store.fail_next("create", TemporaryError("ZooKeeper is away"), path=CONTROL, times=1_000)
        fake_pulsar.trim(crowded, 51, dies_between=True)
        first.go(SOON)
        assert kept(fake_pulsar) == []
    fake_pulsar.clock.advance_ms(round(1_000 * LOST))
    with Watcher(fake_pulsar, name="two") as second:
        second.go(SETTLE_SECONDS + SOON)
        assert appended(fake_pulsar) == []


def test_brake_engages_before_evidence_exceeds_the_limit(fake_pulsar: FakePulsar) -> None:
    """A leader that is killed while it writes, and whose successor comes after the brake's window."""
    topic = crowd(fake_pulsar, 200)
    with Watcher(fake_pulsar).go(10) as first:
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
    with Watcher(fake_pulsar).go(10) as first:
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


def test_brake_engages_while_owners_cannot_be_queried(fake_pulsar: FakePulsar, crowded: TopicName) -> None:
    with Watcher(fake_pulsar).go(10) as first:
        fake_pulsar.trim(crowded, 51, dies_between=True)
        first.go(SOON)
    fake_pulsar.store.remove(CONTROL)
    fake_pulsar.clock.advance_ms(round(1_000 * LOST))
    fake_pulsar.owners.hooks.fail_next("views", TemporaryError("no broker answers"), times=1_000)
    with Watcher(fake_pulsar, name="two") as second:
        second.go(SOON)
        assert "51 references" in (second.status().braked or "")


def test_loss_before_resuming_does_not_count_if_proven_later(
    fake_pulsar: FakePulsar,
) -> None:
    topic = crowd(fake_pulsar, 120)
    with Watcher(fake_pulsar).go(10) as watcher:
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
    """The brake was lost with the control node, of which an old copy is back, and one more vanished later."""
    topic = crowd(fake_pulsar, 60)
    with Watcher(fake_pulsar).go(10) as first:
        WatchControlNode(fake_pulsar.store).resume()
        old = fake_pulsar.store.peek(CONTROL)
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


def test_resume_holds_for_the_next_leader(fake_pulsar: FakePulsar, crowded: TopicName) -> None:
    with Watcher(fake_pulsar).go(10) as first:
        fake_pulsar.trim(crowded, 51, dies_between=True)
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
    fake_pulsar: FakePulsar, crowded: TopicName, copy: bytes | None, seconds: float
) -> None:
    with Watcher(fake_pulsar).go(10) as watcher:
        fake_pulsar.trim(crowded, 51, dies_between=True)
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


def test_losses_beyond_the_tracking_limit_count_as_unlinked(
    fake_pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_sidecar.features.ledger_deletion.workflow.leak_tracking._MOST_TRACKED", 60)
    topic = crowd(fake_pulsar, 100)
    with Watcher(fake_pulsar, made(brake_references=5)).go(10) as watcher:
        fake_pulsar.trim(topic, 90, dies_between=True)
        watcher.go(SETTLE_SECONDS + SOON)
        assert len(kept(fake_pulsar)) == 60
        assert (sum((watcher.status().leaks or {}).values()), watcher.status().unlinked) == (60, 30)
        assert watcher.status().braked is not None
        assert appended(fake_pulsar) == []


def test_compacted_ledgers_brake_before_their_evidence_is_written(fake_pulsar: FakePulsar) -> None:
    topics = [
        fake_pulsar.topic(f"persistent://public/default/compacted-{number}", TopicPlan(subscriptions=()))
        for number in range(20)
    ]
    for topic in topics:
        fake_pulsar.compact(topic, closed=True, age_ms=0)
    with Watcher(fake_pulsar, made(brake_references=9)).go(10) as watcher:
        watcher.store.fail_next("create", TemporaryError("ZooKeeper is away"), path=CONTROL, times=1_000)
        for topic in topics:
            fake_pulsar.compact(topic, closed=True, age_ms=0)
        watcher.go(SOON)
        assert len(kept(fake_pulsar)) == 9


def test_ten_times_as_many_are_tracked_as_the_brake_lets_vanish(
    fake_pulsar: FakePulsar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pulsar_sidecar.features.ledger_deletion.workflow.leak_tracking._MOST_TRACKED", 0)
    topic = crowd(fake_pulsar, 100)
    with Watcher(fake_pulsar, made(brake_references=5)).go(10) as watcher:
        fake_pulsar.trim(topic, 90, dies_between=True)
        watcher.go(SOON)
        assert (len(kept(fake_pulsar)), watcher.status().unlinked) == (50, 40)
