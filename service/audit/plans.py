"""The plan of an audit: the condemned ledgers in order, and the hash that a user approves.

Invariant: the hash covers everything that becomes part of a deletion record, of every row, in order, together with the
audit and the ledger storage it is about; two plans with one hash ask for the same deletions. It does not depend on how
the rows were cut into batches, so that either engine and `audit apply` come to the same hash.
"""

import hashlib
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from service.audit.summaries import Plan
from service.audit.tables import OrphanStanding
from service.model.errors import InvalidInputError

_VERSION: Final = "pulsar-sidecar plan 1"
_NUMBERS: Final = ("ledger_id", "row", "length_bytes", "ctime_ms", "version", "czxid", "mzxid")
_TEXTS: Final = ("kind", "topic", "managed_ledger", "cursor_name", "schema_id")
PLAN_COLUMNS: Final = ("standing", *_NUMBERS, *_TEXTS)
"""What of `service.audit.tables.ORPHAN_LEDGERS` a plan is made of; `PlanDigest.add` wants these, and ignores others."""


class PlanDigest:
    """Takes condemned rows, batch by batch in the order of their ledger ids, and tells the plan."""

    def __init__(self, audit_id: str, instance_id: str) -> None:
        self._about = (audit_id, instance_id)
        self._columns = {name: _Column() for name in (*_NUMBERS, *_TEXTS)}
        self._rows = self._bytes = 0
        self._last_ledger_id = -1

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the next rows.

        Raises:
            InvalidInputError: not all of them are condemned, or they are not in order without a gap; the digest is
                worthless then.
        """
        if not rows.num_rows:
            return
        self._demand_order(rows)
        for name in _NUMBERS:
            self._columns[name].add_numbers(rows.column(name))
        for name in _TEXTS:
            self._columns[name].add_texts(rows.column(name))
        self._rows += rows.num_rows
        self._bytes += pc.sum(rows.column("length_bytes")).as_py() or 0

    def plan(self) -> Plan:
        """What was added so far."""
        digest = hashlib.sha256()
        for text in (_VERSION, *self._about, str(self._rows)):
            digest.update(f"{len(text.encode())}:{text}\n".encode())
        for name, column in self._columns.items():
            digest.update(f"{name} {column.hexdigest()}\n".encode())
        return Plan(self._rows, self._bytes, digest.hexdigest())

    def _demand_order(self, rows: pa.RecordBatch) -> None:
        if not _all(pc.equal(rows.column("standing"), OrphanStanding.CONDEMNED.value)):
            raise InvalidInputError("a ledger that is not condemned is among the plan's rows")
        numbers, ledger_ids = rows.column("row"), rows.column("ledger_id")
        if numbers.null_count or numbers[0].as_py() != self._rows or not _all(pc.equal(_steps(numbers), 1)):
            raise InvalidInputError(f"the plan's rows are not numbered without a gap from row {self._rows} on")
        if ledger_ids[0].as_py() <= self._last_ledger_id or not _all(pc.greater(_steps(ledger_ids), 0)):
            raise InvalidInputError(f"the plan's rows are not in the order of ledger ids from row {self._rows} on")
        self._last_ledger_id = ledger_ids[-1].as_py()


class _Column:
    """One column as two streams of bytes, each of which can be cut anywhere: which and how long, and what."""

    def __init__(self) -> None:
        self._shape = hashlib.sha256()
        self._content = hashlib.sha256()

    def add_numbers(self, values: pa.Array) -> None:
        self._shape.update(_fixed(values.is_valid().cast(pa.uint8()), 1))
        self._content.update(_fixed(values.fill_null(0).cast(pa.int64()), 8))

    def add_texts(self, values: pa.Array) -> None:
        content = values.cast(pa.large_binary())
        self._shape.update(_fixed(pc.binary_length(content).fill_null(-1), 8))
        self._content.update(_joined(content.fill_null(b"")))

    def hexdigest(self) -> str:
        return hashlib.sha256(self._shape.digest() + self._content.digest()).hexdigest()


def _steps(values: pa.Array) -> pa.Array:
    return pc.pairwise_diff(values).slice(1)


def _all(truths: pa.Array) -> bool:
    # `pc.all` of nothing is true, as it should be for the steps of a single row.
    return bool(pc.all(truths, skip_nulls=False, min_count=0).as_py())


def _fixed(values: pa.Array, width: int) -> memoryview:
    """The values as they lie in memory, little-endian on every machine that Arrow supports."""
    return memoryview(values.buffers()[1])[values.offset * width : (values.offset + len(values)) * width]


def _joined(values: pa.Array) -> memoryview:
    """All values of a ``large_binary`` array without nulls, one behind the other."""
    _, offsets, content = values.buffers()
    ends = memoryview(offsets).cast("q")
    first, last = ends[values.offset], ends[values.offset + len(values)]
    return memoryview(content or b"")[first:last]
