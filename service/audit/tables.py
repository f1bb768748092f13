"""The audit's tables: one Arrow schema for each, the only place that names their columns.

Invariant: raw bytes are kept beside whatever was understood of them, so that a better decoder can judge an old dump
again; what could not be read is a row whose ``unreadable`` says why, never a missing row.

Times are milliseconds since the epoch by the metadata store's own clock. ``version`` is what a compare-and-set must
name, ``czxid`` and ``mzxid`` are the store's order of creation and of the last write (ZooKeeper's names; other stores
have such an order too).
"""

from enum import StrEnum

import pyarrow as pa


def _field(name: str, kind: pa.DataType, nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


NODES = pa.schema(
    [
        _field("path", pa.string(), nullable=False),
        _field("value", pa.binary()),
        _field("version", pa.int64()),
        _field("ctime_ms", pa.int64()),
        _field("mtime_ms", pa.int64()),
        _field("czxid", pa.int64()),
        _field("mzxid", pa.int64()),
        _field("ephemeral", pa.bool_()),
        _field("unreadable", pa.string()),
    ]
)
"""Every node of the metadata store, path below the cluster's chroot. ``value`` is null only where it was not read: a
node without data has an empty one. An unreadable node's children could not be listed either."""

CURSOR_LEDGERS = pa.schema(
    [
        _field("cursor_path", pa.string(), nullable=False),
        _field("state", pa.string(), nullable=False),
        _field("cursor_value", pa.binary()),
        _field("cursor_version", pa.int64()),
        _field("ledger_id", pa.int64()),
        _field("ledger_version", pa.int64()),
        _field("entry_id", pa.int64()),
        _field("entry", pa.binary()),
        _field("unreadable", pa.string()),
    ]
)
"""The newest entries of the ledgers of ``__compaction`` cursors, which reference compacted ledgers that no node does.

One row for each entry (`CursorLedgerState.READ`, the last two entries of each ledger), else one row for the cursor.
``cursor_value`` is the cursor's node as read in the same moment as the entries: it may be newer than the one among the
nodes, and both count.
"""

LOG_SEGMENTS = pa.schema(
    [
        _field("path", pa.string(), nullable=False),
        _field("kind", pa.string(), nullable=False),
        _field("ledger_id", pa.int64()),
        _field("value", pa.binary()),
        _field("version", pa.int64()),
        _field("ctime_ms", pa.int64()),
        _field("mtime_ms", pa.int64()),
        _field("mzxid", pa.int64()),
        _field("unreadable", pa.string()),
    ]
)
"""DistributedLog's records of log segments and of pre-allocated ledgers. Their ledgers carry no metadata of Pulsar."""

LEDGERS = pa.schema(
    [
        _field("ledger_id", pa.int64(), nullable=False),
        _field("metadata", pa.binary()),
        _field("metadata_json", pa.string()),
        _field("version", pa.int64()),
        _field("ctime_ms", pa.int64()),
        _field("mtime_ms", pa.int64()),
        _field("czxid", pa.int64()),
        _field("mzxid", pa.int64()),
        _field("unreadable", pa.string()),
    ]
)
"""A listing of ledgers. ``metadata`` is the node's value, ``metadata_json`` what a bookie's HTTP API answers instead;
both are null in a listing of ids alone, and so is everything that the source does not tell."""


class CursorLedgerState(StrEnum):
    """What became of reading one ``__compaction`` cursor's ledger."""

    READ = "read"
    NO_LEDGER = "no-ledger"
    """The cursor has no ledger (any more): ``cursor_value`` carries everything."""
    NO_CURSOR = "no-cursor"
    """The cursor's node is gone, so it references nothing any more."""
    LEDGER_GONE = "ledger-gone"
    """The cursor names a ledger without metadata: half of a topic was deleted, and no broker can read it."""
    UNREADABLE = "unreadable"
    """What the cursor references is unknown."""


class LogSegmentKind(StrEnum):
    """Which of DistributedLog's records a row is."""

    COMPLETED = "completed"
    IN_PROGRESS = "inprogress"
    ALLOCATION = "allocation"


class Subtree(StrEnum):
    """Which part of the metadata store a node belongs to; the nodes' files are partitioned by it."""

    MANAGED_LEDGERS = "managed-ledgers"
    SCHEMAS = "schemas"
    LEDGERS = "ledgers"
    """BookKeeper's ledgers and the directories above them, without its other nodes."""
    BOOKKEEPER = "bookkeeper"
    DISTRIBUTED_LOG = "distributed-log"
    """DistributedLog's namespaces: function packages, function state, stream storage."""
    ADMIN = "admin"
    OTHER = "other"


class Table(StrEnum):
    """A table's name, which is its directory."""

    NODES = "nodes"
    CURSOR_LEDGERS = "cursor_ledgers"
    LOG_SEGMENTS = "log_segments"
    LEDGERS = "ledgers"


SCHEMAS = {
    Table.NODES: NODES,
    Table.CURSOR_LEDGERS: CURSOR_LEDGERS,
    Table.LOG_SEGMENTS: LOG_SEGMENTS,
    Table.LEDGERS: LEDGERS,
}
