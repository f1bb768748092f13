"""Selections: what they mean, the hash that confirms them, and that each entry is read once."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest
from pulsar_sidecar.backlog.ports import Chunk, EntryAnswer, EntryFacts
from pulsar_sidecar.features.delayed_messages.cancel.requests import CancelOptions
from pulsar_sidecar.features.delayed_messages.http.requests import SelectionPayload
from pulsar_sidecar.features.delayed_messages.results import Cause, MessageOutcome, Preview
from pulsar_sidecar.features.delayed_messages.selecting import PartitionReading, Selection, hash_of
from pulsar_sidecar.features.delayed_messages.workflow import service
from pulsar_sidecar.features.delayed_messages.workflow.service import PreviewCache
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, NotFoundError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import SubscriptionType
from pyroaring import BitMap

from tests.fakes.delayed_messages import LEDGER, TOPIC, FakeCluster, FakeSidecar, at

NOW = 1_700_000_000_000
KEY = Selection(key="k")


def waiting(entry: int, due_ms: int = NOW + 60_000, **facts: object) -> tuple[Position, EntryFacts]:
    return at(entry), EntryFacts(deliver_at_ms=due_ms, publish_time_ms=NOW)._replace(**facts)  # type: ignore[arg-type]


def reading_of(selection: Selection, *answers: tuple[Position, EntryAnswer]) -> PartitionReading:
    reading = PartitionReading(TOPIC)
    reading.learn(selection, dict(answers))
    return reading


def found(selection: Selection, *answers: tuple[Position, EntryAnswer]) -> list[int]:
    reading = reading_of(selection, *answers)
    return reading.found(reading.read, NOW)["entry"].tolist()  # type: ignore[no-any-return]


def test_a_selection_by_due_time_key_and_properties() -> None:
    answers = [
        waiting(0, NOW + 10),
        waiting(1, NOW + 20, key="k"),
        waiting(2, NOW + 30, key="k", properties={"a": "1", "b": "2"}),
        waiting(3, NOW - 1, key="k"),
        waiting(4, NOW + 40, key="k", publish_time_ms=NOW + 9),
        (at(5), EntryFacts(deliver_at_ms=None, publish_time_ms=NOW, key="k")),
    ]
    assert found(Selection(due_from_ms=NOW + 10, due_to_ms=NOW + 30), *answers) == [0, 1]
    assert found(KEY, *answers) == [1, 2, 4]
    assert found(Selection(key="k", published_before_ms=NOW + 5), *answers) == [1, 2]
    assert found(Selection(properties={"a": "1"}), *answers) == [2]
    assert found(Selection(properties={"a": "1", "b": "3"}), *answers) == []


def test_a_copy_is_selected_by_its_producer_sequence_id_and_publish_time() -> None:
    copy = {"producer_name": "p", "sequence_id": 7, "publish_time_ms": NOW - 5}
    others: list[dict[str, Any]] = [{"producer_name": "q"}, {"sequence_id": 8}, {"publish_time_ms": NOW - 4}]
    answers = [waiting(n, **{**copy, **other}) for n, other in enumerate([{}, *others])]
    assert found(Selection(producer_name="p", sequence_id=7, publish_time_ms=NOW - 5), *answers) == [0]


def test_of_a_chunked_message_only_the_last_chunk_is_selected() -> None:
    assert found(KEY, *(waiting(index, chunk=Chunk("u", index, 3), key="k") for index in range(3))) == [2]


def test_entries_without_facts_are_read_again() -> None:
    reading = reading_of(KEY, (at(0), Unreadable("x")), (at(1), Absent()), waiting(2))
    assert (reading.unreadable, {ledger: list(bits) for ledger, bits in reading.read.items()}) == (1, {LEDGER: [2]})


def test_the_hash_stands_for_exactly_the_messages() -> None:
    one, two = waiting(0, key="k"), waiting(1, key="k")

    def of(*answers: tuple[Position, EntryFacts], selection: Selection = KEY) -> str:
        return hash_of(selection, {TOPIC: reading_of(KEY, *answers).rows})

    later = waiting(1, NOW + 60_001, key="k")
    assert of(one, two) == of(two, one)
    assert len({of(one, two), of(one), of(two), of(), of(one, later)}) == 5
    assert of(one) != of(one, selection=replace(KEY, subscriptions=("s",)))


def test_a_selection_of_everything_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        Selection(published_before_ms=5).check()


# --- preview, confirmation and cancelling --------------------------------------------------------------------------


class Counting(FakeCluster):
    """Counts how often each entry is read; whatever is published is older than what is asked next."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[Position] = Counter()
        self.subscribe()

    def publish(self, count: int, due_in_ms: int | None = 60_000, **facts: object) -> list[Position]:
        positions = super().publish(count, due_in_ms, **facts)
        self.clock.advance_ms(1)
        return positions

    def read(
        self,
        topic: TopicName,
        positions: Collection[Position],
        *,
        max_age_seconds: float = 0.0,
        only_decisive: bool = False,
    ) -> Mapping[Position, EntryAnswer]:
        self.reads.update(positions)
        return FakeCluster.read(self, topic, positions, max_age_seconds=max_age_seconds)


@pytest.fixture
def cluster() -> Counting:
    return Counting()


@pytest.fixture
def sidecar(cluster: Counting) -> FakeSidecar:
    return FakeSidecar(cluster)


def meant_by(shown: Preview) -> Selection:
    return SelectionPayload.model_validate(shown.selection).selection()


def cancel_previewed(sidecar: FakeSidecar, shown: Preview) -> list[MessageOutcome]:
    batches = sidecar.feature.confirm_selected(TOPIC, meant_by(shown), shown.hash)
    return [outcome for batch in batches for outcome in sidecar.feature.cancel_batch(batch, CancelOptions())]


def test_an_entry_is_read_once_from_preview_to_cancellation(cluster: Counting, sidecar: FakeSidecar) -> None:
    meant = [*cluster.publish(3, key="k"), *cluster.publish(2, key="k", due_in_ms=90_000)]
    cluster.publish(4, key="other")
    shown = sidecar.feature.preview(TOPIC, KEY)
    assert (shown.count, shown.sample[-1].key, shown.sample[-1].entry_id) == (5, "k", meant[-1].entry_id)
    assert (shown.first_due, shown.last_due) == tuple(shown.sample[n].deliver_at for n in (0, -1))
    done = cancel_previewed(sidecar, shown)
    assert [(one.cancellation_id, one.cancelled) for one in done] == [(str(position), True) for position in meant]
    assert cluster.subscriptions_["s"].by_sidecar == set(meant)
    assert set(cluster.reads.values()) == {1}


@pytest.mark.parametrize("change", ["another selection", "kept no more"])
def test_selection_outside_the_cache_is_read_again(
    cluster: Counting, sidecar: FakeSidecar, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.publish(2, key="k", properties={"a": "1"})
    cluster.publish(1, key="other", properties={"a": "1"})
    if change == "kept no more":
        monkeypatch.setattr(service, "_MOST_ROWS", 1)
        sidecar = FakeSidecar(cluster)
    shown = sidecar.feature.preview(TOPIC, KEY)
    if change == "another selection":
        # It finds one message more, which the first one has read and not kept.
        with pytest.raises(ConflictError):
            cancel_previewed(sidecar, replace(shown, selection={"properties": {"a": "1"}}))
    else:
        assert len(cancel_previewed(sidecar, shown)) == 2
    assert set(cluster.reads.values()) == {2}


def test_the_oldest_of_too_many_previews_are_read_again() -> None:
    cache = PreviewCache()
    for number in range(33):
        cache.keep(TOPIC, KEY, str(number), {TOPIC: PartitionReading(TOPIC)})
    kept = [bool(cache.take(TOPIC, KEY, str(number))) for number in range(33)]
    assert kept == [False] + [True] * 32
    assert not cache.take(TOPIC, KEY, "32"), "each is given out once"


CHANGES = pytest.mark.parametrize("change", ["acknowledged", "dropped", "came due"])


def happens(cluster: Counting, change: str, message: Position) -> None:
    if change == "acknowledged":
        cluster.subscriptions_["s"].acked.add(message)
    elif change == "dropped":
        cluster.dropped = True
    else:
        cluster.clock.advance_ms(60_000)


@CHANGES
def test_change_after_the_preview_prevents_cancelling(cluster: Counting, sidecar: FakeSidecar, change: str) -> None:
    one, _ = cluster.publish(2, key="k")
    shown = sidecar.feature.preview(TOPIC, KEY)
    happens(cluster, change, one)
    with pytest.raises(ConflictError):
        cancel_previewed(sidecar, shown)
    assert cluster.subscriptions_["s"].by_sidecar == set()


@CHANGES
def test_message_changed_after_confirmation_is_not_acknowledged(
    cluster: Counting, sidecar: FakeSidecar, change: str
) -> None:
    one, _ = cluster.publish(2, key="k")
    shown = sidecar.feature.preview(TOPIC, KEY)
    (batch,) = sidecar.feature.confirm_selected(TOPIC, meant_by(shown), shown.hash)
    happens(cluster, change, one)
    first, other = sidecar.feature.cancel_batch(batch, CancelOptions())
    expected = {"acknowledged": Cause.ACKED_BEFORE, "dropped": Cause.NO_ENTRY, "came due": Cause.DUE}[change]
    assert first.verdicts[0].cause is expected
    assert other.cancelled is (change == "acknowledged")
    assert one not in cluster.subscriptions_["s"].by_sidecar


@pytest.mark.parametrize("facts", [{"messages_in_batch": 3}, {"transaction": True}])
def test_an_entry_that_is_more_than_its_times_is_read_again_and_refused(
    cluster: Counting, sidecar: FakeSidecar, facts: dict[str, object]
) -> None:
    (position,) = cluster.publish(1, key="k", **facts)
    (outcome,) = cancel_previewed(sidecar, sidecar.feature.preview(TOPIC, KEY))
    assert not outcome.cancelled
    assert cluster.reads[position] == 2
    assert cluster.subscriptions_["s"].by_sidecar == set()


def test_messages_published_later_by_producer_clock_are_reported(cluster: Counting, sidecar: FakeSidecar) -> None:
    now_ms = cluster.clock.now_ms()
    meant = cluster.publish(1, key="k", publish_time_ms=now_ms - 1)
    cluster.publish(2, key="k", publish_time_ms=now_ms + 60_000)
    cluster.publish(4, key="other", publish_time_ms=now_ms + 60_000)
    cluster.publish(1, key="k", due_in_ms=None, publish_time_ms=now_ms + 60_000)
    shown = sidecar.feature.preview(TOPIC, KEY)
    assert (shown.count, shown.published_later) == (1, 2)
    assert [one.cancellation_id for one in cancel_previewed(sidecar, shown) if one.cancelled] == [*map(str, meant)]
    nothing = sidecar.feature.preview(TOPIC, replace(KEY, published_before_ms=0))
    assert (nothing.count, nothing.selection["publishedBefore"]) == (0, 0)


@pytest.mark.parametrize(
    ("names", "types", "error", "reason"),
    [
        (("typo",), {}, NotFoundError, "no subscription 'typo'"),
        (("s", "typo"), {}, NotFoundError, "no subscription 'typo'"),
        (("s",), {"s": SubscriptionType.EXCLUSIVE}, ConflictError, "'s' is Exclusive"),
        ((), {"s": SubscriptionType.FAILOVER}, ConflictError, "no Shared or Key_Shared subscription"),
    ],
)
def test_a_selection_on_no_such_subscription_is_an_error_and_not_nothing(
    cluster: Counting,
    sidecar: FakeSidecar,
    names: tuple[str, ...],
    types: dict[str, SubscriptionType],
    error: type[Exception],
    reason: str,
) -> None:
    cluster.publish(1, key="k")
    for name, kind in types.items():
        cluster.subscriptions_[name].type = kind
    with pytest.raises(error, match=reason):
        sidecar.feature.preview(TOPIC, replace(KEY, subscriptions=names))
    with pytest.raises(error, match=reason):
        sidecar.feature.confirm_selected(TOPIC, replace(KEY, subscriptions=names), "x")


def test_a_subscription_that_cannot_be_cancelled_on_does_not_stop_a_selection_of_all(
    cluster: Counting, sidecar: FakeSidecar
) -> None:
    cluster.publish(1, key="k")
    cluster.subscribe("sticky", type=SubscriptionType.KEY_SHARED, sticky=True)
    assert sidecar.feature.preview(TOPIC, KEY).count == 1


def test_entries_due_outside_the_range_are_not_read(cluster: Counting, sidecar: FakeSidecar) -> None:
    meant = cluster.publish(2, key="k")
    others = cluster.publish(3, key="k", due_in_ms=900_000)
    # The index has a bit of two of the others only: the third came late, and its entry shows when it is due.
    cluster.ruled_out = {LEDGER: BitMap(position.entry_id for position in others[:2])}
    shown = sidecar.feature.preview(TOPIC, Selection(due_to_ms=cluster.clock.now_ms() + 500_000))
    assert len(cancel_previewed(sidecar, shown)) == 2
    assert cluster.reads == Counter(dict.fromkeys([*meant, others[2]], 1))
