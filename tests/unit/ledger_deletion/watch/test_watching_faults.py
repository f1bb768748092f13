"""The loop while things break: nothing is missed, nothing referenced is appended, and the next leader finishes."""

from collections.abc import Callable, Iterator

import pytest
from pulsar_sidecar.features.ledger_deletion.record import Mark, PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.steps import Step
from pulsar_sidecar.features.ledger_deletion.watch.control import find_leader
from pulsar_sidecar.features.ledger_deletion.watch.leaks import LEAKS
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakState, WatchState
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import cursor_path

from tests.fakes.bookkeeper import cursor_bytes, data_custom_metadata, managed_ledger_bytes
from tests.fakes.metadata import Method
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.replay_settings import MAY_BE_SHARED, TOPIC
from tests.unit.ledger_deletion.sidecars import Crash, Sidecar, processed_entries, send
from tests.unit.ledger_deletion.watch.leak_causes import path_of
from tests.unit.ledger_deletion.watch.watching import (
    A_WHILE,
    MINUTE,
    QUICK,
    SETTLE_SECONDS,
    SOON,
    CrashAround,
    Watcher,
    appended,
    appended_record,
    has_signature,
    kept,
    made,
    run_second_phase,
)

METHODS: tuple[Method, ...] = ("read", "read_many", "children", "create", "now_ms")
PLAN = TopicPlan(ledgers=4, schema_versions=1, age_ms=0)


@pytest.fixture
def topic(fake_pulsar: FakePulsar) -> TopicName:
    return fake_pulsar.topic(TOPIC, PLAN)


@pytest.fixture
def begun(fake_pulsar: FakePulsar, topic: TopicName) -> Iterator[Watcher]:
    """A watch that has not read anything yet."""
    with Watcher(fake_pulsar, policy=MAY_BE_SHARED) as watcher:
        yield watcher


def trim_one(fake_pulsar: FakePulsar, topic: TopicName) -> LedgerId:
    (gone,) = fake_pulsar.trim(topic, 1, dies_between=True)
    return gone


# --- lost changes ----------------------------------------------------------------------------------------------------

MOMENTS: dict[str, float] = {
    "at once": 0.0,
    "before it is read": 0.1,
    "before the brokers had time": 3.0,
    "while it is written down": 5.2,
    "while it settles": 100.0,
    "just before its time": 199.0,
    "afterwards": 210.0,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_changes_that_are_lost_at_any_moment_are_found_by_a_walk(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, moment: str
) -> None:
    gone = trim_one(fake_pulsar, topic)
    watcher.go(MOMENTS[moment])
    watcher.changes.lose_connection()
    later = trim_one(fake_pulsar, topic)
    watcher.go(SETTLE_SECONDS + SOON)
    assert appended(fake_pulsar) == [gone, later]
    assert all(has_signature(fake_pulsar, appended_record(fake_pulsar, each)) for each in (gone, later))
    assert watcher.changes.times_armed == 2
    run_second_phase(fake_pulsar, MAY_BE_SHARED)
    watcher.go(SOON)
    assert kept(fake_pulsar) == []


def test_loss_during_failed_walks_is_found(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    watcher.changes.lose_connection()
    for _ in range(3):
        watcher.whole.fail_next(TemporaryError("ZooKeeper is away"))
    watcher.go(2)
    assert watcher.status().state is WatchState.STARTING
    assert watcher.status().detail == "ZooKeeper is away"
    gone = trim_one(fake_pulsar, topic)
    watcher.go(20)
    assert watcher.status().state is WatchState.WATCHING
    watcher.go(SETTLE_SECONDS + SOON)
    assert appended(fake_pulsar) == [gone]


def test_loss_during_a_store_outage_is_found(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    """The leader is unknown too; earlier reads are compared with later ones."""
    watcher.changes.lose_connection()
    for method in METHODS:
        watcher.store.fail_next(method, TemporaryError("ZooKeeper is away"), times=3)
    for _ in range(3):
        watcher.changes.fail_next_arm(TemporaryError("ZooKeeper is away"))
    watcher.go(2)
    gone = trim_one(fake_pulsar, topic)
    watcher.go(120)
    assert watcher.status().state is WatchState.WATCHING
    assert kept(fake_pulsar) == [gone]
    watcher.go(SETTLE_SECONDS + SOON)
    assert appended(fake_pulsar) == [gone]


def test_a_leader_that_finds_another_one_after_an_outage_stands_by(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    watcher.changes.lose_connection()
    watcher.changes.fail_next_arm(TemporaryError("ZooKeeper is away"))
    watcher.go(1)
    watcher.store.end_session()
    with Watcher(fake_pulsar, name="two").go(10) as other:
        watcher.go(10)
        assert watcher.status().state is WatchState.STANDBY
        assert other.status().state is WatchState.WATCHING


@pytest.mark.parametrize("after", range(18))
@pytest.mark.parametrize("change", ["linked", "dropped", "deleted", "created"])
def test_changes_during_a_walk_are_not_missed(
    fake_pulsar: FakePulsar, topic: TopicName, begun: Watcher, change: str, after: int
) -> None:
    """Node by node, first ledgers and then nodes that may name them; the change comes after this many of them."""
    fresh = fake_pulsar.ledger(data_custom_metadata(topic.managed_ledger_name), age_ms=0)
    first = fake_pulsar.listed(topic)[0]
    pieces = iter(range(1_000))

    def meanwhile() -> None:
        if next(pieces) != after:
            return
        match change:
            case "linked":
                fake_pulsar.store.put(path_of(topic), managed_ledger_bytes([*fake_pulsar.listed(topic), fresh]))
            case "dropped":
                trim_one(fake_pulsar, topic)
            case "deleted":
                fake_pulsar.trim(topic, 1)
            case _:
                newest = fake_pulsar.ledger(data_custom_metadata(topic.managed_ledger_name), age_ms=0)
                fake_pulsar.store.put(path_of(topic), managed_ledger_bytes([*fake_pulsar.listed(topic), newest]))

    begun.whole.pieces_of, begun.whole.between = 1, meanwhile
    begun.go(20)
    assert next(pieces) > after
    status = begun.status()
    assert (status.ledgers, status.references) == (len(fake_pulsar.ledgers()), len(fake_pulsar.referenced()))
    is_named = change in ("linked", "created")
    assert begun.watch.explain(first).named_by == ((path_of(topic),) if is_named else ())
    # A ledger that left its list before the read was never seen in it.
    unreferenced = {"linked": 0, "dropped": 2, "deleted": 1, "created": 1}[change]
    assert (status.unlinked or 0) + len(begun.watch.leaks(ended=False)) == unreferenced


def test_a_walk_pauses_while_a_deletion_waits_for_another_reading(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    with Watcher(fake_pulsar, is_yielding=True) as watcher:
        watcher.go(30)
        assert watcher.status().state is WatchState.STARTING
        watcher.is_yielding = False
        watcher.go(1)
        assert watcher.status().state is WatchState.WATCHING
        assert watcher.status().ledgers == len(fake_pulsar.ledgers())


def test_a_reading_that_never_ends_does_not_stop_the_watch(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    with Watcher(fake_pulsar, is_yielding=True) as watcher:
        # A minute for the ledgers, and one for the nodes.
        watcher.go(2 * MINUTE + SOON)
        assert watcher.status().state is WatchState.WATCHING


def test_a_walk_that_pauses_ends_with_the_sidecar(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    with Watcher(fake_pulsar, is_yielding=True) as watcher:
        watcher.go(1)
        watcher.stop()
        assert watcher.watch.readings().walked_ms is None


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("moment", [0.0, 5.0, 190.0, 199.0])
def test_a_store_that_does_not_answer_for_a_while_is_asked_again(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, method: Method, moment: float
) -> None:
    gone = trim_one(fake_pulsar, topic)
    watcher.go(moment)
    watcher.store.fail_next(method, TemporaryError("ZooKeeper is away"), times=5)
    watcher.go(SETTLE_SECONDS + MINUTE)
    assert appended(fake_pulsar) == [gone]
    run_second_phase(fake_pulsar, MAY_BE_SHARED)
    assert gone not in fake_pulsar.ledgers()


def test_when_everything_is_read_again_although_nothing_was_missed(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    with Watcher(fake_pulsar, made(walk_interval_ms=60_000), policy=MAY_BE_SHARED).go(10) as watcher:
        gone = trim_one(fake_pulsar, topic)
        watcher.go(SETTLE_SECONDS + SOON)
        assert watcher.changes.times_armed >= 4
        assert appended(fake_pulsar) == [gone]
        assert watcher.status().state is WatchState.WATCHING


# --- no events -------------------------------------------------------------------------------------------------------


def unwatchable(watcher: Watcher, fake_pulsar: FakePulsar) -> str:
    watcher.changes.is_watchable = False
    return "no persistent recursive watches"


def deaf(watcher: Watcher, fake_pulsar: FakePulsar) -> str:
    watcher.changes.is_deaf = True
    return "the connection was lost"


def hidden(watcher: Watcher, fake_pulsar: FakePulsar) -> str:
    secret = "/managed-ledgers/public/default/persistent/secret"
    fake_pulsar.store.put(secret, managed_ledger_bytes([]))
    watcher.whole.forbidden.add(secret)
    watcher.changes.forbidden.add(secret)
    return f"the sidecar may not read {secret}, so ZooKeeper may withhold changes"


@pytest.mark.parametrize("why", [unwatchable, deaf])
def test_without_events_it_walks_in_turns_and_reports_it(
    fake_pulsar: FakePulsar, topic: TopicName, begun: Watcher, why: Callable[[Watcher, FakePulsar], str]
) -> None:
    reason = why(begun, fake_pulsar)
    begun.go(10)
    assert begun.status().state is WatchState.WALKING
    assert reason in (begun.status().detail or "")
    assert begun.watch.leads
    gone = trim_one(fake_pulsar, topic)
    begun.go(MINUTE + SOON)
    assert kept(fake_pulsar) == [gone]
    begun.go(SETTLE_SECONDS - MINUTE - 2 * SOON)
    assert appended(fake_pulsar) == []
    begun.go(MINUTE + 2 * SOON)
    assert appended(fake_pulsar) == [gone]


def test_forbidden_node_causes_walks_and_prevents_appending(
    fake_pulsar: FakePulsar, topic: TopicName, begun: Watcher
) -> None:
    reason = hidden(begun, fake_pulsar)
    begun.go(10)
    assert (begun.status().state, begun.status().detail) == (WatchState.WALKING, reason)
    gone = trim_one(fake_pulsar, topic)
    begun.go(SETTLE_SECONDS + A_WHILE)
    assert appended(fake_pulsar) == []
    assert "was not read, and may reference it" in begun.detail(gone)
    begun.whole.forbidden.clear()
    begun.changes.forbidden.clear()
    begun.go(2 * MINUTE + SOON)
    assert appended(fake_pulsar) == [gone]
    assert (begun.status().state, begun.status().detail) == (WatchState.WATCHING, None)


def test_a_server_that_learns_to_watch_is_watched(fake_pulsar: FakePulsar, topic: TopicName, begun: Watcher) -> None:
    unwatchable(begun, fake_pulsar)
    begun.go(10)
    begun.changes.is_watchable = True
    begun.go(MINUTE)
    assert begun.status().state is WatchState.WATCHING


def test_a_watch_that_falls_deaf_is_found_out_by_its_echo(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    watcher.changes.is_deaf = True
    gone = trim_one(fake_pulsar, topic)
    watcher.go(40)
    assert watcher.status().state is WatchState.WALKING
    watcher.go(SETTLE_SECONDS + SOON)
    assert appended(fake_pulsar) == [gone]


# --- leaders ---------------------------------------------------------------------------------------------------------


def test_one_sidecar_watches_and_the_other_stands_by(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    with Watcher(fake_pulsar, name="two").go(10) as other:
        assert other.status().state is WatchState.STANDBY
        assert not other.watch.leads
        assert other.status().leader == find_leader(watcher.store)
        assert other.changes.times_armed == 0
        watcher.stop()
        assert watcher.died_of is None
        other.go(5)
        assert other.status().state is WatchState.WATCHING


@pytest.mark.parametrize("after", [SOON, 100.0, SETTLE_SECONDS + 60])
def test_when_the_leader_dies_the_other_takes_over_with_what_was_written_down(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, after: float
) -> None:
    began_ms = fake_pulsar.clock.now_ms()
    gone = trim_one(fake_pulsar, topic)
    with Watcher(fake_pulsar, name="two", policy=MAY_BE_SHARED) as other:
        other.go(1)
        watcher.go(SOON)
        watcher.die()
        fake_pulsar.clock.advance_ms(round(1000 * (after - SOON)))
        other.go(3)
        if after < SETTLE_SECONDS:
            assert appended(fake_pulsar) == []
            other.go(SETTLE_SECONDS - after)
        record = appended_record(fake_pulsar, gone)
        assert has_signature(fake_pulsar, record)
        assert record.mark.dereferenced_ms - began_ms <= 1_000
        run_second_phase(fake_pulsar, MAY_BE_SHARED)
        assert gone not in fake_pulsar.ledgers()
        other.go(SOON)
        assert other.state(gone) is LeakState.DELETED
    assert kept(fake_pulsar) == []


def test_a_new_leader_shows_what_was_written_down_before_it_looks_at_the_first_one(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = trim_one(fake_pulsar, topic)
    watcher.go(SOON)
    watcher.die()
    with Watcher(fake_pulsar, name="two") as other:
        monkeypatch.setattr(other.watch._handling, "upkeep", lambda now_ms: None)
        other.go(5)
        assert other.status().state is WatchState.WATCHING
        assert other.state(gone) is LeakState.SETTLING


def test_ledger_linked_again_without_a_leader_is_forgotten(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    before = fake_pulsar.listed(topic)
    gone = trim_one(fake_pulsar, topic)
    watcher.go(SOON)
    watcher.die()
    fake_pulsar.store.put(path_of(topic), managed_ledger_bytes(before))
    with Watcher(fake_pulsar, name="two") as other:
        other.go(SETTLE_SECONDS + SOON)
        assert (appended(fake_pulsar), kept(fake_pulsar)) == ([], [])
        assert other.state(gone) is LeakState.LINKED


def test_ledger_appended_by_an_earlier_leader_is_not_repeated(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    gone = trim_one(fake_pulsar, topic)
    watcher.go(SETTLE_SECONDS + SOON)
    watcher.die()
    with Watcher(fake_pulsar, name="two") as other:
        other.go(SETTLE_SECONDS + A_WHILE)
        assert appended(fake_pulsar) == [gone]
        assert other.state(gone) is LeakState.APPENDED


def test_forged_evidence_counts_for_nothing(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    gone = trim_one(fake_pulsar, topic)
    watcher.go(SOON)
    watcher.die()
    node = fake_pulsar.store.peek(f"{LEAKS}/{gone}")
    stray = fake_pulsar.ledger(data_custom_metadata(topic.managed_ledger_name))
    fake_pulsar.store.put(f"{LEAKS}/{stray}", node.data.replace(str(gone).encode(), str(stray).encode()))
    with Watcher(fake_pulsar, name="two", policy=MAY_BE_SHARED) as other:
        other.go(SETTLE_SECONDS + MINUTE)
        assert appended(fake_pulsar) == [gone]
        assert other.status().unlinked == 1


@pytest.mark.parametrize("signature", [None, "0" * 64])
def test_a_forged_record_makes_no_young_ledger_old(
    fake_pulsar: FakePulsar, topic: TopicName, signature: str | None
) -> None:
    """A client that may produce to ``pulsar/system`` can write any time into a record."""
    (name,) = fake_pulsar.cursors(topic)
    own = next(iter(fake_pulsar.cursors(topic).values())).cursor_ledger
    fake_pulsar.store.put(cursor_path(topic.managed_ledger_name, name), cursor_bytes(None))
    mark = Mark(unreferenced=True, dereferenced_ms=1, signature=signature)
    send(
        fake_pulsar,
        PendingDeleteLedgerInfo(
            topic, LedgerComponent.MANAGED_CURSOR, LedgerType.LEDGER, own, cursor_name="sub", mark=mark
        ),
    )
    Sidecar(fake_pulsar, name="second-phase").process()
    assert own in fake_pulsar.ledgers()
    assert [entry["reason"] for entry in processed_entries(fake_pulsar)] == ["too-young"]


def test_a_leader_that_lost_its_session_stands_by(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    gone = trim_one(fake_pulsar, topic)
    watcher.go(SOON)
    watcher.store.end_session()
    with Watcher(fake_pulsar, name="two", policy=MAY_BE_SHARED).go(10) as other:
        watcher.go(5)
        assert watcher.status().state is WatchState.STANDBY
        assert watcher.watch.leaks(ended=True) == []
        other.go(SETTLE_SECONDS)
        assert appended(fake_pulsar) == [gone]


# --- crashes ---------------------------------------------------------------------------------------------------------


CRASHES = [
    (Step.SIGNING_KEY_CREATED, 1),
    (Step.LEAK_KEPT, 1),
    (Step.LEAK_KEPT, 2),
    (Step.LEAK_KEPT, 3),
    (Step.LEAK_KEPT, 4),
    (Step.LEAKS_APPENDED, 1),
    (Step.LEAK_FORGOTTEN, 1),
    (Step.LEAK_FORGOTTEN, 2),
]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("step", "occurrence"), CRASHES)
def test_a_crash_around_any_step_loses_nothing_that_was_written_down(
    fake_pulsar: FakePulsar, topic: TopicName, step: Step, occurrence: int, before: bool
) -> None:
    """Two leak: each is kept, both are appended, each is kept as appended, each is forgotten."""
    with Watcher(
        fake_pulsar, steps=CrashAround(step, before=before, occurrence=occurrence), policy=MAY_BE_SHARED
    ) as first:
        first.go(10)
        gone = fake_pulsar.trim(topic, 2, dies_between=True)
        first.go(SETTLE_SECONDS + SOON)
        run_second_phase(fake_pulsar, MAY_BE_SHARED)
        first.go(SOON)
        assert isinstance(first.died_of, Crash)
    written = set(kept(fake_pulsar)) | set(appended(fake_pulsar))
    with Watcher(fake_pulsar, name="two", policy=MAY_BE_SHARED) as second:
        second.go(SETTLE_SECONDS + SOON)
        assert written <= set(appended(fake_pulsar)) <= set(gone)
        run_second_phase(fake_pulsar, MAY_BE_SHARED)
        second.go(SOON)
        assert kept(fake_pulsar) == []
    assert not written & fake_pulsar.ledgers()
    assert fake_pulsar.violations == []
    # What was not written down yet is one that was never seen referenced: an operator's word decides.
    with Watcher(fake_pulsar, QUICK, name="three") as third:
        third.go(13 * MINUTE)
    assert set(appended(fake_pulsar)) == set(gone)
    run_second_phase(fake_pulsar)
    assert not set(gone) & fake_pulsar.ledgers()


def test_a_cursor_that_a_crashed_leader_saw_vanish_is_reported_with_its_node(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    (name,) = fake_pulsar.cursors(topic)
    path = cursor_path(topic.managed_ledger_name, name)
    fake_pulsar.store.remove(path)
    watcher.go(SOON)
    watcher.die()
    with Watcher(fake_pulsar, name="two", policy=MAY_BE_SHARED).go(10) as other:
        (leak,) = other.watch.leaks(ended=False)
        assert (leak.path, leak.state, leak.topic) == (path, LeakState.SETTLING, str(topic))
        assert leak.detail == "an earlier watch saw its last reference vanish"
