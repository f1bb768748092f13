"""Records made from a shadow's list, by whomever, delete nothing of its source, in BookKeeper or in tiered storage."""

import pytest
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType, OffloadContext
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import managed_ledger_path
from pulsar_sidecar.ownership.references import managed_ledger_references
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.fakes.bookkeeper import managed_ledger_bytes
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.sidecars import Sidecar, check, endings, send

SOURCE = "persistent://public/default/orders"
SHADOW = "persistent://public/default/orders-shadow"


def with_shadow() -> tuple[FakePulsar, TopicName, TopicName]:
    fake_pulsar = FakePulsar()
    source = fake_pulsar.topic(SOURCE, TopicPlan(ledgers=4, offloaded=(0, 1), bookkeeper_deleted=(1,)))
    return fake_pulsar, source, fake_pulsar.shadow(SHADOW, source)


def copies(fake_pulsar: FakePulsar, topic: TopicName) -> dict[LedgerId, OffloadContext]:
    node = fake_pulsar.store.peek(managed_ledger_path(topic.managed_ledger_name))
    listed = managed_ledger_references(node.data).ledgers
    return {ledger_id: entry.offload for ledger_id, entry in listed.items() if entry.offload}


def records(fake_pulsar: FakePulsar, topic: TopicName) -> list[PendingDeleteLedgerInfo]:
    """What a version that knew no shadows recorded."""
    data = LedgerComponent.MANAGED_LEDGER
    return [
        *(PendingDeleteLedgerInfo(topic, data, LedgerType.LEDGER, each) for each in fake_pulsar.listed(topic)),
        *(
            PendingDeleteLedgerInfo(topic, data, LedgerType.OFFLOAD_LEDGER, each, offload_context=context)
            for each, context in copies(fake_pulsar, topic).items()
        ),
    ]


@pytest.mark.parametrize("shadow_is", ["there", "emptied", "gone"])
def test_ledgers_of_the_source_are_kept(shadow_is: str) -> None:
    fake_pulsar, source, shadow = with_shadow()
    before, kept = fake_pulsar.ledgers() & set(fake_pulsar.listed(source)), copies(fake_pulsar, source)
    sent = records(fake_pulsar, shadow)
    path = managed_ledger_path(shadow.managed_ledger_name)
    if shadow_is == "emptied":
        fake_pulsar.store.put(path, managed_ledger_bytes([], properties={SHADOW_SOURCE: SOURCE}))
    elif shadow_is == "gone":
        fake_pulsar.store.remove(f"{path}/of-the-shadow")
        fake_pulsar.store.remove(path)
    send(fake_pulsar, *sent)
    Sidecar(fake_pulsar).work()
    check(fake_pulsar, foreign_ok=True)
    assert before <= fake_pulsar.ledgers()
    assert all(
        fake_pulsar.offloaded.parts(ledger_id, context) == {"data", "index"} for ledger_id, context in kept.items()
    )
    assert {decision for ends in endings(fake_pulsar).values() for decision, _ in ends} == {"kept"}


def test_a_ledger_that_source_and_shadow_list_is_in_use_whichever_the_record_names() -> None:
    fake_pulsar, source, shadow = with_shadow()
    both = LedgerId(fake_pulsar.listed(source)[2])
    for topic in (source, shadow):
        send(fake_pulsar, PendingDeleteLedgerInfo(topic, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, both))
    Sidecar(fake_pulsar).work()
    check(fake_pulsar)
    assert both in fake_pulsar.ledgers()
    reasons = {reason for _, reason in endings(fake_pulsar)[both, "LEDGER"]}
    assert reasons == {"ledger-still-in-use", "metadata-mismatch"}
