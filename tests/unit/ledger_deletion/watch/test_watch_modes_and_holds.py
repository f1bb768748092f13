"""Leaks that the watch withholds by its mode or for an operator."""

from collections.abc import Sequence

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import Publisher
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.watch.control import WatchControlNode
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause, LeakState, WatchMode
from pulsar_sidecar.features.ledger_deletion.workflow import leak_handling
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, TemporaryError
from pulsar_sidecar.model.names import TopicName

from tests.fakes.bookkeeper import managed_ledger_bytes
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.replay_settings import TOPIC
from tests.unit.ledger_deletion.watch.leak_causes import path_of, trim
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
