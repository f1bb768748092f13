"""Responses to callers, and outcomes of messages: each verdict is checked against the broker."""

import pytest
from pulsar_sidecar.backlog.ports import Chunk, DelayPolicy
from pulsar_sidecar.features.delayed_messages.cancel.requests import CancelOptions, Target
from pulsar_sidecar.features.delayed_messages.ports import Configuration
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus as Status
from pulsar_sidecar.features.delayed_messages.results import Cause, DelayedMessage, MessageOutcome, Verdict
from pulsar_sidecar.model.errors import (
    ConflictError,
    DisabledError,
    NotAuthorizedError,
    NotFoundError,
    OutcomeUnknownError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.topic_stats import SubscriptionType

from tests.fakes.delayed_messages import TOPIC, FakeCluster, FakeSidecar, at


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def sidecar(cluster: FakeCluster) -> FakeSidecar:
    return FakeSidecar(cluster)


def statuses(outcomes: list[MessageOutcome]) -> list[Status]:
    return [verdict.proof for outcome in outcomes for verdict in outcome.verdicts]


def only(outcomes: list[MessageOutcome]) -> Verdict:
    ((verdict,),) = [outcome.verdicts for outcome in outcomes]
    return verdict


def test_a_cancelled_message_is_never_delivered_and_the_others_are_once(
    cluster: FakeCluster, sidecar: FakeSidecar
) -> None:
    subscription = cluster.subscribe()
    cluster.publish(10)
    assert set(statuses(sidecar.cancel(1, 4, 5))) == {Status.ACKED}
    sidecar.live(70_000)
    assert subscription.deliveries == {at(entry): 1 for entry in (0, 2, 3, 6, 7, 8, 9)}
    assert [one.proof for one in sidecar.feature.cancellations(TOPIC, at(1))] == [Status.EXPIRED]
    assert cluster.compacted() == {}


def test_every_shared_subscription_without_names_and_only_the_named_ones_with(
    cluster: FakeCluster, sidecar: FakeSidecar
) -> None:
    one, other = cluster.subscribe("one"), cluster.subscribe("other", type=SubscriptionType.KEY_SHARED)
    cluster.publish(2)
    assert statuses(sidecar.cancel(0)) == [Status.ACKED, Status.ACKED]
    assert statuses(sidecar.cancel_at([at(1)], ("one",))) == [Status.ACKED]
    sidecar.live(65_000)
    assert one.deliveries == {}
    assert other.deliveries == {at(1): 1}


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER])
def test_exclusive_and_failover_subscriptions_are_refused(
    cluster: FakeCluster, sidecar: FakeSidecar, kind: SubscriptionType
) -> None:
    cluster.subscribe("once", type=kind)
    cluster.subscribe("shared")
    cluster.publish(1)
    refused = only(sidecar.cancel_at([at(0)], ("once",)))
    assert (refused.proof, refused.cause) == (Status.REFUSED, Cause.SUBSCRIPTION_TYPE)
    (outcome,) = sidecar.cancel(0)
    assert [verdict.subscription for verdict in outcome.verdicts] == ["shared"]
    assert any("once" in warning for warning in outcome.warnings)


def test_an_outcome_names_the_other_clusters_of_a_replicated_topic(cluster: FakeCluster) -> None:
    cluster.subscribe()
    cluster.publish(1)
    cluster.replicated_to = ("west", "north")
    (outcome,) = FakeSidecar(cluster).cancel(0)
    assert any("applies to this cluster only: in north, west," in each for each in outcome.warnings)


def test_a_message_has_the_fields_that_its_copies_share(cluster: FakeCluster) -> None:
    cluster.publish(1, sequence_id=7, key="k")
    cluster.publish(1, due_in_ms=None)
    sidecar, now_ms = FakeSidecar(cluster), cluster.clock.now_ms()
    found = sidecar.feature.message(TOPIC, at(0))
    assert found == DelayedMessage(str(TOPIC), *at(0), now_ms + 60_000, "k", "p", 7, now_ms)
    for missing in (at(1), at(9)):
        with pytest.raises(NotFoundError):
            sidecar.feature.message(TOPIC, missing)


def test_without_a_subscription_that_holds_messages_back_nothing_is_cancelled(cluster: FakeCluster) -> None:
    cluster.subscribe("once", type=SubscriptionType.FAILOVER)
    cluster.publish(1)
    assert only(FakeSidecar(cluster).cancel(0)).cause is Cause.NO_SUBSCRIPTION


def test_a_subscription_without_consumers_is_joined_as_shared(cluster: FakeCluster) -> None:
    subscription = cluster.subscribe(type=SubscriptionType.NONE, consumers=0)
    cluster.publish(1)
    assert statuses(FakeSidecar(cluster).cancel(0)) == [Status.ACKED]
    assert at(0) in subscription.acked


@pytest.mark.parametrize(
    ("facts", "status", "cause"),
    [
        ({"deliver_at_ms": None}, Status.REFUSED, Cause.NOT_DELAYED),
        ({"messages_in_batch": 3}, Status.REFUSED, Cause.BATCH),
        ({"marker": True}, Status.REFUSED, Cause.MARKER),
        ({"transaction": True}, Status.REFUSED, Cause.MARKER),
        ({"chunk": Chunk("u", 1, 3)}, Status.REFUSED, Cause.CHUNKS),
    ],
)
def test_uncancellable_message_is_refused_and_delivered(
    cluster: FakeCluster, sidecar: FakeSidecar, facts: dict[str, object], status: Status, cause: Cause
) -> None:
    subscription = cluster.subscribe()
    cluster.publish(1, **facts)
    verdict = only(sidecar.cancel(0, due=False))
    assert (verdict.proof, verdict.cause) == (status, cause)
    assert verdict.reason
    sidecar.live(65_000)
    assert subscription.deliveries == {at(0): 1}
    assert cluster.records == []


def test_an_absent_entry_another_due_time_and_an_unknown_subscription(
    cluster: FakeCluster, sidecar: FakeSidecar
) -> None:
    cluster.subscribe()
    cluster.publish(1)
    assert only(sidecar.cancel(5)).proof is Status.NOT_FOUND
    other = Target(at(0), cluster.clock.now_ms() + 1)
    assert only(sidecar.feature.cancel(TOPIC, [other], CancelOptions())).cause is Cause.OTHER_DELIVER_AT
    assert only(sidecar.cancel_at([at(0)], ("nobody",))).proof is Status.NOT_FOUND
    assert set(cluster.subscriptions_) == {"s"}


def test_an_unreadable_entry_is_not_an_absent_one(cluster: FakeCluster) -> None:
    cluster.subscribe()
    cluster.entries[at(0)] = Unreadable("no bookie answers")
    verdict = only(FakeSidecar(cluster).cancel(0, due=False))
    assert (verdict.proof, verdict.cause) == (Status.REFUSED, Cause.UNREADABLE)


def test_an_entry_that_is_remembered_of_a_dropped_ledger_is_looked_for_again(
    cluster: FakeCluster, sidecar: FakeSidecar
) -> None:
    cluster.subscribe()
    cluster.publish(1)
    assert only(sidecar.cancel(0)).proof is Status.ACKED
    cluster.dropped = True
    outcomes = sidecar.cancel(0)
    assert (only(outcomes).proof, only(outcomes).cause) == (Status.NOT_FOUND, Cause.NO_ENTRY)


def test_all_chunks_of_a_message_go_together(cluster: FakeCluster) -> None:
    subscription = cluster.subscribe()
    for index in (0, 1):
        cluster.publish(1, chunk=Chunk("u", index, 3))
        cluster.publish(1, chunk=Chunk("other", index, 9))
    cluster.publish(1, chunk=Chunk("u", 2, 3))
    assert statuses(FakeSidecar(cluster).cancel(4)) == [Status.ACKED]
    assert subscription.acked == {at(0), at(2), at(4)}


@pytest.mark.parametrize(("whole", "acked"), [(True, {at(0), at(1)}), (False, set())])
def test_chunks_of_another_message_under_the_same_uuid_are_not_touched(
    cluster: FakeCluster, whole: bool, acked: set[Position]
) -> None:
    # A producer that begins again under its name gives its messages the sequence ids, and so the uuids, of others.
    subscription = cluster.subscribe()
    for index in (0, 1) if whole else (0,):
        cluster.publish(1, chunk=Chunk("p-0", index, 2))
    cluster.pass_ms(1)
    for index in (0, 1):
        cluster.publish(1, chunk=Chunk("p-0", index, 2))
    FakeSidecar(cluster).cancel(0)
    assert subscription.acked == acked


def test_a_message_acknowledged_by_another_client_was_not_cancelled_by_us(cluster: FakeCluster) -> None:
    cluster.subscribe(acked={at(0)})
    cluster.publish(1)
    verdict = only(FakeSidecar(cluster).cancel(0))
    assert (verdict.proof, verdict.cause) == (Status.TOO_LATE, Cause.ACKED_BEFORE)


def test_asking_again_gives_the_same_answer(cluster: FakeCluster) -> None:
    cluster.subscribe()
    cluster.publish(1)
    sidecar = FakeSidecar(cluster)
    assert statuses(sidecar.cancel(0)) == [Status.ACKED]
    assert statuses(sidecar.cancel(0)) == [Status.ACKED]
    sidecar.live(3_000)
    assert statuses(sidecar.cancel(0)) == [Status.PERSISTED]
    another = FakeSidecar(cluster)
    assert statuses(another.cancel(0)) == [Status.PERSISTED]


def test_too_late_changes_nothing(cluster: FakeCluster, sidecar: FakeSidecar) -> None:
    subscription = cluster.subscribe(keeps=True)
    cluster.publish(1, due_in_ms=5_000)
    cluster.pass_ms(6_000)
    assert only(sidecar.cancel(0)).proof is Status.TOO_LATE
    assert subscription.by_sidecar == set()
    assert subscription.deliveries == {at(0): 1}


@pytest.mark.parametrize("before_due_ms", range(0, 2600, 100))
def test_near_the_due_time_acked_means_not_delivered_and_raced_that_it_may_have_been(
    cluster: FakeCluster, sidecar: FakeSidecar, before_due_ms: int
) -> None:
    subscription = cluster.subscribe(keeps=True)
    cluster.publish(1, due_in_ms=10_000)
    cluster.pass_ms(10_000 - before_due_ms, step_ms=100)
    verdict = only(sidecar.cancel(0))
    sidecar.live(5_000)
    delivered = subscription.deliveries.get(at(0), 0)
    if verdict.proof is Status.ACKED:
        assert delivered == 0
        assert before_due_ms > 2000
    elif verdict.proof is Status.RACED:
        assert before_due_ms <= 2000, "two ticks before the due time a broker may begin to read what it will send"
        assert at(0) in subscription.acked
    else:
        assert verdict.proof is Status.TOO_LATE
        assert before_due_ms == 0


def test_near_the_due_time_others_messages_make_it_raced(cluster: FakeCluster, sidecar: FakeSidecar) -> None:
    subscription = cluster.subscribe(keeps=True)
    cluster.publish(1, due_in_ms=10_000)
    cluster.publish(1, due_in_ms=1_000)
    cluster.pass_ms(8_600, step_ms=100)
    verdict = only(sidecar.cancel(0))
    assert verdict.proof is Status.RACED
    assert "may have" in (verdict.reason or "")
    assert subscription.deliveries == {at(1): 1}


def test_a_broker_whose_clock_is_ahead_is_believed(cluster: FakeCluster) -> None:
    cluster.subscribe()
    cluster.publish(1, due_in_ms=5_000)
    cluster.ahead_ms = 6_000
    assert only(FakeSidecar(cluster).cancel(0)).proof is Status.TOO_LATE


def test_cancel_is_too_late_if_delayed_delivery_is_disabled(cluster: FakeCluster) -> None:
    cluster.policy = DelayPolicy(enabled=False)
    cluster.subscribe()
    cluster.publish(1)
    assert only(FakeSidecar(cluster).cancel(0)).proof is Status.TOO_LATE


def test_a_time_to_live_that_ends_before_is_warned_of(cluster: FakeCluster) -> None:
    cluster.policy = DelayPolicy(ttl_seconds=30)
    cluster.subscribe()
    cluster.publish(1)
    (outcome,) = FakeSidecar(cluster).cancel(0)
    assert outcome.cancelled
    assert any("time to live" in warning for warning in outcome.warnings)


def test_a_full_acknowledgement_state_refuses_or_defers(cluster: FakeCluster, sidecar: FakeSidecar) -> None:
    cluster.max_ranges = 2
    subscription = cluster.subscribe()
    cluster.publish(20)
    outcomes = sidecar.cancel(2, 4, 8, 9, 10)
    assert [outcome.cancelled for outcome in outcomes] == [True, False, True, True, True]
    assert outcomes[1].verdicts[0].cause is Cause.ACK_STATE_FULL
    deferred = sidecar.cancel(4, 14, defer=True)
    assert statuses(deferred) == [Status.ACCEPTED, Status.ACCEPTED]
    assert statuses(sidecar.cancel(1, defer=True)) == [Status.ACKED], "beside another it needs no room"
    cluster.max_ranges = 100
    sidecar.live(5_000)
    assert {at(4), at(14)} <= subscription.acked
    sidecar.live(70_000)
    assert not {at(4), at(14)} & subscription.deliveries.keys()


def test_cancellation_that_cannot_be_logged_is_not_acknowledged(cluster: FakeCluster, sidecar: FakeSidecar) -> None:
    subscription = cluster.subscribe()
    cluster.publish(1)
    cluster.interrupt("append", TemporaryError("no bookie"), before=True, each=True)
    with pytest.raises(TemporaryError):
        sidecar.cancel(0)
    assert subscription.acked == set()


def test_timely_acknowledgement_counts_despite_failed_append(
    cluster: FakeCluster,
    sidecar: FakeSidecar,
) -> None:
    cluster.subscribe()
    cluster.publish(1, due_in_ms=500)
    cluster.publish(1, due_in_ms=3_000)
    failure = TemporaryError("no bookie")
    cluster.interrupt("append", lambda: cluster.interrupt("append", failure, before=True, each=True))
    with pytest.raises(TemporaryError):
        sidecar.cancel(0, 1)
    cluster.before = cluster.after = lambda call: None
    cluster.pass_ms(1_500)
    assert statuses(sidecar.cancel(1)) == [Status.ACKED]


@pytest.mark.parametrize("lost", [TemporaryError, OutcomeUnknownError])
def test_a_lost_answer_is_accepted_and_completed_by_the_loop(
    cluster: FakeCluster, sidecar: FakeSidecar, lost: type[Exception]
) -> None:
    subscription = cluster.subscribe()
    cluster.publish(1)
    cluster.interrupt("acknowledge", lost("no answer"))
    assert only(sidecar.cancel(0)).proof is Status.ACCEPTED
    sidecar.live(4_000)
    assert [one.proof for one in sidecar.feature.cancellations(TOPIC, at(0))] == [Status.PERSISTED]
    sidecar.live(65_000)
    assert subscription.deliveries == {}


def test_type_changed_during_cancel_is_refused_and_not_logged(cluster: FakeCluster, sidecar: FakeSidecar) -> None:
    subscription = cluster.subscribe()
    cluster.publish(1)
    cluster.interrupt("join", lambda: setattr(subscription, "type", SubscriptionType.FAILOVER), before=True)
    verdict = only(sidecar.cancel(0))
    assert (verdict.proof, verdict.cause) == (Status.REFUSED, Cause.SUBSCRIPTION_TYPE)
    assert cluster.records == []
    sidecar.live(65_000)
    assert subscription.by_sidecar == set()


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_a_subscription_that_is_busy_is_tried_again(
    cluster: FakeCluster, sidecar: FakeSidecar, kind: SubscriptionType
) -> None:
    subscription = cluster.subscribe(type=kind)
    cluster.publish(1)
    cluster.interrupt(
        "join", ConflictError("ConsumerBusy: Subscription reached max consumers limit"), before=True, each=True
    )
    verdict = only(sidecar.cancel(0))
    assert (verdict.proof, verdict.cause) == (Status.ACCEPTED, Cause.BROKER)
    assert "max consumers" in (verdict.reason or "")
    sidecar.live(3_000)
    cluster.before = lambda call: None
    sidecar.live(65_000)
    assert subscription.deliveries == {}
    assert [one.proof for one in sidecar.feature.cancellations(TOPIC, at(0))] == [Status.EXPIRED]


@pytest.mark.parametrize("error", [ConflictError("ConsumerBusy"), NotAuthorizedError("no"), NotFoundError("none")])
def test_refusal_does_not_hide_another_sidecars_acknowledgement(cluster: FakeCluster, error: Exception) -> None:
    subscription = cluster.subscribe(type=SubscriptionType.KEY_SHARED)
    cluster.publish(1)
    sidecar, other = FakeSidecar(cluster), FakeSidecar(cluster)

    def refuse() -> None:
        for _ in range(4):  # the broker takes its time, and the other sidecar reads the log
            cluster.clock.advance_ms(100)
            other.round()
        assert subscription.by_sidecar == {at(0)}
        raise error

    cluster.interrupt("join", refuse, before=True)
    assert only(sidecar.cancel(0)).proof is Status.ACCEPTED
    other.live(65_000)
    assert subscription.deliveries == {}
    assert [one.proof for one in other.feature.cancellations(TOPIC, at(0))] == [Status.EXPIRED]


@pytest.mark.parametrize(
    ("error", "status", "cause"),
    [
        (NotAuthorizedError("not authorized"), Status.REFUSED, Cause.BROKER),
        (NotFoundError("no such subscription"), Status.NOT_FOUND, Cause.NO_SUBSCRIPTION),
    ],
)
def test_message_refused_by_the_broker_is_still_delivered(
    cluster: FakeCluster, error: Exception, status: Status, cause: Cause
) -> None:
    subscription = cluster.subscribe()
    cluster.publish(1)
    sidecar, other = FakeSidecar(cluster), FakeSidecar(cluster)
    cluster.interrupt("join", error, before=True, each=True)
    verdict = only(sidecar.cancel(0))
    assert (verdict.proof, verdict.cause) == (status, cause)
    cluster.before = lambda call: None
    other.live(65_000)
    assert cluster.records == []
    assert subscription.deliveries == {at(0): 1}


def test_logged_cancellation_stays_accepted_when_repeated(cluster: FakeCluster, sidecar: FakeSidecar) -> None:
    cluster.max_ranges = 0
    cluster.subscribe()
    cluster.publish(2)
    assert only(sidecar.cancel(1, defer=True)).proof is Status.ACCEPTED
    assert only(sidecar.cancel(1)).proof is Status.ACCEPTED, "it is acknowledged when there is room, asked again or not"
    cluster.max_ranges = 10
    cluster.interrupt("join", NotAuthorizedError("not authorized"), before=True, each=True)
    assert only(sidecar.cancel(1)).proof is Status.ACCEPTED


def test_waiting_for_storage_answers_persisted(cluster: FakeCluster, sidecar: FakeSidecar) -> None:
    subscription = cluster.subscribe()
    subscription.stored_at_ms = cluster.clock.now_ms()
    cluster.publish(3)
    assert statuses(sidecar.cancel(0, 1, wait_persisted=True)) == [Status.PERSISTED, Status.PERSISTED]
    cluster.crash_broker()
    cluster.pass_ms(65_000)
    assert subscription.deliveries == {at(2): 1}


def test_waiting_for_storage_gives_up_with_what_is_known(cluster: FakeCluster, sidecar: FakeSidecar) -> None:
    cluster.subscribe()
    cluster.publish(1)
    cluster.interrupt("stored", TemporaryError("no bookie"), before=True, each=True)
    assert statuses(sidecar.cancel(0, wait_persisted=True)) == [Status.ACKED]


def test_missing_topic_and_disabled_cancelling_raise_errors(cluster: FakeCluster) -> None:
    cluster.topic_exists = False
    with pytest.raises(NotFoundError):
        FakeSidecar(cluster).cancel(0, due=False)
    with pytest.raises(DisabledError, match="delayedMessageCancellingEnabled"):
        FakeSidecar(cluster, Configuration(enabled=False)).cancel(0, due=False)
