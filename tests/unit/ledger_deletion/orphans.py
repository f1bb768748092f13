"""Orphan ledgers of a topic, records about them, and how those ended."""

from dataclasses import replace

from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.record import Mark, PendingDeleteLedgerInfo
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerState, LedgerType
from pulsar_sidecar.model.names import TopicName

from tests.fakes.bookkeeper import data_custom_metadata
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.sidecars import Sidecar, endings, send

NAME = "persistent://public/default/orders"
GONE = ("kept", "already-gone")
DELETED = ("deleted", "unreferenced")
PENDING, RETRY, OUTCOME = DeletionTopic.PENDING, DeletionTopic.RETRY, DeletionTopic.OUTCOME


def orphan(
    fake_pulsar: FakePulsar, topic: TopicName, *, state: LedgerState = LedgerState.CLOSED, age_ms: int = 10**10
) -> LedgerId:
    """A data ledger of the topic that is in no list."""
    return fake_pulsar.ledger(data_custom_metadata(topic.managed_ledger_name), state=state, age_ms=age_ms)


def about(
    topic: TopicName, ledger_id: int, component: LedgerComponent = LedgerComponent.MANAGED_LEDGER, **mark: object
) -> PendingDeleteLedgerInfo:
    return PendingDeleteLedgerInfo(topic, component, LedgerType.LEDGER, LedgerId(ledger_id), mark=Mark(**mark))


def about_copy(
    fake_pulsar: FakePulsar, topic: TopicName, ledger_id: int, *, is_stored: bool = True
) -> PendingDeleteLedgerInfo:
    """A record about a copy in tiered storage that no list names."""
    context = fake_pulsar.context(ledger_id, deleted=False)
    if is_stored:
        fake_pulsar.offloaded.put(LedgerId(ledger_id), context, topic.managed_ledger_name)
    return replace(about(topic, ledger_id), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context)


def recorded_orphan(fake_pulsar: FakePulsar, topic: TopicName, **options: object) -> LedgerId:
    """An orphan with a record that waits."""
    ledger_id = orphan(fake_pulsar, topic, **options)
    send(fake_pulsar, about(topic, ledger_id))
    return ledger_id


def recorded_orphans(fake_pulsar: FakePulsar, topic: TopicName, count: int) -> list[LedgerId]:
    return [recorded_orphan(fake_pulsar, topic) for _ in range(count)]


def work_off(sidecar: Sidecar, *ledger_ids: LedgerId) -> None:
    """Have everything done that is to be done; these ledgers are deleted by that."""
    sidecar.work_and_check()
    assert all(ends(sidecar.fake_pulsar, ledger_id) == [DELETED] for ledger_id in ledger_ids)


def ends(fake_pulsar: FakePulsar, ledger_id: int) -> list[tuple[str, str]]:
    return endings(fake_pulsar).get((ledger_id, "LEDGER"), [])


def waiting(fake_pulsar: FakePulsar) -> int:
    return len(fake_pulsar.topics.waiting(PENDING)) + len(fake_pulsar.topics.waiting(RETRY))
