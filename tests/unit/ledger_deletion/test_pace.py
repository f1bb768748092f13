"""Validity of facts, and rate of deletions."""

import threading
from collections.abc import Collection, Mapping

import pytest
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import TopicInternalStats
from pulsar_sidecar.ownership.paths import ledger_path

from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.cases import view
from tests.unit.ledger_deletion.orphans import (
    DELETED,
    NAME,
    about,
    about_copy,
    ends,
    orphan,
    recorded_orphan,
    recorded_orphans,
    work_off,
)
from tests.unit.ledger_deletion.sidecars import Sidecar, endings, judged, restarted, send


@pytest.mark.parametrize("rate", [None, 1_000.0, 100.0, 7.5])
def test_a_batch_gathers_once_whatever_the_rate(fake_pulsar: FakePulsar, topic: TopicName, rate: float | None) -> None:
    orphans = [orphan(fake_pulsar, topic) for _ in range(70)]
    send(fake_pulsar, *(about(topic, ledger_id) for ledger_id in [*orphans, *range(90_000, 90_030)]))
    fake_pulsar.topics.max_messages = 100
    began_ms = fake_pulsar.clock.now_ms()
    Sidecar(fake_pulsar, rate_per_second=rate).process()
    assert all(ends(fake_pulsar, ledger_id) == [DELETED] for ledger_id in orphans)
    assert fake_pulsar.owners.hooks.journal.count("views") == 1
    assert len(judged(fake_pulsar)) == 70
    # Records that end without a deletion are not paced: 70 deletions, not 100.
    assert fake_pulsar.clock.now_ms() - began_ms <= 70_000 / (rate or 1e9)


def test_facts_are_gathered_again_when_they_are_too_old_to_act_on(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    orphans = recorded_orphans(fake_pulsar, topic, 6)
    reading = view(ledgers=frozenset({orphans[4]}))

    def take_long() -> None:
        fake_pulsar.clock.advance_ms(10_001)
        # A broker begins to use it in its memory, which changes no version.
        fake_pulsar.owners.views = lambda topics: {topic: reading}

    fake_pulsar.store.before("delete_many", take_long, path=ledger_path(orphans[2]))
    Sidecar(fake_pulsar).process()
    # The third had been sent when its facts became old; the next ones were judged again.
    deleted = [ledger_id for ledger_id in orphans if ends(fake_pulsar, ledger_id) == [DELETED]]
    assert deleted == [*orphans[:4], orphans[5]]
    assert orphans[4] in fake_pulsar.ledgers()


@pytest.mark.parametrize("rate", [0.04, 0.3, 1.0, 1.9, 30.0])
def test_facts_are_never_older_than_ten_seconds_at_any_rate(
    fake_pulsar: FakePulsar, topic: TopicName, rate: float
) -> None:
    orphans = recorded_orphans(fake_pulsar, topic, 40)
    gathered: list[float] = []
    ages: list[float] = []
    fake_pulsar.store.before("now_ms", lambda: gathered.append(fake_pulsar.clock.monotonic_seconds()), times=-1)
    fake_pulsar.store.before(
        "delete_many", lambda: ages.append(fake_pulsar.clock.monotonic_seconds() - gathered[-1]), times=-1
    )
    Sidecar(fake_pulsar, rate_per_second=rate).process()
    assert all(ends(fake_pulsar, ledger_id) == [DELETED] for ledger_id in orphans)
    assert max(ages) <= 10
    # Once for the rate's ledgers of ten seconds, and not more often.
    assert len(gathered) <= -(-40 // max(1, int(rate * 10)))
    assert len(judged(fake_pulsar)) == 40


def test_facts_that_take_too_long_to_gather_are_gathered_for_fewer(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    others = [fake_pulsar.topic(f"{NAME}-{number}") for number in range(8)]
    send(fake_pulsar, *(about(each, orphan(fake_pulsar, each)) for each in others))
    answer = fake_pulsar.owners.views

    def slowly(topics: Collection[TopicName]) -> Mapping[TopicName, TopicInternalStats]:
        fake_pulsar.clock.advance_ms(3_000 * len(topics))
        return answer(topics)

    fake_pulsar.owners.views = slowly
    assert Sidecar(fake_pulsar).process().deleted == 8


def test_facts_that_always_take_too_long_postpone_the_batch(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    orphans = recorded_orphans(fake_pulsar, topic, 5)
    fake_pulsar.store.before("now_ms", lambda: fake_pulsar.clock.advance_ms(11_000), times=6)
    sidecar = Sidecar(fake_pulsar)
    report = sidecar.process()
    assert (report.deleted, report.postponed) == (0, 5)
    assert sidecar.warnings == ["postponed 5 records: their facts were too old before the first one's turn"]
    work_off(sidecar, *orphans)


def test_an_offloaded_copy_is_not_deleted_on_old_facts_either(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = orphan(fake_pulsar, topic)
    send(fake_pulsar, about(topic, ledger_id), about_copy(fake_pulsar, topic, 77))
    fake_pulsar.store.before("delete_many", lambda: fake_pulsar.clock.advance_ms(10_001), path=ledger_path(ledger_id))
    Sidecar(fake_pulsar).process()
    assert endings(fake_pulsar)[77, "OFFLOAD_LEDGER"] == [DELETED]
    assert fake_pulsar.owners.hooks.journal.count("views") == 2


def test_unstarted_deletions_are_redelivered_after_a_stop(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    orphans = recorded_orphans(fake_pulsar, topic, 10)
    stop = threading.Event()
    sidecar = Sidecar(fake_pulsar, stop=stop)
    fake_pulsar.store.before("delete_many", stop.set, path=ledger_path(orphans[3]))
    report = sidecar.process()
    assert (report.deleted, report.postponed) == (4, 0)
    work_off(restarted(fake_pulsar), *orphans)


@pytest.mark.parametrize("rate", [None, 2.0])
def test_unstarted_deletions_are_postponed_while_paused(
    fake_pulsar: FakePulsar, topic: TopicName, rate: float | None
) -> None:
    orphans = recorded_orphans(fake_pulsar, topic, 10)
    sidecar = Sidecar(fake_pulsar, rate_per_second=rate)
    fake_pulsar.store.before("delete_many", lambda: setattr(sidecar, "paused", True), path=ledger_path(orphans[3]))
    report = sidecar.process()
    assert (report.deleted, report.postponed) == (4, 6)
    assert sidecar.warnings == ["postponed 6 records: deletion is paused"]
    sidecar.paused = False
    work_off(sidecar, *orphans)


def test_a_batch_that_comes_when_deletion_is_paused_is_postponed(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    recorded_orphan(fake_pulsar, topic)
    sidecar = Sidecar(fake_pulsar)
    sidecar.paused = True
    report = sidecar.process()
    assert (report.deleted, report.postponed) == (0, 1)


def test_the_rate_is_not_spent_on_facts_that_are_too_old(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    orphans = recorded_orphans(fake_pulsar, topic, 10)
    fake_pulsar.store.before("delete_many", lambda: fake_pulsar.clock.advance_ms(10_001), path=ledger_path(orphans[0]))
    Sidecar(fake_pulsar, rate_per_second=1.0).process()
    assert all(ends(fake_pulsar, ledger_id) == [DELETED] for ledger_id in orphans)
    assert fake_pulsar.clock.monotonic_seconds() <= 20
