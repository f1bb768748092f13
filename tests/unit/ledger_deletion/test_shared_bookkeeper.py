"""Two Pulsar clusters on one BookKeeper: ledgers without a reference here may be the other cluster's live data."""

from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.record import (
    SIGNING_KEY,
    PendingDeleteLedgerInfo,
    is_signed,
    parse_record,
    signed,
    signing_key,
)
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import REASON
from pulsar_sidecar.features.ledger_deletion.send import redrive
from pulsar_sidecar.features.ledger_deletion.steps import Steps
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerState
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import ledger_path

from tests.fakes.pulsar import INSTANCE_ID, FakePulsar
from tests.unit.ledger_deletion.cases import offload_record, record
from tests.unit.ledger_deletion.orphans import about, orphan, recorded_orphan
from tests.unit.ledger_deletion.replay_settings import MAY_BE_SHARED
from tests.unit.ledger_deletion.sidecars import POLICY, Crash, CrashAt, Sidecar, dead, endings, processed_entries, send

KEY = b"k" * 32


def unreferenced(fake_pulsar: FakePulsar, topic: TopicName, ledger_id: LedgerId) -> PendingDeleteLedgerInfo:
    """A record as an audit's plan makes it."""
    node = fake_pulsar.store.read(ledger_path(ledger_id))
    return about(topic, ledger_id, unreferenced=True, instance_id=INSTANCE_ID, created_ms=node.created_ms)


# --- evidence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [LedgerState.CLOSED, LedgerState.OPEN])
def test_another_clusters_ledger_stays_and_its_record_is_kept(
    fake_pulsar: FakePulsar, topic: TopicName, state: LedgerState
) -> None:
    """The other cluster has a topic of the same name, as with geo-replication."""
    fake_pulsar.load(topic)
    ledger_id = orphan(fake_pulsar, topic, state=state)
    send(fake_pulsar, about(topic, ledger_id), unreferenced(fake_pulsar, topic, ledger_id))
    Sidecar(fake_pulsar, policy=MAY_BE_SHARED).work()
    assert ledger_id in fake_pulsar.ledgers()
    letters = fake_pulsar.topics.messages(DeletionTopic.DEAD_LETTER)
    assert [parse_record(letter.payload).ledger_id for letter in letters] == [ledger_id, ledger_id]
    assert all("bookkeeperExclusiveToCluster=true" in letter.properties[REASON] for letter in letters)
    assert endings(fake_pulsar)[ledger_id, "LEDGER"] == [("set-aside", "bookkeeper-may-be-shared")] * 2
    assert fake_pulsar.topics.messages(DeletionTopic.RETRY) == []


def test_with_the_setting_a_redriven_record_deletes_its_ledger(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic)
    Sidecar(fake_pulsar, policy=MAY_BE_SHARED).work()
    letters = fake_pulsar.topics.dead_letters()
    redrive(letters, fake_pulsar.topics.publisher(DeletionTopic.PENDING, "redriver"), None, 10, Steps())
    letters.close()
    Sidecar(fake_pulsar, name="sidecar-2", policy=POLICY).work()
    assert ledger_id not in fake_pulsar.ledgers()


def test_an_offloaded_copy_that_only_looks_unreferenced_stays(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    send(fake_pulsar, replace(offload_record(), topic=topic))
    Sidecar(fake_pulsar, policy=MAY_BE_SHARED).work()
    assert [line["decision"] for line in processed_entries(fake_pulsar)] == ["set-aside"]


def test_a_topics_deletion_needs_no_setting_and_leaves_the_other_clusters_topic_of_that_name(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    """test_crash_replay has it for ledgers of every kind."""
    ledger_id = orphan(fake_pulsar, topic)
    sidecar = Sidecar(fake_pulsar, policy=MAY_BE_SHARED)
    sidecar.delete_topic(topic)
    sidecar.work()
    assert fake_pulsar.ledgers() == {ledger_id}
    assert dead(fake_pulsar) == set()


def test_an_operations_id_alone_vouches_for_nothing(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar, policy=MAY_BE_SHARED)
    sidecar.delete_topic(topic)
    true = parse_record(fake_pulsar.topics.messages(DeletionTopic.PENDING)[0].payload)
    sidecar.work()
    ledger_id = orphan(fake_pulsar, topic)
    forged = unreferenced(fake_pulsar, topic, ledger_id)
    send(
        fake_pulsar,
        forged.marked(replace(forged.mark, operation_id=true.mark.operation_id)),
        forged.marked(replace(forged.mark, operation_id=true.mark.operation_id, signature=true.mark.signature)),
        replace(true, ledger_id=ledger_id),
        true.marked(replace(true.mark, created_ms=None)),
    )
    sidecar.work()
    assert ledger_id in fake_pulsar.ledgers()


# --- the signature ---------------------------------------------------------------------------------------------------


def test_a_signature_holds_for_exactly_one_record() -> None:
    mine = signed(record(created_ms=5), KEY)
    assert is_signed(mine, KEY)
    assert not is_signed(mine, b"o" * 32)
    assert not is_signed(mine, None)
    for key in (b"", b"short", KEY + b"k"):
        assert not is_signed(signed(record(created_ms=5), key), key)
    assert not is_signed(record(created_ms=5), KEY)
    for other in (
        replace(mine, ledger_id=LedgerId(8)),
        replace(mine, component=LedgerComponent.MANAGED_CURSOR),
        mine.marked(replace(mine.mark, created_ms=6)),
        mine.marked(replace(mine.mark, instance_id="elsewhere")),
        mine.marked(replace(mine.mark, signature="ä")),
    ):
        assert not is_signed(other, KEY)


def test_a_ledger_that_nothing_distinguishes_from_a_later_one_is_not_signed() -> None:
    assert signed(record(), KEY) == record()
    assert is_signed(signed(offload_record(), KEY), KEY)


def test_the_key_is_made_once_and_used_by_every_sidecar(fake_pulsar: FakePulsar) -> None:
    with pytest.raises(Crash):
        signing_key(fake_pulsar.store, CrashAt(0))
    with pytest.raises(Crash):
        signing_key(fake_pulsar.store, CrashAt(1))
    key = signing_key(fake_pulsar.store, CrashAt(0))
    assert signing_key(fake_pulsar.store.other_session(), Steps()) == key
    assert len(key) == 32


def test_a_node_that_holds_no_key_is_reported(fake_pulsar: FakePulsar) -> None:
    fake_pulsar.store.put(SIGNING_KEY, b"short")
    with pytest.raises(TemporaryError, match=SIGNING_KEY):
        signing_key(fake_pulsar.store, Steps())
