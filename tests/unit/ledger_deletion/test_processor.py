"""One batch after another: nothing is acknowledged before its end is durable, and no message holds up another."""

import threading
from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from pulsar_sidecar.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.ledger_deletion.record import Mark, PendingDeleteLedgerInfo, encode_record
from pulsar_sidecar.ledger_deletion.second_phase.decide import Reason
from pulsar_sidecar.ledger_deletion.second_phase.retry import REASON, RECONSUMETIMES, RetryPolicy
from pulsar_sidecar.ledger_deletion.service import OperationState
from pulsar_sidecar.ledger_ownership.paths import (
    cursor_path,
    ledger_path,
    managed_ledger_path,
    replication_lock_path,
    under_replication_mark_path,
)
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    DisabledError,
    OutcomeUnknownError,
    PermanentError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerState, LedgerType
from pulsar_sidecar.model.names import CursorName, TopicName
from pulsar_sidecar.model.topic_stats import TopicInternalStats

from tests.fakes.bookkeeper import (
    bucket_custom_metadata,
    cursor_bytes,
    data_custom_metadata,
    managed_ledger_bytes,
    schema_custom_metadata,
)
from tests.fakes.world import World
from tests.unit.ledger_deletion.cases import view
from tests.unit.ledger_deletion.sidecars import METRICS, Sidecar, check, dead, endings, judged, restarted, send, settled

NAME = "persistent://public/default/orders"
GONE = ("kept", "already-gone")
DELETED = ("deleted", "unreferenced")
PENDING, RETRY, OUTCOME = DeletionTopic.PENDING, DeletionTopic.RETRY, DeletionTopic.OUTCOME


def orphan(
    world: World, topic: TopicName, *, state: LedgerState = LedgerState.CLOSED, age_ms: int = 10**10
) -> LedgerId:
    """A data ledger of the topic that is in no list."""
    return world.ledger(data_custom_metadata(topic.managed_ledger_name), state=state, age_ms=age_ms)


def about(topic: TopicName, ledger_id: int, **mark: object) -> PendingDeleteLedgerInfo:
    return PendingDeleteLedgerInfo(
        topic,
        LedgerComponent.MANAGED_LEDGER,
        LedgerType.LEDGER,
        LedgerId(ledger_id),
        mark=Mark(**mark),  # type: ignore[arg-type]
    )


def ends(world: World, ledger_id: int) -> list[tuple[str, str]]:
    return endings(world).get((ledger_id, "LEDGER"), [])


def waiting(world: World) -> int:
    return len(world.topics.waiting(PENDING)) + len(world.topics.waiting(RETRY))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def topic(world: World) -> TopicName:
    return world.topic(NAME)


# --- deleting ----------------------------------------------------------------------------------------------------


def test_an_orphan_is_deleted_after_its_bytes_are_kept(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    kept_first: list[object] = []
    world.store.before("delete_many", lambda: kept_first.extend(judged(world)))
    send(world, about(topic, ledger_id))
    report = Sidecar(world).process()
    assert report is not None
    assert (report.received, report.deleted, report.postponed) == (1, 1, 0)
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
    assert settled(world)[-1]["reason"] == Reason.CHANGED_MEANWHILE.value
    sidecar.work()
    assert ends(world, ledger_id) == [DELETED]


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

    def delete(self, ledger_id: LedgerId) -> None:
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


# --- how long facts are good for, and at what pace ---------------------------------------------------------------


@pytest.mark.parametrize("rate", [None, 1_000.0, 100.0, 7.5])
def test_a_batch_gathers_once_whatever_the_rate(world: World, topic: TopicName, rate: float | None) -> None:
    orphans = [orphan(world, topic) for _ in range(70)]
    send(world, *(about(topic, ledger_id) for ledger_id in [*orphans, *range(90_000, 90_030)]))
    world.topics.max_messages = 100
    began_ms = world.clock.now_ms()
    Sidecar(world, rate_per_second=rate).process()
    assert all(ends(world, ledger_id) == [DELETED] for ledger_id in orphans)
    assert world.owners.hooks.journal.count("views") == 1
    assert len(judged(world)) == 70
    # What ends without a deletion is not paced: 70 deletions, not 100.
    assert world.clock.now_ms() - began_ms <= 70_000 / (rate or 1e9)


def test_facts_are_gathered_again_when_they_are_too_old_to_act_on(world: World, topic: TopicName) -> None:
    orphans = [orphan(world, topic) for _ in range(6)]
    send(world, *(about(topic, ledger_id) for ledger_id in orphans))
    reading = view(ledgers=frozenset({orphans[4]}))

    def take_long() -> None:
        world.clock.advance_ms(10_001)
        # A broker begins to use it in its memory, which changes no version.
        world.owners.views = lambda topics: {topic: reading}  # type: ignore[method-assign, assignment]

    world.store.before("delete_many", take_long, path=ledger_path(orphans[2]))
    Sidecar(world).process()
    # The third had been sent when its facts became old; the next ones were judged again.
    deleted = [ledger_id for ledger_id in orphans if ends(world, ledger_id) == [DELETED]]
    assert deleted == [*orphans[:4], orphans[5]]
    assert orphans[4] in world.ledgers()


@pytest.mark.parametrize("rate", [0.04, 0.3, 1.0, 1.9, 30.0])
def test_facts_are_never_older_than_ten_seconds_at_any_rate(world: World, topic: TopicName, rate: float) -> None:
    orphans = [orphan(world, topic) for _ in range(40)]
    send(world, *(about(topic, ledger_id) for ledger_id in orphans))
    gathered: list[float] = []
    ages: list[float] = []
    world.store.before("now_ms", lambda: gathered.append(world.clock.monotonic_seconds()), times=-1)
    world.store.before("delete_many", lambda: ages.append(world.clock.monotonic_seconds() - gathered[-1]), times=-1)
    Sidecar(world, rate_per_second=rate).process()
    assert all(ends(world, ledger_id) == [DELETED] for ledger_id in orphans)
    assert max(ages) <= 10
    # Once for what the rate lets through in ten seconds, and not more often.
    assert len(gathered) <= -(-40 // max(1, int(rate * 10)))
    assert len(judged(world)) == 40


def test_facts_that_take_too_long_to_gather_are_gathered_for_fewer(world: World, topic: TopicName) -> None:
    others = [world.topic(f"{NAME}-{number}") for number in range(8)]
    send(world, *(about(each, orphan(world, each)) for each in others))
    answer = world.owners.views

    def slowly(topics: Collection[TopicName]) -> Mapping[TopicName, TopicInternalStats]:
        world.clock.advance_ms(3_000 * len(topics))
        return answer(topics)

    world.owners.views = slowly  # type: ignore[method-assign]
    report = Sidecar(world).process()
    assert report is not None
    assert report.deleted == 8


def test_facts_that_always_take_too_long_postpone_the_batch(world: World, topic: TopicName) -> None:
    orphans = [orphan(world, topic) for _ in range(5)]
    send(world, *(about(topic, ledger_id) for ledger_id in orphans))
    world.store.before("now_ms", lambda: world.clock.advance_ms(11_000), times=6)
    sidecar = Sidecar(world)
    report = sidecar.process()
    assert report is not None
    assert (report.deleted, report.postponed) == (0, 5)
    assert sidecar.warnings == ["5 records are postponed: the facts of the first were too old before its turn"]
    sidecar.work()
    check(world)
    assert all(ends(world, ledger_id) == [DELETED] for ledger_id in orphans)


def test_an_offloaded_copy_is_not_deleted_on_old_facts_either(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    context = world.context(77, deleted=False)
    world.offloaded.put(LedgerId(77), context, topic.managed_ledger_name)
    copy = replace(about(topic, 77), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context)
    send(world, about(topic, ledger_id), copy)
    world.store.before("delete_many", lambda: world.clock.advance_ms(10_001), path=ledger_path(ledger_id))
    Sidecar(world).process()
    assert endings(world)[77, "OFFLOAD_LEDGER"] == [DELETED]
    assert world.owners.hooks.journal.count("views") == 2


def test_what_is_not_begun_when_the_sidecar_stops_comes_again(world: World, topic: TopicName) -> None:
    orphans = [orphan(world, topic) for _ in range(10)]
    send(world, *(about(topic, ledger_id) for ledger_id in orphans))
    stop = threading.Event()
    sidecar = Sidecar(world, stop=stop)
    world.store.before("delete_many", stop.set, path=ledger_path(orphans[3]))
    report = sidecar.process()
    assert report is not None
    assert (report.deleted, report.postponed) == (4, 0)
    restarted(world).work()
    check(world)
    assert all(ends(world, ledger_id) == [DELETED] for ledger_id in orphans)


@pytest.mark.parametrize("rate", [None, 2.0])
def test_what_is_not_begun_when_deletion_is_paused_is_postponed(
    world: World, topic: TopicName, rate: float | None
) -> None:
    orphans = [orphan(world, topic) for _ in range(10)]
    send(world, *(about(topic, ledger_id) for ledger_id in orphans))
    sidecar = Sidecar(world, rate_per_second=rate)
    world.store.before("delete_many", lambda: setattr(sidecar, "paused", True), path=ledger_path(orphans[3]))
    report = sidecar.process()
    assert report is not None
    assert (report.deleted, report.postponed) == (4, 6)
    assert sidecar.warnings == ["6 records are postponed: deletion is paused"]
    sidecar.paused = False
    sidecar.work()
    check(world)
    assert all(ends(world, ledger_id) == [DELETED] for ledger_id in orphans)


def test_a_batch_that_comes_when_deletion_is_paused_is_postponed(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    send(world, about(topic, ledger_id))
    sidecar = Sidecar(world)
    sidecar.paused = True
    report = sidecar.process()
    assert report is not None
    assert (report.deleted, report.postponed) == (0, 1)


def test_the_rate_is_not_spent_on_facts_that_are_too_old(world: World, topic: TopicName) -> None:
    orphans = [orphan(world, topic) for _ in range(10)]
    send(world, *(about(topic, ledger_id) for ledger_id in orphans))
    world.store.before("delete_many", lambda: world.clock.advance_ms(10_001), path=ledger_path(orphans[0]))
    Sidecar(world, rate_per_second=1.0).process()
    assert all(ends(world, ledger_id) == [DELETED] for ledger_id in orphans)
    assert world.clock.monotonic_seconds() <= 20


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
    publisher = sidecar.processor()._publishing._publishers.outcome  # type: ignore[attr-defined]
    publisher.close()  # from now on the outcome topic takes nothing
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


# --- what is counted as failed -----------------------------------------------------------------------------------


def failed() -> float:
    """Failed attempts of all sidecars so far."""
    name = "pulsar_ledger_deletion_delete_failed_total"
    lines = METRICS.exposition().decode().splitlines()
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


# --- directly ----------------------------------------------------------------------------------------------------


def test_a_direct_deletion_is_judged_kept_and_noted_as_any_other(world: World, topic: TopicName) -> None:
    ledger_id = orphan(world, topic)
    outcome = Sidecar(world).processor().process_now(about(topic, ledger_id), "by hand")
    assert (outcome.decision, outcome.reason) == DELETED
    assert ends(world, ledger_id) == [DELETED]
    assert [entry["messageId"] for entry in judged(world)] == ["by hand"]


def test_a_direct_deletion_says_why_it_has_to_wait_and_leaves_no_record(world: World, topic: TopicName) -> None:
    processor = Sidecar(world).processor()
    young = orphan(world, topic, state=LedgerState.OPEN, age_ms=0)
    assert processor.process_now(about(topic, young), "by hand").reason == "too-young"
    used = world.listed(topic)[0]
    assert processor.process_now(about(topic, used, unreferenced=True), "by hand").reason == "ledger-still-in-use"
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
