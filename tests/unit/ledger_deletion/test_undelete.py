"""A deleted ledger comes back as it was, as long as bookies hold it, and nothing else can be written this way."""

import base64
import json

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.results import ProtectedLedger, UndeleteResult
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import MAX_EARLY_MS
from pulsar_sidecar.features.ledger_deletion.steps import Steps
from pulsar_sidecar.features.ledger_deletion.undelete import (
    PROTECTIONS,
    end_protection,
    protect,
    protection_path,
    protections,
    undelete,
)
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, ledger_path

from tests.fakes.bookkeeper import data_custom_metadata, ledger_metadata_bytes
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.orphans import about, recorded_orphan
from tests.unit.ledger_deletion.sidecars import Sidecar, dead, endings, processed_entries, send

FOR_EVER = 0
PROTECTION_MS = 86_400_000


def deleted(
    fake_pulsar: FakePulsar, topic: TopicName, *, state: LedgerState = LedgerState.CLOSED
) -> tuple[LedgerId, bytes]:
    """A ledger that the sidecar has just deleted, and its bytes."""
    ledger_id = recorded_orphan(fake_pulsar, topic, state=state)
    node = fake_pulsar.store.peek(ledger_path(ledger_id))
    assert node is not None
    fake_pulsar.entries.put(ledger_id, *[b"entry"] * 10)
    Sidecar(fake_pulsar).process()
    assert ledger_id not in fake_pulsar.ledgers()
    fake_pulsar.topics.drop_connections()
    return ledger_id, node.data


def restore(
    fake_pulsar: FakePulsar, ledger_id: int, *, since_ms: int = FOR_EVER, force: bool = False
) -> UndeleteResult:
    return undelete(
        fake_pulsar.store,
        fake_pulsar.entries,
        fake_pulsar.topics,
        LedgerId(ledger_id),
        since_ms=since_ms,
        force=force,
        protection_ms=PROTECTION_MS,
        root=DEFAULT_LEDGERS_ROOT,
        steps=Steps(),
    )


def restored(fake_pulsar: FakePulsar, topic: TopicName) -> LedgerId:
    ledger_id, _ = deleted(fake_pulsar, topic)
    return restore(fake_pulsar, ledger_id).ledger_id


@pytest.mark.parametrize("state", LedgerState)
def test_a_deleted_ledger_comes_back_byte_for_byte(
    fake_pulsar: FakePulsar, topic: TopicName, state: LedgerState
) -> None:
    ledger_id, data = deleted(fake_pulsar, topic, state=state)
    until_ms = fake_pulsar.store.now_ms() + PROTECTION_MS
    assert restore(fake_pulsar, ledger_id) == UndeleteResult(ledger_id, readable=True, protected_until_ms=until_ms)
    assert fake_pulsar.store.peek(ledger_path(ledger_id)).data == data


def test_restored_ledger_does_not_match_its_old_record(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    custom = data_custom_metadata(topic.managed_ledger_name)
    ledger_id = fake_pulsar.ledger(custom, age_ms=10**10)
    born_ms = fake_pulsar.clock.now_ms() - 10**10
    send(fake_pulsar, about(topic, ledger_id, created_ms=born_ms))
    Sidecar(fake_pulsar).process()
    fake_pulsar.topics.drop_connections()
    restore(fake_pulsar, ledger_id, force=True)
    send(fake_pulsar, about(topic, ledger_id, created_ms=born_ms))
    Sidecar(fake_pulsar).process()
    assert endings(fake_pulsar)[ledger_id, "LEDGER"][-1] == ("kept", "id-belongs-to-another-ledger")
    assert ledger_id in fake_pulsar.ledgers()


@pytest.mark.parametrize("collected", [True, False])
def test_entries_that_bookies_do_not_return_need_force(
    fake_pulsar: FakePulsar, topic: TopicName, collected: bool
) -> None:
    ledger_id, _ = deleted(fake_pulsar, topic)
    if collected:
        fake_pulsar.entries.drop(ledger_id)
    else:
        fake_pulsar.entries.fail(TemporaryError("no bookie answers"))
    with pytest.raises(ConflictError, match="force"):
        restore(fake_pulsar, ledger_id)
    assert ledger_id not in fake_pulsar.ledgers()
    assert not restore(fake_pulsar, ledger_id, force=True).readable
    assert ledger_id in fake_pulsar.ledgers()


def test_a_ledger_that_exists_is_left_alone(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id, _ = deleted(fake_pulsar, topic)
    other = fake_pulsar.ledger({}, ledger_id=ledger_id)
    before = fake_pulsar.store.peek(ledger_path(other))
    with pytest.raises(ConflictError, match="exists"):
        restore(fake_pulsar, ledger_id, force=True)
    assert fake_pulsar.store.peek(ledger_path(other)) == before


def test_ledger_restored_concurrently_is_a_conflict(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id, _ = deleted(fake_pulsar, topic)
    fake_pulsar.store.before("create", lambda: fake_pulsar.ledger({}, ledger_id=ledger_id) and None)
    with pytest.raises(ConflictError, match="moment"):
        restore(fake_pulsar, ledger_id)


def test_ledger_missed_by_the_quick_read_is_restored(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id, data = deleted(fake_pulsar, topic)
    fake_pulsar.topics.not_seen_quickly = 100
    restore(fake_pulsar, ledger_id)
    assert fake_pulsar.store.peek(ledger_path(ledger_id)).data == data


def test_ledger_that_was_never_deleted_is_not_found(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    with pytest.raises(NotFoundError):
        restore(fake_pulsar, 99_999)
    assert protections(fake_pulsar.store) == []


def test_ledger_that_was_deleted_too_long_ago_is_not_found(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id, _ = deleted(fake_pulsar, topic)
    with pytest.raises(NotFoundError):
        restore(fake_pulsar, ledger_id, since_ms=fake_pulsar.clock.now_ms() + 1)


def test_a_lost_answer_is_passed_on_and_repeated_safely(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id, data = deleted(fake_pulsar, topic)
    fake_pulsar.store.lose_answer_next("create", applied=True)
    with pytest.raises(OutcomeUnknownError):
        restore(fake_pulsar, ledger_id)
    assert [each.ledger_id for each in protections(fake_pulsar.store)] == [ledger_id]
    assert ledger_id not in fake_pulsar.ledgers()
    # Its protection is there by now; the response about the ledger's own node is lost this time.
    fake_pulsar.store.before("create", lambda: fake_pulsar.store.lose_answer_next("create", applied=True))
    with pytest.raises(OutcomeUnknownError):
        restore(fake_pulsar, ledger_id)
    with pytest.raises(ConflictError):
        restore(fake_pulsar, ledger_id)
    assert fake_pulsar.store.peek(ledger_path(ledger_id)).data == data


def test_the_last_of_several_deletions_counts(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = restored(fake_pulsar, topic)
    end_protection(fake_pulsar.store, ledger_id)
    send(fake_pulsar, about(topic, ledger_id))
    changed = ledger_metadata_bytes(length_bytes=4711, custom_metadata=data_custom_metadata(topic.managed_ledger_name))
    fake_pulsar.store.put(ledger_path(ledger_id), changed)
    Sidecar(fake_pulsar).process()
    assert ledger_id not in fake_pulsar.ledgers()
    restore(fake_pulsar, ledger_id)
    assert fake_pulsar.store.peek(ledger_path(ledger_id)).data == changed


@pytest.mark.parametrize("poison", [b"\xff", b"[" * 100_000, b'{"step":"judged"}', b"7"])
def test_strange_messages_on_the_outcome_topic_are_passed_over(
    fake_pulsar: FakePulsar, topic: TopicName, poison: bytes
) -> None:
    fake_pulsar.topics.put(DeletionTopic.OUTCOME, poison)
    ledger_id, _ = deleted(fake_pulsar, topic)
    fake_pulsar.topics.put(DeletionTopic.OUTCOME, poison)
    assert restore(fake_pulsar, ledger_id).readable


@pytest.mark.parametrize("victim", ["/managed-ledgers/public/default/persistent/new-topic", "/admin/00/0000/L0007"])
def test_a_forged_message_cannot_write_anywhere_else(fake_pulsar: FakePulsar, victim: str) -> None:
    entry = {"ledgerId": 7, "ledger": {"path": victim, "metadata": base64.b64encode(b"forged").decode()}}
    payload = json.dumps({"step": "judged", "sidecar": "s", "atMs": 1, "entries": [entry]}).encode()
    fake_pulsar.topics.put(DeletionTopic.OUTCOME, payload)
    restore(fake_pulsar, 7, force=True)
    assert fake_pulsar.store.peek(victim) is None
    assert LedgerId(7) in fake_pulsar.ledgers()


# --- protected until there was time to relink it ---------------------------------------------------------------------


def test_a_second_record_waits_until_the_protection_ends(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = restored(fake_pulsar, topic)
    send(fake_pulsar, about(topic, ledger_id), about(topic, ledger_id, unreferenced=True))
    other = Sidecar(fake_pulsar, name="sidecar-2")
    other.process()
    assert ledger_id in fake_pulsar.ledgers()
    lines = [line for line in processed_entries(fake_pulsar) if line["reason"] == "brought-back"]
    assert [line["decision"] for line in lines] == ["retry", "retry"]
    assert "protected until 2023-11-" in str(lines[0]["detail"])
    fake_pulsar.clock.advance_ms(PROTECTION_MS - 1)
    other.process()
    assert ledger_id in fake_pulsar.ledgers()
    fake_pulsar.clock.advance_ms(1 + MAX_EARLY_MS)
    other.process()
    assert ledger_id not in fake_pulsar.ledgers()
    assert dead(fake_pulsar) == set()


def test_an_operator_can_end_a_protection(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = restored(fake_pulsar, topic)
    assert end_protection(fake_pulsar.store, ledger_id)
    assert not end_protection(fake_pulsar.store, ledger_id)
    send(fake_pulsar, about(topic, ledger_id))
    Sidecar(fake_pulsar, name="sidecar-2").process()
    assert ledger_id not in fake_pulsar.ledgers()


@pytest.mark.parametrize("until", [b"for ever", b"", b"-1", b"9" * 15, b"9" * 18, b"9" * 19])
def test_a_protection_beyond_the_calendar_or_that_cannot_be_read_protects(
    fake_pulsar: FakePulsar, topic: TopicName, until: bytes
) -> None:
    ledger_id = restored(fake_pulsar, topic)
    fake_pulsar.store.put(protection_path(ledger_id), until)
    send(fake_pulsar, about(topic, ledger_id))
    Sidecar(fake_pulsar, name="sidecar-2").work()
    assert ledger_id in fake_pulsar.ledgers()
    assert dead(fake_pulsar) == {(ledger_id, "LEDGER")}


def test_protecting_one_ledger_leaves_the_protections_of_others_alone(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    first = restored(fake_pulsar, topic)
    fake_pulsar.clock.advance_ms(PROTECTION_MS)
    second, _ = deleted(fake_pulsar, topic)
    until_ms = fake_pulsar.store.now_ms() + PROTECTION_MS
    # Another sidecar protects the first one anew while this one protects the second.
    other = fake_pulsar.store.other_session()
    renewals = [until_ms]

    def renew() -> None:
        if renewals:
            protect(other, first, renewals.pop())

    fake_pulsar.store.before("delete", renew)
    fake_pulsar.store.before("create", renew)
    restore(fake_pulsar, second)
    assert {each.ledger_id: each.until_ms for each in protections(fake_pulsar.store)} == {
        first: until_ms,
        second: until_ms,
    }


def test_whether_a_protection_ended_is_not_guessed(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = restored(fake_pulsar, topic)
    fake_pulsar.store.lose_answer_next("delete", applied=True)
    with pytest.raises(OutcomeUnknownError, match=f"ledger {ledger_id}"):
        end_protection(fake_pulsar.store, ledger_id)
    protect(fake_pulsar.store, ledger_id, 1)
    fake_pulsar.store.put(f"{protection_path(ledger_id)}/child", b"")
    with pytest.raises(OutcomeUnknownError, match=f"ledger {ledger_id}"):
        end_protection(fake_pulsar.store, ledger_id)


def test_a_ledger_brought_back_twice_is_protected_anew(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = restored(fake_pulsar, topic)
    fake_pulsar.store.delete(ledger_path(ledger_id))
    fake_pulsar.clock.advance_ms(5)
    again = restore(fake_pulsar, ledger_id)
    assert protections(fake_pulsar.store) == [ProtectedLedger(ledger_id, again.protected_until_ms)]
    assert again.protected_until_ms == fake_pulsar.store.now_ms() + PROTECTION_MS


@pytest.mark.parametrize("name", ["²", "not-a-ledger", str(2**63)])
def test_invalid_protection_node_is_ignored(fake_pulsar: FakePulsar, topic: TopicName, name: str) -> None:
    ledger_id = restored(fake_pulsar, topic)
    fake_pulsar.store.put(f"{PROTECTIONS}/{name}", b"")
    assert [each.ledger_id for each in protections(fake_pulsar.store)] == [ledger_id]
