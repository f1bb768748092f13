"""Copies in tiered storage that a list no longer names: found, handed on, and never without a look at the storage."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.record import copy_key
from pulsar_sidecar.features.ledger_deletion.steps import Step
from pulsar_sidecar.features.ledger_deletion.watch.results import Leak, LeakCause, LeakState, WatchMode
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, PermanentError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerType, OffloadContext
from pulsar_sidecar.model.names import TopicName

from tests.fakes.bookkeeper import managed_ledger_bytes
from tests.fakes.offload import PARTS
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.replay_settings import MAY_BE_SHARED
from tests.unit.ledger_deletion.sidecars import Crash, accepted_records
from tests.unit.ledger_deletion.watch.leak_causes import path_of
from tests.unit.ledger_deletion.watch.watching import (
    A_WHILE,
    MINUTE,
    SETTLE_SECONDS,
    SOON,
    CrashAround,
    Watcher,
    has_signature,
    kept_keys,
    made,
    run_second_phase,
)

HOUR = 60 * MINUTE
LEDGERS = 3
SETTLED = SETTLE_SECONDS + SOON


@pytest.fixture
def topic(fake_pulsar: FakePulsar) -> TopicName:
    """Topic whose first two ledgers are offloaded, and no longer in BookKeeper."""
    plan = TopicPlan(ledgers=LEDGERS, subscriptions=(), offloaded=(0, 1), bookkeeper_deleted=(0, 1), age_ms=0)
    return fake_pulsar.topic("persistent://public/default/offloaded", plan)


def write_list(
    fake_pulsar: FakePulsar, topic: TopicName, ids: Iterable[int], offloaded: dict[int, OffloadContext]
) -> None:
    fake_pulsar.store.put(path_of(topic), managed_ledger_bytes(ids, offloaded=offloaded))


def trim_first(fake_pulsar: FakePulsar, topic: TopicName) -> tuple[LedgerId, OffloadContext]:
    """Trim like a broker that dies before it deletes anything."""
    first, *others = fake_pulsar.listed(topic)
    offloaded = fake_pulsar.copies_of(topic)
    write_list(fake_pulsar, topic, others, offloaded)
    return first, offloaded[first]


def begin_offload(
    fake_pulsar: FakePulsar, topic: TopicName, *, parts: Iterable[str] = PARTS
) -> tuple[LedgerId, OffloadContext]:
    """The third ledger's offload fails after it has written so much."""
    ledger_id, offloaded = fake_pulsar.listed(topic)[-1], fake_pulsar.copies_of(topic)
    failed = replace(fake_pulsar.offloaded.context(uid_msb=100), complete=False)
    write_list(fake_pulsar, topic, fake_pulsar.listed(topic), {**offloaded, ledger_id: failed})
    if parts:
        fake_pulsar.offloaded.put(ledger_id, failed, topic.managed_ledger_name, parts=list(parts))
    return ledger_id, failed


def replace_attempt(fake_pulsar: FakePulsar, topic: TopicName, ledger_id: LedgerId) -> None:
    second = replace(fake_pulsar.offloaded.context(uid_msb=200), complete=False)
    offloaded = {**fake_pulsar.copies_of(topic), ledger_id: second}
    write_list(fake_pulsar, topic, fake_pulsar.listed(topic), offloaded)
    fake_pulsar.offloaded.put(ledger_id, second, topic.managed_ledger_name)


def leak_of(watcher: Watcher, context: OffloadContext) -> Leak | None:
    found = [leak for leak in watcher.watch.leaks(ended=True) if leak.offload_attempt == context.attempt]
    return found[-1] if found else None


def state_of(watcher: Watcher, context: OffloadContext) -> LeakState | None:
    leak = leak_of(watcher, context)
    return None if leak is None else leak.state


def demand_appended_and_deleted(
    fake_pulsar: FakePulsar, watcher: Watcher, ledger_id: LedgerId, context: OffloadContext, cause: LeakCause
) -> None:
    (record,) = accepted_records(fake_pulsar)
    assert (record.ledger_id, record.ledger_type) == (ledger_id, LedgerType.OFFLOAD_LEDGER)
    assert record.offload_context.attempt == context.attempt
    assert has_signature(fake_pulsar, record)
    leak = leak_of(watcher, context)
    assert (leak.state, leak.cause, leak.topic) == (LeakState.APPENDED, cause, str(record.topic))
    assert watcher.status().leaked == {cause: 1}
    run_second_phase(fake_pulsar, MAY_BE_SHARED)
    assert fake_pulsar.offloaded.parts(ledger_id, context) == set()
    watcher.go(2 * MINUTE)
    assert state_of(watcher, context) is LeakState.DELETED
    assert kept_keys(fake_pulsar) == []
    assert len(accepted_records(fake_pulsar)) == 1


# --- leaks -----------------------------------------------------------------------------------------------------------


def test_copy_left_by_a_trim_is_appended(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    first, context = trim_first(fake_pulsar, topic)
    watcher.go(SOON)
    assert kept_keys(fake_pulsar) == [copy_key(first, context)]
    assert state_of(watcher, context) is LeakState.SETTLING
    watcher.go(SETTLE_SECONDS - SOON - 0.5)
    assert accepted_records(fake_pulsar) == []
    watcher.go(3)
    demand_appended_and_deleted(fake_pulsar, watcher, first, context, LeakCause.TRIM)
    (second,) = fake_pulsar.copies_of(topic).items()
    assert fake_pulsar.offloaded.parts(LedgerId(second[0]), second[1]) == PARTS


def test_copies_left_by_a_topic_deletion_are_appended(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    left = fake_pulsar.copies_of(topic)
    for ledger_id in fake_pulsar.listed(topic):
        fake_pulsar.remove_ledger(ledger_id)
    fake_pulsar.store.remove(path_of(topic))
    watcher.go(SETTLED)
    assert {record.ledger_id for record in accepted_records(fake_pulsar)} == left.keys()
    assert watcher.status().leaked == {LeakCause.TOPIC_DELETION: 2}
    run_second_phase(fake_pulsar, MAY_BE_SHARED)
    assert not any(fake_pulsar.offloaded.parts(LedgerId(each), context) for each, context in left.items())


def test_both_copies_of_a_ledger_leak(fake_pulsar: FakePulsar, watcher: Watcher) -> None:
    plan = TopicPlan(ledgers=2, subscriptions=(), offloaded=(0,), age_ms=0)
    both = fake_pulsar.topic("persistent://public/default/both", plan)
    watcher.go(SOON)
    first, context = trim_first(fake_pulsar, both)
    watcher.go(SOON)
    assert kept_keys(fake_pulsar) == [str(first), copy_key(first, context)]
    watcher.go(SETTLED)
    found = {(record.ledger_id, record.ledger_type) for record in accepted_records(fake_pulsar)}
    assert found == {(first, LedgerType.LEDGER), (first, LedgerType.OFFLOAD_LEDGER)}
    explained = watcher.watch.explain(first)
    assert explained.leak.offload_attempt is None
    assert [leak.offload_attempt for leak in explained.copies] == [context.attempt]
    run_second_phase(fake_pulsar, MAY_BE_SHARED)
    assert first not in fake_pulsar.ledgers()
    assert fake_pulsar.offloaded.parts(first, context) == set()


@pytest.mark.parametrize("parts", [PARTS, ["data"], ["index"]])
def test_copy_left_by_a_failed_offload_is_appended(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, parts: Iterable[str]
) -> None:
    ledger_id, failed = begin_offload(fake_pulsar, topic, parts=parts)
    watcher.go(SETTLED)
    assert kept_keys(fake_pulsar) == []
    replace_attempt(fake_pulsar, topic, ledger_id)
    watcher.go(SETTLED)
    demand_appended_and_deleted(fake_pulsar, watcher, ledger_id, failed, LeakCause.FAILED_OFFLOAD)
    running = fake_pulsar.copies_of(topic)[ledger_id]
    assert fake_pulsar.offloaded.parts(ledger_id, running) == PARTS


@pytest.mark.parametrize("dies", [False, True])
def test_an_upload_that_ends_after_its_attempt_was_replaced(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, dies: bool
) -> None:
    """The broker that lost the topic continues with it, and dies before it cleans up; the watch's sidecar may, too."""
    ledger_id, failed = begin_offload(fake_pulsar, topic, parts=())
    watcher.go(SOON)
    replace_attempt(fake_pulsar, topic, ledger_id)
    watcher.go(SETTLED)
    assert kept_keys(fake_pulsar) == [copy_key(ledger_id, failed)]
    if dies:
        watcher.die()
        watcher = Watcher(fake_pulsar, name="two", policy=MAY_BE_SHARED).go(10 * MINUTE)
    fake_pulsar.offloaded.put(ledger_id, failed, topic.managed_ledger_name)
    watcher.go(20 * MINUTE)
    demand_appended_and_deleted(fake_pulsar, watcher, ledger_id, failed, LeakCause.FAILED_OFFLOAD)
    watcher.die()


def test_an_upload_that_never_ends_is_forgotten(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    ledger_id, failed = begin_offload(fake_pulsar, topic, parts=())
    watcher.go(SOON)
    replace_attempt(fake_pulsar, topic, ledger_id)
    watcher.go(2.5 * HOUR)
    assert kept_keys(fake_pulsar) == []
    assert state_of(watcher, failed) is LeakState.DELETED
    assert accepted_records(fake_pulsar) == []
    assert fake_pulsar.offloaded.looks < 15


# --- no leaks --------------------------------------------------------------------------------------------------------


def test_a_broker_that_deletes_in_time_leaves_nothing(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    first, context = trim_first(fake_pulsar, topic)
    fake_pulsar.offloaded.delete_offloaded(first, context, topic.managed_ledger_name)
    watcher.go(SETTLED)
    assert (kept_keys(fake_pulsar), watcher.watch.leaks(ended=True)) == ([], [])
    assert fake_pulsar.offloaded.looks == 1
    assert watcher.status().vanished == 0


def test_a_broker_that_deletes_late_ends_it(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    first, context = trim_first(fake_pulsar, topic)
    watcher.go(MINUTE)
    fake_pulsar.offloaded.delete_offloaded(first, context, topic.managed_ledger_name)
    watcher.go(SETTLED)
    assert (kept_keys(fake_pulsar), accepted_records(fake_pulsar)) == ([], [])
    assert state_of(watcher, context) is LeakState.DELETED


def test_a_recorded_deletion_has_a_record_of_it(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    watcher.recorded.add(topic)
    fake_pulsar.store.remove(path_of(topic))
    watcher.go(SETTLED)
    assert (kept_keys(fake_pulsar), accepted_records(fake_pulsar)) == ([], [])


def test_a_copy_that_a_shadow_still_names_stays(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    shadow = fake_pulsar.shadow("persistent://public/default/shadow", topic)
    watcher.go(SOON)
    first, context = trim_first(fake_pulsar, topic)
    watcher.go(SETTLED)
    leak = leak_of(watcher, context)
    assert (leak.state, leak.detail) == (
        LeakState.KEPT,
        f"{path_of(shadow)} still names it, as a shadow topic's list does",
    )
    assert accepted_records(fake_pulsar) == []
    fake_pulsar.store.remove(path_of(shadow))
    watcher.go(A_WHILE)
    assert state_of(watcher, context) is LeakState.APPENDED
    assert first in {record.ledger_id for record in accepted_records(fake_pulsar)}


def test_a_list_that_names_it_again_keeps_it(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    before = fake_pulsar.store.peek(path_of(topic))
    _, context = trim_first(fake_pulsar, topic)
    watcher.go(MINUTE)
    fake_pulsar.store.put(path_of(topic), before.data)
    watcher.go(SETTLED)
    assert state_of(watcher, context) is LeakState.LINKED
    assert (kept_keys(fake_pulsar), accepted_records(fake_pulsar)) == ([], [])


def test_an_unreadable_list_protects_it(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    _, context = trim_first(fake_pulsar, topic)
    fake_pulsar.store.put("/managed-ledgers/public/default/persistent/broken", b"\x47\x78\x00")
    watcher.go(SETTLED)
    leak = leak_of(watcher, context)
    assert leak.state is LeakState.KEPT
    assert "broken was not read, and may reference it" in leak.detail
    assert accepted_records(fake_pulsar) == []


def test_the_brake_counts_copies(fake_pulsar: FakePulsar, watcher: Watcher) -> None:
    plan = TopicPlan(ledgers=21, subscriptions=(), bookkeeper_deleted=range(20), age_ms=0)
    many = fake_pulsar.topic("persistent://public/default/many", plan)
    watcher.go(SOON)
    write_list(fake_pulsar, many, fake_pulsar.listed(many)[-1:], {})
    watcher.go(SETTLED)
    assert "20 references vanished" in (watcher.status().braked or "")
    assert accepted_records(fake_pulsar) == []


# --- asking tiered storage -------------------------------------------------------------------------------------------


def test_a_place_that_is_not_allowed_is_named_and_not_followed(fake_pulsar: FakePulsar, watcher: Watcher) -> None:
    plan = TopicPlan(ledgers=3, subscriptions=(), age_ms=0)
    elsewhere = fake_pulsar.topic("persistent://public/default/elsewhere", plan)
    context = replace(fake_pulsar.offloaded.context(), driver_metadata={"bucket": "elsewhere"})
    write_list(
        fake_pulsar, elsewhere, fake_pulsar.listed(elsewhere), dict.fromkeys(fake_pulsar.listed(elsewhere)[:2], context)
    )
    watcher.go(SOON)
    write_list(fake_pulsar, elsewhere, fake_pulsar.listed(elsewhere), {})
    watcher.go(SETTLED)
    reason = "the bucket is not in offloadAllowedLocations; add it and send the record again"
    assert watcher.status().unsought_copies == {reason: 2}
    assert (kept_keys(fake_pulsar), watcher.watch.leaks(ended=True)) == ([], [])


def test_copy_of_another_cluster_is_left(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    first = fake_pulsar.listed(topic)[0]
    context = fake_pulsar.copies_of(topic)[first]
    fake_pulsar.offloaded.put(first, context, topic.managed_ledger_name, cluster_name="another")
    trim_first(fake_pulsar, topic)
    watcher.go(SETTLED)
    assert watcher.status().unsought_copies == {"see the sidecar's log": 1}
    assert (kept_keys(fake_pulsar), accepted_records(fake_pulsar)) == ([], [])


def test_a_failed_look_is_not_an_absence(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    first, context = trim_first(fake_pulsar, topic)
    fake_pulsar.offloaded.fail_next(TemporaryError("S3 is away"), times=5)
    watcher.go(SETTLED)
    assert kept_keys(fake_pulsar) == [copy_key(first, context)]
    leak = leak_of(watcher, context)
    assert (leak.state, leak.detail) == (LeakState.KEPT, "S3 is away")
    assert fake_pulsar.offloaded.looks < 5
    watcher.go(20 * MINUTE)
    demand_appended_and_deleted(fake_pulsar, watcher, first, context, LeakCause.TRIM)


def test_copy_in_a_refused_location_stays_listed(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    first, context = trim_first(fake_pulsar, topic)
    watcher.go(SOON)
    fake_pulsar.offloaded.fail_next(PermanentError("it is not ours"), times=100)
    watcher.go(SETTLED)
    leak = leak_of(watcher, context)
    assert (leak.state, leak.detail) == (LeakState.KEPT, "it is not ours")
    assert kept_keys(fake_pulsar) == [copy_key(first, context)]


# --- one after the other ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [SOON, SETTLED])
def test_a_successor_goes_on(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, after: float) -> None:
    first, context = trim_first(fake_pulsar, topic)
    watcher.go(after)
    watcher.die()
    with Watcher(fake_pulsar, name="two", policy=MAY_BE_SHARED) as other:
        other.go(SETTLED)
        assert [record.ledger_id for record in accepted_records(fake_pulsar)] == [first]
        assert state_of(other, context) is LeakState.APPENDED


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("step", "occurrence"),
    [(Step.LEAK_KEPT, 1), (Step.LEAK_KEPT, 2), (Step.LEAKS_APPENDED, 1), (Step.LEAK_FORGOTTEN, 1)],
)
def test_a_crash_around_any_step_loses_no_copy_that_was_written_down(
    fake_pulsar: FakePulsar, topic: TopicName, step: Step, occurrence: int, before: bool
) -> None:
    """The steps: keep it, append it, keep it as appended, forget it; before the first of these only memory has it."""
    steps = CrashAround(step, before=before, occurrence=occurrence)
    with Watcher(fake_pulsar, steps=steps, policy=MAY_BE_SHARED).go(10) as first:
        ledger_id, context = trim_first(fake_pulsar, topic)
        first.go(SETTLED)
        run_second_phase(fake_pulsar, MAY_BE_SHARED)
        first.go(2 * MINUTE)
        assert isinstance(first.died_of, Crash)
    is_written = bool(kept_keys(fake_pulsar) or accepted_records(fake_pulsar))
    with Watcher(fake_pulsar, name="two", policy=MAY_BE_SHARED).go(SETTLED) as second:
        run_second_phase(fake_pulsar, MAY_BE_SHARED)
        second.go(2 * MINUTE)
    assert kept_keys(fake_pulsar) == []
    assert fake_pulsar.offloaded.parts(ledger_id, context) == (set() if is_written else PARTS)
    assert is_written is not (before and (step, occurrence) == (Step.LEAK_KEPT, 1))


def test_an_operator_has_one_copy_appended(fake_pulsar: FakePulsar) -> None:
    plan = TopicPlan(ledgers=2, subscriptions=(), offloaded=(0,), age_ms=0)
    both = fake_pulsar.topic("persistent://public/default/both", plan)
    with Watcher(fake_pulsar, made(mode=WatchMode.REPORT), policy=MAY_BE_SHARED).go(10) as watcher:
        first, context = trim_first(fake_pulsar, both)
        watcher.go(SETTLED)
        assert state_of(watcher, context) is LeakState.LEAKED
        with pytest.raises(NotFoundError, match="of offload attempt"):
            watcher.watch.request_append(first, fake_pulsar.offloaded.context(9, 9).attempt)
        ordered = watcher.watch.request_append(first, context.attempt)
        watcher.go(2)
        assert ordered.result(0).offload_attempt == context.attempt
        (record,) = accepted_records(fake_pulsar)
        assert record.ledger_type is LedgerType.OFFLOAD_LEDGER
        assert watcher.state(first) is not None
        with pytest.raises(ConflictError, match="made is appended, not leaked"):
            watcher.watch.request_append(first, context.attempt)
