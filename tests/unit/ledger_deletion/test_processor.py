"""One batch after another: nothing is acknowledged before its end is durable, and no message holds up another."""

from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import OutcomeReason
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import MAX_EARLY_MS, REASON, RECONSUMETIMES, RetryPolicy
from pulsar_sidecar.model.errors import BrokerRefusedError, DisabledError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerState
from pulsar_sidecar.model.names import CursorName, TopicName
from pulsar_sidecar.ownership.paths import managed_ledger_path, replication_lock_path

from tests.fakes.bookkeeper import bucket_custom_metadata, data_custom_metadata, schema_custom_metadata
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.orphans import (
    DELETED,
    GONE,
    NAME,
    PENDING,
    RETRY,
    about,
    about_copy,
    ends,
    orphan,
    recorded_orphan,
    waiting,
    work_off,
)
from tests.unit.ledger_deletion.sidecars import Sidecar, dead, endings, judged, processed_entries, send

# --- poison ------------------------------------------------------------------------------------------------------


def test_a_malformed_message_ends_with_its_reason_and_alone(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic)
    fake_pulsar.topics.put(PENDING, b"\xff\x00 no record")
    fake_pulsar.topics.put(PENDING, b'{"ledgerId":7}')
    Sidecar(fake_pulsar).process()
    rejected = [line for line in processed_entries(fake_pulsar) if line["decision"] == "rejected"]
    assert [line["reason"] for line in rejected] == ["malformed", "malformed"]
    assert ends(fake_pulsar, ledger_id) == [DELETED]
    assert waiting(fake_pulsar) == 0


def test_a_ledger_that_claims_an_impossible_owner_holds_up_no_other(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    key = "#pulsar.internal.delayed.bucket_1_2"
    poison = fake_pulsar.ledger(bucket_custom_metadata(NAME, "..", key), age_ms=10**10)
    ids = [orphan(fake_pulsar, topic) for _ in range(6)]
    bad = about(topic, poison, LedgerComponent.DELAYED_INDEX_BUCKET)
    send(fake_pulsar, about(topic, ids[0]), bad, *(about(topic, ledger_id) for ledger_id in ids[1:]))
    sidecar = Sidecar(fake_pulsar)
    sidecar.process()
    assert all(ends(fake_pulsar, ledger_id) == [DELETED] for ledger_id in ids)
    sidecar.work()
    assert dead(fake_pulsar) == {(poison, "LEDGER")}
    assert poison in fake_pulsar.ledgers()


def test_ten_retries_and_then_the_dead_letter_topic(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic)
    fake_pulsar.store.put(replication_lock_path(ledger_id), b"")
    sidecar = Sidecar(fake_pulsar)
    sidecar.work_and_check()
    (letter,) = fake_pulsar.topics.messages(DeletionTopic.DEAD_LETTER)
    assert letter.properties[RECONSUMETIMES] == "11"
    assert len(fake_pulsar.topics.messages(RETRY)) == 10
    assert [line["decision"] for line in processed_entries(fake_pulsar)] == [*["retry"] * 10, "dead-letter"]
    assert ledger_id in fake_pulsar.ledgers()


# --- retry or postpone -------------------------------------------------------------------------------------------


def test_too_young_waits_long_enough_for_early_delivery(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar
) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic, state=LedgerState.OPEN, age_ms=1_000)
    sidecar.process()
    (message,) = fake_pulsar.topics.waiting(RETRY)
    assert message.deliver_at_ms == fake_pulsar.clock.now_ms() + 3_599_000 + MAX_EARLY_MS
    work_off(sidecar, ledger_id)
    assert len(fake_pulsar.topics.messages(RETRY)) == 1


def test_while_its_operation_runs_a_record_waits_without_counting(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.admin.lose_answer_next(applied=False, times=1_000)
    sidecar = Sidecar(fake_pulsar)
    assert sidecar.delete_topic(topic) is OperationState.RUNNING
    for _ in range(50):
        sidecar.process()
        fake_pulsar.clock.advance_ms(60_000)
    assert fake_pulsar.topics.messages(RETRY) == []
    assert processed_entries(fake_pulsar) == []
    fake_pulsar.admin.hooks.forget()
    sidecar.work_and_check()
    assert fake_pulsar.ledgers() == set()


@pytest.mark.parametrize("call", ["read_many", "now_ms", "views"])
def test_facts_that_cannot_be_gathered_postpone_the_batch(fake_pulsar: FakePulsar, topic: TopicName, call: str) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic)
    failing = fake_pulsar.owners.hooks if call == "views" else fake_pulsar.store
    failing.fail_next(call, TemporaryError("no answer"))
    sidecar = Sidecar(fake_pulsar)
    assert sidecar.process().postponed == 1
    assert processed_entries(fake_pulsar) == []
    assert waiting(fake_pulsar) == 1
    assert ledger_id in fake_pulsar.ledgers()
    work_off(sidecar, ledger_id)
    assert fake_pulsar.topics.messages(RETRY) == []


def test_a_plain_record_that_is_seen_too_early_is_not_lost(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = fake_pulsar.listed(topic)[0]
    send(fake_pulsar, about(topic, ledger_id))
    sidecar = Sidecar(fake_pulsar)
    sidecar.process()
    assert waiting(fake_pulsar) == 1
    fake_pulsar.trim(topic, 1, dies_between=True)
    work_off(sidecar, ledger_id)


def test_a_plain_record_of_a_living_ledger_ends_after_one_more_look(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = fake_pulsar.listed(topic)[0]
    send(fake_pulsar, about(topic, ledger_id))
    sidecar = Sidecar(fake_pulsar)
    sidecar.work_and_check()
    assert ends(fake_pulsar, ledger_id) == [("kept", "ledger-still-in-use")]
    assert len(fake_pulsar.topics.messages(RETRY)) == 1


def test_a_marked_version_waits_for_the_list_however_long_it_takes(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = fake_pulsar.listed(topic)[0]
    version = fake_pulsar.store.peek(managed_ledger_path(topic.managed_ledger_name)).version
    send(fake_pulsar, about(topic, ledger_id, marked_version=version))
    sidecar = Sidecar(fake_pulsar)
    for _ in range(5):
        sidecar.process()
        fake_pulsar.clock.advance_ms(600_000)
    assert endings(fake_pulsar) == {}
    fake_pulsar.trim(topic, 1, dies_between=True)
    work_off(sidecar, ledger_id)


def test_a_live_owner_holds_it_back(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = fake_pulsar.listed(topic)[0]
    fake_pulsar.load(topic)
    view = fake_pulsar.view(topic)
    fake_pulsar.trim(topic, 1, dies_between=True)
    fake_pulsar.owners.views = lambda topics: {topic: view}
    send(fake_pulsar, about(topic, ledger_id))
    sidecar = Sidecar(fake_pulsar, retry_policy=RetryPolicy(1_000, 2))
    sidecar.work()
    assert dead(fake_pulsar) == {(ledger_id, "LEDGER")}
    assert ledger_id in fake_pulsar.ledgers()


# --- losses on the way -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, False])
def test_a_judgement_that_is_not_kept_deletes_nothing(fake_pulsar: FakePulsar, topic: TopicName, stored: bool) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic)
    sidecar = Sidecar(fake_pulsar)
    sidecar.processor()
    fake_pulsar.topics.lose_receipts_next(stored=stored)
    sidecar.process()
    assert ledger_id in fake_pulsar.ledgers()
    assert waiting(fake_pulsar) == 1
    work_off(sidecar, ledger_id)


@pytest.mark.parametrize("stored", [True, False])
def test_an_outcome_that_is_not_kept_is_not_acknowledged(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar, stored: bool
) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic)
    fake_pulsar.store.before("delete_many", lambda: fake_pulsar.topics.lose_receipts_next(stored=stored))
    sidecar.process()
    assert waiting(fake_pulsar) == 1
    sidecar.work_and_check()
    assert ends(fake_pulsar, ledger_id) == ([DELETED] if stored else []) + [GONE]


@pytest.mark.parametrize("stored", [True, False])
def test_a_copy_for_the_retry_topic_without_receipt_keeps_the_original(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar, stored: bool
) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic, state=LedgerState.OPEN, age_ms=0)
    sidecar.processor()
    fake_pulsar.topics.lose_receipts_next(stored=stored)
    sidecar.process()
    assert len(fake_pulsar.topics.waiting(PENDING)) == 1
    assert len(fake_pulsar.topics.waiting(RETRY)) == int(stored)
    sidecar.work_and_check()
    assert ends(fake_pulsar, ledger_id).count(DELETED) == 1


def test_a_retried_record_is_not_sent_again_for_want_of_an_outcome(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    recorded_orphan(fake_pulsar, topic, state=LedgerState.OPEN, age_ms=0)
    sidecar = Sidecar(fake_pulsar)
    sidecar.processor().publishers[DeletionTopic.OUTCOME].close()  # from now on the outcome topic takes nothing
    for _ in range(20):
        sidecar.process()
        fake_pulsar.clock.advance_ms(2_000)
    assert fake_pulsar.topics.waiting(PENDING) == []
    assert len(fake_pulsar.topics.messages(RETRY)) == 1


def test_offloaded_copies_are_retried_refused_or_deleted(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    copies = [about_copy(fake_pulsar, topic, number, is_stored=number != 72) for number in (70, 71, 72)]
    fake_pulsar.offloaded.fail_next(TemporaryError("503"))
    foreign = replace(copies[0], ledger_id=LedgerId(73))
    fake_pulsar.offloaded.put(
        foreign.ledger_id, foreign.offload_context, topic.managed_ledger_name, cluster_name="other"
    )
    send(fake_pulsar, *copies, foreign)
    sidecar = Sidecar(fake_pulsar)
    sidecar.work_and_check()
    found = {ledger_id: ending for (ledger_id, _), ending in endings(fake_pulsar).items()}
    assert found == {70: [DELETED], 71: [DELETED], 72: [GONE], 73: [("kept", "refused-by-storage")]}
    assert [line["reason"] for line in processed_entries(fake_pulsar) if line["decision"] == "retry"] == [
        "temporary-failure"
    ]


def test_a_copy_whose_answer_was_lost_is_looked_at_again(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.offloaded.lose_answer_next(applied=True)
    send(fake_pulsar, about_copy(fake_pulsar, topic, 70))
    Sidecar(fake_pulsar).work()
    assert endings(fake_pulsar) == {(70, "OFFLOAD_LEDGER"): [GONE]}
    assert [line["reason"] for line in processed_entries(fake_pulsar)] == ["outcome-unknown", "already-gone"]


def test_bookkeepers_copy_beside_the_only_listed_one_goes_once_that_is_whole(fake_pulsar: FakePulsar) -> None:
    """Record of an audit or an operator, where a broker died after its list named the other copy."""
    topic = fake_pulsar.topic("persistent://public/default/cold", TopicPlan(bookkeeper_deleted=(1,)))
    ledger_id = fake_pulsar.listed(topic)[1]
    context = fake_pulsar.context(ledger_id, deleted=True)
    fake_pulsar.ledger(data_custom_metadata(topic.managed_ledger_name), ledger_id=ledger_id)
    fake_pulsar.offloaded.cut(ledger_id, context)
    send(fake_pulsar, about(topic, ledger_id))
    sidecar = Sidecar(fake_pulsar)
    sidecar.process()
    assert [line["reason"] for line in processed_entries(fake_pulsar)] == ["may-be-the-last-copy"]
    assert ledger_id in fake_pulsar.ledgers()
    fake_pulsar.offloaded.put(ledger_id, context, topic.managed_ledger_name)
    work_off(sidecar, ledger_id)


# --- directly ----------------------------------------------------------------------------------------------------


def test_a_direct_deletion_is_judged_kept_and_noted_as_any_other(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = orphan(fake_pulsar, topic)
    outcome = Sidecar(fake_pulsar).processor().process_now(about(topic, ledger_id), "by hand")
    assert (outcome.decision.value, outcome.reason.value) == DELETED
    assert ends(fake_pulsar, ledger_id) == [DELETED]
    assert [entry["messageId"] for entry in judged(fake_pulsar)] == ["by hand"]


def test_a_direct_deletion_reports_why_it_has_to_wait_and_leaves_no_record(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    processor = Sidecar(fake_pulsar).processor()
    young = orphan(fake_pulsar, topic, state=LedgerState.OPEN, age_ms=0)
    assert processor.process_now(about(topic, young), "by hand").reason is OutcomeReason.TOO_YOUNG
    used = fake_pulsar.listed(topic)[0]
    assert processor.process_now(about(topic, used, unreferenced=True), "by hand").reason is OutcomeReason.IN_USE
    assert waiting(fake_pulsar) == 0


def test_a_direct_deletion_that_cannot_be_judged_raises(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = orphan(fake_pulsar, topic)
    processor = Sidecar(fake_pulsar).processor()
    fake_pulsar.store.fail_next("read_many", TemporaryError("no session"))
    with pytest.raises(TemporaryError):
        processor.process_now(about(topic, ledger_id), "by hand")
    fake_pulsar.topics.lose_receipts_next(stored=False)
    with pytest.raises(TemporaryError):
        processor.process_now(about(topic, ledger_id), "by hand")
    assert ledger_id in fake_pulsar.ledgers()


# --- never -------------------------------------------------------------------------------------------------------


def test_forged_records_delete_nothing(fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar) -> None:
    victim = fake_pulsar.topic("persistent://public/default/victim")
    before = fake_pulsar.ledgers()
    cursor_ledger = fake_pulsar.cursors(victim)[CursorName("sub")].cursor_ledger
    foreign = fake_pulsar.ledger({}, age_ms=10**10)
    strange = fake_pulsar.ledger({"application": b"pulsar", "component": b"new-kind"}, age_ms=10**10)
    schema = fake_pulsar.ledger(schema_custom_metadata("public/default/victim"), age_ms=0)
    forged = [
        about(topic, fake_pulsar.listed(victim)[0]),
        about(topic, cursor_ledger),
        about(victim, cursor_ledger),
        replace(about(victim, cursor_ledger), component=LedgerComponent.MANAGED_CURSOR, cursor_name="other"),
        about(victim, fake_pulsar.listed(victim)[1], operation_id=OperationId("never-was")),
        about(victim, fake_pulsar.listed(victim)[1], unreferenced=True, created_ms=5),
        about(victim, fake_pulsar.listed(victim)[1], instance_id="another-cluster"),
        about(topic, foreign),
        about(topic, strange),
        about(victim, schema, LedgerComponent.SCHEMA_STORAGE),
        about(victim, fake_pulsar.listed(victim)[0], LedgerComponent.COMPACTED_LEDGER),
    ]
    send(fake_pulsar, *forged)
    for _ in range(3):
        sidecar.process()
        fake_pulsar.clock.advance_ms(600_000)
    assert fake_pulsar.violations == []
    assert fake_pulsar.ledgers() == before | {foreign, strange, schema}


def test_a_refused_operation_does_not_lose_what_its_broker_unlinked_before(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar
) -> None:
    ids = fake_pulsar.ledgers()
    fake_pulsar.die_at = 2
    assert sidecar.delete_topic(topic) is OperationState.RUNNING
    refusal = BrokerRefusedError(412, "Topic has active producers")
    fake_pulsar.admin.hooks.fail_next("delete_topic", refusal)
    sidecar.work_and_check()
    assert fake_pulsar.ledgers() == ids & fake_pulsar.referenced().keys() - fake_pulsar.removed_by_brokers


def test_a_storage_that_is_not_allowed_yet_keeps_the_record_for_the_operator(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    fake_pulsar.offloaded.fail_next(DisabledError("s3://bucket is not in offloadAllowedLocations"))
    send(fake_pulsar, about_copy(fake_pulsar, topic, 70, is_stored=False))
    Sidecar(fake_pulsar).process()
    assert endings(fake_pulsar) == {}
    (again,) = fake_pulsar.topics.messages(DeletionTopic.RETRY)
    assert "offloadAllowedLocations" in again.properties[REASON]
