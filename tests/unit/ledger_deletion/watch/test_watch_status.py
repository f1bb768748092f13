"""Display of the watch: status, lag, leaks, an explained ledger, and failures while they last."""

import pytest
from pulsar_sidecar.features.ledger_deletion.watch.control import find_leader
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause, LeakState, WatchMode, WatchState
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.names import TopicName

from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.watch.leak_causes import close_cursor, path_of, trim
from tests.unit.ledger_deletion.watch.watching import SETTLE_SECONDS, SOON, Watcher, appended


def test_the_status_names_what_is_watched(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    status = watcher.status()
    assert (status.mode, status.state, status.detail) == (WatchMode.APPEND, WatchState.WATCHING, None)
    assert status.leader.name == "one"
    assert status.leader == find_leader(watcher.store)
    assert (status.ledgers, status.references) == (len(fake_pulsar.ledgers()), len(fake_pulsar.referenced()))
    assert status.walked_ms is not None
    assert (status.unlinked, status.vanished, status.brake_limit, status.unreadable_nodes) == (0, 0, 9, ())
    assert status.lag_seconds is not None
    assert watcher.watch.leads


def test_changes_that_wait_for_upkeep_are_lag(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    assert (watcher.status().lag_seconds or 0) < 2
    upkeep = watcher.watch._handling.upkeep

    def slow(now_ms: int) -> None:
        watcher.clock.wait_seconds(300)
        upkeep(now_ms)

    watcher.watch._handling.upkeep = slow
    watcher.go(100)
    fake_pulsar.trim(topic, 1)
    assert 90 < (watcher.status().lag_seconds or 0) < 110
    watcher.go(204)
    assert (watcher.status().lag_seconds or 0) > 290


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
