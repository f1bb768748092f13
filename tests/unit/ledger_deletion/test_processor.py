"""One batch after another: nothing is acknowledged before its end is durable, and no message holds up another."""

from dataclasses import replace

import pytest
from pulsar_sidecar.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.ledger_deletion.record import encode_record
from pulsar_sidecar.ledger_deletion.second_phase.decide import OutcomeReason
from pulsar_sidecar.ledger_deletion.second_phase.retry import REASON, RECONSUMETIMES, RetryPolicy
from pulsar_sidecar.ledger_deletion.service import OperationState
from pulsar_sidecar.ledger_ownership.paths import (
    cursor_path,
    managed_ledger_path,
    replication_lock_path,
)
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    DisabledError,
    PermanentError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerState, LedgerType
from pulsar_sidecar.model.names import CursorName, TopicName

from tests.fakes.bookkeeper import (
    bucket_custom_metadata,
    cursor_bytes,
    schema_custom_metadata,
)
from tests.fakes.world import World
from tests.unit.ledger_deletion.orphans import DELETED, GONE, NAME, PENDING, RETRY, about, ends, orphan, waiting
from tests.unit.ledger_deletion.sidecars import Sidecar, check, dead, endings, judged, send, settled

# --- poison ------------------------------------------------------------------------------------------------------


def test_a_malformed_message_ends_with_its_reason_and_alone(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    world.topics.put(PENDING, b"\xff\x00 no record")
    world.topics.put(PENDING, b'{"ledgerId":7}')
    send(world, about(topic, ledger_id))
    Sidecar(world).process()
    rejected = [line for line in settled(world) if line["decision"] == "rejected"]
    assert [line["reason"] for line in rejected] == ["malformed", "malformed"]
    assert ends(world, ledger_id) == [DELETED]
    assert waiting(world) == 0


def test_a_ledger_that_claims_an_impossible_owner_holds_up_no_other(world: World, topic: TopicName) -> None:
    key = "#pulsar.internal.delayed.bucket_1_2"
    poison = world.ledger(bucket_custom_metadata(NAME, "..", key), age_ms=10**10)
    ids = [orphan(world, topic) for _ in range(6)]
    bad = replace(about(topic, poison), component=LedgerComponent.DELAYED_INDEX_BUCKET)
    send(world, about(topic, ids[0]), bad, *(about(topic, ledger_id) for ledger_id in ids[1:]))
    sidecar = Sidecar(world)
    sidecar.process()
    assert all(ends(world, ledger_id) == [DELETED] for ledger_id in ids)
    sidecar.work()
    assert dead(world) == {(poison, "LEDGER")}
    assert poison in world.ledgers()


def test_ten_failures_and_then_the_dead_letter_topic(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    world.store.put(replication_lock_path(ledger_id), b"")
    send(world, about(topic, ledger_id))
    sidecar = Sidecar(world)
    sidecar.work()
    check(world)
    (letter,) = world.topics.messages(DeletionTopic.DEAD_LETTER)
    assert letter.properties[RECONSUMETIMES] == "11"
    assert len(world.topics.messages(RETRY)) == 10
    assert [line["decision"] for line in settled(world)] == [*["retry"] * 10, "dead-letter"]
    assert ledger_id in world.ledgers()


# --- retry or postpone -------------------------------------------------------------------------------------------


def test_too_young_waits_just_long_enough(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic, state=LedgerState.OPEN, age_ms=1_000)
    send(world, about(topic, ledger_id))
    sidecar = Sidecar(world)
    sidecar.process()
    (message,) = world.topics.waiting(RETRY)
    assert message.deliver_at_ms == world.clock.now_ms() + 3_599_000
    sidecar.work()
    assert ends(world, ledger_id) == [DELETED]
    assert len(world.topics.messages(RETRY)) == 1


def test_while_its_operation_runs_a_record_waits_without_counting(world: World, topic: TopicName) -> None:
    world.admin.lose_answer_next(applied=False, times=1_000)
    sidecar = Sidecar(world)
    assert sidecar.delete_topic(topic) is OperationState.RUNNING
    for _ in range(50):
        sidecar.process()
        world.clock.advance_ms(60_000)
    assert world.topics.messages(RETRY) == []
    assert settled(world) == []
    world.admin.hooks.forget()
    sidecar.work()
    check(world)
    assert world.ledgers() == set()


@pytest.mark.parametrize("call", ["read_many", "now_ms"])
def test_facts_that_cannot_be_gathered_postpone_the_batch(world: World, topic: TopicName, call: str) -> None:
    ledger_id = orphan(world, topic)
    send(world, about(topic, ledger_id))
    world.store.fail_next(call, TemporaryError("no session"))  # type: ignore[arg-type]
    sidecar = Sidecar(world)
    report = sidecar.process()
    assert report is not None
    assert report.postponed == 1
    assert settled(world) == []
    assert waiting(world) == 1
    sidecar.work()
    assert ends(world, ledger_id) == [DELETED]
    assert world.topics.messages(RETRY) == []


def test_a_broker_that_does_not_answer_postpones_the_batch(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    send(world, about(topic, ledger_id))
    world.owners.hooks.fail_next("views", TemporaryError("broker-2 does not answer"))
    sidecar = Sidecar(world)
    sidecar.process()
    assert ledger_id in world.ledgers()
    sidecar.work()
    check(world)
    assert ends(world, ledger_id) == [DELETED]


def test_a_plain_record_that_is_seen_too_early_is_not_lost(world: World, topic: TopicName) -> None:
    ledger_id = world.listed(topic)[0]
    send(world, about(topic, ledger_id))
    sidecar = Sidecar(world)
    sidecar.process()
    assert waiting(world) == 1
    world.trim(topic, 1, dies_between=True)
    sidecar.work()
    check(world)
    assert ends(world, ledger_id) == [DELETED]


def test_a_plain_record_of_a_living_ledger_ends_after_one_more_look(world: World, topic: TopicName) -> None:
    ledger_id = world.listed(topic)[0]
    send(world, about(topic, ledger_id))
    sidecar = Sidecar(world)
    sidecar.work()
    check(world)
    assert ends(world, ledger_id) == [("kept", "ledger-still-in-use")]
    assert len(world.topics.messages(RETRY)) == 1


def test_a_marked_version_waits_for_the_list_however_long_it_takes(world: World, topic: TopicName) -> None:
    ledger_id = world.listed(topic)[0]
    version = world.store.peek(managed_ledger_path(topic.managed_ledger_name)).version  # type: ignore[union-attr]
    send(world, about(topic, ledger_id, marked_version=version))
    sidecar = Sidecar(world)
    for _ in range(5):
        sidecar.process()
        world.clock.advance_ms(600_000)
    assert endings(world) == {}
    world.trim(topic, 1, dies_between=True)
    sidecar.work()
    assert ends(world, ledger_id) == [DELETED]


def test_a_live_owner_holds_it_back(world: World, topic: TopicName) -> None:
    ledger_id = world.listed(topic)[0]
    world.load(topic)
    view = world.view(topic)
    world.trim(topic, 1, dies_between=True)
    world.owners.views = lambda topics: {topic: view}  # type: ignore[method-assign, assignment]
    send(world, about(topic, ledger_id))
    sidecar = Sidecar(world, retry_policy=RetryPolicy(1_000, 2))
    sidecar.work()
    assert dead(world) == {(ledger_id, "LEDGER")}
    assert ledger_id in world.ledgers()


# --- what gets lost on the way -----------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, False])
def test_a_judgement_that_is_not_kept_deletes_nothing(world: World, topic: TopicName, stored: bool) -> None:
    ledger_id = orphan(world, topic)
    send(world, about(topic, ledger_id))
    sidecar = Sidecar(world)
    sidecar.processor()
    world.topics.lose_receipts_next(stored=stored)
    sidecar.process()
    assert ledger_id in world.ledgers()
    assert waiting(world) == 1
    sidecar.work()
    check(world)
    assert ends(world, ledger_id) == [DELETED]


@pytest.mark.parametrize("stored", [True, False])
def test_an_outcome_that_is_not_kept_is_not_acknowledged(world: World, topic: TopicName, stored: bool) -> None:
    ledger_id = orphan(world, topic)
    send(world, about(topic, ledger_id))
    sidecar = Sidecar(world)
    world.store.before("delete_many", lambda: world.topics.lose_receipts_next(stored=stored))
    sidecar.process()
    assert waiting(world) == 1
    sidecar.work()
    check(world)
    assert ends(world, ledger_id) == ([DELETED] if stored else []) + [GONE]


@pytest.mark.parametrize("stored", [True, False])
def test_a_copy_for_the_retry_topic_without_receipt_keeps_the_original(
    world: World, topic: TopicName, stored: bool
) -> None:
    ledger_id = orphan(world, topic, state=LedgerState.OPEN, age_ms=0)
    send(world, about(topic, ledger_id))
    sidecar = Sidecar(world)
    sidecar.processor()
    world.topics.lose_receipts_next(stored=stored)
    sidecar.process()
    assert len(world.topics.waiting(PENDING)) == 1
    assert len(world.topics.waiting(RETRY)) == int(stored)
    sidecar.work()
    check(world)
    assert ends(world, ledger_id).count(DELETED) == 1


def test_a_retried_record_is_not_sent_again_for_want_of_an_outcome(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic, state=LedgerState.OPEN, age_ms=0)
    send(world, about(topic, ledger_id))
    sidecar = Sidecar(world)
    sidecar.processor().publishers[DeletionTopic.OUTCOME].close()  # from now on the outcome topic takes nothing
    for _ in range(20):
        sidecar.process()
        world.clock.advance_ms(2_000)
    assert world.topics.waiting(PENDING) == []
    assert len(world.topics.messages(RETRY)) == 1


@pytest.mark.parametrize("call", ["acknowledge", "postpone", "receive"])
def test_a_consumer_that_breaks_loses_nothing(world: World, topic: TopicName, call: str) -> None:
    gone, young = orphan(world, topic), orphan(world, topic, state=LedgerState.OPEN, age_ms=0)
    world.admin.lose_answer_next(applied=False)
    sidecar = Sidecar(world)
    sidecar.delete_topic(topic)
    send(world, about(topic, gone), about(topic, young))
    world.topics.hooks.fail_next(call, TemporaryError("connection closed"))  # type: ignore[arg-type]
    sidecar.work()
    check(world)
    assert world.ledgers() == set()


def test_offloaded_copies_are_retried_refused_or_deleted(world: World, topic: TopicName) -> None:
    contexts = {LedgerId(number): world.context(number, deleted=False) for number in (70, 71, 72)}
    for ledger_id, context in contexts.items():
        if ledger_id != 72:
            world.offloaded.put(ledger_id, context, topic.managed_ledger_name)
    world.offloaded.fail_next(TemporaryError("503"))
    copies = [
        replace(about(topic, ledger_id), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context)
        for ledger_id, context in contexts.items()
    ]
    foreign = replace(copies[0], ledger_id=LedgerId(73))
    world.offloaded.put(LedgerId(73), contexts[LedgerId(70)], topic.managed_ledger_name, cluster_name="other")
    send(world, *copies, foreign)
    sidecar = Sidecar(world)
    sidecar.work()
    check(world)
    found = {ledger_id: ending for (ledger_id, _), ending in endings(world).items()}
    assert found == {70: [DELETED], 71: [DELETED], 72: [GONE], 73: [("kept", "refused-by-storage")]}
    assert [line["reason"] for line in settled(world) if line["decision"] == "retry"] == ["temporary-failure"]


def test_a_copy_whose_answer_was_lost_is_looked_at_again(world: World, topic: TopicName) -> None:
    context = world.context(70, deleted=False)
    world.offloaded.put(LedgerId(70), context, topic.managed_ledger_name)
    world.offloaded.lose_answer_next(applied=True)
    send(world, replace(about(topic, 70), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context))
    Sidecar(world).work()
    assert endings(world) == {(70, "OFFLOAD_LEDGER"): [GONE]}
    assert [line["reason"] for line in settled(world)] == ["outcome-unknown", "already-gone"]


# --- directly ----------------------------------------------------------------------------------------------------


def test_a_direct_deletion_is_judged_kept_and_noted_as_any_other(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    outcome = Sidecar(world).processor().process_now(about(topic, ledger_id), "by hand")
    assert (outcome.decision.value, outcome.reason.value) == DELETED
    assert ends(world, ledger_id) == [DELETED]
    assert [entry["messageId"] for entry in judged(world)] == ["by hand"]


def test_a_direct_deletion_says_why_it_has_to_wait_and_leaves_no_record(world: World, topic: TopicName) -> None:
    processor = Sidecar(world).processor()
    young = orphan(world, topic, state=LedgerState.OPEN, age_ms=0)
    assert processor.process_now(about(topic, young), "by hand").reason is OutcomeReason.TOO_YOUNG
    used = world.listed(topic)[0]
    assert processor.process_now(about(topic, used, unreferenced=True), "by hand").reason is OutcomeReason.IN_USE
    assert waiting(world) == 0


def test_a_direct_deletion_that_cannot_be_judged_raises(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    processor = Sidecar(world).processor()
    world.store.fail_next("read_many", TemporaryError("no session"))
    with pytest.raises(TemporaryError):
        processor.process_now(about(topic, ledger_id), "by hand")
    world.topics.lose_receipts_next(stored=False)
    with pytest.raises(TemporaryError):
        processor.process_now(about(topic, ledger_id), "by hand")
    assert ledger_id in world.ledgers()


# --- never -------------------------------------------------------------------------------------------------------


def test_forged_records_delete_nothing(world: World, topic: TopicName) -> None:
    before = world.ledgers()
    victim = world.topic("persistent://public/default/victim")
    before = world.ledgers()
    cursor_ledger = world.cursors(victim)[CursorName("sub")].cursor_ledger
    assert cursor_ledger is not None
    foreign = world.ledger({}, age_ms=10**10)
    strange = world.ledger({"application": b"pulsar", "component": b"new-kind"}, age_ms=10**10)
    schema = world.ledger(schema_custom_metadata("public/default/victim"), age_ms=0)
    forged = [
        about(topic, world.listed(victim)[0]),
        about(topic, cursor_ledger),
        about(victim, cursor_ledger),
        replace(about(victim, cursor_ledger), component=LedgerComponent.MANAGED_CURSOR, cursor_name="other"),
        about(victim, world.listed(victim)[1], operation_id=OperationId("never-was")),
        about(victim, world.listed(victim)[1], unreferenced=True, created_ms=5),
        about(victim, world.listed(victim)[1], instance_id="another-cluster"),
        about(topic, foreign),
        about(topic, strange),
        replace(about(victim, schema), component=LedgerComponent.SCHEMA_STORAGE),
        replace(about(victim, world.listed(victim)[0]), component=LedgerComponent.COMPACTED_LEDGER),
    ]
    send(world, *forged)
    sidecar = Sidecar(world)
    for _ in range(3):
        sidecar.process()
        world.clock.advance_ms(600_000)
    assert world.violations == []
    assert world.ledgers() == before | {foreign, strange, schema}


def test_a_refused_operation_does_not_lose_what_its_broker_unlinked_before(world: World, topic: TopicName) -> None:
    ids = world.ledgers()
    world.die_at = 2
    sidecar = Sidecar(world)
    assert sidecar.delete_topic(topic) is OperationState.RUNNING
    refusal = BrokerRefusedError(412, "Topic has active producers")
    world.admin.hooks.fail_next("delete_topic", refusal)
    sidecar.work()
    check(world)
    assert world.ledgers() == ids & world.referenced().keys() - world.removed_by_brokers


def test_a_permanent_error_of_the_storage_is_final_and_kept(world: World, topic: TopicName) -> None:
    context = world.context(70, deleted=False)
    world.offloaded.fail_next(PermanentError("the bucket is not allowed"))
    send(world, replace(about(topic, 70), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context))
    Sidecar(world).process()
    assert endings(world) == {(70, "OFFLOAD_LEDGER"): [("kept", "refused-by-storage")]}


def test_a_storage_that_is_not_allowed_yet_keeps_the_record_for_the_operator(world: World, topic: TopicName) -> None:
    context = world.context(70, deleted=False)
    world.offloaded.fail_next(DisabledError("s3://bucket is not in offloadAllowedLocations"))
    send(world, replace(about(topic, 70), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context))
    Sidecar(world).process()
    assert endings(world) == {}
    (again,) = world.topics.messages(DeletionTopic.RETRY)
    assert "offloadAllowedLocations" in again.properties[REASON]


def test_a_cursor_that_was_deleted_frees_its_ledger(world: World, topic: TopicName) -> None:
    cursor_ledger = world.cursors(topic)[CursorName("sub")].cursor_ledger
    assert cursor_ledger is not None
    record = replace(about(topic, cursor_ledger), component=LedgerComponent.MANAGED_CURSOR, cursor_name="sub")
    world.store.put(cursor_path(topic.managed_ledger_name, CursorName("sub")), cursor_bytes(None))
    world.topics.put(PENDING, encode_record(record), key=NAME)
    Sidecar(world).process()
    assert ends(world, cursor_ledger) == [DELETED]
