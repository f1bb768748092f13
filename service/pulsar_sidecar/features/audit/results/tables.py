"""Tables of audits: one Arrow schema for each, the only place that names their columns.

Invariant: raw bytes are kept beside their decoded fields, so that a better decoder can judge an old dump again; a node
that could not be read is a row whose ``unreadable`` gives the reason, never a missing row.

Times are milliseconds since the epoch by the metadata store's own clock. ``version`` is what a compare-and-set must
name, ``czxid`` and ``mzxid`` are the store's order of creation and of the last write (ZooKeeper's names; other stores
have such an order too).
"""

from enum import StrEnum

import pyarrow as pa

from pulsar_sidecar.reports.schemas import schema_of

NODES = schema_of("""
    path string not null, value binary, version bigint, ctime_ms bigint, mtime_ms bigint, czxid bigint, mzxid bigint,
    ephemeral boolean, unreadable string
""")
"""Every node of the metadata store, with its path below the cluster's chroot. ``value`` is null only where it was not
read: a node without data has an empty one. An unreadable node's children could not be listed either."""

CURSOR_LEDGERS = schema_of("""
    cursor_path string not null, state string not null, cursor_value binary, cursor_version bigint, ledger_id bigint,
    ledger_version bigint, entry_id bigint, entry binary, unreadable string
""")
"""Newest entries of the ledgers of ``__compaction`` cursors, which reference compacted ledgers that no node does.

One row for each entry (`CursorLedgerState.READ`, the last two entries of each ledger), else one row for the cursor.
``cursor_value`` is the cursor's node as read in the same moment as the entries: it may be newer than the one among the
nodes, and both count.
"""

LOG_SEGMENTS = schema_of("""
    path string not null, kind string not null, ledger_id bigint, value binary, version bigint, ctime_ms bigint,
    mtime_ms bigint, mzxid bigint, unreadable string
""")
"""Records of DistributedLog: log segments and pre-allocated ledgers. Their ledgers carry no metadata of Pulsar."""

LEDGERS = schema_of("""
    ledger_id bigint not null, metadata binary, version bigint, ctime_ms bigint, mtime_ms bigint, czxid bigint,
    mzxid bigint, unreadable string
""")
"""Listed ledgers. ``metadata`` is the node's value; a listing without metadata has ids only."""


ORPHAN_LEDGERS = schema_of("""
    ledger_id bigint not null, standing string not null, reason string not null, row bigint, kind string not null,
    cause string not null, tenant string, namespace string, topic string, managed_ledger string, cursor_name string,
    schema_id string, state string, length_bytes bigint, age_ms bigint, first_seen_ms bigint, ctime_ms bigint,
    version bigint, czxid bigint, mzxid bigint, evidence array<string> not null, metadata binary
""")
"""Ledgers that nothing in the dump references, each of a kind that this version understands.

``standing`` is an `OrphanStatus`, ``kind`` a `LedgerKind`, ``cause`` an `OrphanCause`; ``row`` numbers the deletable
ledgers from 0 in the order of ``ledger_id`` and is null for the others. ``topic`` is a full name, ``namespace`` is
``tenant/namespace``, ``cursor_name`` is the subscription's decoded name. ``length_bytes`` is null for a ledger that is
not closed. ``first_seen_ms`` is the store's time of the first dump in which it was unreferenced, in an unbroken series
until this one; null while a node that might reference it cannot be read. ``metadata`` is the node's value.
"""

MISSING_LEDGERS = schema_of("""
    ledger_id bigint not null, kind string not null, referenced_by string not null, tenant string, namespace string,
    topic string, cursor_name string, entries bigint, size_bytes bigint, affected string not null
""")
"""References to ledgers that do not exist, one row for each. ``referenced_by`` is the node's path, ``affected``
describes the loss."""

UNATTRIBUTED_LEDGERS = schema_of("""
    ledger_id bigint not null, reason string not null, state string, length_bytes bigint, age_ms bigint,
    ctime_ms bigint, version bigint, metadata binary
""")
"""Unreferenced ledgers whose owner is unknown, or whose metadata could not be read.

They are never deletable."""

LEDGER_USAGE = schema_of("""
    tenant string, namespace string, topic string, kind string not null, loaded boolean, ledgers bigint not null,
    bytes bigint, unknown_size_ledgers bigint not null
""")
"""Existing ledgers that are referenced, counted for each owner and kind; ``topic`` is null where there is none.

A ledger that two owners share counts for both, but ledgers that a shadow topic's list copies from its source's count
for the source alone; an unreferenced ledger counts for no owner. ``loaded`` is true where a cursor's position is in a
ledger, as while a topic is loaded or after its broker died; null for a topic without cursors. A ledger's size is the
one in its owner's list, or in BookKeeper where the list has none, as of the last ledger. ``bytes`` leaves out the
``unknown_size_ledgers`` (still written to, or their metadata was not read), and is null where no size is known.
"""


OFFLOADED_OBJECTS = schema_of("""
    place string not null, driver string not null, region string not null, object string not null, role string,
    ledger_id bigint, attempt string, managed_ledger string, cluster string, size_bytes bigint not null,
    modified_ms bigint not null, indexed_bytes bigint, damage string
""")
"""Objects of tiered storage, or files of the filesystem driver, each as its name and its metadata describe it.

``role`` (``data`` or ``index``), ``ledger_id`` and ``attempt`` are null for an object that Pulsar's offloader does not
name so, streaming offload's among them. ``cluster`` is the brokers' ``clusterName``, which files lack.
``indexed_bytes`` is the length of the data object by its index; ``damage`` describes an object that is not whole by
itself. ``modified_ms`` is on the storage's clock.
"""

OFFLOADED_LEDGERS = schema_of("""
    ledger_id bigint not null, attempt string not null, finding string not null, standing string,
    reason string not null, row bigint, cause string, tenant string, namespace string, topic string,
    managed_ledger string, place string not null, driver string, region string, objects string not null,
    length_bytes bigint, age_ms bigint, modified_ms bigint, first_seen_ms bigint
""")
"""Findings about copies in tiered storage, each of one offload attempt of a ledger.

``finding`` is an `OffloadFinding`. Only an unreferenced copy has a ``standing``, an `OrphanStatus`, and a ``cause``;
``row`` numbers the deletable ones from 0. ``objects`` are the parts that are there, ``length_bytes`` their bytes.
"""


class OffloadFinding(StrEnum):
    """Kind of finding about a copy in tiered storage."""

    UNREFERENCED = "unreferenced"
    """No managed ledger names the attempt."""
    UNATTRIBUTED = "unattributed"
    """No managed ledger names the attempt, and its objects do not name their owner. Never deletable."""
    UNFINISHED = "unfinished"
    """The list names an attempt that never completed; a broker removes its objects at the ledger's next offload."""
    DAMAGED = "damaged"
    """The list names a complete copy of which an object is missing or too short; BookKeeper still has the ledger."""
    LOST = "lost"
    """Neither tiered storage nor BookKeeper has the whole ledger that the list names."""
    BOOKKEEPER_LOST = "bookkeeper-lost"
    """Tiered storage has the whole ledger; BookKeeper has lost its copy, which the list does not know."""
    BOOKKEEPER_LATE = "bookkeeper-late"
    """BookKeeper still has its copy after the deletion lag: the ledger is stored twice."""


class OrphanStatus(StrEnum):
    """Status of an orphan; only deletable ones are in the plan."""

    DELETABLE = "condemned"
    TOO_YOUNG = "too-young"
    FIRST_LOOK = "first-look"
    """No earlier dump found it unreferenced, or the first that did is too recent."""
    CHANGED = "changed"
    """Its metadata changed, or it was created again, since the earlier dump."""
    UNPROVEN = "unproven"
    """A node that might reference it could not be read."""
    WITHHELD = "withheld"
    """A guard of the whole audit failed."""


class OrphanCause(StrEnum):
    """Most likely cause of an orphan."""

    SCHEMA_RACE = "schema-race"
    HALF_DELETED_TOPIC = "half-deleted-topic"
    HALF_DELETED_CURSOR = "half-deleted-cursor"
    """The topic exists, the subscription does not."""
    FAILED_CURSOR_SWITCH = "failed-cursor-switch"
    LOST_BUCKET_POINTER = "lost-bucket-pointer"
    FAILED_COMPACTION = "failed-compaction"
    INTERRUPTED_TRIM = "interrupted-trim"
    """The owner exists, the ledger is older than its list: the broker trimmed it and did not delete it."""
    FAILED_ROLLOVER = "failed-rollover"
    """The owner exists, the ledger is inside or after its list, and empty or never linked."""
    HAND_EDIT = "hand-edit"
    """The owner exists and the ledger holds data in the middle of its list: someone removed it by hand."""
    OFFLOADED_COPY = "offloaded-copy"
    """The owner names it as replaced by tiered storage: the broker should have deleted its copy in BookKeeper."""
    FAILED_OFFLOAD = "failed-offload"
    """Of a copy in tiered storage: the upload did not finish, or another attempt has replaced it."""
    UNKNOWN = "unknown"


class CursorLedgerState(StrEnum):
    """Outcome of reading one ``__compaction`` cursor's ledger."""

    READ = "read"
    NO_LEDGER = "no-ledger"
    """The cursor has no ledger, or no longer one: ``cursor_value`` contains everything."""
    NO_CURSOR = "no-cursor"
    """The cursor's node is gone, so it no longer references anything."""
    LEDGER_GONE = "ledger-gone"
    """The cursor names a ledger without metadata: half of a topic was deleted, and no broker can read it."""
    UNREADABLE = "unreadable"
    """The cursor's references are unknown."""


class LogSegmentKind(StrEnum):
    """Kind of DistributedLog's record in a row."""

    COMPLETED = "completed"
    IN_PROGRESS = "inprogress"
    ALLOCATION = "allocation"


class Subtree(StrEnum):
    """Part of the metadata store to which a node belongs; the nodes' files are partitioned by it."""

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
    """Name of a table, which is also its directory."""

    NODES = "nodes"
    CURSOR_LEDGERS = "cursor_ledgers"
    LOG_SEGMENTS = "log_segments"
    LEDGERS = "ledgers"
    ORPHAN_LEDGERS = "orphan_ledgers"
    MISSING_LEDGERS = "missing_ledgers"
    UNATTRIBUTED_LEDGERS = "unattributed_ledgers"
    LEDGER_USAGE = "ledger_usage"
    OFFLOADED_OBJECTS = "offloaded_objects"
    OFFLOADED_LEDGERS = "offloaded_ledgers"


SCHEMAS = {
    Table.NODES: NODES,
    Table.CURSOR_LEDGERS: CURSOR_LEDGERS,
    Table.LOG_SEGMENTS: LOG_SEGMENTS,
    Table.LEDGERS: LEDGERS,
    Table.ORPHAN_LEDGERS: ORPHAN_LEDGERS,
    Table.MISSING_LEDGERS: MISSING_LEDGERS,
    Table.UNATTRIBUTED_LEDGERS: UNATTRIBUTED_LEDGERS,
    Table.LEDGER_USAGE: LEDGER_USAGE,
    Table.OFFLOADED_OBJECTS: OFFLOADED_OBJECTS,
    Table.OFFLOADED_LEDGERS: OFFLOADED_LEDGERS,
}


def schemas_of(*tables: Table) -> dict[str, pa.Schema]:
    return {table.value: SCHEMAS[table] for table in tables}
