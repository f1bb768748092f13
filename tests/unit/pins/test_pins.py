"""Pins of each ledger of a topic, the effect of releasing each alone, and their ends, by facts alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.pins.causes import Held, remedies
from pulsar_sidecar.features.pins.decide import Pin, answer_of, held_by, pins_of
from pulsar_sidecar.features.pins.facts import Bytes, CursorFacts, DueSpan, LedgerFacts, Retention, TopicFacts
from pulsar_sidecar.features.pins.results import LedgersHeldTogether, PinCause
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges

TOPIC = parse_topic_name("persistent://public/default/orders")
MIB = 1024 * 1024
MINUTE = 60_000
NOW = 1_000 * MINUTE
NONE, FOREVER = Retention(0, 0), Retention(-1, -1)


def ledger(ledger_id: int, closed_ms: int = NOW - 10 * MINUTE, entries: int = 10, mib: int = 1) -> LedgerFacts:
    return LedgerFacts(LedgerId(ledger_id), entries, mib * MIB, 2, closed_ms)


LIST = (ledger(1), ledger(2), ledger(3), ledger(4, closed_ms=0, entries=5))
"""Three closed ledgers, and one that is written to."""


def at(ledger_id: int, entry_id: int, *ranges: tuple[int, int, int]) -> PositionRanges:
    found = (EntryRange(LedgerId(one), EntryId(first), EntryId(last)) for one, first, last in ranges)
    return PositionRanges(Position(LedgerId(ledger_id), EntryId(entry_id)), found)


def cursor(acknowledged: PositionRanges | Unreadable, name: str = "s", first_due_ms: int | None = None) -> CursorFacts:
    return CursorFacts(name, acknowledged, first_due_ms)


def facts(
    *cursors: CursorFacts,
    ledgers: tuple[LedgerFacts, ...] = LIST,
    retention: Retention | Unreadable = NONE,
    loaded_by: str | None = "broker-1",
) -> TopicFacts:
    return TopicFacts(TOPIC, ledgers, cursors, retention, loaded_by, NOW)


def only(pins: Sequence[Pin], cause: PinCause) -> Pin:
    (found,) = (pin for pin in pins if pin.cause is cause)
    return found


def causes(pins: Sequence[Pin]) -> set[PinCause]:
    return {pin.cause for pin in pins}


def test_a_slow_cursor_holds_from_its_position_on_and_frees_all_but_the_last_ledger() -> None:
    pins = pins_of(facts(cursor(at(2, 3))))
    pin = only(pins, PinCause.BACKLOG)
    assert pin.ledgers == {2, 3, 4}
    assert (pin.bytes, pin.frees) == (Bytes(3 * MIB, 6 * MIB), Bytes(2 * MIB, 4 * MIB))
    assert pin.also_held_by == ("last-ledger",)
    assert "acknowledged up to 2:3; 21 entries waiting" in pin.detail
    assert only(pins, PinCause.NEXT_TRIM).ledgers == {1}


@pytest.mark.parametrize(("mark_delete", "held"), [((1, -1), {1, 2, 3, 4}), ((1, 9), {2, 3, 4}), ((4, 4), set())])
def test_a_ledger_that_is_acknowledged_to_its_end_is_not_held(mark_delete: tuple[int, int], held: set[int]) -> None:
    pins = pins_of(facts(cursor(at(*mark_delete))))
    assert {id_ for pin in pins if pin.cause is PinCause.BACKLOG for id_ in pin.ledgers} == held


@pytest.mark.parametrize(
    ("name", "acknowledged", "due_ms", "cause"),
    [
        ("s", at(1, 3), None, PinCause.BACKLOG),
        ("s", at(1, 3, (1, 5, 9)), None, PinCause.ACKNOWLEDGEMENT_HOLES),
        ("s", at(1, 3), NOW + 1, PinCause.DELAYED_MESSAGES),
        ("s", at(1, 3, (1, 5, 9)), NOW + 1, PinCause.DELAYED_MESSAGES),
        ("s", at(1, 3), NOW, PinCause.BACKLOG),
        ("pulsar.dedup", at(1, 3), None, PinCause.DEDUPLICATION_SNAPSHOT),
        ("__compaction", at(1, 3), None, PinCause.COMPACTION),
        ("pulsar.repl.west", at(1, 3), None, PinCause.REPLICATION),
        ("s", Unreadable("its ledger is gone"), None, PinCause.UNREADABLE_CURSOR),
    ],
)
def test_the_cause_of_a_cursor(
    name: str, acknowledged: PositionRanges | Unreadable, due_ms: int | None, cause: PinCause
) -> None:
    pin = only(pins_of(facts(cursor(acknowledged, name, due_ms))), cause)
    assert pin.holder == name
    assert {1, 2, 3} <= pin.ledgers
    assert pin.remedies


def test_delayed_messages_end_with_the_last_one_that_is_due_in_what_they_hold() -> None:
    bucket = LedgerFacts(LedgerId(9), 2, 100, 2)
    spans = (
        DueSpan(frozenset({LedgerId(1)}), NOW + 5_000),  # all of it is acknowledged
        DueSpan(frozenset({LedgerId(2), LedgerId(3)}), NOW + 3_000),
    )
    delayed = CursorFacts("s", at(1, 9), NOW + 1_000, (bucket,), spans)
    pins = pins_of(facts(delayed))
    assert only(pins, PinCause.DELAYED_MESSAGES).ends_ms == NOW + 3_000
    index = only(pins, PinCause.DELAYED_INDEX)
    assert (index.ledgers, index.frees, index.ends_ms) == ({9}, Bytes(100, 200), NOW + 5_000)
    assert (
        only(pins_of(facts(replace(delayed, buckets=(), spans=()))), PinCause.DELAYED_MESSAGES).ends_ms == NOW + 1_000
    )


@pytest.mark.parametrize(
    ("retention", "held"),
    [
        (NONE, set()),
        (Retention(9, -1), set()),  # older than nine minutes
        (Retention(10, -1), {1, 2, 3}),  # not yet
        (Retention(60, -1), {1, 2, 3}),
        (FOREVER, {1, 2, 3}),
        (Retention(60, 2), {3}),  # 4 MiB in all, so the first two are too many
        (Retention(-1, 4), {1, 2, 3}),
        (Retention(60, 0), set()),  # brokers then retain nothing
        (Retention(0, -1), set()),
    ],
)
def test_retention_holds_closed_ledgers_that_are_neither_old_nor_too_many(retention: Retention, held: set[int]) -> None:
    pins = pins_of(facts(retention=retention))
    assert {id_ for pin in pins if pin.cause is PinCause.RETENTION for id_ in pin.ledgers} == held


def test_retention_ends_when_the_youngest_ledger_is_that_old() -> None:
    assert only(pins_of(facts(retention=Retention(60, -1))), PinCause.RETENTION).ends_ms == NOW + 50 * MINUTE
    assert only(pins_of(facts(retention=FOREVER)), PinCause.RETENTION).ends_ms is None


def test_unreadable_pin_may_hold_everything() -> None:
    pins = pins_of(facts(retention=Unreadable("no broker answered")))
    assert only(pins, PinCause.UNREADABLE_RETENTION).ledgers == {1, 2, 3}
    assert PinCause.NEXT_TRIM not in causes(pins)


def test_of_a_topic_that_no_broker_has_loaded_nothing_is_trimmed() -> None:
    pins = pins_of(facts(loaded_by=None))
    assert causes(pins) == {PinCause.NOT_LOADED}
    pin = only(pins, PinCause.NOT_LOADED)
    assert (pin.ledgers, pin.frees.on_bookies) == ({1, 2, 3, 4}, 8 * MIB)
    assert pin.remedies[0].command == f"pulsar-admin topics trim-topic {TOPIC}"


def test_the_last_ledger_of_a_terminated_topic_goes_with_the_topic() -> None:
    assert causes(pins_of(facts())) == {PinCause.LAST_LEDGER, PinCause.NEXT_TRIM}
    for loaded_by in ("broker-1", None):
        terminated = replace(facts(loaded_by=loaded_by), terminated=True)
        pin = only(pins_of(terminated), PinCause.LAST_LEDGER)
        assert (pin.ledgers, pin.remedies[0].command) == ({4}, f"pulsar-sidecar topics delete {TOPIC}")
        of_partition = only(pins_of(replace(terminated, topic=TOPIC.partition(1))), PinCause.LAST_LEDGER)
        assert of_partition.remedies[0].command == f"pulsar-sidecar topics delete --partitioned {TOPIC}"


TRIM = f"pulsar-admin topics trim-topic {TOPIC}"


@pytest.mark.parametrize("cause", [PinCause.RETENTION, PinCause.OFFLOAD_LAG, PinCause.LAST_LEDGER, PinCause.NOT_LOADED])
def test_a_command_that_loads_no_topic_is_followed_by_one_that_does(cause: PinCause) -> None:
    (remedy,) = remedies(cause, Held(TOPIC))
    assert remedy.command is not None
    assert remedy.command.split(" && ")[-1] == TRIM


@pytest.mark.parametrize(("is_loaded", "first", "command"), [(True, "wait", None), (False, "load the topic", TRIM)])
def test_a_topic_that_is_loaded_is_not_to_be_loaded(is_loaded: bool, first: str, command: str | None) -> None:
    mildest, _, disabling = remedies(PinCause.DEDUPLICATION_SNAPSHOT, Held(TOPIC, is_loaded=is_loaded))
    assert mildest.what.startswith(first)
    assert mildest.command == command
    assert disabling.command == f"pulsar-admin topicPolicies set-deduplication --disable {TOPIC} && {TRIM}"


BOTH = frozenset({"west", "here"})
SKIP = f"pulsar-admin topics clear-backlog -s pulsar.repl.west {TOPIC}"
STOP = f"pulsar-admin topics set-replication-clusters -c here {TOPIC} && {TRIM}"


@pytest.mark.parametrize(
    ("replicated_to", "replicators", "loaded_by", "detail", "commands"),
    [
        (BOTH, {"west": True}, "broker-1", "connected to west", [None, SKIP, STOP]),
        (BOTH, {"west": False}, "broker-1", "not connected to west", [None, SKIP, STOP]),
        (BOTH, Unreadable("no answer"), "broker-1", "unknown whether it is connected to west", [None, SKIP, STOP]),
        (BOTH, {}, None, "replicates to west only once a broker has loaded the topic", [TRIM, SKIP, STOP]),
        (Unreadable("no answer"), {}, "broker-1", "if the topic's clusters still name it: no answer", [None, SKIP]),
        (frozenset({"here"}), {}, None, "no longer replicated to west", [TRIM]),
        (frozenset({"here"}), {}, "broker-1", "no longer", [f"pulsar-admin topics unload {TOPIC} && {TRIM}"]),
    ],
)
def test_a_replicator_that_is_behind_names_its_cluster_and_what_frees(
    replicated_to: frozenset[str] | Unreadable,
    replicators: Mapping[str, bool] | Unreadable,
    loaded_by: str | None,
    detail: str,
    commands: list[str | None],
) -> None:
    behind = facts(cursor(at(1, 3), "pulsar.repl.west"), loaded_by=loaded_by)
    pin = only(pins_of(replace(behind, replicated_to=replicated_to, replicators=replicators)), PinCause.REPLICATION)
    assert detail in pin.detail.partition("; ")[2].partition("; ")[2]
    assert [remedy.command for remedy in pin.remedies] == commands


def test_pins_in_an_unloaded_topic_have_no_end() -> None:
    """Brokers count the retention of its last ledger from the next load, and delete nothing before."""
    bucket, spans = LedgerFacts(LedgerId(9), 2, 100, 2), (DueSpan(frozenset({LedgerId(2)}), NOW + 3_000),)
    delayed = CursorFacts("s", at(1, 9), NOW + 1_000, (bucket,), spans)
    ledgers = (replace(LIST[0], offload=offload()), *LIST[1:])
    unloaded = facts(delayed, ledgers=ledgers, retention=Retention(60, -1), loaded_by=None)
    found = pins_of(replace(unloaded, offload_lag_ms=5 * MINUTE))
    expected = {PinCause.RETENTION, PinCause.DELAYED_MESSAGES, PinCause.DELAYED_INDEX, PinCause.OFFLOAD_LAG}
    assert {(pin.cause, pin.ends_ms) for pin in found} == {(cause, None) for cause in expected}
    assert all("ends only after a broker loads the topic" in pin.detail for pin in found)


def test_each_ledger_is_counted_once_by_the_pins_that_hold_it_together() -> None:
    slow = ("backlog slow",)
    assert answer_of(facts(cursor(at(1, 3), "slow"), cursor(at(2, 9), "slower"))).held == (
        LedgersHeldTogether(slow, 2, 2 * MIB, 4 * MIB),
        LedgersHeldTogether((*slow, "backlog slower"), 1, MIB, 2 * MIB),
        LedgersHeldTogether((*slow, "backlog slower", "last-ledger"), 1, MIB, 2 * MIB),
    )


def offload(
    complete: bool = True, offloaded_ms: int = NOW - MINUTE, bookkeeper_deleted: bool = False
) -> OffloadContext:
    return OffloadContext(
        1, 2, "filesystem", {}, complete, bookkeeper_deleted=bookkeeper_deleted, offloaded_ms=offloaded_ms
    )


def test_the_copy_in_bookkeeper_goes_whatever_else_holds_the_ledger() -> None:
    ledgers = (replace(LIST[0], offload=offload()), replace(LIST[1], offload=offload(complete=False)), *LIST[2:])
    offloaded = replace(facts(cursor(at(1, -1)), ledgers=ledgers), offload_lag_ms=5 * MINUTE)
    pins = pins_of(offloaded)
    pin = only(pins, PinCause.OFFLOAD_LAG)
    assert (pin.ledgers, pin.frees, pin.ends_ms) == ({1}, Bytes(MIB, 2 * MIB), NOW + 4 * MINUTE)
    assert answer_of(offloaded).tiered_bytes == MIB
    backlog = next(each for each in held_by(pins, ledgers[0]) if each.cause is PinCause.BACKLOG)
    assert backlog.frees == Bytes()
    kept = pins_of(replace(facts(ledgers=ledgers), offload_lag_ms=-1))
    assert only(kept, PinCause.OFFLOAD_LAG).ends_ms is None


def test_a_copy_in_bookkeeper_that_the_list_calls_deleted_has_leaked() -> None:
    """State after the death of a broker between writing its list and deleting the ledger."""
    alone, gone = (offload(bookkeeper_deleted=True) for _ in range(2))
    ledgers = (
        replace(LIST[0], offload=alone), replace(LIST[1], offload=gone, copies=0), replace(LIST[2], offload=offload()),
        LIST[3],
    )  # fmt: skip
    found = replace(facts(cursor(at(1, -1)), ledgers=ledgers), offload_lag_ms=5 * MINUTE)
    pins = pins_of(found)
    pin = only(pins, PinCause.REPLACED_COPY)
    assert (pin.holder, pin.ledgers, pin.frees, pin.ends_ms) == ("ledger 1", {1}, Bytes(MIB, 2 * MIB), None)
    assert [remedy.command for remedy in pin.remedies] == [f"pulsar-sidecar topics delete-ledger {TOPIC} -l 1"]
    assert only(pins, PinCause.OFFLOAD_LAG).ledgers == {3}
    (of_ledger,) = (each for each in held_by(pins, ledgers[0]) if each.cause is PinCause.REPLACED_COPY)
    assert of_ledger.frees == Bytes(MIB, 2 * MIB)
    answer = answer_of(found)
    assert (answer.tiered_bytes, answer.tiered_and_bookies_bytes) == (3 * MIB, MIB)
    assert (answer.tiered_alone_ledgers, answer.tiered_alone_bytes) == (2, 2 * MIB)


def test_offloaded_ledgers_occupy_no_bookie() -> None:
    pins = pins_of(facts(cursor(at(1, -1)), ledgers=(replace(LIST[0], copies=0, offload=offload()), *LIST[1:])))
    assert only(pins, PinCause.BACKLOG).bytes == Bytes(4 * MIB, 6 * MIB)
    assert PinCause.OFFLOAD_LAG not in causes(pins)


def test_a_compacted_ledger_is_held_by_the_topic() -> None:
    view = LedgerFacts(LedgerId(20), 3, 50, 2)
    compacted = replace(facts(), compacted=(view,))
    pins, found = pins_of(compacted), answer_of(compacted)
    assert only(pins, PinCause.COMPACTED_LEDGER).frees == Bytes(50, 100)
    assert (found.bytes, found.on_bookies_bytes) == (4 * MIB + 50, 8 * MIB + 100)
    assert [pin.cause for pin in held_by(pins, view)] == [PinCause.COMPACTED_LEDGER]


def test_pin_frees_the_ledgers_that_it_alone_holds() -> None:
    pins = pins_of(facts(cursor(at(2, 3)), retention=Retention(60, -1)))
    (retention,) = held_by(pins, LIST[0])
    assert (retention.cause, retention.frees) == (PinCause.RETENTION, Bytes(MIB, 2 * MIB))
    assert {pin.frees for pin in held_by(pins, LIST[1])} == {Bytes()}


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(-1, 9)), max_size=4),
    st.sampled_from([NONE, FOREVER, Retention(60, 2), Retention(9, -1)]),
    st.sampled_from([None, "broker"]),
)
def test_every_ledger_has_a_pin_and_nothing_is_freed_twice(
    positions: list[tuple[int, int]], retention: Retention, loaded_by: str | None
) -> None:
    cursors = [cursor(at(*position), f"s{number}") for number, position in enumerate(positions)]
    topic = facts(*cursors, retention=retention, loaded_by=loaded_by)
    pins = pins_of(topic)
    assert {id_ for pin in pins for id_ in pin.ledgers} == {1, 2, 3, 4}
    assert sum(pin.frees.once for pin in pins) <= answer_of(topic).bytes
    for pin in pins:
        alone = pin.ledgers.difference(*(other.ledgers for other in pins if other is not pin))
        assert pin.frees.once == len(alone) * MIB


def test_a_hostile_name_is_quoted_in_every_command() -> None:
    hostile = parse_topic_name("persistent://public/default/a'; rm -rf $HOME #")
    for cause in PinCause:
        for remedy in remedies(cause, Held(hostile, "s'; reboot", replicated_to=frozenset({"$(x)"}))):
            assert remedy.command is None or "'\"'\"'" in remedy.command or "public/default" in remedy.command
            assert remedy.command is None or "{names" not in remedy.command
            assert remedy.command is None or "'; r" not in remedy.command.replace("'\"'\"'", "")
