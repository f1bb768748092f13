"""Responses of each sidecar about the watch: the one that watches, one on standby, and one where it is off."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from pulsar_sidecar.features.ledger_deletion.results import Redirect, SidecarInstance
from pulsar_sidecar.features.ledger_deletion.watch.results import (
    LeakCause,
    LeakState,
    ListedLeaks,
    WatchMode,
    WatchState,
)
from pulsar_sidecar.features.ledger_deletion.workflow.configuration import WatchConfiguration
from pulsar_sidecar.features.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.features.ledger_deletion.workflow.watch_calls import WatchCalls
from pulsar_sidecar.features.ledger_deletion.workflow.watching import LeakWatch
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import DisabledError, NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import ledger_path, replication_lock_path

from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.orphans import orphan
from tests.unit.ledger_deletion.test_serving import service_of

OFF = WatchConfiguration(WatchMode.OFF)
REPORT = WatchConfiguration(WatchMode.REPORT, unlinked_min_age_ms=0, unlinked_window_ms=0)
OTHER = SidecarInstance("sidecar-2", "http://b", None, 0)


@dataclass(frozen=True)
class StopAfter:
    """A stop signal that is set once so much time has passed."""

    clock: Clock
    seconds: float

    def is_set(self) -> bool:
        return self.clock.monotonic_seconds() >= self.seconds

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def watch_of(service: LedgerDeletion) -> LeakWatch:
    watch = service._runtime.leak_watch
    assert watch is not None
    return watch


def led(fake_pulsar: FakePulsar, service: LedgerDeletion, seconds: float = 10) -> LedgerDeletion:
    """The service once its watch has led for a while."""
    watch = watch_of(service)
    assert watch._leadership.take()
    watch._lead(StopAfter(fake_pulsar.clock, fake_pulsar.clock.monotonic_seconds() + seconds))
    return service


def follow(fake_pulsar: FakePulsar, service: LedgerDeletion) -> None:
    """The watch continues for longer than it leaves a kept ledger alone."""
    watch_of(service)._follow(
        StopAfter(fake_pulsar.clock, fake_pulsar.clock.monotonic_seconds() + 300), has_events=True
    )


def listed(watch: WatchCalls, **asked: object) -> ListedLeaks:
    every: dict[str, object] = {"state": None, "cause": None, "ended": False, "limit": 100}
    found = watch.leaks(**every | asked)
    assert isinstance(found, ListedLeaks)
    return found


ASKED: list[Callable[[WatchCalls], object]] = [listed, lambda watch: watch.explain(LedgerId(7))]


def test_the_sidecar_that_watches_lists_and_explains(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id, other = orphan(fake_pulsar, topic), orphan(fake_pulsar, topic)
    watch = led(fake_pulsar, service_of(fake_pulsar, watch=REPORT)).watch
    status = watch.status()
    assert (status.mode, status.state, status.leader) == (
        WatchMode.REPORT,
        WatchState.WATCHING,
        watch._runtime.instance,
    )
    assert (status.ledgers, status.leaks) == (len(fake_pulsar.ledgers()), {LeakState.LEAKED: 2})
    found = listed(watch)
    assert [(leak.ledger_id, leak.state, leak.cause) for leak in found.leaks] == [
        (each, LeakState.LEAKED, LeakCause.NEVER_LINKED) for each in (ledger_id, other)
    ]
    assert (found.total, found.by_cause) == (2, {"never-linked": 2})
    first = listed(watch, limit=1)
    assert ([leak.ledger_id for leak in first.leaks], first.total) == ([ledger_id], 2)
    for asked in ({"state": LeakState.KEPT}, {"cause": LeakCause.TRIM}, {"state": LeakState.DELETED}):
        assert listed(watch, **asked) == ListedLeaks(0, {}, (), ())
    explained = watch.explain(ledger_id)
    assert not isinstance(explained, Redirect)
    assert (explained.exists, explained.named_by, explained.leak) == (True, (), found.leaks[0])


def test_ended_leaks_are_listed_on_request(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = orphan(fake_pulsar, topic)
    service = service_of(fake_pulsar, watch=REPORT)
    led(fake_pulsar, service)
    fake_pulsar.store.remove(ledger_path(ledger_id))
    follow(fake_pulsar, service)
    assert listed(service.watch).total == 0
    for asked in ({"ended": True}, {"state": LeakState.DELETED}):
        assert [leak.ledger_id for leak in listed(service.watch, **asked).leaks] == [ledger_id]


def test_a_leak_is_counted_once_although_it_is_kept_for_a_while(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    lock = replication_lock_path(orphan(fake_pulsar, topic))
    service = led(fake_pulsar, service_of(fake_pulsar, watch=REPORT))
    for change, state in ((fake_pulsar.store.put, LeakState.KEPT), (fake_pulsar.store.remove, LeakState.LEAKED)):
        change(lock)
        follow(fake_pulsar, service)
        status = service.watch.status()
        assert (status.leaks, status.leaked) == ({state: 1}, {LeakCause.NEVER_LINKED: 1})


@pytest.mark.parametrize("ask", ASKED)
def test_a_sidecar_on_standby_redirects_to_the_one_that_watches(
    fake_pulsar: FakePulsar, ask: Callable[[WatchCalls], object]
) -> None:
    led(fake_pulsar, service_of(fake_pulsar, watch=REPORT, instance=OTHER))
    service = service_of(fake_pulsar, fake_pulsar.store.other_session(), watch=REPORT)
    assert not watch_of(service)._leadership.take()
    answers = [service.watch.leaks(state=None, cause=None, ended=False, limit=1), service.watch.explain(LedgerId(7))]
    assert answers == [Redirect(OTHER.advertised_url)] * 2
    status = service.watch.status()
    assert (status.state, status.leader, status.ledgers, status.leaks) == (WatchState.STANDBY, OTHER, None, None)


@pytest.mark.parametrize("ran_before", [False, True])
def test_without_a_watching_sidecar_calls_are_not_redirected_to_an_earlier_run(
    fake_pulsar: FakePulsar, ran_before: bool
) -> None:
    if ran_before:
        earlier = SidecarInstance("sidecar-1", "http://a", None, -1)
        led(fake_pulsar, service_of(fake_pulsar, watch=REPORT, instance=earlier))
    service = service_of(fake_pulsar, fake_pulsar.store.other_session(), watch=REPORT)
    for ask in ASKED:
        with pytest.raises(TemporaryError, match="no sidecar is watching yet"):
            ask(service.watch)


def test_before_the_first_whole_reading_nothing_is_listed(fake_pulsar: FakePulsar) -> None:
    service = service_of(fake_pulsar, watch=REPORT)
    watch = watch_of(service)
    watch._leadership.take()
    watch._state, watch._detail = WatchState.STARTING, "the sidecar is reading the whole metadata store"
    for ask in ASKED:
        with pytest.raises(TemporaryError, match="still reading"):
            ask(service.watch)
    status = service.watch.status()
    assert (status.detail, status.ledgers, status.appended) == (
        "the sidecar is reading the whole metadata store",
        None,
        None,
    )


@pytest.mark.parametrize(
    ("enabled", "configuration", "setting"),
    [
        (True, None, "ledgerDeletionWatch"),
        (True, OFF, "ledgerDeletionWatch"),
        (False, REPORT, "topicTwoPhaseDeletionEnabled"),
    ],
)
def test_disabled_watch_hides_only_the_leaks(
    fake_pulsar: FakePulsar, enabled: bool, configuration: WatchConfiguration | None, setting: str
) -> None:
    service = service_of(fake_pulsar, enabled=enabled, watch=configuration)
    for ask in ASKED:
        with pytest.raises(DisabledError, match=setting):
            ask(service.watch)
    service.watch.hold("public/default")
    service.watch._control_node.brake("too many")
    status = service.watch.status()
    assert (status.mode, status.state, status.leader) == (WatchMode.OFF, WatchState.OFF, None)
    assert (status.braked, status.holds) == ("too many", ("public/default",))
    readings = service._gauges().watch
    assert (None if readings is None else readings.state) == (WatchState.OFF if enabled else None)


def test_brake_and_holds_are_shared_by_all_sidecars(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    orphan(fake_pulsar, topic)
    leader = led(fake_pulsar, service_of(fake_pulsar, watch=REPORT, instance=OTHER))
    other = service_of(fake_pulsar, fake_pulsar.store.other_session(), watch=REPORT)
    leader.watch._control_node.brake("too many")
    other.watch.hold(str(topic))
    assert (leader.watch.status().braked, leader.watch.control().holds) == ("too many", (str(topic),))
    assert other.watch.resume().braked is None
    assert leader.watch.status().braked is None
    assert other.watch.release_hold(str(topic)).holds == ()
    with pytest.raises(NotFoundError, match="is not on the hold list"):
        other.watch.release_hold(str(topic))


def test_a_scrape_asks_the_metadata_store_for_nothing(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    orphan(fake_pulsar, topic)
    service = led(fake_pulsar, service_of(fake_pulsar, watch=REPORT))
    fake_pulsar.store.fail_next("read", TemporaryError("asked"), times=1)
    readings = service._gauges().watch
    assert (readings.state, readings.leaks, readings.braked) == (WatchState.WATCHING, {LeakState.LEAKED: 1}, None)
    with pytest.raises(TemporaryError, match="asked"):
        service.watch.status()
