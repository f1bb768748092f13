"""The rules, by cases, and against an oracle that compares each row with every row before it."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.duplicates.findings import (
    EarlierMessages,
    Finding,
    MessagePlace,
    Producer,
    ProducerCounts,
    SequenceComparison,
)
from pulsar_sidecar.features.duplicates.rows import WHOLE_BATCH, FindingKind, MessageKind, MessageRow, PayloadState
from pulsar_sidecar.model.ids import EntryId, LedgerId

from tests.unit.duplicates.rows import Log

DUPLICATE, REUSED, REPEATED, GOING_BACK, EPOCH = FindingKind


def place(row: MessageRow) -> MessagePlace:
    return MessagePlace(row.ledger_id, row.entry_id, row.batch_index)


def found(rows: list[MessageRow]) -> list[Finding]:
    watch = watched(rows)
    occurrences = EarlierMessages(watch.suspects)
    for row in rows:
        if occurrences.last is not None and place(row) <= occurrences.last:
            occurrences.take(row)
    return list(occurrences.findings())


def watched(rows: Iterable[MessageRow]) -> SequenceComparison:
    watch = SequenceComparison()
    for row in rows:
        watch.take(row)
    return watch


def counts_of(*ids: int) -> ProducerCounts:
    log = Log()
    return watched(log.add(sequence_id) for sequence_id in ids).producers[Producer("p", None)]


def findings_of(log: Log) -> list[tuple[int, FindingKind, MessagePlace | None]]:
    return [(each.sequence_id, each.kind, each.earlier) for each in found(log.rows)]


def oracle(rows: list[MessageRow]) -> list[Finding]:
    findings = []
    judged = [row for row in rows if row.kind is not MessageKind.MARKER and row.chunk_id in (-1, row.chunks - 1)]
    for row in judged:
        mine = [each for each in judged if (each.producer, each.replicated_from) == (row.producer, row.replicated_from)]
        index = next(number for number, each in enumerate(mine) if each is row)
        before, after = mine[:index], mine[index + 1 :]
        highest = max((each.sequence_id for each in before), default=None)
        if highest is None or row.sequence_id > highest:
            continue
        equal = [each for each in before if each.sequence_id == row.sequence_id]
        read = PayloadState.READ
        same = [e for e in equal if e.payload_state is read is row.payload_state and e.payload_hash == row.payload_hash]
        kind, earlier = GOING_BACK, None
        if same:
            kind, earlier = DUPLICATE, place(same[0])
        elif equal:
            all_read = row.payload_state is read and all(each.payload_state is read for each in equal)
            kind, earlier = REUSED if all_read else REPEATED, place(equal[0])
        who = Producer(row.producer, row.replicated_from)
        rest = (who, row.sequence_id, place(row), row.kind, row.publish_time_ms, highest)
        findings.append(Finding(kind, *rest, earlier))
        drops = row.sequence_id < before[-1].sequence_id
        goes_on = bool(after) and row.sequence_id < after[0].sequence_id <= highest
        if drops and goes_on and kind is not DUPLICATE:
            findings.append(Finding(EPOCH, *rest))
    return findings


@st.composite
def logs(draw: st.DrawFn) -> list[MessageRow]:
    log = Log()
    for _ in range(draw(st.integers(0, 14))):
        chunks = draw(st.sampled_from([1, 1, 1, 2]))
        log.add(
            draw(st.integers(-1, 5)),
            draw(st.integers(0, 1)),
            producer=draw(st.sampled_from("pq")),
            replicated_from=draw(st.sampled_from([None, None, "west"])),
            kind=draw(st.sampled_from([MessageKind.MESSAGE, MessageKind.MESSAGE, *MessageKind])),
            state=draw(st.sampled_from([PayloadState.READ, PayloadState.READ, *PayloadState])),
            chunk_id=-1 if chunks == 1 else draw(st.integers(0, 1)),
            chunks=chunks,
        )
    return log.rows


@given(logs())
def test_findings_equal_those_of_the_oracle(rows: list[MessageRow]) -> None:
    assert found(rows) == oracle(rows)


def test_rising_ids_and_gaps_are_no_findings() -> None:
    log = Log()
    for sequence_id in (0, 1, 2, 10, 11, 2**63 - 1):
        log.add(sequence_id)
    assert findings_of(log) == []
    counts = watched(log.rows).producers[Producer("p", None)]
    assert (counts.messages, counts.gaps, counts.first_sequence_id, counts.last_sequence_id) == (6, 2, 0, 2**63 - 1)
    assert (counts.first_publish_ms, counts.last_publish_ms) == (1000, 1005)


def test_a_gap_is_an_id_left_out() -> None:
    assert counts_of(5, 6, 8).gaps == 1


def test_counts_of_a_producer_of_one_message() -> None:
    assert counts_of(5) == ProducerCounts(5, 5, 5, 1000, 1000, messages=1)


def test_transactional_and_unopened_messages_are_counted() -> None:
    log = Log()
    for kind in (MessageKind.TRANSACTIONAL, MessageKind.MESSAGE, MessageKind.TRANSACTIONAL):
        log.add(len(log.rows), kind=kind)
    log.add(3, state=PayloadState.ENCRYPTED)
    watch = watched(log.rows)
    for sequence_id in (4, 5):
        watch.take(log.add(sequence_id, state=PayloadState.ENCRYPTED)._replace(batch_index=WHOLE_BATCH))
    watch.take(log.add(6)._replace(batch_index=WHOLE_BATCH))
    counts = watch.producers[Producer("p", None)]
    assert (counts.messages, counts.transactional, counts.unopened, counts.unopened_batches) == (7, 2, 3, 3)


def test_a_finding_names_the_message() -> None:
    log = Log()
    first = log.add(9, kind=MessageKind.TRANSACTIONAL)
    second = log.add(9, kind=MessageKind.TRANSACTIONAL)
    (finding,) = found(log.rows)
    who = Producer("p", None)
    assert finding == Finding(
        DUPLICATE, who, 9, place(second), MessageKind.TRANSACTIONAL, 1001, highest=9, earlier=place(first)
    )


@pytest.mark.parametrize("ids", [(5, 7, 6, 6, 8), (9, 5, 5, 6)])
def test_repeated_id_does_not_start_an_epoch(ids: tuple[int, ...]) -> None:
    log = Log()
    for payload, sequence_id in enumerate(ids):
        log.add(sequence_id, payload)
    assert [each.kind for each in found(log.rows)][:2] == [GOING_BACK, REUSED]
    assert EPOCH not in {each.kind for each in found(log.rows)}


def test_a_resend_after_a_broken_connection() -> None:
    log = Log()
    stored = [log.add(sequence_id, payload=sequence_id) for sequence_id in (7, 8, 9)]
    log.add(8, payload=8)
    log.add(9, payload=9)
    log.add(10)
    assert findings_of(log) == [(8, DUPLICATE, place(stored[1])), (9, DUPLICATE, place(stored[2]))]


def test_a_producer_that_begins_again() -> None:
    log = Log()
    stored = [log.add(sequence_id, payload=sequence_id) for sequence_id in (0, 2, 4)]
    log.add(0, payload=77)
    log.add(1, payload=78)
    log.add(2, payload=79)
    assert findings_of(log) == [
        (0, REUSED, place(stored[0])),
        (0, EPOCH, None),
        (1, GOING_BACK, None),
        (2, REUSED, place(stored[1])),
    ]


def test_an_unreadable_payload_is_neither_the_same_nor_another() -> None:
    log = Log()
    first = log.add(5, state=PayloadState.ENCRYPTED)
    log.add(5, state=PayloadState.ENCRYPTED)
    log.add(5, payload=1)
    log.add(5, payload=1)
    assert findings_of(log) == [
        (5, REPEATED, place(first)),
        (5, REPEATED, place(first)),
        (5, DUPLICATE, MessagePlace(LedgerId(0), EntryId(2), 0)),
    ]


def test_markers_and_the_beginnings_of_chunked_messages_are_not_judged() -> None:
    log = Log()
    log.add(9)
    log.add(0, kind=MessageKind.MARKER)
    for chunk_id in range(3):
        log.add(10, chunk_id=chunk_id, chunks=3)
    log.add(10, chunk_id=0, chunks=3)
    assert findings_of(log) == []
    log.add(10, chunk_id=2, chunks=3)
    assert [each.kind for each in found(log.rows)] == [DUPLICATE]
    watch = watched(log.rows)
    assert (watch.earlier_chunks, watch.kinds[MessageKind.MARKER]) == (3, 1)


def test_the_same_name_in_another_cluster_is_another_producer() -> None:
    log = Log()
    log.add(5)
    log.add(5, replicated_from="west", kind=MessageKind.REPLICATED)
    log.add(5, producer="q")
    assert findings_of(log) == []
    log.add(5, replicated_from="west", kind=MessageKind.REPLICATED)
    assert [(each.producer, each.kind) for each in found(log.rows)] == [(Producer("p", "west"), DUPLICATE)]
