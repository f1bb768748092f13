"""A sidecar that loses its connection to the log and reads it anew knows what the log holds then, and nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pulsar_sidecar.delayed_delivery.cancel.log_records import decode
from pulsar_sidecar.delayed_delivery.cancel.requests import Cancellation, Proof
from pulsar_sidecar.delayed_delivery.workflow.world import Memory
from pulsar_sidecar.model.errors import TemporaryError

from tests.fakes.delayed_messages import TOPIC, FakeCluster, FakeSidecar, FakeSubscription, at

NOW = 1_700_000_000_000
PLACE = (TOPIC, "s")
THOROUGH = settings.get_current_profile_name() == "thorough"


def cancellation(entry: int, proof: Proof = Proof.ACCEPTED, requested_ms: int = 0) -> Cancellation:
    return Cancellation(TOPIC, "s", at(entry), NOW, NOW + requested_ms, proof)


def follow(memory: Memory, cluster: FakeCluster) -> None:
    memory.begin_following()
    cluster.follow(memory.apply, memory.note_caught_up, lambda: False)


class Pair:
    """Two sidecars that know a cancellation as accepted; the second one's connection to the log breaks then."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.subscription: FakeSubscription = self.cluster.subscribe()
        self.cluster.publish(1, due_in_ms=120_000)
        self.first, self.second = FakeSidecar(self.cluster), FakeSidecar(self.cluster)
        due_ms = self.cluster.clock.now_ms() + 120_000
        self.asked = Cancellation(TOPIC, "s", at(0), due_ms, self.cluster.clock.now_ms(), Proof.ACCEPTED)
        self.first.room._memory.record([self.asked])
        self.second.disconnect()

    def end_and_compact(self) -> None:
        self.first.room._memory.finish([self.asked.at(Proof.NOT_FOUND)])
        self.cluster.compact()


def test_what_ended_and_was_compacted_away_meanwhile_is_forgotten_and_delivered() -> None:
    pair = Pair()
    pair.end_and_compact()
    assert pair.second.room.open_cancellations() == 1
    pair.second.follow()
    assert pair.second.room.open_cancellations() == 0
    pair.second.live(130_000, 1000)
    assert pair.subscription.by_sidecar == set()
    assert pair.subscription.deliveries == {at(0): 1}


def test_who_leads_without_following_the_log_acknowledges_nothing_that_may_have_ended() -> None:
    pair = Pair()
    pair.end_and_compact()
    pair.second.live(20_000, 1000)
    assert pair.subscription.by_sidecar == set()


def test_what_was_accepted_and_has_not_ended_is_acknowledged_when_the_log_is_followed_again() -> None:
    pair = Pair()
    pair.cluster.compact()
    pair.second.live(5_000, 1000)
    assert pair.subscription.by_sidecar == set()
    pair.second.follow()
    pair.second.live(20_000, 1000)
    assert pair.subscription.by_sidecar == {at(0)}


def test_who_leads_without_following_the_log_puts_back_what_had_been_acknowledged() -> None:
    cluster = FakeCluster()
    subscription = cluster.subscribe()
    cluster.publish(2, due_in_ms=60_000)
    sidecar = FakeSidecar(cluster)
    sidecar.cancel(0, wait_persisted=True)
    sidecar.live(3_000)
    sidecar.disconnect()
    cluster.lose_cursor("s")
    sidecar.live(70_000, 1000)
    assert subscription.deliveries == {at(1): 1}


def test_who_does_not_follow_the_log_does_not_tell_that_somebody_else_acknowledged() -> None:
    cluster = FakeCluster()
    subscription = cluster.subscribe()
    cluster.publish(3)
    first, second = FakeSidecar(cluster), FakeSidecar(cluster)
    second.disconnect()
    first.cancel(0)
    with pytest.raises(TemporaryError, match="not connected to its cancellation log"):
        second.cancel(0, 1)
    assert subscription.acked == {at(0)}, "nothing was done"
    second.follow()
    assert [one.proof for outcome in second.cancel(0, 1) for one in outcome.verdicts] == [Proof.ACKED, Proof.ACKED]
    second.disconnect()
    assert second.cancel(2)[0].cancelled, "what is not acknowledged needs no explanation"


def test_who_waits_for_storage_ends_nothing_that_the_leading_sidecar_watches() -> None:
    cluster = FakeCluster()
    cluster.subscribe()
    cluster.publish(1)
    cluster.publish(1, due_in_ms=600_000)
    leading, asked = FakeSidecar(cluster), FakeSidecar(cluster)
    leading.cancel(0)
    leading.live(59_000, 1000)
    cluster.pass_ms(10_000, 1000)
    (outcome,) = asked.cancel(1, wait_persisted=True)
    assert [one.proof for one in outcome.verdicts] == [Proof.PERSISTED]
    assert asked.room._memory.open_count == 2
    leading.live(5_000, 1000)
    assert [one.proof for one in leading.room.cancellations(TOPIC, at(0))] == [Proof.EXPIRED]


def test_a_log_that_could_not_be_read_as_a_whole_makes_nobody_forget() -> None:
    memory = Memory(FakeCluster())
    memory.apply([])
    memory.record([cancellation(1)])
    memory.begin_following()
    memory.note_caught_up(unreadable=1)
    assert memory.open_count == 1
    memory.begin_following()
    memory.note_caught_up()
    assert memory.open_count == 0


def test_what_is_recorded_while_the_log_is_read_is_kept_although_the_reader_has_not_come_to_it() -> None:
    cluster = FakeCluster()
    memory = Memory(cluster)
    memory.record([cancellation(1)])
    memory.begin_following()
    memory.record([cancellation(1, Proof.PERSISTED), cancellation(2)])
    memory.note_caught_up()
    assert {one.position for one in memory.at(PLACE)} == {at(1), at(2)}


def test_a_record_that_comes_back_before_its_receipt_outlives_the_end_of_the_reading() -> None:
    cluster = FakeCluster()
    memory = Memory(cluster)
    memory.record([cancellation(1)])
    memory.begin_following()

    def come_back(call: str) -> None:
        memory.apply(cluster.records)
        memory.note_caught_up()
        raise TemporaryError("the receipt is lost")

    cluster.after = come_back
    with pytest.raises(TemporaryError):
        memory.record([cancellation(1, Proof.PERSISTED)])
    assert [one.proof for one in memory.at(PLACE)] == [Proof.PERSISTED]


_ENTRIES = st.integers(0, 3)
_STEPS = st.one_of(
    st.tuples(st.just("record"), st.integers(0, 1), _ENTRIES),
    st.tuples(st.just("persist"), st.integers(0, 1), _ENTRIES),
    st.tuples(st.just("finish"), st.integers(0, 1), _ENTRIES),
    st.tuples(st.just("drop"), st.integers(0, 1), _ENTRIES),
    st.tuples(st.sampled_from(["disconnect", "follow", "compact"]), st.integers(0, 1), st.just(0)),
)


@settings(max_examples=1000 if THOROUGH else 100)
@given(st.lists(_STEPS, max_size=40))
def test_whoever_has_read_the_log_knows_what_it_holds(steps: list[tuple[str, int, int]]) -> None:
    cluster = FakeCluster()
    memories = Memory(cluster), Memory(cluster)
    for memory in memories:
        follow(memory, cluster)
    for number, (step, which, entry) in enumerate(steps):
        _take(cluster, memories[which], step, cancellation(entry, requested_ms=number))
    held = [decode(*record) for record in cluster.compacted().items()]
    for memory in memories:
        if memory.follows:
            cluster.unfollow(memory.apply)
        follow(memory, cluster)
        # Whoever was left behind may write of what has ended; whoever saw the end does not believe it.
        expected = {(one.position, one.proof) for one in held if not _has_ended(memory, one)}
        assert {(one.position, one.proof) for one in memory.at(PLACE)} == expected


def _has_ended(memory: Memory, cancellation: Cancellation) -> bool:
    known = memory.known(TOPIC, cancellation.position, "s")
    return known is not None and not known.proof.open


def _take(cluster: FakeCluster, memory: Memory, step: str, one: Cancellation) -> None:
    known = {found.position: found for found in memory.at(PLACE)}.get(one.position)
    match step, known:
        case "record", None:
            memory.record([one])
        case "persist", Cancellation():
            memory.record([known.at(Proof.PERSISTED)])
        case "finish", Cancellation():
            memory.finish([known.at(Proof.EXPIRED)])
        case "drop", Cancellation():
            memory.finish([known.at(Proof.NOT_FOUND)])
        case "compact", _:
            cluster.compact()
        case "disconnect" | "follow", _:
            _connect(cluster, memory, connected=step == "follow")


def _connect(cluster: FakeCluster, memory: Memory, *, connected: bool) -> None:
    if connected and not memory.follows:
        follow(memory, cluster)
    if not connected and memory.follows:
        cluster.unfollow(memory.apply)
        memory.stop_following()
