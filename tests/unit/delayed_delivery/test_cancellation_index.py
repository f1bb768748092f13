"""What the book says is news, and what is over, against a plain look at everything."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.delayed_delivery.cancel.cancellation_index import Book
from pulsar_sidecar.delayed_delivery.cancel.requests import Cancellation, Proof
from pulsar_sidecar.model.positions import Position

from tests.fakes.delayed_messages import TOPIC, at

PLACE = (TOPIC, "s")
BEGIN_MS = 1_700_000_000_000
ENTRIES = st.integers(0, 5)
DUE_STEP_MS = 700
OPEN_PROOFS = st.sampled_from([Proof.ACCEPTED, Proof.ACKED, Proof.PERSISTED])
CHANGES = st.one_of(
    st.tuples(st.just("learn"), ENTRIES, OPEN_PROOFS),
    st.tuples(st.just("lower"), ENTRIES, OPEN_PROOFS),
    st.tuples(st.just("end"), ENTRIES, st.sampled_from([Proof.EXPIRED, Proof.RACED])),
    st.tuples(st.just("forget"), ENTRIES, st.just(Proof.EXPIRED)),
)


def cancellation(entry: int, proof: Proof, requested_ms: int = 0) -> Cancellation:
    return Cancellation(TOPIC, "s", at(entry), BEGIN_MS + entry * DUE_STEP_MS, BEGIN_MS + requested_ms, proof)


def change(book: Book, number: int, kind: str, entry: int, proof: Proof) -> None:
    one = cancellation(entry, proof, number)
    match kind:
        case "learn" | "end":
            book.learn_all([one])
        case "lower":
            book.lower(one)
        case _:
            book.forget(TOPIC, one.position, "s")


def open_ones(book: Book) -> dict[Position, Cancellation]:
    return {one.position: one for one in book.at(PLACE)}


@given(st.lists(CHANGES), st.lists(CHANGES))
def test_news_are_what_was_put_since_the_last_call_and_what_is_not_proven(
    before: list[tuple[str, int, Proof]], after: list[tuple[str, int, Proof]]
) -> None:
    book = Book()
    for number, one in enumerate(before):
        change(book, number, *one)
    if book.at(PLACE):
        assert book.changed_at(PLACE) is None, "at first everything may be news"
    seen = open_ones(book)
    for number, one in enumerate(after, len(before)):
        change(book, number, *one)
    news = book.changed_at(PLACE)
    if news is not None:
        found = {one.position: one for one in news}
        assert len(found) == len(news)
        assert found.items() <= open_ones(book).items()
        left_out = open_ones(book).keys() - found.keys()
        assert all(open_ones(book)[position] == seen.get(position) for position in left_out)
        assert all(open_ones(book)[position].proof is Proof.PERSISTED for position in left_out)


@given(st.lists(CHANGES), st.integers(-1, 6), st.lists(CHANGES), st.integers(-1, 6))
def test_what_is_over_is_found_by_its_second(
    before: list[tuple[str, int, Proof]], first: int, after: list[tuple[str, int, Proof]], second: int
) -> None:
    book = Book()
    numbers = count()
    for changes, steps in ((before, first), (after, second)):
        for one in changes:
            change(book, next(numbers), *one)
        over_ms = BEGIN_MS + steps * DUE_STEP_MS
        over = book.over_at(PLACE, over_ms)
        assert sorted(over) == sorted(one for one in book.at(PLACE) if one.deliver_at_ms <= over_ms)
        due = {one.deliver_at_ms for one in book.at(PLACE)}
        found = book.dues_at(PLACE, over_ms)
        assert {due_ms for due_ms in due if due_ms <= over_ms} <= found <= due
        assert book.dues_at(PLACE, BEGIN_MS + 10 * DUE_STEP_MS) == due


def test_what_was_forgotten_takes_no_room_although_nobody_asks_what_is_over() -> None:
    book = Book()
    book.learn(cancellation(0, Proof.ACCEPTED))
    for entry in range(1, 20_000):
        book.learn(cancellation(entry, Proof.ACCEPTED))
        book.forget(TOPIC, at(entry), "s")
    assert len(book._sheets[PLACE].due) < 3_000


def test_what_is_over_is_found_among_very_much_that_was_forgotten() -> None:
    book = Book()
    book.learn_all(cancellation(entry, Proof.ACCEPTED) for entry in range(3_000))
    for entry in range(1, 3_000):
        book.forget(TOPIC, at(entry), "s")
    assert book.over_at(PLACE, BEGIN_MS + 3_000 * DUE_STEP_MS) == [cancellation(0, Proof.ACCEPTED)]


def test_after_very_many_changes_everything_is_news() -> None:
    book = Book()
    book.learn(cancellation(0, Proof.PERSISTED))
    book.changed_at(PLACE)
    book.learn_all(cancellation(entry, Proof.PERSISTED) for entry in range(150_000))
    assert book.changed_at(PLACE) is None
    assert book.changed_at(PLACE) == []
