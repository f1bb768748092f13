"""Plan of an audit: the deletable ledgers and copies in order, and the hash that a user approves.

Invariant: the hash covers every field of every row that becomes part of a deletion record, in order, together with the
audit and its ledger storage; two plans with one hash request the same deletions. Rows are hashed in blocks of
`PLAN_BLOCK_ROWS`, so that Spark can hash blocks where they are, and the plan's hash is that of the blocks' hashes.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.engine.usage import count_of_lengths
from pulsar_sidecar.features.audit.results.summaries import Count, PlanSummary
from pulsar_sidecar.features.audit.results.tables import OrphanStatus
from pulsar_sidecar.model.errors import InvalidInputError

PLAN_BLOCK_ROWS: Final = 4096
"""Row ``n`` is in block ``n // PLAN_BLOCK_ROWS``."""

_VERSION: Final = "pulsar-sidecar plan 1"
_NUMBERS: Final = ("ledger_id", "row", "length_bytes", "ctime_ms", "version", "czxid", "mzxid")
_TEXTS: Final = ("kind", "topic", "managed_ledger", "cursor_name", "schema_id")
PLAN_COLUMNS: Final = ("standing", *_NUMBERS, *_TEXTS)
"""Columns of `audit.results.tables.ORPHAN_LEDGERS` that make a plan; others are ignored here."""
_COPY_NUMBERS: Final = ("ledger_id", "row", "length_bytes", "modified_ms")
_COPY_TEXTS: Final = ("attempt", "place", "driver", "region", "topic", "managed_ledger")
COPY_COLUMNS: Final = ("standing", *_COPY_NUMBERS, *_COPY_TEXTS)
"""Columns of `audit.results.tables.OFFLOADED_LEDGERS` that make a plan, whose rows follow those of ledgers."""
_COPIES: Final = b"copies"


def block_digest(rows: pa.RecordBatch) -> bytes:
    """Return the hash of one whole block: rows with `PLAN_COLUMNS`, ascending by ``row``, or `InvalidInputError`."""
    _demand_order(rows)
    first = rows.column("row")[0].as_py()
    if first % PLAN_BLOCK_ROWS or rows.num_rows > PLAN_BLOCK_ROWS:
        raise InvalidInputError(f"{rows.num_rows} rows from row {first} on are not a block of a plan")
    return _digest_of(rows, _NUMBERS, _TEXTS)


def copy_digests(rows: pa.Table) -> list[bytes]:
    """Return the hashes of a plan's copies, which follow those of its ledgers: all rows, with `COPY_COLUMNS`."""
    rows = rows.select(list(COPY_COLUMNS)).combine_chunks()
    blocks = (rows.slice(start, PLAN_BLOCK_ROWS) for start in range(0, rows.num_rows, PLAN_BLOCK_ROWS))
    return [_digest_of(block.combine_chunks().to_batches()[0], _COPY_NUMBERS, _COPY_TEXTS, _COPIES) for block in blocks]


def _digest_of(rows: pa.RecordBatch, numbers: Sequence[str], texts: Sequence[str], beginning: bytes = b"") -> bytes:
    digest = hashlib.sha256(beginning)
    for name in numbers:
        digest.update(_of_numbers(rows.column(name)))
    for name in texts:
        digest.update(_of_texts(rows.column(name)))
    return digest.digest()


def plan_digest(audit_id: str, instance_id: str, rows: int, blocks: Iterable[bytes]) -> str:
    """Return the plan's hash from the hashes of all its blocks, in order; ``rows`` is the number of all rows."""
    digest = hashlib.sha256()
    for text in (_VERSION, audit_id, instance_id, str(rows)):
        digest.update(f"{len(text.encode())}:{text}\n".encode())
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


class PlanDigest:
    """Builder of a plan from deletable rows, in batches of any size in the order of ledger ids."""

    def __init__(self, audit_id: str, instance_id: str) -> None:
        self._about = (audit_id, instance_id)
        self._blocks: list[bytes] = []
        self._waiting: list[pa.RecordBatch] = []
        self._copies: list[pa.RecordBatch] = []
        self._ledgers = Count()
        self._last_ledger_id = -1

    @property
    def rows(self) -> int:
        return self._ledgers.ledgers

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the next rows, copies after ledgers.

        Worthless after `InvalidInputError`: the rows are not all deletable, or not in order without a gap.
        """
        if not rows.num_rows:
            return
        are_copies = is_of_copies(rows)
        _demand_order(rows, least_step=0 if are_copies else 1)
        if are_copies != bool(self._copies):
            if self._copies:
                raise InvalidInputError("the plan's ledgers are not all before its copies")
            self._last_ledger_id = -1
        first = self.rows
        if rows.column("row")[0].as_py() != first:
            raise InvalidInputError(f"the plan's rows are not numbered without a gap from row {first} on")
        if rows.column("ledger_id")[0].as_py() < self._last_ledger_id + (not are_copies):
            raise InvalidInputError(f"the plan's rows are not in the order of ledger ids from row {first} on")
        self._last_ledger_id = rows.column("ledger_id")[rows.num_rows - 1].as_py()
        self._ledgers = Count.sum((self._ledgers, count_of_lengths(rows.column("length_bytes"))))
        if are_copies:
            self._copies.append(rows.select(list(COPY_COLUMNS)))
        else:
            self._add_blocks(rows.select(list(PLAN_COLUMNS)))

    def plan(self) -> PlanSummary:
        """Return the plan of the rows so far."""
        blocks = [*self._blocks, *([_block_of(self._waiting)] if self._waiting else [])]
        if self._copies:
            blocks += copy_digests(pa.Table.from_batches(self._copies))
        return PlanSummary.of(self._ledgers, plan_digest(*self._about, self._ledgers.ledgers, blocks))

    def _add_blocks(self, rows: pa.RecordBatch) -> None:
        room = PLAN_BLOCK_ROWS - sum(batch.num_rows for batch in self._waiting)
        while rows.num_rows >= room:
            self._blocks.append(_block_of([*self._waiting, rows.slice(0, room)]))
            self._waiting, rows, room = [], rows.slice(room), PLAN_BLOCK_ROWS
        if rows.num_rows:
            self._waiting.append(rows)


def _block_of(batches: list[pa.RecordBatch]) -> bytes:
    return block_digest(pa.Table.from_batches(batches).combine_chunks().to_batches()[0])


def is_of_copies(rows: pa.RecordBatch) -> bool:
    """Return True for a plan's rows of copies in tiered storage, False for those of ledgers."""
    return "attempt" in rows.schema.names


def _demand_order(rows: pa.RecordBatch, least_step: int = 1) -> None:
    if not _all(pc.equal(rows.column("standing"), OrphanStatus.DELETABLE.value)):
        raise InvalidInputError("a ledger that is not deletable is among the plan's rows")
    numbers, ledger_ids = rows.column("row"), rows.column("ledger_id")
    if numbers.null_count or not _all(pc.equal(_steps(numbers), 1)):
        raise InvalidInputError("the plan's rows are not numbered without a gap")
    if not _all(pc.greater_equal(_steps(ledger_ids), least_step)):
        raise InvalidInputError("the plan's rows are not in the order of ledger ids")


def _of_numbers(values: pa.Array) -> bytes:
    # As arrays are in memory: little-endian on every machine that Arrow supports.
    digest = hashlib.sha256(values.is_valid().to_numpy(zero_copy_only=False))
    digest.update(values.fill_null(0).cast(pa.int64()).to_numpy())
    return digest.digest()


def _of_texts(values: pa.Array) -> bytes:
    known = values.drop_null()
    digest = hashlib.sha256(pc.binary_length(values).fill_null(-1).cast(pa.int64()).to_numpy())
    every = pa.ListArray.from_arrays([0, len(known)], known)  # type: ignore[attr-defined]  # the stubs lack it
    digest.update(pc.binary_join(every, "")[0].as_buffer())  # type: ignore[attr-defined]
    return digest.digest()


def _steps(values: pa.Array) -> pa.Array:
    return pc.pairwise_diff(values).slice(1)


def _all(truths: pa.Array) -> bool:
    # True for no values, as the steps of a single row require.
    return bool(pc.all(truths, skip_nulls=False, min_count=0).as_py())
