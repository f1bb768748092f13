"""An operator's verbs, killed before and after each of their steps, and asked for again."""

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.record import encode_record, parse_record
from pulsar_sidecar.features.ledger_deletion.send import redrive
from pulsar_sidecar.features.ledger_deletion.steps import Step
from pulsar_sidecar.features.ledger_deletion.undelete import end_protection, protect, protections, undelete
from pulsar_sidecar.model.errors import ConflictError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT

from tests.fakes.clock import FakeClock
from tests.fakes.deletion_topics import FakeDeletionTopics
from tests.unit.ledger_deletion.driving import OP
from tests.unit.ledger_deletion.orphans import about, recorded_orphan
from tests.unit.ledger_deletion.replay_settings import small
from tests.unit.ledger_deletion.sidecars import Crash, CrashAt, Sidecar, endings, restarted, send

LEDGERS = {LedgerId(ledger_id) for ledger_id in (1, 2, 3)}


def buried() -> FakeDeletionTopics:
    topics = FakeDeletionTopics(FakeClock())
    for ledger_id in sorted(LEDGERS):
        record = about(small().topic, ledger_id)
        topics.put(DeletionTopic.DEAD_LETTER, encode_record(record), key=str(record.topic))
    return topics


def redrive_all(topics: FakeDeletionTopics, steps: CrashAt) -> None:
    dead, publisher = topics.dead_letters(), topics.publisher(DeletionTopic.PENDING, "redriver")
    redrive(dead, publisher, None, 10, steps)
    dead.close()
    publisher.close()


@pytest.mark.parametrize("point", range(4))
def test_a_redrive_loses_no_dead_letter(point: int) -> None:
    topics = buried()
    with pytest.raises(Crash):
        redrive_all(topics, CrashAt(point))
    topics.drop_connections()
    steps = CrashAt()
    redrive_all(topics, steps)
    assert topics.waiting(DeletionTopic.DEAD_LETTER) == []
    back = [parse_record(message.payload).ledger_id for message in topics.messages(DeletionTopic.PENDING)]
    assert set(back) == LEDGERS
    # Between storing and acknowledging, a second copy is the price of losing none.
    assert len(back) == (6 if point in (1, 2) else 3)
    redriven = [Step.DEAD_LETTERS_REDRIVEN] * 2 + [Step.DEAD_LETTERS_ACKNOWLEDGED] * 2
    assert steps.seen == (redriven if point < 3 else [])


@pytest.mark.parametrize("point", range(4))
def test_an_undelete_brings_the_ledger_back_once(point: int) -> None:
    setting = small()
    fake_pulsar, topic = setting.fake_pulsar, setting.topic
    ledger_id = recorded_orphan(fake_pulsar, topic)
    Sidecar(fake_pulsar).work()
    assert ledger_id not in fake_pulsar.ledgers()

    def bring_back(steps: CrashAt) -> None:
        undelete(
            fake_pulsar.store,
            fake_pulsar.entries,
            fake_pulsar.topics,
            ledger_id,
            since_ms=0,
            force=True,
            protection_ms=1_000,
            root=DEFAULT_LEDGERS_ROOT,
            steps=steps,
        )

    with pytest.raises(Crash):
        bring_back(CrashAt(point))
    if point < 3:
        assert ledger_id not in fake_pulsar.ledgers()
        steps = CrashAt()
        bring_back(steps)
        assert steps.seen == [Step.LEDGER_PROTECTED] * 2 + [Step.LEDGER_BROUGHT_BACK] * 2
    with pytest.raises(ConflictError, match="exists"):
        bring_back(CrashAt())
    # Wherever it died, restored ledgers are protected.
    send(fake_pulsar, about(topic, ledger_id))
    second = Sidecar(fake_pulsar, name="sidecar-2")
    second.process()
    assert ledger_id in fake_pulsar.ledgers()
    second.work()
    assert ledger_id not in fake_pulsar.ledgers()


@pytest.mark.parametrize("point", range(2))
def test_the_end_of_a_protection_is_asked_for_again(point: int) -> None:
    fake_pulsar = small().fake_pulsar
    protect(fake_pulsar.store, LedgerId(7), fake_pulsar.store.now_ms() + 1_000)

    def end(steps: CrashAt) -> None:
        with steps.taking(Step.PROTECTION_ENDED):
            end_protection(fake_pulsar.store, LedgerId(7))

    with pytest.raises(Crash):
        end(CrashAt(point))
    end(CrashAt())
    assert protections(fake_pulsar.store) == []


@pytest.mark.parametrize("point", range(5))
def test_an_abandoned_deletion_is_abandoned_again_or_continues(point: int) -> None:
    """Killed before its node is gone nothing has ended, and an operator asks again; whatever is left is referenced."""
    setting = small()
    fake_pulsar = setting.fake_pulsar
    before = fake_pulsar.ledgers()
    fake_pulsar.admin.lose_answer_next(applied=False)
    Sidecar(fake_pulsar).delete_topic(setting.topic)
    with pytest.raises(Crash):
        Sidecar(fake_pulsar, steps=CrashAt(point)).deleter.operations.abandon(OP)
    steps = CrashAt()
    requests = len(fake_pulsar.admin.deletions)
    abandoned = restarted(fake_pulsar, steps=steps).deleter.operations.abandon(OP)
    assert (abandoned is None) == (point == 4)
    # No sidecar drives it, so its two nodes cannot be removed together.
    ended = [Step.OPERATION_ENDED, *[Step.OPERATION_RELEASED] * 2, *[Step.OPERATION_ENDED] * 2]
    assert steps.seen == (ended if point < 4 else [])
    Sidecar(fake_pulsar).work_and_check()
    assert fake_pulsar.ledgers() == before
    assert len(fake_pulsar.admin.deletions) == requests
    assert {tuple(ends) for ends in endings(fake_pulsar).values()} == {(("kept", "ledger-still-in-use"),)}


@pytest.mark.parametrize("point", range(4))
def test_a_deletion_continues_where_abandoning_it_was_killed(point: int) -> None:
    setting = small()
    fake_pulsar = setting.fake_pulsar
    fake_pulsar.admin.lose_answer_next(applied=False)
    Sidecar(fake_pulsar).delete_topic(setting.topic)
    with pytest.raises(Crash):
        Sidecar(fake_pulsar, steps=CrashAt(point)).deleter.operations.abandon(OP)
    restarted(fake_pulsar).work_and_check()
    assert fake_pulsar.ledgers() == setting.remaining
