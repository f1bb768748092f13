"""DistributedLog's records: which node names a ledger of function packages, function state or stream storage.

They are recognised by their names wherever they are, for a namespace may be bound anywhere. A record that cannot be
read is a row marked unreadable: its ledger is unknown, not absent. (BookKeeper 4.17 ``LogSegmentMetadata``,
``ZKLogMetadataForWriter``, ``SimpleLedgerAllocator``.)
"""

import re

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.results.tables import LOG_SEGMENTS, LogSegmentKind
from pulsar_sidecar.model.ids import MAX_LEDGER_ID

_CANDIDATE = r"/(logrecs_|inprogress_|allocation$|\.allocation_pool/)"
_SEGMENT = re.compile(r"(?:logrecs|inprogress)_[0-9]+")
_IN_PROGRESS = "inprogress_"
_LEDGER_FIELD = 1
_MIN_FIELDS = 3
_SHARED_COLUMNS = ("path", "value", "version", "ctime_ms", "mtime_ms", "mzxid", "unreadable")


def log_segments(nodes: pa.RecordBatch) -> pa.RecordBatch | None:
    """The records among some nodes, as `LOG_SEGMENTS`; None if there is none."""
    candidates = nodes.filter(pc.match_substring_regex(nodes.column("path"), _CANDIDATE))
    rows = [row for node in candidates.select(list(_SHARED_COLUMNS)).to_pylist() if (row := _row(node)) is not None]
    return pa.RecordBatch.from_pylist(rows, schema=LOG_SEGMENTS) if rows else None


def _row(node: dict[str, object]) -> dict[str, object] | None:
    name = str(node["path"]).rpartition("/")[2]
    if _SEGMENT.fullmatch(name):
        kind = LogSegmentKind.IN_PROGRESS if name.startswith(_IN_PROGRESS) else LogSegmentKind.COMPLETED
    elif node["value"] == b"":
        # A log that has pre-allocated nothing.
        return None
    else:
        kind = LogSegmentKind.ALLOCATION
    row: dict[str, object] = {**node, "kind": kind.value, "ledger_id": None}
    if node["unreadable"] is not None:
        return row
    value = node["value"]
    assert isinstance(value, bytes)
    row["ledger_id"] = _ledger_of_record(value) if kind is not LogSegmentKind.ALLOCATION else _ledger_id(value)
    if row["ledger_id"] is None:
        row["unreadable"] = "this is no record that names a ledger; look at the node by hand"
    return row


def _ledger_of_record(value: bytes) -> int | None:
    fields = value.split(b";")
    return _ledger_id(fields[_LEDGER_FIELD]) if len(fields) >= _MIN_FIELDS else None


def _ledger_id(text: bytes) -> int | None:
    if not text.isdigit() or int(text) > MAX_LEDGER_ID:
        return None
    return int(text)
