"""A deleted ledger comes back as it was, as long as bookies hold it, and nothing else can be written this way."""

import base64
import json

import pytest
from pulsar_sidecar.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.ledger_deletion.service import ProtectedLedger, UndeleteResult
from pulsar_sidecar.ledger_deletion.steps import Steps
from pulsar_sidecar.ledger_deletion.undelete import (
    PROTECTIONS,
    end_protection,
    protect,
    protection_path,
    protections,
    undelete,
)
from pulsar_sidecar.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT, ledger_path
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import TopicName

from tests.fakes.bookkeeper import data_custom_metadata
from tests.fakes.world import World
from tests.unit.ledger_deletion.orphans import about, orphan
from tests.unit.ledger_deletion.sidecars import Sidecar, dead, endings, send, settled

FOR_EVER = 0
PROTECTION_MS = 86_400_000


def deleted(world: World, topic: TopicName, *, state: LedgerState = LedgerState.CLOSED) -> tuple[LedgerId, bytes]:
    """A ledger that the sidecar has just deleted, and its bytes."""
    ledger_id = orphan(world, topic, state=state)
    node = world.store.peek(ledger_path(ledger_id))
    assert node is not None
    world.entries.put(ledger_id, *[b"entry"] * 10)
    send(world, about(topic, ledger_id))
    Sidecar(world).process()
    assert ledger_id not in world.ledgers()
    world.topics.drop_connections()
    return ledger_id, node.data


def restore(world: World, ledger_id: int, *, since_ms: int = FOR_EVER, force: bool = False) -> UndeleteResult:
    return undelete(
        world.store,
        world.entries,
        world.topics,
        LedgerId(ledger_id),
        since_ms=since_ms,
        force=force,
        protection_ms=PROTECTION_MS,
        root=DEFAULT_LEDGERS_ROOT,
        steps=Steps(),
    )


@pytest.mark.parametrize("state", LedgerState)
def test_a_deleted_ledger_comes_back_byte_for_byte(world: World, topic: TopicName, state: LedgerState) -> None:
    ledger_id, data = deleted(world, topic, state=state)
    until_ms = world.store.now_ms() + PROTECTION_MS
    assert restore(world, ledger_id) == UndeleteResult(ledger_id, readable=True, protected_until_ms=until_ms)
    node = world.store.peek(ledger_path(ledger_id))
    assert node is not None
    assert node.data == data


def test_what_came_back_is_another_ledger_to_its_old_record(world: World, topic: TopicName) -> None:
    custom = data_custom_metadata(topic.managed_ledger_name)
    ledger_id = world.ledger(custom, age_ms=10**10)
    born_ms = world.clock.now_ms() - 10**10
    send(world, about(topic, ledger_id, created_ms=born_ms))
    Sidecar(world).process()
    world.topics.drop_connections()
    restore(world, ledger_id, force=True)
    send(world, about(topic, ledger_id, created_ms=born_ms))
    Sidecar(world).process()
    assert endings(world)[ledger_id, "LEDGER"][-1] == ("kept", "id-belongs-to-another-ledger")
    assert ledger_id in world.ledgers()


def test_entries_that_bookies_have_collected_need_force(world: World, topic: TopicName) -> None:
    ledger_id, _ = deleted(world, topic)
    world.entries.drop(ledger_id)
    with pytest.raises(ConflictError, match="force"):
        restore(world, ledger_id)
    assert ledger_id not in world.ledgers()
    assert not restore(world, ledger_id, force=True).readable
    assert ledger_id in world.ledgers()


def test_bookies_that_do_not_answer_need_force_too(world: World, topic: TopicName) -> None:
    ledger_id, _ = deleted(world, topic)
    world.entries.fail(TemporaryError("no bookie answers"))
    with pytest.raises(ConflictError):
        restore(world, ledger_id)
    assert not restore(world, ledger_id, force=True).readable


def test_a_ledger_that_exists_is_left_alone(world: World, topic: TopicName) -> None:
    ledger_id, _ = deleted(world, topic)
    other = world.ledger({}, ledger_id=ledger_id)
    before = world.store.peek(ledger_path(other))
    with pytest.raises(ConflictError, match="exists"):
        restore(world, ledger_id, force=True)
    assert world.store.peek(ledger_path(other)) == before


def test_one_that_comes_back_in_this_moment_is_a_conflict(world: World, topic: TopicName) -> None:
    ledger_id, _ = deleted(world, topic)
    world.store.before("create", lambda: world.ledger({}, ledger_id=ledger_id) and None)
    with pytest.raises(ConflictError, match="moment"):
        restore(world, ledger_id)


def test_what_a_quick_reading_lacks_is_found_all_the_same(world: World, topic: TopicName) -> None:
    ledger_id, data = deleted(world, topic)
    world.topics.not_seen_quickly = 100
    restore(world, ledger_id)
    node = world.store.peek(ledger_path(ledger_id))
    assert node is not None
    assert node.data == data


def test_one_that_was_never_deleted_is_not_found(world: World, topic: TopicName) -> None:
    with pytest.raises(NotFoundError):
        restore(world, 99_999)


def test_one_that_was_deleted_too_long_ago_is_not_found(world: World, topic: TopicName) -> None:
    ledger_id, _ = deleted(world, topic)
    with pytest.raises(NotFoundError):
        restore(world, ledger_id, since_ms=world.clock.now_ms() + 1)


def test_a_lost_answer_is_passed_on_and_repeated_safely(world: World, topic: TopicName) -> None:
    ledger_id, data = deleted(world, topic)
    world.store.lose_answer_next("create", applied=True)
    with pytest.raises(OutcomeUnknownError):
        restore(world, ledger_id)
    assert [each.ledger_id for each in protections(world.store)] == [ledger_id]
    assert ledger_id not in world.ledgers()
    # Its protection is there by now; the answer about the ledger's own node is lost this time.
    world.store.before("create", lambda: world.store.lose_answer_next("create", applied=True))
    with pytest.raises(OutcomeUnknownError):
        restore(world, ledger_id)
    with pytest.raises(ConflictError):
        restore(world, ledger_id)
    node = world.store.peek(ledger_path(ledger_id))
    assert node is not None
    assert node.data == data


def test_the_last_of_several_deletions_counts(world: World, topic: TopicName) -> None:
    ledger_id, _ = deleted(world, topic)
    restore(world, ledger_id)
    end_protection(world.store, ledger_id)
    send(world, about(topic, ledger_id))
    node = world.store.peek(ledger_path(ledger_id))
    assert node is not None
    changed = node.data + b""
    world.store.put(ledger_path(ledger_id), changed, created_ms=0)
    Sidecar(world).process()
    assert restore(world, ledger_id).ledger_id == ledger_id


@pytest.mark.parametrize("poison", [b"\xff", b"[" * 100_000, b'{"step":"judged"}', b"7"])
def test_strange_messages_on_the_outcome_topic_are_passed_over(world: World, topic: TopicName, poison: bytes) -> None:
    world.topics.put(DeletionTopic.OUTCOME, poison)
    ledger_id, _ = deleted(world, topic)
    world.topics.put(DeletionTopic.OUTCOME, poison)
    assert restore(world, ledger_id).readable


@pytest.mark.parametrize("victim", ["/managed-ledgers/public/default/persistent/new-topic", "/admin/00/0000/L0007"])
def test_a_forged_message_cannot_write_anywhere_else(world: World, victim: str) -> None:
    entry = {"ledgerId": 7, "ledger": {"path": victim, "metadata": base64.b64encode(b"forged").decode()}}
    payload = json.dumps({"step": "judged", "sidecar": "s", "atMs": 1, "entries": [entry]}).encode()
    world.topics.put(DeletionTopic.OUTCOME, payload)
    restore(world, 7, force=True)
    assert world.store.peek(victim) is None
    assert LedgerId(7) in world.ledgers()


# --- protected until somebody has had the time to relink it ----------------------------------------------------------


def test_a_second_record_waits_until_the_protection_ends(world: World, topic: TopicName) -> None:
    ledger_id, _ = deleted(world, topic)
    restore(world, ledger_id)
    send(world, about(topic, ledger_id), about(topic, ledger_id, unreferenced=True))
    other = Sidecar(world, name="sidecar-2")
    other.process()
    assert ledger_id in world.ledgers()
    lines = [line for line in settled(world) if line["reason"] == "brought-back"]
    assert [line["decision"] for line in lines] == ["retry", "retry"]
    assert "protected until 2023-11-" in str(lines[0]["detail"])
    world.clock.advance_ms(PROTECTION_MS - 1)
    other.process()
    assert ledger_id in world.ledgers()
    world.clock.advance_ms(1)
    other.process()
    assert ledger_id not in world.ledgers()
    assert dead(world) == set()


def test_an_operator_can_end_a_protection(world: World, topic: TopicName) -> None:
    ledger_id, _ = deleted(world, topic)
    restore(world, ledger_id)
    assert end_protection(world.store, ledger_id)
    assert not end_protection(world.store, ledger_id)
    send(world, about(topic, ledger_id))
    Sidecar(world, name="sidecar-2").process()
    assert ledger_id not in world.ledgers()


@pytest.mark.parametrize("until", [b"for ever", b"", b"-1", b"9" * 15, b"9" * 18, b"9" * 19])
def test_a_protection_beyond_the_calendar_or_that_cannot_be_read_protects(
    world: World, topic: TopicName, until: bytes
) -> None:
    ledger_id, _ = deleted(world, topic)
    restore(world, ledger_id)
    world.store.put(protection_path(ledger_id), until)
    send(world, about(topic, ledger_id))
    Sidecar(world, name="sidecar-2").work()
    assert ledger_id in world.ledgers()
    assert dead(world) == {(ledger_id, "LEDGER")}


def test_protecting_one_ledger_leaves_the_protections_of_others_alone(world: World, topic: TopicName) -> None:
    first, _ = deleted(world, topic)
    restore(world, first)
    world.clock.advance_ms(PROTECTION_MS)
    second, _ = deleted(world, topic)
    until_ms = world.store.now_ms() + PROTECTION_MS
    # Another sidecar protects the first one anew while this one protects the second.
    other = world.store.other_session()
    renewals = [until_ms]

    def renew() -> None:
        if renewals:
            protect(other, first, renewals.pop())

    world.store.before("delete", renew)
    world.store.before("create", renew)
    restore(world, second)
    assert {each.ledger_id: each.until_ms for each in protections(world.store)} == {first: until_ms, second: until_ms}


def test_whether_a_protection_ended_is_not_guessed(world: World, topic: TopicName) -> None:
    ledger_id, _ = deleted(world, topic)
    restore(world, ledger_id)
    world.store.lose_answer_next("delete", applied=True)
    with pytest.raises(OutcomeUnknownError, match=f"ledger {ledger_id}"):
        end_protection(world.store, ledger_id)
    protect(world.store, ledger_id, 1)
    world.store.put(f"{protection_path(ledger_id)}/child", b"")
    with pytest.raises(OutcomeUnknownError, match=f"ledger {ledger_id}"):
        end_protection(world.store, ledger_id)


def test_a_ledger_brought_back_twice_is_protected_anew(world: World, topic: TopicName) -> None:
    ledger_id, _ = deleted(world, topic)
    restore(world, ledger_id)
    world.store.delete(ledger_path(ledger_id))
    world.clock.advance_ms(5)
    again = restore(world, ledger_id)
    assert protections(world.store) == [ProtectedLedger(ledger_id, again.protected_until_ms)]
    assert again.protected_until_ms == world.store.now_ms() + PROTECTION_MS


def test_nothing_is_protected_that_was_not_brought_back(world: World, topic: TopicName) -> None:
    with pytest.raises(NotFoundError):
        restore(world, 4711)
    assert protections(world.store) == []


@pytest.mark.parametrize("name", ["²", "not-a-ledger", str(2**63)])
def test_a_node_of_no_ledger_is_no_protection(world: World, topic: TopicName, name: str) -> None:
    ledger_id, _ = deleted(world, topic)
    restore(world, ledger_id)
    world.store.put(f"{PROTECTIONS}/{name}", b"")
    assert [each.ledger_id for each in protections(world.store)] == [ledger_id]
