"""Batches that travel as single values on Spark."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pyspark_jobs.orphan_ledgers.forms import IdSets, PackedIds, shares_of_ledgers, shares_of_topics
from pyspark_jobs.running.tasks import pack, pack_shares, unpack

ROWS = pa.schema([pa.field("topic", pa.string()), pa.field("ledger_id", pa.int64(), nullable=False)])
Row = tuple[str | None, int]


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"topic": topic, "ledger_id": id_} for topic, id_ in rows], schema=ROWS)


def rows_of(packed: list[bytes]) -> list[Row]:
    return [(row["topic"], row["ledger_id"]) for batch in unpack(packed) for row in batch.to_pylist()]


some_rows = st.lists(
    st.tuples(st.none() | st.sampled_from(["", "a/b/c", "t/\u00fcn\u00ef", "x"]), st.integers(0, 2**62)), max_size=30
)


@given(some_rows)
def test_a_batch_comes_out_as_it_went_in(rows: list[Row]) -> None:
    packed = pack(batch_of(rows))
    assert rows_of([packed]) == rows
    assert next(unpack([packed])).schema == ROWS


@given(some_rows, some_rows, st.integers(1, 9))
def test_every_row_is_in_one_share_and_a_topic_in_the_same_everywhere(
    here: list[Row], there: list[Row], count: int
) -> None:
    share_of: dict[str | None, int] = {}
    for rows in (here, there):
        batch = batch_of(rows)
        shares = list(pack_shares(batch, shares_of_topics(batch.column("topic"), count)))
        assert sorted(map(repr, rows_of([each for _, each in shares]))) == sorted(map(repr, rows))
        for share, packed in shares:
            assert 0 <= share < count
            for topic, _ in rows_of([packed]):
                assert share_of.setdefault(topic, share) == share


@given(st.lists(st.integers(0, 2**62), max_size=30), st.integers(1, 9))
def test_a_ledger_is_in_the_same_share_everywhere(ids: list[int], count: int) -> None:
    shares = shares_of_ledgers(np.array(ids, np.int64), count)
    assert [int(share) for share in shares] == [id_ % count for id_ in ids]


@given(
    st.lists(st.integers(0, 2**62) | st.integers(2**20 - 9, 2**20 + 9), max_size=30),
    st.lists(st.integers(-1, 2**62) | st.integers(2**20 - 9, 2**20 + 9), max_size=30),
    st.booleans(),
)
def test_packed_ids_hold_what_was_added(members: list[int], asked: list[int], is_dense: bool) -> None:
    every = {*members, *(range(3, 2**18, 5) if is_dense else ())}
    sets = IdSets()
    sets.add(np.array(sorted(every, reverse=True), np.int64), "")
    packed = PackedIds({number: written for _, number, written in sets.taken(only_full=False)})
    more = [*asked, *members, 3, 4]
    assert packed.holds(np.array(more, np.int64)).tolist() == [each in every for each in more]
