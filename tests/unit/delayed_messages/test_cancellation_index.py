"""New and ended cancellations by the index, against a plain scan."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.delayed_messages.cancel.cancellation_index import CancellationIndex
from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus
from pulsar_sidecar.model.ids import Position

from tests.fakes.delayed_messages import TOPIC, at

PLACE = (TOPIC, "s")
BEGIN_MS = 1_700_000_000_000
ENTRIES = st.integers(0, 5)
DUE_STEP_MS = 700
OPEN_STATUSES = st.sampled_from([CancellationStatus.ACCEPTED, CancellationStatus.ACKED, CancellationStatus.PERSISTED])
CHANGES = st.one_of(
    st.tuples(st.just("learn"), ENTRIES, OPEN_STATUSES),
    st.tuples(st.just("lower"), ENTRIES, OPEN_STATUSES),
    st.tuples(st.just("end"), ENTRIES, st.sampled_from([CancellationStatus.EXPIRED, CancellationStatus.RACED])),
    st.tuples(st.just("forget"), ENTRIES, st.just(CancellationStatus.EXPIRED)),
)


def cancellation(entry: int, status: CancellationStatus, requested_ms: int = 0) -> Cancellation:
    return Cancellation(TOPIC, "s", at(entry), BEGIN_MS + entry * DUE_STEP_MS, BEGIN_MS + requested_ms, status)


def change(index: CancellationIndex, number: int, kind: str, entry: int, status: CancellationStatus) -> None:
    one = cancellation(entry, status, number)
    match kind:
        case "learn" | "end":
            index.learn_all([one])
        case "lower":
            index.lower([one])
        case _:
            index.forget(TOPIC, one.position, "s")


def open_ones(index: CancellationIndex) -> dict[Position, Cancellation]:
    return {one.position: one for one in index.at(PLACE)}


@given(st.lists(CHANGES), st.lists(CHANGES))
def test_news_are_what_was_put_since_the_last_call_and_what_is_not_proven(
    before: list[tuple[str, int, CancellationStatus]], after: list[tuple[str, int, CancellationStatus]]
) -> None:
    index = CancellationIndex()
    for number, one in enumerate(before):
        change(index, number, *one)
    if index.at(PLACE):
        assert index.changed_at(PLACE) is None, "at first everything may be news"
    seen = open_ones(index)
    for number, one in enumerate(after, len(before)):
        change(index, number, *one)
    news = index.changed_at(PLACE)
    if news is not None:
        found = {one.position: one for one in news}
        assert len(found) == len(news)
        assert found.items() <= open_ones(index).items()
        left_out = open_ones(index).keys() - found.keys()
        assert all(open_ones(index)[position] == seen.get(position) for position in left_out)
        assert all(open_ones(index)[position].status is CancellationStatus.PERSISTED for position in left_out)


@given(st.lists(CHANGES), st.integers(-1, 6), st.lists(CHANGES), st.integers(-1, 6))
def test_expired_cancellations_match_a_full_scan(
    before: list[tuple[str, int, CancellationStatus]],
    first: int,
    after: list[tuple[str, int, CancellationStatus]],
    second: int,
) -> None:
    index = CancellationIndex()
    numbers = count()
    for changes, steps in ((before, first), (after, second)):
        for one in changes:
            change(index, next(numbers), *one)
        expired_ms = BEGIN_MS + steps * DUE_STEP_MS
        over = index.expired_at(PLACE, expired_ms)
        assert sorted(over) == sorted(one for one in index.at(PLACE) if one.deliver_at_ms <= expired_ms)
        due = {one.deliver_at_ms for one in index.at(PLACE)}
        found = index.dues_at(PLACE, expired_ms)
        assert {due_ms for due_ms in due if due_ms <= expired_ms} <= found <= due
        assert index.dues_at(PLACE, BEGIN_MS + 10 * DUE_STEP_MS) == due


def test_forgotten_cancellations_free_memory_without_queries() -> None:
    index = CancellationIndex()
    index.learn_all([cancellation(0, CancellationStatus.ACCEPTED)])
    for entry in range(1, 20_000):
        index.learn_all([cancellation(entry, CancellationStatus.ACCEPTED)])
        index.forget(TOPIC, at(entry), "s")
    assert len(index._tracked[PLACE].due) < 3_000


def test_expired_cancellation_is_found_among_many_forgotten() -> None:
    index = CancellationIndex()
    index.learn_all(cancellation(entry, CancellationStatus.ACCEPTED) for entry in range(3_000))
    for entry in range(1, 3_000):
        index.forget(TOPIC, at(entry), "s")
    assert index.expired_at(PLACE, BEGIN_MS + 3_000 * DUE_STEP_MS) == [cancellation(0, CancellationStatus.ACCEPTED)]


def test_after_very_many_changes_everything_is_news() -> None:
    index = CancellationIndex()
    index.learn_all([cancellation(0, CancellationStatus.PERSISTED)])
    index.changed_at(PLACE)
    index.learn_all(cancellation(entry, CancellationStatus.PERSISTED) for entry in range(150_000))
    assert index.changed_at(PLACE) is None
    assert index.changed_at(PLACE) == []
