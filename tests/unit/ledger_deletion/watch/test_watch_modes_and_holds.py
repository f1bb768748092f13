"""Leaks that the watch withholds by its mode or for an operator, and what it shows of itself, of leaks and failures."""

from collections.abc import Sequence

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import Publisher
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.watch.control import WatchControlNode, find_leader
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause, LeakState, WatchMode, WatchState
from pulsar_sidecar.features.ledger_deletion.workflow import leak_handling
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, TemporaryError
from pulsar_sidecar.model.names import TopicName

from tests.fakes.bookkeeper import managed_ledger_bytes
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.replay_settings import TOPIC
from tests.unit.ledger_deletion.watch.leak_causes import close_cursor, path_of, trim
from tests.unit.ledger_deletion.watch.watching import A_WHILE, SETTLE_SECONDS, SOON, Watcher, appended, kept, made


def test_report_shows_what_leaked_and_appends_nothing(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    with Watcher(fake_pulsar, made(mode=WatchMode.REPORT)).go(10) as watcher:
        gone = trim(fake_pulsar, topic)
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(fake_pulsar) == []
        assert {watcher.state(each) for each in gone} == {LeakState.LEAKED}
        assert watcher.status().leaked == {LeakCause.TRIM: 2}
        assert watcher.status().leaks == {LeakState.LEAKED: 2}
        assert set(kept(fake_pulsar)) == gone
        assert "ledgerDeletionWatch=report" in watcher.detail(next(iter(gone)))


def test_an_operator_has_one_ledger_appended_while_the_watch_only_reports(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    with Watcher(fake_pulsar, made(mode=WatchMode.REPORT)).go(10) as watcher:
        gone = trim(fake_pulsar, topic)
        first = min(gone)
        with pytest.raises(NotFoundError):
            watcher.watch.request_append(first, None)
        watcher.go(60)
        with pytest.raises(ConflictError, match="settling, not leaked"):
            watcher.watch.request_append(first, None)
        watcher.go(SETTLE_SECONDS + A_WHILE)
        control = WatchControlNode(fake_pulsar.store)
        control.hold(str(first))
        watcher.go(SOON)
        with pytest.raises(ConflictError, match="on the hold list"):
            watcher.watch.request_append(first, None)
        control.release_hold(str(first))
        control.brake("maintenance")
        watcher.go(SOON)
        with pytest.raises(ConflictError, match="maintenance"):
            watcher.watch.request_append(first, None)
        control.resume()
        watcher.go(SOON)
        order = watcher.watch.request_append(first, None)
        assert not order.done()
        watcher.go(SOON)
        assert order.result(0).state is LeakState.APPENDED
        assert appended(fake_pulsar) == [first]
        assert {watcher.state(each) for each in gone - {first}} == {LeakState.LEAKED}


def test_order_does_not_append_a_ledger_linked_again(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    with Watcher(fake_pulsar, made(mode=WatchMode.REPORT)).go(10) as watcher:
        before = fake_pulsar.listed(topic)
        first = min(trim(fake_pulsar, topic))
        watcher.go(SETTLE_SECONDS + A_WHILE)
        order = watcher.watch.request_append(first, None)
        fake_pulsar.store.put(path_of(topic), managed_ledger_bytes(before))
        watcher.go(SOON)
        assert appended(fake_pulsar) == []
        with pytest.raises(ConflictError, match="is linked, not leaked"):
            order.result(0)


def test_an_order_that_another_sidecar_does_not_know_was_never_accepted(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    """The operator who gave it is told so, and orders it of the next one."""
    with (
        Watcher(fake_pulsar, made(mode=WatchMode.REPORT)).go(10) as watcher,
        Watcher(fake_pulsar, made(mode=WatchMode.REPORT), "two") as successor,
    ):
        first = min(trim(fake_pulsar, topic))
        watcher.go(SETTLE_SECONDS + A_WHILE)
        order = watcher.watch.request_append(first, None)
        watcher.stop()
        with pytest.raises(TemporaryError, match=f"ledger {first} was not appended .*; retry the request"):
            order.result(0)
        successor.go(SETTLE_SECONDS + A_WHILE)
        assert appended(fake_pulsar) == []
        again = successor.watch.request_append(first, None)
        successor.go(SOON)
        assert again.result(0).state is LeakState.APPENDED
        assert appended(fake_pulsar) == [first]


def test_cancelled_order_appends_nothing(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    with Watcher(fake_pulsar, made(mode=WatchMode.REPORT)).go(10) as watcher:
        first = min(trim(fake_pulsar, topic))
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert watcher.watch.request_append(first, None).cancel()
        watcher.go(SOON)
        assert appended(fake_pulsar) == []


@pytest.mark.parametrize("hold", ["the ledger", "public", "public/default", TOPIC])
def test_held_ledger_is_not_appended_until_released(
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
    control.release_hold(item)
    watcher.go(70)
    assert appended(fake_pulsar) == [first]


def test_a_hold_that_comes_during_the_judgement_is_obeyed(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = leak_handling.send

    def send_and_hold(publisher: Publisher, records: Sequence[PendingDeleteLedgerInfo], key: None) -> object:
        answers = sent(publisher, records, key)
        WatchControlNode(fake_pulsar.store).hold("public")
        return answers

    monkeypatch.setattr(leak_handling, "_JUDGED_AT_ONCE", 1)
    monkeypatch.setattr(leak_handling, "send", send_and_hold)
    trim(fake_pulsar, topic)
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert len(appended(fake_pulsar)) == 1
    assert watcher.status().leaks[LeakState.LEAKED] == 1


def test_leak_that_cannot_be_sent_is_sent_later(
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


# --- status, lag, leaks, an explained ledger, and failures while they last --------------------------------------------


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
