"""The audit's tables: one Arrow schema for each, the only place that names their columns.

Invariant: raw bytes are kept beside whatever was understood of them, so that a better decoder can judge an old dump
again; what could not be read is a row whose ``unreadable`` gives the reason, never a missing row.

Times are milliseconds since the epoch by the metadata store's own clock. ``version`` is what a compare-and-set must
name, ``czxid`` and ``mzxid`` are the store's order of creation and of the last write (ZooKeeper's names; other stores
have such an order too).
"""

from enum import StrEnum

import pyarrow as pa

from pulsar_sidecar.analysis.schemas import schema_of

NODES = schema_of("""
    path string not null, value binary, version bigint, ctime_ms bigint, mtime_ms bigint, czxid bigint, mzxid bigint,
    ephemeral boolean, unreadable string
""")
"""Every node of the metadata store, path below the cluster's chroot. ``value`` is null only where it was not read: a
node without data has an empty one. An unreadable node's children could not be listed either."""

CURSOR_LEDGERS = schema_of("""
    cursor_path string not null, state string not null, cursor_value binary, cursor_version bigint, ledger_id bigint,
    ledger_version bigint, entry_id bigint, entry binary, unreadable string
""")
"""The newest entries of the ledgers of ``__compaction`` cursors, which reference compacted ledgers that no node does.

One row for each entry (`CursorLedgerState.READ`, the last two entries of each ledger), else one row for the cursor.
``cursor_value`` is the cursor's node as read in the same moment as the entries: it may be newer than the one among the
nodes, and both count.
"""

LOG_SEGMENTS = schema_of("""
    path string not null, kind string not null, ledger_id bigint, value binary, version bigint, ctime_ms bigint,
    mtime_ms bigint, mzxid bigint, unreadable string
""")
"""DistributedLog's records of log segments and of pre-allocated ledgers. Their ledgers carry no metadata of Pulsar."""

LEDGERS = schema_of("""
    ledger_id bigint not null, metadata binary, metadata_json string, version bigint, ctime_ms bigint,
    mtime_ms bigint, czxid bigint, mzxid bigint, unreadable string
""")
"""A listing of ledgers. ``metadata`` is the node's value, ``metadata_json`` what a bookie's HTTP API answers instead;
both are null in a listing of ids alone, and so is everything that the source does not report."""


ORPHAN_LEDGERS = schema_of("""
    ledger_id bigint not null, standing string not null, reason string not null, row bigint, kind string not null,
    cause string not null, tenant string, namespace string, topic string, managed_ledger string, cursor_name string,
    schema_id string, state string, length_bytes bigint, age_ms bigint, first_seen_ms bigint, ctime_ms bigint,
    version bigint, czxid bigint, mzxid bigint, evidence array<string> not null, metadata binary
""")
"""Ledgers that nothing in the dump references, each claimed by a kind of ledger that this version understands.

``standing`` is an `OrphanStatus`, ``kind`` a `LedgerKind`, ``cause`` an `OrphanCause`; ``row`` numbers the deletable
ones from 0 in the order of ``ledger_id`` and is null for the others. ``topic`` is a full name, ``namespace`` is
``tenant/namespace``, ``cursor_name`` is the subscription's decoded name. ``length_bytes`` is null for a ledger that is
not closed. ``first_seen_ms`` is the store's time of the first dump in which it was unreferenced, of all dumps without a
gap until this one; null while something that might reference it cannot be read. ``metadata`` is the node's value.
"""

MISSING_LEDGERS = schema_of("""
    ledger_id bigint not null, kind string not null, referenced_by string not null, tenant string, namespace string,
    topic string, cursor_name string, entries bigint, size_bytes bigint, affected string not null
""")
"""References to ledgers that do not exist: one row for each reference. ``referenced_by`` is the node's path,
``affected`` describes who loses what."""

UNATTRIBUTED_LEDGERS = schema_of("""
    ledger_id bigint not null, reason string not null, state string, length_bytes bigint, age_ms bigint,
    ctime_ms bigint, version bigint, metadata binary
""")
"""Ledgers that nothing references and whose owner is not known, or whose metadata could not be read.

They are never deletable."""

LEDGER_USAGE = schema_of("""
    tenant string, namespace string, topic string, kind string not null, loaded boolean, ledgers bigint not null,
    bytes bigint, unknown_size_ledgers bigint not null
""")
"""How many existing ledgers are referenced, one row for each owner and kind; ``topic`` is null where there is none.

A ledger that two owners share counts for both, but what a shadow topic's list copies from its source's counts for the
source alone; a ledger that nothing references counts for no owner. ``loaded`` is true where a cursor's position is kept
in a ledger, as while a topic is loaded or after its broker died; null for a topic without cursors. A ledger's size is
what its owner's list has, or BookKeeper where the list has none, as of the last one. ``bytes`` leaves out the
``unknown_size_ledgers`` (still written to, or their metadata was not read), and is null where no size is known.
"""


class OrphanStatus(StrEnum):
    """How far the case against an orphan has come; only deletable ones are in the plan."""

    DELETABLE = "condemned"
    TOO_YOUNG = "too-young"
    FIRST_LOOK = "first-look"
    """Not yet seen in an earlier dump, or the first dump that saw it was too recent."""
    CHANGED = "changed"
    """Its metadata has another version, or it was made again, since the earlier dump."""
    UNPROVEN = "unproven"
    """Something that might reference it could not be read."""
    WITHHELD = "withheld"
    """A guard of the whole audit failed."""


class OrphanCause(StrEnum):
    """Why a ledger most likely was left behind."""

    SCHEMA_RACE = "schema-race"
    HALF_DELETED_TOPIC = "half-deleted-topic"
    HALF_DELETED_CURSOR = "half-deleted-cursor"
    """The topic exists, the subscription does not."""
    FAILED_CURSOR_SWITCH = "failed-cursor-switch"
    LOST_BUCKET_POINTER = "lost-bucket-pointer"
    FAILED_COMPACTION = "failed-compaction"
    INTERRUPTED_TRIM = "interrupted-trim"
    """The owner exists, the ledger is older than its list: trimmed from the list and not deleted."""
    FAILED_ROLLOVER = "failed-rollover"
    """The owner exists, the ledger is inside or after its list, and empty or never linked."""
    HAND_EDIT = "hand-edit"
    """The owner exists and the ledger holds data in the middle of its list: it was removed by hand."""
    OFFLOADED_COPY = "offloaded-copy"
    """The owner names it as replaced by tiered storage: its copy in BookKeeper was to be deleted."""
    UNKNOWN = "unknown"


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
    ORPHAN_LEDGERS = "orphan_ledgers"
    MISSING_LEDGERS = "missing_ledgers"
    UNATTRIBUTED_LEDGERS = "unattributed_ledgers"
    LEDGER_USAGE = "ledger_usage"


SCHEMAS = {
    Table.NODES: NODES,
    Table.CURSOR_LEDGERS: CURSOR_LEDGERS,
    Table.LOG_SEGMENTS: LOG_SEGMENTS,
    Table.LEDGERS: LEDGERS,
    Table.ORPHAN_LEDGERS: ORPHAN_LEDGERS,
    Table.MISSING_LEDGERS: MISSING_LEDGERS,
    Table.UNATTRIBUTED_LEDGERS: UNATTRIBUTED_LEDGERS,
    Table.LEDGER_USAGE: LEDGER_USAGE,
}


def schemas_of(*tables: Table) -> dict[str, pa.Schema]:
    return {table.value: SCHEMAS[table] for table in tables}
