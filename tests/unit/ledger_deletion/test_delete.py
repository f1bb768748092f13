"""Only the version that was decided on is deleted, on facts that are young enough, and each outcome names its end."""

import threading
from collections.abc import Collection, Mapping

import pytest
from prometheus_client import generate_latest
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import OutcomeReason
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import REASON, RECONSUMETIMES
from pulsar_sidecar.model.errors import DisabledError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import TopicInternalStats
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path, under_replication_mark_path

from tests.fakes.bookkeeper import data_custom_metadata, managed_ledger_bytes
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.cases import view
from tests.unit.ledger_deletion.orphans import (
    DELETED,
    GONE,
    NAME,
    RETRY,
    about,
    about_copy,
    ends,
    orphan,
    recorded_orphan,
    recorded_orphans,
    waiting,
    work_off,
)
from tests.unit.ledger_deletion.sidecars import METRICS, Sidecar, endings, judged, processed_entries, restarted, send

# --- deleting ----------------------------------------------------------------------------------------------------


def test_an_orphan_is_deleted_after_its_bytes_are_kept(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic)
    kept_first: list[object] = []
    fake_pulsar.store.before("delete_many", lambda: kept_first.extend(judged(fake_pulsar)))
    report = Sidecar(fake_pulsar).process()
    assert (report.deleted, report.postponed) == (1, 0)
    assert report.mean_length_bytes == 1000
    assert [entry["ledgerId"] for entry in kept_first] == [ledger_id]
    assert ends(fake_pulsar, ledger_id) == [DELETED]
    assert ledger_id not in fake_pulsar.ledgers()
    assert waiting(fake_pulsar) == 0


def test_two_records_of_one_ledger_in_a_batch_make_one_deletion(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = orphan(fake_pulsar, topic)
    send(fake_pulsar, *[about(topic, ledger_id)] * 5)
    Sidecar(fake_pulsar).process()
    assert sorted(ends(fake_pulsar, ledger_id)) == [DELETED, *[GONE] * 4]
    assert len(judged(fake_pulsar)) == 1
    assert waiting(fake_pulsar) == 0


def test_two_records_of_one_offloaded_copy_end_as_well(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    copy = about_copy(fake_pulsar, topic, 77)
    send(fake_pulsar, *[copy] * 5)
    sidecar = Sidecar(fake_pulsar)
    sidecar.work_and_check()
    assert endings(fake_pulsar)[77, "OFFLOAD_LEDGER"].count(DELETED) == 1
    assert fake_pulsar.offloaded.parts(copy.ledger_id, copy.offload_context) == set()


def test_two_sidecars_with_the_same_record_delete_once(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = orphan(fake_pulsar, topic)
    other = Sidecar(fake_pulsar, name="sidecar-2", store=fake_pulsar.store.other_session())
    send(fake_pulsar, about(topic, ledger_id), about(topic, ledger_id))
    fake_pulsar.topics.max_messages = 1
    fake_pulsar.store.before("delete_many", lambda: other.process() and None)
    Sidecar(fake_pulsar).process()
    assert sorted(ends(fake_pulsar, ledger_id)) == [DELETED, GONE]
    assert waiting(fake_pulsar) == 0


# --- the versions that were judged -------------------------------------------------------------------------------


def test_a_reference_that_appears_before_the_deletion_saves_the_ledger(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    ledger_id = orphan(fake_pulsar, topic)
    path = managed_ledger_path(topic.managed_ledger_name)

    def link() -> None:
        fake_pulsar.store.put(path, managed_ledger_bytes([*fake_pulsar.listed(topic), ledger_id]))

    fake_pulsar.store.before("delete_many", link)
    send(fake_pulsar, about(topic, ledger_id, unreferenced=True))
    Sidecar(fake_pulsar).process()
    assert ends(fake_pulsar, ledger_id) == [("kept", "ledger-still-in-use")]
    assert ledger_id in fake_pulsar.ledgers()


def test_a_change_that_does_not_matter_is_judged_again_and_goes_on(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic)
    fake_pulsar.store.before("delete_many", lambda: fake_pulsar.rollover(topic) and None, times=2)
    Sidecar(fake_pulsar).process()
    assert ends(fake_pulsar, ledger_id) == [DELETED]
    assert len(judged(fake_pulsar)) == 3


def test_a_node_that_changes_all_the_time_goes_to_the_retry_topic(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic)
    fake_pulsar.store.before("delete_many", lambda: fake_pulsar.rollover(topic) and None, times=3)
    sidecar = Sidecar(fake_pulsar)
    sidecar.process()
    (message,) = fake_pulsar.topics.waiting(RETRY)
    assert message.properties[RECONSUMETIMES] == "1"
    assert processed_entries(fake_pulsar)[-1]["reason"] == OutcomeReason.CHANGED_MEANWHILE.value
    work_off(sidecar, ledger_id)


def test_a_record_whose_deletion_is_never_answered_carries_that_up_to_its_dead_letter(
    fake_pulsar: FakePulsar, topic: TopicName
) -> None:
    fake_pulsar.store.fail_next("delete_many", OutcomeUnknownError("lost"), times=-1)
    send(fake_pulsar, about(topic, orphan(fake_pulsar, topic)))
    Sidecar(fake_pulsar).work()
    assert {line["reason"] for line in processed_entries(fake_pulsar)} == {OutcomeReason.OUTCOME_UNKNOWN.value}
    (dead,) = fake_pulsar.topics.waiting(DeletionTopic.DEAD_LETTER)
    assert dead.properties[REASON].startswith("outcome-unknown: ")


def test_the_ledger_itself_changing_is_a_conflict_too(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic)

    def replace_it() -> None:
        fake_pulsar.store.remove(ledger_path(ledger_id))
        fake_pulsar.ledger(data_custom_metadata("public/default/persistent/others"), ledger_id=ledger_id)
        fake_pulsar.store.put(ledger_path(ledger_id), fake_pulsar.store.peek(ledger_path(ledger_id)).data)

    fake_pulsar.store.before("delete_many", replace_it)
    Sidecar(fake_pulsar).process()
    assert ends(fake_pulsar, ledger_id) == [("kept", "metadata-mismatch")]
    assert ledger_id in fake_pulsar.ledgers()


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_to_a_deletion_is_read_again(fake_pulsar: FakePulsar, topic: TopicName, applied: bool) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic)
    fake_pulsar.store.lose_answer_next("delete_many", applied=applied)
    Sidecar(fake_pulsar).process()
    assert ends(fake_pulsar, ledger_id) == [GONE if applied else DELETED]
    assert ledger_id not in fake_pulsar.ledgers()
    assert waiting(fake_pulsar) == 0


def test_a_store_that_takes_no_deletion_leaves_it_for_later(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic)
    fake_pulsar.store.fail_next("delete_many", TemporaryError("no permission"), times=3)
    sidecar = Sidecar(fake_pulsar)
    sidecar.process()
    assert ledger_id in fake_pulsar.ledgers()
    work_off(sidecar, ledger_id)


# --- failures in the counts --------------------------------------------------------------------------------------


def failed() -> float:
    """Failed attempts of all sidecars so far."""
    name = "pulsar_ledger_deletion_delete_failed_total"
    lines = generate_latest(METRICS).decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_deferred_deletion_is_not_counted_as_failed(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.offloaded.fail_next(DisabledError("no credentials"))
    young = orphan(fake_pulsar, topic, state=LedgerState.OPEN, age_ms=0)
    copy = about_copy(fake_pulsar, topic, 77)
    send(fake_pulsar, copy, about(topic, young), about(topic, fake_pulsar.listed(topic)[0]))
    before = failed()
    Sidecar(fake_pulsar).process()
    assert len(fake_pulsar.topics.waiting(RETRY)) == 3
    assert failed() == before


def test_every_attempt_that_is_refused_or_not_confirmed_is_a_failed_deletion(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar
) -> None:
    changed, unanswered = orphan(fake_pulsar, topic), orphan(fake_pulsar, topic)
    before = failed()
    fake_pulsar.store.before("delete_many", lambda: fake_pulsar.rollover(topic) and None)
    send(fake_pulsar, about(topic, changed))
    sidecar.process()
    assert failed() == before + 1
    fake_pulsar.store.fail_next("delete_many", OutcomeUnknownError("lost"), times=3)
    send(fake_pulsar, about(topic, unanswered))
    sidecar.process()
    assert failed() == before + 4
    fake_pulsar.offloaded.fail_next(TemporaryError("503"))
    send(fake_pulsar, about_copy(fake_pulsar, topic, 77))
    sidecar.process()
    assert failed() == before + 5


# --- auto-recovery -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [False, True])
def test_auto_recoverys_note_about_a_deleted_ledger_goes_too(
    fake_pulsar: FakePulsar, topic: TopicName, lost: bool
) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic)
    note = under_replication_mark_path(ledger_id)
    fake_pulsar.store.put(note, b"replica")
    if lost:
        fake_pulsar.store.lose_answer_next("delete_many", applied=True)
    Sidecar(fake_pulsar).process()
    assert ledger_id not in fake_pulsar.ledgers()
    assert fake_pulsar.store.peek(note) is None


def test_a_note_about_a_living_ledger_stays(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = fake_pulsar.listed(topic)[0]
    note = under_replication_mark_path(ledger_id)
    fake_pulsar.store.put(note, b"replica")
    send(fake_pulsar, about(topic, ledger_id, unreferenced=True))
    Sidecar(fake_pulsar).process()
    assert fake_pulsar.store.peek(note) is not None


def test_a_note_that_cannot_be_removed_is_only_a_warning(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledger_id = recorded_orphan(fake_pulsar, topic)
    note = under_replication_mark_path(ledger_id)
    fake_pulsar.store.put(note, b"replica")
    fake_pulsar.store.fail_next("delete", TemporaryError("no session"), path=note)
    sidecar = Sidecar(fake_pulsar)
    sidecar.process()
    assert ends(fake_pulsar, ledger_id) == [DELETED]
    assert any(note in warning for warning in sidecar.warnings)


# --- validity of facts, and pace --------------------------------------------------------------------------------------


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
    assert sidecar.warnings == ["postponed 5 records: their facts were too old before the first one was processed"]
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
