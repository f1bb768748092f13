"""Ledgers on each bookie, their owners, and the bytes not collected."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from pulsar_sidecar.features.pins.bookies import BookiesReader
from pulsar_sidecar.features.pins.results import BookieFigures, Compaction, Share
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import BookieId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.registrations import BookieState

from tests.fakes.bookkeeper import cursor_custom_metadata, data_custom_metadata, ledger_metadata_bytes
from tests.fakes.clock import FakeClock
from tests.fakes.pins import FIGURES, FakeBookies

FIRST, SECOND, THIRD = (BookieId(f"bookie-{number}:3181") for number in (1, 2, 3))
ORDERS, BILLS = (parse_topic_name(f"persistent://public/default/{name}") for name in ("orders", "bills"))
OTHER = parse_topic_name("persistent://public/other/orders")


class Ledgers:
    """Every ledger, counted as often as it is read."""

    def __init__(self) -> None:
        self.found: list[bytes] = []
        self.reads = 0

    def every(self) -> "list[tuple[LedgerId, bytes]]":
        self.reads += 1
        return [(LedgerId(number), data) for number, data in enumerate(self.found)]


@pytest.fixture
def ledgers() -> Ledgers:
    found = Ledgers()
    of_orders = data_custom_metadata(ORDERS.managed_ledger_name)
    found.found = [
        ledger_metadata_bytes(custom_metadata=of_orders),
        ledger_metadata_bytes(custom_metadata=cursor_custom_metadata(ORDERS.managed_ledger_name, "s")),
        ledger_metadata_bytes(custom_metadata=data_custom_metadata(BILLS.managed_ledger_name), ensemble=[FIRST, THIRD]),
        ledger_metadata_bytes(custom_metadata=data_custom_metadata(OTHER.managed_ledger_name), length_bytes=5_000),
        ledger_metadata_bytes(LedgerState.OPEN, of_orders),
        ledger_metadata_bytes(),
    ]
    return found


@pytest.fixture
def bookies() -> FakeBookies:
    return FakeBookies({FIRST: FIGURES, SECOND: Unreadable("it has no HTTP service")})


@pytest.fixture
def reader(ledgers: Ledgers, bookies: FakeBookies) -> BookiesReader:
    return BookiesReader(lambda: iter(ledgers.every()), bookies, FakeClock())


def test_the_largest_owners_come_first(reader: BookiesReader) -> None:
    found = reader.bookie(FIRST, by_topic=False, offset=0, limit=10)
    assert (found.ledgers, found.open_ledgers, found.size_bytes, found.owners) == (6, 1, 9_000, 3)
    assert found.shares == (Share("public/other", 1, 5_000), Share("public/default", 4, 3_000), Share(None, 1, 1_000))
    topics = reader.bookie(FIRST, by_topic=True, offset=1, limit=2)
    assert topics.shares == (Share(str(ORDERS), 3, 2_000), Share(None, 1, 1_000))


def test_deleted_bytes_in_entry_logs_are_bounded_and_never_said_to_be_none(
    reader: BookiesReader, bookies: FakeBookies
) -> None:
    """The bookie's metrics count live bytes only, and nothing shows the size of its files."""
    for entry_logs, at_most in ((2, 2_990_300), (0, 990_300)):
        bookies.read[FIRST] = replace(FIGURES, live_bytes=9_700, entry_logs=entry_logs, ledgers=8)
        found = reader.bookie(FIRST, by_topic=False, offset=0, limit=1)
        assert (found.uncollected_at_most_bytes, found.uncollected_ledgers) == (at_most, 2)


SUSPENDED = Compaction(0.5, 86_400, is_suspended=True)


@pytest.mark.parametrize(
    ("figures", "first"),
    [
        (FIGURES, "wait: it collects garbage every 900 s, and compacts entry logs with less live data than 20%"),
        (replace(FIGURES, major=SUSPENDED), "resume compaction"),
        (replace(FIGURES, minor=SUSPENDED), "resume compaction"),
    ],
)
def test_waiting_helps_only_while_compaction_is_not_suspended(
    reader: BookiesReader, bookies: FakeBookies, figures: BookieFigures, first: str
) -> None:
    bookies.read[FIRST] = figures
    mildest, forcing = reader.bookie(FIRST, by_topic=False, offset=0, limit=1).remedies
    assert mildest.what.startswith(first)
    assert (mildest.command is not None) == (figures is not FIGURES)
    assert forcing.command is not None
    assert forcing.command.endswith("http://127.0.0.1:8000/api/v1/bookie/gc")


def test_a_bookie_without_figures_is_not_one_that_has_collected(reader: BookiesReader) -> None:
    first, second, _ = reader.bookies()
    assert first.problem is None
    assert (second.problem, second.figures, second.uncollected_at_most_bytes) == ("it has no HTTP service", None, None)
    assert second.size_bytes == 8_000


def test_bookies_that_are_down_are_listed_with_their_ledgers(reader: BookiesReader, bookies: FakeBookies) -> None:
    bookies.down.add(SECOND)
    states = {found.bookie: (found.state, found.size_bytes) for found in reader.bookies()}
    assert states == {
        FIRST: (BookieState.WRITABLE, 9_000),
        SECOND: (BookieState.DOWN, 8_000),
        THIRD: (BookieState.DOWN, 1_000),  # ledgers name it, and nothing else does
    }
    third = reader.bookie(THIRD, by_topic=True, offset=0, limit=9)
    assert third.shares == (Share(str(BILLS), 1, 1_000),)
    assert third.remedies[1].command == f"bookkeeper shell decommissionbookie -bookieid {THIRD}"
    with pytest.raises(NotFoundError, match="pins bookies"):
        reader.bookie(BookieId("none:1"), by_topic=False, offset=0, limit=9)


def test_a_ledger_that_cannot_be_read_is_named_and_the_others_are_counted(
    reader: BookiesReader, ledgers: Ledgers
) -> None:
    ledgers.found.insert(2, b"broken")
    first, *_ = reader.bookies()
    assert (first.unreadable_ledgers, first.unreadable_ledger_ids) == (1, (2,))
    assert (first.ledgers, first.size_bytes) == (6, 9_000)


def test_all_ledgers_are_read_once_a_minute(ledgers: Ledgers, bookies: FakeBookies) -> None:
    clock = FakeClock()
    reader = BookiesReader(lambda: iter(ledgers.every()), bookies, clock)
    for advance_ms, reads in ((0, 1), (60_000, 1), (1, 2)):
        clock.advance_ms(advance_ms)
        assert reader.bookies()
        assert ledgers.reads == reads


def test_callers_at_the_same_time_share_one_walk_even_of_minutes(ledgers: Ledgers, bookies: FakeBookies) -> None:
    clock, walks, going_on = FakeClock(), threading.Event(), threading.Event()

    def slow() -> "Iterator[tuple[LedgerId, bytes]]":
        walks.set()
        assert going_on.wait(10)
        clock.advance_ms(300_000)
        return iter(ledgers.every())

    reader = BookiesReader(slow, bookies, clock)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(reader.bookies)
        assert walks.wait(10)
        second = threads.submit(reader.bookie, FIRST, by_topic=False, offset=0, limit=1)
        going_on.set()
        assert first.result()[0].read_ms == second.result().read_ms == clock.now_ms() - 300_000
    # Such walks may take a tenth of the time.
    for advance_ms, reads in ((9 * 300_000, 1), (1, 2)):
        clock.advance_ms(advance_ms)
        assert reader.bookies()
        assert ledgers.reads == reads


def test_interrupted_walk_raises(bookies: FakeBookies) -> None:
    def breaking() -> "list[tuple[LedgerId, bytes]]":
        raise TemporaryError("ZooKeeper does not respond")

    with pytest.raises(TemporaryError):
        BookiesReader(lambda: iter(breaking()), bookies, FakeClock()).bookies()


def test_a_caller_of_a_long_reading_learns_its_progress_and_it_goes_on(ledgers: Ledgers, bookies: FakeBookies) -> None:
    some_read, going_on = threading.Event(), threading.Event()

    def slow() -> "Iterator[tuple[LedgerId, bytes]]":
        yield from ((LedgerId(100 + number), ledgers.found[0]) for number in range(5_000))
        some_read.set()
        assert going_on.wait(10)
        yield from ledgers.every()

    reader = BookiesReader(slow, bookies, FakeClock(), patience_seconds=0.05)
    with pytest.raises(TemporaryError, match="is reading all ledgers"):
        reader.bookies()
    assert some_read.wait(10)
    with pytest.raises(TemporaryError, match="4,096 so far"):
        reader.bookie(FIRST, by_topic=False, offset=0, limit=1)
    going_on.set()
    reader._patience_seconds = 10
    assert reader.bookies()[0].ledgers == 5_006
    assert ledgers.reads == 1


def test_a_defect_while_reading_is_an_error_for_those_who_wait(
    bookies: FakeBookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def defect() -> "Iterator[tuple[LedgerId, bytes]]":
        raise ZeroDivisionError

    with pytest.raises(TemporaryError, match="could not all be read"):
        BookiesReader(defect, bookies, FakeClock()).bookies()
