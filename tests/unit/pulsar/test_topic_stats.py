"""Brokers' reports of topics: whole, or an error; and subscriptions' progress, read from the text they print."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.pulsar_rest.topic_stats import Compaction, compaction_of, parse_internal_stats, parse_stats
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import SubscriptionType

TOPIC = parse_topic_name("persistent://public/default/t")


def cursor(read_position: str, ledger_id: int, properties: dict[str, int]) -> dict[str, Any]:
    return {
        "markDeletePosition": "10:2",
        "readPosition": read_position,
        "individuallyDeletedMessages": "[]",
        "totalNonContiguousDeletedMessagesRange": 2,
        "cursorLedger": ledger_id,
        "cursorLedgerLastEntry": 1,
        "properties": properties,
    }


def internal_stats() -> dict[str, Any]:
    """Internal statistics as a 4.0.8 broker prints them, shortened."""
    return {
        "lastConfirmedEntry": "10:4",
        "ledgers": [{"ledgerId": 10, "entries": 5}, {"ledgerId": 12, "entries": 0}],
        "cursors": {
            "sub%2Fa": cursor("10:3", 11, {"a producer": 4}),
            "reader-1": cursor("12:0", -1, {}),
            "__compaction": cursor("12:0", 14, {"CompactedTopicLedger": 15}),
        },
        "schemaLedgers": [{"ledgerId": 13, "entries": 1}],
        "compactedLedger": {"ledgerId": 15, "entries": 4},
    }


def test_a_view_has_every_part() -> None:
    view = parse_internal_stats(internal_stats(), TOPIC, "b:8080")
    assert view.broker == "b:8080"
    assert view.ledgers == {10: 5, 12: 0}
    assert set(view.cursors) == {"sub/a", "reader-1", "__compaction"}
    assert view.cursor_ledgers == {11, 14}
    assert view.schema_ledgers == {13}
    assert view.compacted_ledger == 15
    assert view.ledgers_being_read == {10, 12, 15}
    found = view.cursor("sub/a")
    assert (found.ranges, found.read_position, found.ledger, found.ledger_last_entry) == (2, at(10, 3), 11, 1)
    assert found.properties == {"a producer": 4}
    assert view.cursor("reader-1").ledger is None


@pytest.mark.parametrize(("state", "is_open"), [({}, True), ({"state": "Open"}, True), ({"state": "NoLedger"}, False)])
def test_a_cursor_may_have_no_ledger_to_write_to(state: dict[str, str], is_open: bool) -> None:
    document = internal_stats()
    document["cursors"]["sub%2Fa"] |= state
    assert parse_internal_stats(document, TOPIC).cursor("sub/a").is_open == is_open


def test_statistics_have_every_part() -> None:
    figures = {"consumers": [{}, {}], "unackedMessages": 4, "msgDelayed": 3, "msgOutCounter": 9}
    subscriptions = {
        "a sub/": {"type": "Shared", "durable": True, **figures},
        "a reader": {"type": "None", "durable": False, "consumers": [], "msgOutCounter": 0},
    }
    whole = {"ownerBroker": "b:8080", "publishers": [], "subscriptions": subscriptions, "ongoingTxnCount": 3}
    found = parse_stats(whole, TOPIC)
    assert (found.broker, found.open_transactions) == ("b:8080", 3)
    shared, reader = (found.subscriptions[name] for name in ("a sub/", "a reader"))
    assert (shared.type, len(shared.consumers), shared.messages_out) == (SubscriptionType.SHARED, 2, 9)
    assert (shared.unacked_messages, shared.delayed_messages, shared.durable) == (4, 3, True)
    assert (reader.type, reader.durable) == (SubscriptionType.NONE, False)


def test_a_position_that_a_cumulative_acknowledgement_left_is_read() -> None:
    stats = internal_stats()
    stats["cursors"]["reader-1"] |= {
        "markDeletePosition": "10:2 (ackSet is null)",
        "readPosition": "12:0 (ackSet is null)",
    }
    found = parse_internal_stats(stats, TOPIC).cursors["reader-1"]
    assert (found.acknowledged.mark_delete, found.read_position) == ((10, 2), (12, 0))
    stats["cursors"]["reader-1"]["markDeletePosition"] = "10:2 (ackSet with long[] size of 1)"
    with pytest.raises(TemporaryError, match="a position was expected"):
        _ = parse_internal_stats(stats, TOPIC).cursors["reader-1"]


@pytest.mark.parametrize(
    ("opened", "stored", "expected"), [(-1, None, None), (-1, 15, 15), (15, None, 15), (16, 15, 15)]
)
def test_the_stored_compacted_ledger_counts_and_an_open_one_is_being_read(
    opened: int, stored: int | None, expected: int | None
) -> None:
    document = internal_stats()
    document["compactedLedger"]["ledgerId"] = opened
    document["cursors"]["__compaction"]["properties"] = {} if stored is None else {"CompactedTopicLedger": stored}
    view = parse_internal_stats(document, TOPIC, "b")
    assert view.compacted_ledger == expected
    assert (opened in view.ledgers_being_read) == (opened != -1)
    assert -1 not in view.ledgers_being_read


def broken() -> list[Any]:
    documents: list[Any] = [None, [], "text", {}]
    for part in internal_stats():
        without, wrong = internal_stats(), internal_stats()
        del without[part]
        wrong[part] = "x"
        documents += [without, wrong]
    for key, value in (
        ("totalNonContiguousDeletedMessagesRange", None),
        ("readPosition", "x"),
        ("cursorLedger", "11"),
        ("properties", {"CompactedTopicLedger": "a"}),
    ):
        document = copy.deepcopy(internal_stats())
        document["cursors"]["__compaction"][key] = value
        documents.append(document)
    return documents


@pytest.mark.parametrize("document", broken())
def test_an_answer_that_lacks_a_part_is_an_error(document: object) -> None:
    with pytest.raises(TemporaryError):
        parse_internal_stats(document, TOPIC, "b")


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"publishers": []},
        {"subscriptions": {}},
        {"subscriptions": [], "publishers": []},
        {"subscriptions": {"a": 1}, "publishers": []},
        {"subscriptions": {"a": {"type": "Shared"}}, "publishers": []},
        {"subscriptions": {"a": {"consumers": [], "msgOutCounter": 0, "unackedMessages": "4"}}, "publishers": []},
    ],
)
def test_stats_that_lack_a_part_are_an_error(document: object) -> None:
    with pytest.raises(TemporaryError):
        parse_stats(document, TOPIC)


def at(ledger: int, entry: int) -> Position:
    return Position(LedgerId(ledger), EntryId(entry))


def stats(mark_delete: str, ranges: object) -> dict[str, object]:
    return {
        **internal_stats(),
        "cursors": {
            "sub": {
                **cursor("22:0", 7, {}),
                "markDeletePosition": mark_delete,
                "individuallyDeletedMessages": ranges,
            }
        },
        "ledgers": [{"ledgerId": 22, "entries": 7}, {"ledgerId": 23, "entries": 0}],
        "lastConfirmedEntry": "23:9",
    }


def progress_of(document: object) -> PositionRanges:
    return parse_internal_stats(document, TOPIC).cursor("sub").acknowledged


def test_entries_up_to_mark_delete_are_acknowledged() -> None:
    progress = progress_of(stats("22:5", "[]"))
    assert at(22, 5) in progress
    assert at(21, 999) in progress
    assert at(22, 6) not in progress
    assert at(23, 0) not in progress


def test_single_acknowledgements_are_ranges_open_below() -> None:
    progress = progress_of(stats("22:-1", "[(22:0..22:1],(22:4..23:2]]"))
    acknowledged = [(ledger, entry) for ledger in (22, 23) for entry in range(7) if at(ledger, entry) in progress]
    assert acknowledged == [(22, 1), (22, 5), (22, 6), (23, 0), (23, 1), (23, 2)]


@given(st.sets(st.integers(0, 60)), st.integers(-1, 10))
def test_the_printed_ranges_of_any_set_read_back(entries: set[int], mark_delete: int) -> None:
    ranges = ",".join(f"(7:{entry - 1}..7:{entry}]" for entry in sorted(entries))
    progress = progress_of(stats(f"7:{mark_delete}", f"[{ranges}]"))
    for entry in range(62):
        assert (at(7, entry) in progress) == (entry <= mark_delete or entry in entries)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {**stats("22:5", "[]"), "cursors": {}},
        {**stats("22:5", "[]"), "cursors": {"sub": None}},
        {**stats("22:5", "[]"), "cursors": {"%ff": cursor("22:0", 7, {})}},
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
def test_unreadable_progress_raises_temporary_error(document: dict[str, object]) -> None:
    with pytest.raises(TemporaryError):
        progress_of(document)


def test_the_ledger_that_is_written_to_is_as_long_as_its_last_entry_shows() -> None:
    def lengths(**more: object) -> dict[LedgerId, int]:
        return dict(parse_internal_stats({**stats("22:5", "[]"), **more}, TOPIC).ledgers)

    assert lengths() == {22: 7, 23: 10}
    assert lengths(lastConfirmedEntry="22:6") == {22: 7, 23: 0}
    assert lengths(lastConfirmedEntry="21:4") == {22: 7, 23: 0}, "a ledger that was trimmed is not in use"
    assert lengths(ledgers=[]) == {}


def test_the_last_compaction() -> None:
    assert compaction_of(internal_stats(), TOPIC) == Compaction(LedgerId(15), at(10, 2))
    never = {**internal_stats(), "compactedLedger": {"ledgerId": -1, "entries": -1}}
    assert compaction_of(never, TOPIC) == Compaction(LedgerId(-1), at(-1, -1))
    for unreadable in ({}, {**internal_stats(), "cursors": {}}):
        with pytest.raises(TemporaryError):
            compaction_of(unreadable, TOPIC)
