"""Summaries and suspects of one row group, alone and with the state of those before and behind it.

All operations are on whole columns: `findings` has the rules, and explains each of these comparisons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_sidecar.features.duplicates.extracts.tables import MESSAGES, ROWS_OF_A_GROUP, TOPIC_PARTS
from pulsar_sidecar.features.duplicates.rows import NOT_CHUNKED, WHOLE_BATCH, MessageKind, PayloadState

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NAMES: Final = ("topic", "producer", "replicated_from")
PLACE: Final = ("ledger_id", "entry_id", "batch_index")
SUSPECT_COLUMNS: Final = tuple(name for name in MESSAGES.names if name != "batch_size")
"""Columns that `suspects_of` and `rows_with_ids` read."""
SUMMARY_COLUMNS: Final = tuple(name for name in SUSPECT_COLUMNS if name != "payload_hash")
"""Columns that `summarise` reads."""
_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_FEW_COMBINATIONS = 1 << 20


class TopicProducer(NamedTuple):
    """Producer on a topic, whose ids are compared with each other."""

    topic: str
    producer: str
    replicated_from: str | None


class ProducerState(NamedTuple):
    """State of a producer in other row groups, which its rows here need; None where it has no rows there."""

    highest_before: int | None
    last_before: int | None
    first_after: int | None


class ProducerRows(NamedTuple):
    """Rows about producers: their columns, and the producer of each row."""

    producers: Sequence[TopicProducer]
    of: Numbers
    columns: Mapping[str, Any]

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows, of at least one producer, with the producers' names."""
        of, names = pa.array(self.of), zip(*self.producers, strict=True)
        arrays = dict(zip(NAMES, (pa.array(each, pa.string()).take(of) for each in names), strict=True))
        arrays |= {
            name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in self.columns.items()
        }
        return pa.RecordBatch.from_arrays([arrays[field.name].cast(field.type) for field in schema], schema=schema)


@dataclass(frozen=True)
class ComparableRows:
    """Rows of a row group that brokers would compare, by producer, and then in the order of the log.

    ``of`` is the producer of each row, by its place among ``producers``, ascending; ``index`` its place in the group.
    """

    table: pa.Table
    producers: Sequence[TopicProducer]
    of: Numbers
    index: Numbers

    @classmethod
    def among(cls, table: pa.Table) -> Self:
        """Choose the rows of a row group, and order them."""
        chunk_id, chunks = column(table, "chunk_id"), column(table, "chunks")
        is_compared = (column(table, "kind") != MessageKind.MARKER) & (
            (chunk_id == NOT_CHUNKED) | (chunk_id == chunks - 1)
        )
        index = np.flatnonzero(is_compared)
        producers, of = producers_of(table, index)
        if len(producers) > 1:
            # NumPy sorts numbers of 16 bits without comparisons.
            order = np.argsort(of.astype(np.uint16) if len(producers) < 1 << 16 else of, kind="stable")
            of, index = of[order], index[order]
        return cls(table, producers, of, index)

    @cached_property
    def sequence_id(self) -> Numbers:
        return self.column("sequence_id").astype(np.int64, copy=False)

    @cached_property
    def is_first(self) -> Mask:
        """Mask of the first row of each producer."""
        return starts_of(self.of)

    def column(self, name: str) -> npt.NDArray[np.generic]:
        values = column(self.table, name)
        return values if len(self.index) == len(values) and len(self.producers) < 2 else values[self.index]


def column(table: pa.Table, name: str) -> npt.NDArray[np.generic]:
    """Return a column without nulls."""
    values: npt.NDArray[np.generic] = table.column(name).to_numpy()
    return values


def starts_of(ascending: npt.NDArray[np.generic]) -> Mask:
    """Return True where a value differs from the one before."""
    is_first = np.ones(len(ascending), np.bool_)
    is_first[1:] = ascending[1:] != ascending[:-1]
    return is_first


def highest_before(numbers: Numbers, is_first: Mask) -> Numbers:
    """Return the highest number before each since ``is_first``, and the lowest possible number for the first."""
    before = np.full(len(numbers), _LOWEST)
    before[1:] = numbers[:-1]
    if bool(np.all(is_first[1:] | (numbers[1:] > before[1:]))):
        return np.where(is_first, _LOWEST, before)
    # Ranks are raised above those of all parts before, which does not overflow.
    order = np.argsort(numbers, kind="stable")
    ranks = np.empty(len(numbers), np.int64)
    ranks[order] = np.arange(len(numbers))
    raised = np.cumsum(is_first) * len(numbers)
    highest = numbers[order[np.maximum.accumulate(raised + ranks) - raised]]
    before[1:] = highest[:-1]
    return np.where(is_first, _LOWEST, before)


def producers_of(table: pa.Table, index: Numbers) -> tuple[list[TopicProducer], Numbers]:
    """Return the producers of some rows, and the producer of each row."""
    (topics, topic), (names, name), (clusters, cluster) = (_encoded(table, each) for each in NAMES)
    combined = (topic[index] * len(names) + name[index]) * (len(clusters) + 1) + cluster[index] + 1
    combinations = len(topics) * len(names) * (len(clusters) + 1)
    if combinations < _FEW_COMBINATIONS:
        found = np.flatnonzero(np.bincount(combined, minlength=combinations))
        numbers = np.zeros(combinations, np.int64)
        numbers[found] = np.arange(len(found))
        of = numbers[combined]
    else:
        found, of = np.unique(combined, return_inverse=True)
    rest, of_cluster = np.divmod(found, len(clusters) + 1)
    of_topic, of_name = np.divmod(rest, max(len(names), 1))
    producers = [
        TopicProducer(topics[first], names[second], clusters[third - 1] if third else None)
        for first, second, third in zip(of_topic.tolist(), of_name.tolist(), of_cluster.tolist(), strict=True)
    ]
    return producers, of


def _encoded(table: pa.Table, name: str) -> tuple[list[str], Numbers]:
    """Return the values of a column of text, and the place of each row's value among them; -1 for null."""
    values = table.column(name).combine_chunks()
    encoded = values if isinstance(values, pa.DictionaryArray) else values.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.fill_null(-1).to_numpy().astype(np.int64)


# --- single row groups ---------------------------------------------------------------------------------------------


def summarise(number: int, table: pa.Table) -> ProducerRows:
    """Summarise the row group of this number as `tables.SUMMARIES`."""
    rows = ComparableRows.among(table)
    sequence_id, starts = rows.sequence_id, np.flatnonzero(rows.is_first)
    before = highest_before(sequence_id, rows.is_first)
    ends = np.append(starts[1:], len(sequence_id)) - 1 if len(starts) else starts
    published = rows.column("publish_time_ms")
    is_later, rises = ~rows.is_first, sequence_id > before
    columns = {
        "row_group": np.full(len(starts), number),
        "messages": ends - starts + 1,
        "transactional": _sums(rows.column("kind") == MessageKind.TRANSACTIONAL, starts),
        "unopened": _sums(rows.column("payload_state") != PayloadState.READ, starts),
        "unopened_batches": _sums(rows.column("batch_index") == WHOLE_BATCH, starts),
        "gaps": _sums(is_later & rises & (sequence_id - 1 > before), starts),
        "first_sequence_id": sequence_id[starts],
        "last_sequence_id": sequence_id[ends],
        "lowest": _reduced(np.minimum, sequence_id, starts),
        "highest": _reduced(np.maximum, sequence_id, starts),
        "first_publish_ms": published[starts],
        "last_publish_ms": published[ends],
        "falls": _sums(is_later & ~rises, starts) > 0,
    }
    return ProducerRows(rows.producers, np.arange(len(starts)), columns)


def topic_parts(number: int, table: pa.Table) -> pa.RecordBatch:
    """Return `TOPIC_PARTS` of the row group of this number."""
    topics, topic = _encoded(table, "topic")
    is_first = starts_of(topic)
    starts = np.flatnonzero(is_first)
    ends = np.append(starts[1:], len(topic)) - 1 if len(starts) else starts
    place = [column(table, name).astype(np.int64) for name in PLACE]
    columns = {
        "topic": pa.array([topics[each] for each in topic[starts].tolist()], pa.string()),
        "row_group": pa.array(np.full(len(starts), number)),
        "rows": pa.array(ends - starts + 1),
        "markers": pa.array(_sums(column(table, "kind") == MessageKind.MARKER, starts)),
        **{f"first_{name}": pa.array(values[starts]) for name, values in zip(PLACE, place, strict=True)},
        **{f"last_{name}": pa.array(values[ends]) for name, values in zip(PLACE, place, strict=True)},
        "in_order": pa.array(_sums(~(is_first | ascends(place, place)), starts) == 0),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in TOPIC_PARTS.names], schema=TOPIC_PARTS)


def ascends(first: Sequence[Numbers], last: Sequence[Numbers]) -> Mask:
    """Return True for parts behind the end of the one before; arguments are places of first and last rows."""
    is_behind = np.zeros(len(first[0]), np.bool_)
    is_equal = np.ones(max(len(is_behind) - 1, 0), np.bool_)
    for begins, ends in zip(first, last, strict=True):
        is_behind[1:] |= is_equal & (begins[1:] > ends[:-1])
        is_equal &= begins[1:] == ends[:-1]
    return is_behind


def _sums(mask: npt.NDArray[np.generic], starts: Numbers) -> Numbers:
    return _reduced(np.add, mask.astype(np.int64), starts)


def _reduced(operation: np.ufunc, values: Numbers, starts: Numbers) -> Numbers:
    """Apply `numpy.ufunc.reduceat`, also to empty arrays."""
    reduced: Numbers = operation.reduceat(values, starts) if len(starts) else np.zeros(0, np.int64)
    return reduced


# --- with the state of others --------------------------------------------------------------------------------------


def suspects_of(
    number: int, table: pa.Table, carried: Mapping[TopicProducer, ProducerState]
) -> tuple[ProducerRows, dict[TopicProducer, int]]:
    """Return these producers' rows that do not rise, and the producers' numbers of gaps here.

    The rows have the columns of `tables.SUSPECTS` and of `rows_with_ids`.
    """
    rows = ComparableRows.among(table)
    about = [carried.get(each) for each in rows.producers]
    is_known = np.array([each is not None for each in about], np.bool_)[rows.of]
    highest_carried, last_before, first_after = (
        np.array([_LOWEST if each is None or each[field] is None else each[field] for each in about], np.int64)[rows.of]
        for field in range(len(ProducerState._fields))
    )
    is_new, is_last = (
        np.array([each is None or each[field] is None for each in about], np.bool_)[rows.of] for field in (0, 2)
    )
    sequence_id, is_first = rows.sequence_id, rows.is_first
    highest = np.maximum(highest_before(sequence_id, is_first), highest_carried)
    # A producer's first message rises, whatever its id.
    rises = (sequence_id > highest) | (is_first & is_new)
    gaps = rises & ~(is_first & is_new) & (sequence_id - 1 > highest)
    before, after = np.roll(sequence_id, 1), np.roll(sequence_id, -1)
    before = np.where(is_first, last_before, before)
    ends = np.roll(is_first, -1)
    after = np.where(ends, first_after, after)
    goes_on = ~(ends & is_last) & (after > sequence_id) & (after <= highest)
    chosen = np.flatnonzero(is_known & ~rises)
    columns = {
        **_stored(number, rows, chosen),
        "highest": highest[chosen],
        "may_begin_epoch": ((sequence_id < before) & goes_on)[chosen],
    }
    counted = _sums(gaps, np.flatnonzero(is_first)).tolist()
    return (
        ProducerRows(rows.producers, rows.of[chosen], columns),
        {each: count for each, count in zip(rows.producers, counted, strict=True) if each in carried},
    )


def rows_with_ids(
    number: int, table: pa.Table, bounds: Mapping[TopicProducer, tuple[int, int]], wanted: Numbers | None
) -> ProducerRows:
    """Return these producers' rows with ids within the bounds and among ``wanted``.

    ``wanted`` are `fingerprints`, ascending; None for all. The result may contain a few more rows. Its columns are what
    suspects are compared by, and each row's ``fingerprint``.
    """
    rows = ComparableRows.among(table)
    nothing = (_HIGHEST, _LOWEST)
    lowest, highest = (
        np.array([bounds.get(each, nothing)[end] for each in rows.producers], np.int64)[rows.of] for end in (0, 1)
    )
    is_chosen = (rows.sequence_id >= lowest) & (rows.sequence_id <= highest)
    chosen = np.flatnonzero(is_chosen)
    if wanted is not None and len(wanted):
        found = fingerprints(rows.producers, rows.of[chosen], rows.sequence_id[chosen])
        places = np.minimum(np.searchsorted(wanted, found), len(wanted) - 1)
        chosen = chosen[wanted[places] == found]
    return ProducerRows(rows.producers, rows.of[chosen], _stored(number, rows, chosen))


def _stored(number: int, rows: ComparableRows, chosen: Numbers) -> dict[str, npt.NDArray[np.generic]]:
    return {
        "row": number * ROWS_OF_A_GROUP + rows.index[chosen],
        "sequence_id": rows.sequence_id[chosen],
        **{name: rows.column(name)[chosen].astype(np.int64) for name in PLACE},
        "payload_hash": rows.column("payload_hash")[chosen],
        "is_read": rows.column("payload_state")[chosen] == PayloadState.READ,
        "message_kind": rows.column("kind")[chosen],
        "publish_time_ms": rows.column("publish_time_ms")[chosen],
        "fingerprint": fingerprints(rows.producers, rows.of[chosen], rows.sequence_id[chosen]),
    }


def fingerprints(producers: Sequence[TopicProducer], of: Numbers, sequence_id: Numbers) -> Numbers:
    """Return numbers that are equal for equal ids of a producer, and hardly ever otherwise."""
    seeds = [blake2b(repr(tuple(each)).encode(), digest_size=8).digest() for each in producers]
    mixed = np.frombuffer(b"".join(seeds), np.uint64)[of] ^ (sequence_id.view(np.uint64) * _GOLDEN)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_SECOND
    found: Numbers = (mixed ^ (mixed >> np.uint64(31))).view(np.int64)
    return found


_GOLDEN, _MIX_FIRST, _MIX_SECOND = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""Constants of SplitMix64."""
