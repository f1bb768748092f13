"""A sidecar that loses its connection to the log and rereads it knows exactly what the log then holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pulsar_sidecar.features.delayed_messages.cancel.log_records import decode
from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus
from pulsar_sidecar.features.delayed_messages.workflow.cancellation_store import CancellationStore
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import Position

from tests.fakes.delayed_messages import TOPIC, FakeCluster, FakeSidecar, FakeSubscription, at

NOW = 1_700_000_000_000
PLACE = (TOPIC, "s")
THOROUGH = settings.get_current_profile_name() == "thorough"


def cancellation(
    entry: int, status: CancellationStatus = CancellationStatus.ACCEPTED, requested_ms: int = 0
) -> Cancellation:
    return Cancellation(TOPIC, "s", at(entry), NOW, NOW + requested_ms, status)


def follow(store: CancellationStore, cluster: FakeCluster) -> None:
    store.begin_following()
    cluster.follow(store.apply, store.note_caught_up, lambda: False)


class Pair:
    """Two sidecars that know a cancellation as accepted; the second one's connection to the log breaks then."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.subscription: FakeSubscription = self.cluster.subscribe()
        self.cluster.publish(1, due_in_ms=120_000)
        self.first, self.second = FakeSidecar(self.cluster), FakeSidecar(self.cluster)
        due_ms = self.cluster.clock.now_ms() + 120_000
        self.asked = Cancellation(TOPIC, "s", at(0), due_ms, self.cluster.clock.now_ms(), CancellationStatus.ACCEPTED)
        self.first.feature._store.record([self.asked])
        self.second.disconnect()

    def end_and_compact(self) -> None:
        self.first.feature._store.finish([self.asked.at(CancellationStatus.NOT_FOUND)])
        self.cluster.compact()


def test_ended_and_compacted_cancellation_is_forgotten() -> None:
    pair = Pair()
    pair.end_and_compact()
    assert pair.second.feature.cancelling_status().open_cancellations == 1
    pair.second.follow()
    assert pair.second.feature.cancelling_status().open_cancellations == 0
    pair.second.live(130_000, 1000)
    assert pair.subscription.by_sidecar == set()
    assert pair.subscription.deliveries == {at(0): 1}


def test_disconnected_leader_acknowledges_no_ended_cancellation() -> None:
    pair = Pair()
    pair.end_and_compact()
    pair.second.live(20_000, 1000)
    assert pair.subscription.by_sidecar == set()


def test_open_cancellation_is_acknowledged_after_reconnecting() -> None:
    pair = Pair()
    pair.cluster.compact()
    pair.second.live(5_000, 1000)
    assert pair.subscription.by_sidecar == set()
    pair.second.follow()
    pair.second.live(20_000, 1000)
    assert pair.subscription.by_sidecar == {at(0)}


def test_disconnected_leader_restores_lost_acknowledgements() -> None:
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


def test_disconnected_sidecar_cannot_explain_acknowledgements() -> None:
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
    assert [one.proof for outcome in second.cancel(0, 1) for one in outcome.verdicts] == [
        CancellationStatus.ACKED,
        CancellationStatus.ACKED,
    ]
    second.disconnect()
    assert second.cancel(2)[0].cancelled, "what is not acknowledged needs no explanation"


def test_persistence_wait_leaves_the_leaders_cancellations_open() -> None:
    cluster = FakeCluster()
    cluster.subscribe()
    cluster.publish(1)
    cluster.publish(1, due_in_ms=600_000)
    leading, asked = FakeSidecar(cluster), FakeSidecar(cluster)
    leading.cancel(0)
    leading.live(59_000, 1000)
    cluster.pass_ms(10_000, 1000)
    (outcome,) = asked.cancel(1, wait_persisted=True)
    assert [one.proof for one in outcome.verdicts] == [CancellationStatus.PERSISTED]
    assert asked.feature._store.index.open_count == 2
    leading.live(5_000, 1000)
    assert [one.proof for one in leading.feature.cancellations(TOPIC, at(0))] == [CancellationStatus.EXPIRED]


def test_a_log_that_could_not_be_read_as_a_whole_makes_no_sidecar_forget() -> None:
    store = CancellationStore(FakeCluster())
    store.apply([])
    store.record([cancellation(1)])
    store.begin_following()
    store.note_caught_up(unreadable=1)
    assert store.index.open_count == 1
    store.begin_following()
    store.note_caught_up()
    assert store.index.open_count == 0


def test_records_appended_while_reading_the_log_are_kept() -> None:
    cluster = FakeCluster()
    store = CancellationStore(cluster)
    store.record([cancellation(1)])
    store.begin_following()
    store.record([cancellation(1, CancellationStatus.PERSISTED), cancellation(2)])
    store.note_caught_up()
    assert {one.position for one in store.index.at(PLACE)} == {at(1), at(2)}


def test_a_record_that_comes_back_before_its_receipt_outlives_the_end_of_the_reading() -> None:
    cluster = FakeCluster()
    store = CancellationStore(cluster)
    store.record([cancellation(1)])
    store.begin_following()

    def come_back(call: str) -> None:
        store.apply(cluster.records)
        store.note_caught_up()
        raise TemporaryError("the receipt is lost")

    cluster.after = come_back
    with pytest.raises(TemporaryError):
        store.record([cancellation(1, CancellationStatus.PERSISTED)])
    assert [one.status for one in store.index.at(PLACE)] == [CancellationStatus.PERSISTED]


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
def test_a_sidecar_that_has_read_the_log_knows_what_it_holds(steps: list[tuple[str, int, int]]) -> None:
    cluster = FakeCluster()
    stores = CancellationStore(cluster), CancellationStore(cluster)
    for store in stores:
        follow(store, cluster)
    for number, (step, which, entry) in enumerate(steps):
        # A sidecar that fell behind finds another's acknowledgements, and refuses to accept them.
        if step != "record" or not any(_is_persisted(store, at(entry)) for store in stores):
            _take(cluster, stores[which], step, cancellation(entry, requested_ms=number))
    held = [decode(*record) for record in cluster.compacted().items()]
    for store in stores:
        if store.follows:
            cluster.unfollow(store.apply)
        follow(store, cluster)
        # A sidecar that fell behind may write ended cancellations; one that saw the end ignores them.
        expected = {(one.position, one.status) for one in held if not _has_ended(store, one)}
        assert {(one.position, one.status) for one in store.index.at(PLACE)} == expected


def _is_persisted(store: CancellationStore, position: Position) -> bool:
    known = store.index.known(TOPIC, position, "s")
    return known is not None and known.status is CancellationStatus.PERSISTED


def _has_ended(store: CancellationStore, cancellation: Cancellation) -> bool:
    known = store.index.known(TOPIC, cancellation.position, "s")
    return known is not None and not known.status.open


def _take(cluster: FakeCluster, store: CancellationStore, step: str, one: Cancellation) -> None:
    known = {found.position: found for found in store.index.at(PLACE)}.get(one.position)
    match step, known:
        case "record", None:
            store.record([one])
        case "persist", Cancellation():
            store.record([known.at(CancellationStatus.PERSISTED)])
        case "finish", Cancellation():
            store.finish([known.at(CancellationStatus.EXPIRED)])
        case "drop", Cancellation():
            store.finish([known.at(CancellationStatus.NOT_FOUND)])
        case "compact", _:
            cluster.compact()
        case "disconnect" | "follow", _:
            _connect(cluster, store, connected=step == "follow")


def _connect(cluster: FakeCluster, store: CancellationStore, *, connected: bool) -> None:
    if connected and not store.follows:
        follow(store, cluster)
    if not connected and store.follows:
        cluster.unfollow(store.apply)
        store.follows = False
