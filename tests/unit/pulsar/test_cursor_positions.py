"""A subscription's progress, read from the text that brokers print."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.pulsar.rest.cursor_positions import cursor_progress, ledger_lengths
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.positions import Position


def at(ledger: int, entry: int) -> Position:
    return Position(LedgerId(ledger), EntryId(entry))


def stats(mark_delete: str, ranges: object) -> dict[str, object]:
    return {
        "cursors": {"sub": {"markDeletePosition": mark_delete, "individuallyDeletedMessages": ranges}},
        "ledgers": [{"ledgerId": 22, "entries": 7}, {"ledgerId": 23, "entries": 0}],
        "lastConfirmedEntry": "23:9",
    }


def test_what_lies_up_to_the_mark_delete_position_is_acknowledged() -> None:
    progress = cursor_progress(stats("22:5", "[]"), "sub")
    assert at(22, 5) in progress
    assert at(21, 999) in progress
    assert at(22, 6) not in progress
    assert at(23, 0) not in progress


def test_single_acknowledgements_are_ranges_open_below() -> None:
    progress = cursor_progress(stats("22:-1", "[(22:0..22:1],(22:4..23:2]]"), "sub")
    acknowledged = [(ledger, entry) for ledger in (22, 23) for entry in range(7) if at(ledger, entry) in progress]
    assert acknowledged == [(22, 1), (22, 5), (22, 6), (23, 0), (23, 1), (23, 2)]


@given(st.sets(st.integers(0, 60)), st.integers(-1, 10))
def test_the_printed_ranges_of_any_set_read_back(entries: set[int], mark_delete: int) -> None:
    ranges = ",".join(f"(7:{entry - 1}..7:{entry}]" for entry in sorted(entries))
    progress = cursor_progress(stats(f"7:{mark_delete}", f"[{ranges}]"), "sub")
    for entry in range(62):
        assert (at(7, entry) in progress) == (entry <= mark_delete or entry in entries)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"cursors": {}},
        {"cursors": {"sub": None}},
        stats("22", "[]"),
        stats("22:5", None),
        stats("22:5", "[(22:0..22:1),(22:2..22:3]]"),
        stats("22:5", "[(22:0..22:1], 17]"),
        stats("22:5", "[(22:0..]"),
        stats("22:5", "[(22:0..22:1](22:2..22:3]]"),
        {**stats("22:5", "[]"), "ledgers": [{"ledgerId": 22}]},
        {**stats("22:5", "[]"), "lastConfirmedEntry": None},
    ],
)
def test_progress_that_cannot_be_read_is_no_progress_of_nothing(document: dict[str, object]) -> None:
    with pytest.raises(TemporaryError):
        cursor_progress(document, "sub")


def test_the_ledger_that_is_written_to_is_as_long_as_its_last_entry_says() -> None:
    assert ledger_lengths(stats("22:5", "[]")) == {22: 7, 23: 10}
    closed = {**stats("22:5", "[]"), "lastConfirmedEntry": "22:6"}
    assert ledger_lengths(closed) == {22: 7, 23: 0}
    assert ledger_lengths({"ledgers": []}) == {}
