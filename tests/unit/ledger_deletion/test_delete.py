"""Only the version that was decided on is deleted, and each record says how its ledger ended."""

from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from pulsar_sidecar.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.ledger_deletion.second_phase.decide import OutcomeReason
from pulsar_sidecar.ledger_deletion.second_phase.retry import REASON, RECONSUMETIMES
from pulsar_sidecar.ledger_ownership.paths import (
    ledger_path,
    managed_ledger_path,
    under_replication_mark_path,
)
from pulsar_sidecar.model.errors import (
    DisabledError,
    OutcomeUnknownError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerState, LedgerType
from pulsar_sidecar.model.names import TopicName

from tests.fakes.bookkeeper import (
    data_custom_metadata,
    managed_ledger_bytes,
)
from tests.fakes.world import World
from tests.unit.ledger_deletion.orphans import DELETED, GONE, RETRY, about, ends, orphan, waiting
from tests.unit.ledger_deletion.sidecars import METRICS, Sidecar, check, endings, judged, send, settled

# --- deleting ----------------------------------------------------------------------------------------------------


def test_an_orphan_is_deleted_after_its_bytes_are_kept(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    kept_first: list[object] = []
    world.store.before("delete_many", lambda: kept_first.extend(judged(world)))
    send(world, about(topic, ledger_id))
    report = Sidecar(world).process()
    assert report is not None
    assert (report.deleted, report.postponed) == (1, 0)
    assert report.mean_length_bytes == 1000
    assert [entry["ledgerId"] for entry in kept_first] == [ledger_id]  # type: ignore[index]
    assert ends(world, ledger_id) == [DELETED]
    assert ledger_id not in world.ledgers()
    assert waiting(world) == 0


def test_a_hundred_at_once_of_several_kinds_and_fates(world: World, topic: TopicName) -> None:
    orphans = [orphan(world, topic) for _ in range(100)]
    send(world, *(about(topic, ledger_id) for ledger_id in [*orphans, *world.listed(topic), 99_999]))
    sidecar = Sidecar(world)
    sidecar.work()
    check(world)
    assert world.ledgers() & set(orphans) == set()
    assert ends(world, 99_999) == [GONE]
    assert ends(world, world.listed(topic)[0]) == [("kept", "ledger-still-in-use")]


def test_two_records_of_one_ledger_in_a_batch_make_one_deletion(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    send(world, *[about(topic, ledger_id)] * 5)
    Sidecar(world).process()
    assert sorted(ends(world, ledger_id)) == [DELETED, *[GONE] * 4]
    assert len(judged(world)) == 1
    assert waiting(world) == 0


def test_two_records_of_one_offloaded_copy_end_as_well(world: World, topic: TopicName) -> None:
    context = world.context(77, deleted=False)
    world.offloaded.put(LedgerId(77), context, topic.managed_ledger_name)
    copy = replace(about(topic, 77), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context)
    send(world, *[copy] * 5)
    sidecar = Sidecar(world)
    sidecar.work()
    check(world)
    assert endings(world)[77, "OFFLOAD_LEDGER"].count(DELETED) == 1
    assert world.offloaded.parts(LedgerId(77), context) == set()


def test_two_sidecars_with_the_same_record_delete_once(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    other = Sidecar(world, name="sidecar-2", store=world.store.other_session())
    send(world, about(topic, ledger_id), about(topic, ledger_id))
    world.topics.max_messages = 1
    world.store.before("delete_many", lambda: other.process() and None)
    Sidecar(world).process()
    assert sorted(ends(world, ledger_id)) == [DELETED, GONE]
    assert waiting(world) == 0


# --- the versions that were judged -------------------------------------------------------------------------------


def test_a_reference_that_appears_before_the_deletion_saves_the_ledger(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    path = managed_ledger_path(topic.managed_ledger_name)

    def link() -> None:
        world.store.put(path, managed_ledger_bytes([*world.listed(topic), ledger_id]))

    world.store.before("delete_many", link)
    send(world, about(topic, ledger_id, unreferenced=True))
    Sidecar(world).process()
    assert ends(world, ledger_id) == [("kept", "ledger-still-in-use")]
    assert ledger_id in world.ledgers()


def test_a_change_that_does_not_matter_is_judged_again_and_goes_on(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    world.store.before("delete_many", lambda: world.rollover(topic) and None, times=2)
    send(world, about(topic, ledger_id))
    Sidecar(world).process()
    assert ends(world, ledger_id) == [DELETED]
    assert len(judged(world)) == 3


def test_a_node_that_changes_all_the_time_goes_to_the_retry_topic(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    world.store.before("delete_many", lambda: world.rollover(topic) and None, times=3)
    send(world, about(topic, ledger_id))
    sidecar = Sidecar(world)
    sidecar.process()
    (message,) = world.topics.waiting(RETRY)
    assert message.properties[RECONSUMETIMES] == "1"
    assert settled(world)[-1]["reason"] == OutcomeReason.CHANGED_MEANWHILE.value
    sidecar.work()
    assert ends(world, ledger_id) == [DELETED]


def test_a_record_whose_deletion_is_never_answered_says_so_up_to_its_dead_letter(
    world: World, topic: TopicName
) -> None:
    world.store.fail_next("delete_many", OutcomeUnknownError("lost"), times=-1)
    send(world, about(topic, orphan(world, topic)))
    Sidecar(world).work()
    assert {line["reason"] for line in settled(world)} == {OutcomeReason.OUTCOME_UNKNOWN.value}
    (dead,) = world.topics.waiting(DeletionTopic.DEAD_LETTER)
    assert dead.properties[REASON].startswith("outcome-unknown: ")


def test_the_ledger_itself_changing_is_a_conflict_too(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)

    def replace_it() -> None:
        world.store.remove(ledger_path(ledger_id))
        world.ledger(data_custom_metadata("public/default/persistent/others"), ledger_id=ledger_id)
        world.store.put(ledger_path(ledger_id), world.store.peek(ledger_path(ledger_id)).data)  # type: ignore[union-attr]

    world.store.before("delete_many", replace_it)
    send(world, about(topic, ledger_id))
    Sidecar(world).process()
    assert ends(world, ledger_id) == [("kept", "metadata-mismatch")]
    assert ledger_id in world.ledgers()


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_to_a_deletion_is_read_again(world: World, topic: TopicName, applied: bool) -> None:
    ledger_id = orphan(world, topic)
    world.store.lose_answer_next("delete_many", applied=applied)
    send(world, about(topic, ledger_id))
    Sidecar(world).process()
    assert ends(world, ledger_id) == [GONE if applied else DELETED]
    assert ledger_id not in world.ledgers()
    assert waiting(world) == 0


# --- the unconditional way ---------------------------------------------------------------------------------------


class Bookies:
    """`DirectLedgerDeletion` of the world."""

    def __init__(self, world: World, error: Exception | None = None) -> None:
        self.deleted: list[int] = []
        self._world = world
        self._error = error

    def __call__(self, ledger_id: LedgerId) -> None:
        if self._error is not None:
            raise self._error
        self.deleted.append(ledger_id)
        self._world.store.remove(ledger_path(ledger_id))


def test_bookkeeper_is_asked_only_where_the_store_takes_no_deletion(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    world.store.fail_next("delete_many", TemporaryError("no permission"), times=-1)
    bookies = Bookies(world)
    send(world, about(topic, ledger_id))
    Sidecar(world, direct=bookies).process()
    assert bookies.deleted == [ledger_id]
    (line,) = settled(world)
    assert (line["decision"], line["conditional"]) == ("deleted", False)


@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_answer_is_no_reason_to_do_without_guards(world: World, topic: TopicName, times: int) -> None:
    ledger_id = orphan(world, topic)
    for _ in range(times):
        world.store.fail_next("delete_many", OutcomeUnknownError("lost"))
    bookies = Bookies(world)
    send(world, about(topic, ledger_id))
    Sidecar(world, direct=bookies).process()
    assert bookies.deleted == []
    assert "conditional" not in settled(world)[-1]


def test_a_conflict_never_leads_to_an_unconditional_deletion(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    world.store.before("delete_many", lambda: world.rollover(topic) and None, times=-1)
    bookies = Bookies(world)
    send(world, about(topic, ledger_id))
    Sidecar(world, direct=bookies).process()
    assert bookies.deleted == []


def test_bookies_that_fail_as_well_leave_it_for_later(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    world.store.fail_next("delete_many", TemporaryError("no permission"), times=3)
    send(world, about(topic, ledger_id))
    sidecar = Sidecar(world, direct=Bookies(world, TemporaryError("500")))
    sidecar.process()
    assert ledger_id in world.ledgers()
    sidecar.work()
    check(world)
    assert ends(world, ledger_id) == [DELETED]


# --- what is counted as failed -----------------------------------------------------------------------------------


def failed() -> float:
    """Failed attempts of all sidecars so far."""
    name = "pulsar_ledger_deletion_delete_failed_total"
    lines = generate_latest(METRICS).decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_what_is_only_put_off_is_no_failed_deletion(world: World, topic: TopicName) -> None:
    context = world.context(77, deleted=False)
    world.offloaded.put(LedgerId(77), context, topic.managed_ledger_name)
    world.offloaded.fail_next(DisabledError("no credentials"))
    young = world.ledger(data_custom_metadata(topic.managed_ledger_name), state=LedgerState.OPEN, age_ms=0)
    copy = replace(about(topic, 77), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context)
    send(world, copy, about(topic, young), about(topic, world.listed(topic)[0]))
    before = failed()
    Sidecar(world).process()
    assert len(world.topics.waiting(RETRY)) == 3
    assert failed() == before


def test_every_attempt_that_is_refused_or_not_confirmed_is_a_failed_deletion(world: World, topic: TopicName) -> None:
    changed, unanswered = orphan(world, topic), orphan(world, topic)
    sidecar = Sidecar(world)
    before = failed()
    world.store.before("delete_many", lambda: world.rollover(topic) and None)
    send(world, about(topic, changed))
    sidecar.process()
    assert failed() == before + 1
    world.store.fail_next("delete_many", OutcomeUnknownError("lost"), times=3)
    send(world, about(topic, unanswered))
    sidecar.process()
    assert failed() == before + 4
    context = world.context(77, deleted=False)
    world.offloaded.put(LedgerId(77), context, topic.managed_ledger_name)
    world.offloaded.fail_next(TemporaryError("503"))
    send(world, replace(about(topic, 77), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context))
    sidecar.process()
    assert failed() == before + 5


# --- auto-recovery -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [False, True])
def test_auto_recoverys_note_about_a_deleted_ledger_goes_too(world: World, topic: TopicName, lost: bool) -> None:
    ledger_id = orphan(world, topic)
    note = under_replication_mark_path(ledger_id)
    world.store.put(note, b"replica")
    if lost:
        world.store.lose_answer_next("delete_many", applied=True)
    send(world, about(topic, ledger_id))
    Sidecar(world).process()
    assert ledger_id not in world.ledgers()
    assert world.store.peek(note) is None


def test_a_note_about_a_living_ledger_stays(world: World, topic: TopicName) -> None:
    ledger_id = world.listed(topic)[0]
    note = under_replication_mark_path(ledger_id)
    world.store.put(note, b"replica")
    send(world, about(topic, ledger_id, unreferenced=True))
    Sidecar(world).process()
    assert world.store.peek(note) is not None


def test_a_note_that_cannot_be_removed_is_only_a_warning(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    note = under_replication_mark_path(ledger_id)
    world.store.put(note, b"replica")
    world.store.fail_next("delete", TemporaryError("no session"), path=note)
    send(world, about(topic, ledger_id))
    sidecar = Sidecar(world)
    sidecar.process()
    assert ends(world, ledger_id) == [DELETED]
    assert any(note in warning for warning in sidecar.warnings)
