"""What one row group shows, alone and with what is known of those before and behind it.

Whole columns at a time: the rules are those of `findings`, which explain what each of these comparisons is for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_sidecar.deduplication.verifying.duplicates.tables import ROWS_OF_A_GROUP, TOPIC_PARTS
from pulsar_sidecar.deduplication.verifying.extract_schema import MESSAGES
from pulsar_sidecar.deduplication.verifying.rows import NOT_CHUNKED, WHOLE_BATCH, MessageKind, PayloadState

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NAMES: Final = ("topic", "producer", "replicated_from")
PLACE: Final = ("ledger_id", "entry_id", "batch_index")
SUSPECT_COLUMNS: Final = tuple(name for name in MESSAGES.names if name != "batch_size")
"""What `suspects_of` and `rows_with_ids` look at."""
SUMMARY_COLUMNS: Final = tuple(name for name in SUSPECT_COLUMNS if name != "payload_hash")
"""What `summarise` looks at."""
_LOWEST, _HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_FEW_COMBINATIONS = 1 << 20


class TopicProducer(NamedTuple):
    """Whose ids are compared with each other."""

    topic: str
    producer: str
    replicated_from: str | None


class ProducerState(NamedTuple):
    """What a producer's rows here need to know of its rows in other row groups; None where there are none."""

    highest_before: int | None
    last_before: int | None
    first_after: int | None


class ProducerRows(NamedTuple):
    """Rows about producers: their columns, and which of the producers each row is about."""

    producers: Sequence[TopicProducer]
    of: Numbers
    columns: Mapping[str, Any]

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """With the producers' names; columns that there are none of are null."""
        of = pa.array(self.of)
        names = zip(*self.producers, strict=True) if self.producers else ((), (), ())
        arrays = dict(zip(NAMES, (pa.array(each, pa.string()).take(of) for each in names), strict=True))
        arrays |= {
            name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in self.columns.items()
        }
        missing = pa.nulls(len(self.of))
        columns = [arrays.get(field.name, missing).cast(field.type) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class ComparableRows:
    """The rows of a row group that brokers would compare, by producer, and then in the order of the log.

    Attributes:
        table: the row group.
        producers: in any order.
        of: the producer of each row, by its place among ``producers``, ascending.
        index: the place of each row in the row group.
    """

    table: pa.Table
    producers: Sequence[TopicProducer]
    of: Numbers
    index: Numbers

    @classmethod
    def among(cls, table: pa.Table) -> Self:
        """Choose and order them."""
        chunk_id, chunks = column(table, "chunk_id"), column(table, "chunks")
        is_judged = (column(table, "kind") != MessageKind.MARKER) & (
            (chunk_id == NOT_CHUNKED) | (chunk_id == chunks - 1)
        )
        index = np.flatnonzero(is_judged)
        producers, of = _producers(table, index)
        if len(producers) > 1:
            # Numbers of 16 bits are sorted without a comparison.
            order = np.argsort(of.astype(np.uint16) if len(producers) < 1 << 16 else of, kind="stable")
            of, index = of[order], index[order]
        return cls(table, producers, of, index)

    @cached_property
    def sequence_id(self) -> Numbers:
        """The id of each row."""
        return self.column("sequence_id").astype(np.int64, copy=False)

    @cached_property
    def is_first(self) -> Mask:
        """Which rows are the first of their producer here."""
        return starts_of(self.of)

    def column(self, name: str) -> npt.NDArray[np.generic]:
        """Another column."""
        values = column(self.table, name)
        return values if len(self.index) == len(values) and len(self.producers) < 2 else values[self.index]


def column(table: pa.Table, name: str) -> npt.NDArray[np.generic]:
    """A column without nulls."""
    values: npt.NDArray[np.generic] = table.column(name).to_numpy()
    return values


def starts_of(ascending: npt.NDArray[np.generic]) -> Mask:
    """Which are another than the one before."""
    is_first = np.ones(len(ascending), np.bool_)
    is_first[1:] = ascending[1:] != ascending[:-1]
    return is_first


def highest_before(numbers: Numbers, is_first: Mask) -> Numbers:
    """The highest number before each since ``is_first``; the lowest there is for those."""
    before = np.full(len(numbers), _LOWEST)
    before[1:] = numbers[:-1]
    if bool(np.all(is_first[1:] | (numbers[1:] > before[1:]))):
        return np.where(is_first, _LOWEST, before)
    # Ranks do not overflow when they are raised above those of all parts before.
    order = np.argsort(numbers, kind="stable")
    ranks = np.empty(len(numbers), np.int64)
    ranks[order] = np.arange(len(numbers))
    raised = np.cumsum(is_first) * len(numbers)
    highest = numbers[order[np.maximum.accumulate(raised + ranks) - raised]]
    before[1:] = highest[:-1]
    return np.where(is_first, _LOWEST, before)


def _producers(table: pa.Table, index: Numbers) -> tuple[list[TopicProducer], Numbers]:
    """The producers of some rows, and which of them each row has."""
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
    """The values of a column of text, and the place of each row's among them; -1 for null."""
    values = table.column(name).combine_chunks()
    encoded = values if isinstance(values, pa.DictionaryArray) else values.dictionary_encode()
    return encoded.dictionary.to_pylist(), encoded.indices.fill_null(-1).to_numpy().astype(np.int64)


# --- one row group by itself ---------------------------------------------------------------------------------------


def summarise(number: int, table: pa.Table) -> ProducerRows:
    """The row group of this number to `tables.SUMMARIES`."""
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
    """The row group of this number to `TOPIC_PARTS`."""
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
    """Which begin behind the end of the one before; each has the place of its first row and of its last, by column."""
    is_behind = np.zeros(len(first[0]), np.bool_)
    is_equal = np.ones(max(len(is_behind) - 1, 0), np.bool_)
    for begins, ends in zip(first, last, strict=True):
        is_behind[1:] |= is_equal & (begins[1:] > ends[:-1])
        is_equal &= begins[1:] == ends[:-1]
    return is_behind


def _sums(mask: npt.NDArray[np.generic], starts: Numbers) -> Numbers:
    """How many are true from each start to the next."""
    return _reduced(np.add, mask.astype(np.int64), starts)


def _reduced(operation: np.ufunc, values: Numbers, starts: Numbers) -> Numbers:
    """`numpy.ufunc.reduceat`, also of nothing."""
    reduced: Numbers = operation.reduceat(values, starts) if len(starts) else np.zeros(0, np.int64)
    return reduced


# --- with what others show -----------------------------------------------------------------------------------------


def suspects_of(
    number: int, table: pa.Table, carried: Mapping[TopicProducer, ProducerState]
) -> tuple[ProducerRows, dict[TopicProducer, int]]:
    """The rows of these producers that do not rise, as `tables.SUSPECTS`, and how many gaps the producers have here."""
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
    # The first message of a producer rises, whatever its id.
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
    """Rows of these producers whose ids are within the bounds and among the wanted, in the form of `tables.SUSPECTS`.

    ``wanted`` are `fingerprints`, ascending; None for all. A few more rows than wanted may come along.
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
    """Numbers that are equal for equal ids of a producer, and hardly ever otherwise."""
    seeds = [blake2b(repr(tuple(each)).encode(), digest_size=8).digest() for each in producers]
    mixed = np.frombuffer(b"".join(seeds), np.uint64)[of] ^ (sequence_id.view(np.uint64) * _GOLDEN)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_SECOND
    found: Numbers = (mixed ^ (mixed >> np.uint64(31))).view(np.int64)
    return found


_GOLDEN, _MIX_FIRST, _MIX_SECOND = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
"""As in SplitMix64."""
