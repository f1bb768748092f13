"""Which part of the metadata store a node belongs to, decided for a whole batch of nodes at once.

Invariant: every node belongs to exactly one part; ZooKeeper's own nodes belong to none.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.ports import Ending, NodeSource, OpenOutput, Say, TablesOutput
from pulsar_sidecar.audit.results.tables import LOG_SEGMENTS, LogSegmentKind, Subtree, Table
from pulsar_sidecar.audit.sources.cursor_ledgers import CursorLedgers, cursor_ledger_rows
from pulsar_sidecar.audit.sources.listing import newest
from pulsar_sidecar.audit.sources.manifests import (
    LEDGERS_LEFT_OUT,
    MANIFEST_NAME,
    Kind,
    Manifest,
    Moment,
    OrderRange,
    Rows,
)
from pulsar_sidecar.ledger_ownership.paths import MANAGED_LEDGERS, SCHEMAS, instance_id_of, instance_id_path
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, NodeVersion
from pulsar_sidecar.model.metadata import Node

_ADMIN = "/admin"
_ZOOKEEPER = "/zookeeper"
_NAMESPACE_BINDING = b"1\nBKDL\n"
"""How the value of a DistributedLog namespace's root node begins (``BKDLConfig``)."""

_CANDIDATE = r"/(logrecs_|inprogress_|allocation$|\.allocation_pool/)"
_SEGMENT = re.compile(r"(?:logrecs|inprogress)_[0-9]+")
_IN_PROGRESS = "inprogress_"
_LEDGER_FIELD = 1
_MIN_FIELDS = 3
_SHARED_COLUMNS = ("path", "value", "version", "ctime_ms", "mtime_ms", "mzxid", "unreadable")

_COMPACTION_CURSOR = r"/persistent/[^/]+/__compaction$"
_CLUSTERS = "/admin/clusters/"
_GLOBAL = "global"
_PROGRESS_NODES = 200_000
_PROGRESS_CURSORS = 500


@dataclass(slots=True)
class Subtrees:
    """Sorts batches of nodes, parents before children; remembers the roots of DistributedLog's namespaces."""

    ledgers_root: str
    log_roots: list[str] = field(default_factory=list)

    def sort(self, nodes: pa.RecordBatch) -> Iterator[tuple[Subtree, pa.RecordBatch]]:
        """The batch in parts, without ZooKeeper's own nodes."""
        self._note_log_roots(nodes)
        paths = nodes.column("path")
        left = pc.invert(_below(paths, _ZOOKEEPER))
        for subtree, mask in self._masks(paths):
            chosen = pc.and_(mask, left)
            left = pc.and_not(left, mask)
            part = nodes if chosen.true_count == len(nodes) else nodes.filter(chosen)
            if part.num_rows:
                yield subtree, part

    def _masks(self, paths: pa.Array) -> Iterator[tuple[Subtree, pa.Array]]:
        """In the order in which they apply; the last one takes the rest."""
        yield Subtree.MANAGED_LEDGERS, _below(paths, MANAGED_LEDGERS)
        yield Subtree.SCHEMAS, _below(paths, SCHEMAS)
        below_root = _below(paths, self.ledgers_root)
        # Directories of ledgers have numbers for names; everything else there is BookKeeper's own business.
        after = len(self.ledgers_root.encode()) + 1
        first = pc.binary_slice(paths.cast(pa.binary()), after, after + 1)
        numbered = pc.and_(pc.greater_equal(first, b"0"), pc.less_equal(first, b"9"))
        yield Subtree.LEDGERS, pc.and_(below_root, numbered)
        yield Subtree.BOOKKEEPER, below_root
        yield Subtree.ADMIN, _below(paths, _ADMIN)
        for root in self.log_roots:
            yield Subtree.DISTRIBUTED_LOG, _below(paths, root)
        yield Subtree.OTHER, pa.array([True] * len(paths), pa.bool_())

    def _note_log_roots(self, nodes: pa.RecordBatch) -> None:
        bound = pc.fill_null(pc.starts_with(nodes.column("value"), _NAMESPACE_BINDING), False)
        if bound.true_count:
            self.log_roots += nodes.column("path").filter(bound).to_pylist()


def _below(paths: pa.Array, root: str) -> pa.Array:
    return pc.or_(pc.equal(paths, root), pc.starts_with(paths, f"{root}/"))


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


@dataclass(frozen=True, slots=True)
class DumpPlan:
    """What to dump and how.

    Attributes:
        source: read once.
        live: the living cluster, for what no node says; None marks all of it as unreadable.
        ledgers_root: BookKeeper's root path.
        without_ledgers: whether the source leaves out BookKeeper's ledgers.
        tool_version: said in the manifest.
    """

    source: NodeSource
    live: CursorLedgers | None
    ledgers_root: str
    without_ledgers: bool
    tool_version: str


def dump(plan: DumpPlan, open_output: OpenOutput, clock: Clock, say: Say) -> Manifest:
    """Make a dump.

    Raises:
        InvalidInputError: there is something at the output's place.
        TemporaryError: the source could not be read whole; nothing is left behind.
    """
    started_ms = clock.now_ms()
    tally = _Tally(plan.ledgers_root)
    with open_output((Table.NODES, Table.CURSOR_LEDGERS, Table.LOG_SEGMENTS)) as output:
        _copy_nodes(plan, output, tally, say)
        ending = plan.source.ending()
        tally.demand_a_cluster(plan)
        _read_cursor_ledgers(plan, output, tally, say)
        files = output.close_tables()
        manifest = Manifest(
            kind=Kind.DUMP,
            source=plan.source.source,
            tool_version=plan.tool_version,
            ledgers_root=plan.ledgers_root,
            instance_id=tally.instance_id,
            cluster_name=tally.cluster_name,
            zxids=OrderRange(ending.zxids.first, tally.last_zxid(ending)),
            as_of=tally.newest,
            counts=tally.counts(),
            left_out=(LEDGERS_LEFT_OUT,) if plan.without_ledgers else (),
            allows_deletion=not ending.reservations,
            reservations=ending.reservations,
            proof=ending.proof,
            files=files,
            machine_times=(started_ms, clock.now_ms()),
        )
        output.finish(MANIFEST_NAME, manifest.document())
    return manifest


def _copy_nodes(plan: DumpPlan, output: TablesOutput, tally: "_Tally", say: Say) -> None:
    subtrees = Subtrees(plan.ledgers_root)
    said = 0
    for batch in plan.source.batches():
        for subtree, nodes in subtrees.sort(batch):
            tally.note(subtree, nodes)
            output.write(Table.NODES, nodes, subtree)
            if subtree not in (Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS, Subtree.LEDGERS):
                _copy_log_segments(nodes, output, tally)
        if tally.nodes - said >= _PROGRESS_NODES:
            said = tally.nodes
            say(f"{said:,} nodes so far")
    say(f"{tally.nodes:,} nodes, {tally.unreadable_nodes:,} of them unreadable")


def _copy_log_segments(nodes: pa.RecordBatch, output: TablesOutput, tally: "_Tally") -> None:
    segments = log_segments(nodes)
    if segments is not None:
        output.write(Table.LOG_SEGMENTS, segments)
        tally.add_rows(Table.LOG_SEGMENTS, segments)


def _read_cursor_ledgers(plan: DumpPlan, output: TablesOutput, tally: "_Tally", say: Say) -> None:
    count = len(tally.compaction_cursors)
    for number, rows in enumerate(cursor_ledger_rows(tally.compaction_cursors, plan.live), start=1):
        output.write(Table.CURSOR_LEDGERS, rows)
        tally.add_rows(Table.CURSOR_LEDGERS, rows)
        if number % _PROGRESS_CURSORS == 0 or number == count:
            say(f"{number:,} of {count:,} compaction cursors' ledgers read")


@dataclass(slots=True)
class _Tally:
    """What is noted while nodes pass by."""

    ledgers_root: str
    nodes: int = 0
    unreadable_nodes: int = 0
    instance_id: str | None = None
    newest: Moment | None = None
    compaction_cursors: list[str] = field(default_factory=list)
    _clusters: list[str] = field(default_factory=list)
    _rows: Counter[str] = field(default_factory=Counter)
    _unreadable: Counter[str] = field(default_factory=Counter)

    @property
    def cluster_name(self) -> str | None:
        """The only cluster's name; None if the store knows several."""
        return self._clusters[0] if len(self._clusters) == 1 else None

    def note(self, subtree: Subtree, nodes: pa.RecordBatch) -> None:
        """Take note of a part of a batch."""
        self.nodes += nodes.num_rows
        self.unreadable_nodes += self._count(subtree.value, nodes)
        self.newest = newest(self.newest, nodes)
        if subtree is Subtree.MANAGED_LEDGERS:
            self.compaction_cursors += _paths(nodes, pc.match_substring_regex(nodes.column("path"), _COMPACTION_CURSOR))
        elif subtree is Subtree.BOOKKEEPER:
            self._note_instance(nodes)
        elif subtree is Subtree.ADMIN:
            self._note_clusters(nodes)

    def add_rows(self, table: Table, rows: pa.RecordBatch) -> None:
        """Count rows of another table than the nodes'."""
        self._count(table.value, rows)

    def counts(self) -> dict[str, Rows]:
        names = {*(subtree.value for subtree in Subtree), Table.CURSOR_LEDGERS.value, Table.LOG_SEGMENTS.value}
        return {name: Rows(self._rows[name], self._unreadable[name]) for name in names}

    def last_zxid(self, ending: Ending) -> int | None:
        """The source's own end, or what was seen in the nodes if that is later."""
        seen = None if self.newest is None else self.newest.zxid
        return max((zxid for zxid in (ending.zxids.last, seen) if zxid is not None), default=None)

    def demand_a_cluster(self, plan: DumpPlan) -> None:
        """Refuse what cannot be a whole Pulsar cluster: an empty answer is a failed answer."""
        if self.instance_id is None:
            # The same words as everywhere else.
            instance_id_of(None, self.ledgers_root)
        if not self._rows[Subtree.MANAGED_LEDGERS]:
            raise TemporaryError(
                f"there is nothing at {MANAGED_LEDGERS}: check the chroot, and that this is Pulsar's store"
            )
        if not plan.without_ledgers and not self._rows[Subtree.LEDGERS]:
            raise TemporaryError(f"there is no ledger below {self.ledgers_root}: check ledgersRootPath")

    def _count(self, name: str, rows: pa.RecordBatch) -> int:
        unreadable = rows.num_rows - rows.column("unreadable").null_count
        self._rows[name] += rows.num_rows
        self._unreadable[name] += unreadable
        return unreadable

    def _note_instance(self, nodes: pa.RecordBatch) -> None:
        for node in _rows_at(nodes, pc.equal(nodes.column("path"), instance_id_path(self.ledgers_root))):
            if node["value"] is None:
                raise TemporaryError(
                    f"{node['path']} cannot be read ({node['unreadable']}); give a credential that may"
                )
            found = Node(node["path"], node["value"], NodeVersion(0), 0, 0, 0)
            self.instance_id = instance_id_of(found, self.ledgers_root)

    def _note_clusters(self, nodes: pa.RecordBatch) -> None:
        names = (
            path.removeprefix(_CLUSTERS) for path in _paths(nodes, pc.starts_with(nodes.column("path"), _CLUSTERS))
        )
        self._clusters += [name for name in names if "/" not in name and name != _GLOBAL]


def _paths(nodes: pa.RecordBatch, mask: pa.Array) -> list[str]:
    paths: list[str] = nodes.column("path").filter(mask).to_pylist()
    return paths


def _rows_at(nodes: pa.RecordBatch, mask: pa.Array) -> Iterator[dict[str, Any]]:
    yield from nodes.filter(mask).to_pylist()
