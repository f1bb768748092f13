"""Dump of a metadata store: every node as it is, and references from outside of the nodes.

Invariants: a dump is complete or there is none. The source must be read to its end, must hold what every Pulsar cluster
holds, and everything must be written before the directory appears. Every node belongs to exactly one part; ZooKeeper's
own nodes belong to none.

DistributedLog's records name ledgers of function packages, function state or stream storage. The sidecar recognises
them by their names wherever they are, for a namespace may be bound anywhere. A record that cannot be read is a row
marked unreadable: its ledger is unknown, not absent. (BookKeeper 4.17 ``LogSegmentMetadata``,
``ZKLogMetadataForWriter``, ``SimpleLedgerAllocator``.)
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.ports import NodeSource, OpenOutput
from pulsar_sidecar.features.audit.results.tables import LOG_SEGMENTS, LogSegmentKind, Subtree, Table, schemas_of
from pulsar_sidecar.features.audit.sources.cursor_ledgers import CursorLedgers, cursor_ledger_rows
from pulsar_sidecar.features.audit.sources.listing import newest
from pulsar_sidecar.features.audit.sources.manifests import (
    LEDGERS_LEFT_OUT,
    InputKind,
    Manifest,
    NewestWrite,
    OrderRange,
    RowCounts,
)
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import NodeVersion, parse_ledger_id
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS, SCHEMAS, identity_paths, instance_id_of
from pulsar_sidecar.reports.documents import MANIFEST_NAME
from pulsar_sidecar.reports.formatting import format_count
from pulsar_sidecar.reports.ports import TablesOutput

_NAMESPACE_BINDING = b"1\nBKDL\n"
"""First bytes of the value of a DistributedLog namespace's root node (``BKDLConfig``)."""

_CANDIDATE = r"/(logrecs_|inprogress_|allocation$|\.allocation_pool/)"
_SEGMENT = re.compile(r"(?:logrecs|inprogress)_[0-9]+")
_SHARED_COLUMNS = ("path", "value", "version", "ctime_ms", "mtime_ms", "mzxid", "unreadable")

_COMPACTION_CURSOR = r"/persistent/[^/]+/__compaction$"
_CLUSTERS = "/admin/clusters/"
_PROGRESS_NODES = 200_000
_PROGRESS_CURSORS = 500


@dataclass(slots=True)
class Subtrees:
    """Sorter of batches of nodes, parents before children; remembers the roots of DistributedLog's namespaces."""

    ledgers_root: str
    log_roots: list[str] = field(default_factory=list)

    def sort(self, nodes: pa.RecordBatch) -> Iterator[tuple[Subtree, pa.RecordBatch]]:
        """Yield the batch in parts, without ZooKeeper's own nodes."""
        paths = nodes.column("path")
        bound = pc.fill_null(pc.starts_with(nodes.column("value"), _NAMESPACE_BINDING), False)
        self.log_roots += paths.filter(bound).to_pylist()
        left = pc.invert(_below(paths, "/zookeeper"))
        for subtree, mask in self._masks(paths):
            chosen = pc.and_(mask, left)
            left = pc.and_not(left, mask)
            part = nodes if chosen.true_count == len(nodes) else nodes.filter(chosen)
            if part.num_rows:
                yield subtree, part

    def _masks(self, paths: pa.Array) -> Iterator[tuple[Subtree, pa.Array]]:
        """Yield masks in the order in which they apply; the last one takes the rest."""
        yield Subtree.MANAGED_LEDGERS, _below(paths, MANAGED_LEDGERS)
        yield Subtree.SCHEMAS, _below(paths, SCHEMAS)
        below_root = _below(paths, self.ledgers_root)
        # Directories of ledgers have numbers for names; all other nodes there are BookKeeper's own.
        after = len(self.ledgers_root.encode()) + 1
        first = pc.binary_slice(paths.cast(pa.binary()), after, after + 1)
        numbered = pc.and_(pc.greater_equal(first, b"0"), pc.less_equal(first, b"9"))
        yield Subtree.LEDGERS, pc.and_(below_root, numbered)
        yield Subtree.BOOKKEEPER, below_root
        yield Subtree.ADMIN, _below(paths, "/admin")
        for root in self.log_roots:
            yield Subtree.DISTRIBUTED_LOG, _below(paths, root)
        yield Subtree.OTHER, pa.array([True] * len(paths), pa.bool_())


def _below(paths: pa.Array, root: str) -> pa.Array:
    return pc.or_(pc.equal(paths, root), pc.starts_with(paths, f"{root}/"))


def log_segments(nodes: pa.RecordBatch) -> pa.RecordBatch:
    """Return the records among some nodes, as `LOG_SEGMENTS`."""
    candidates = nodes.filter(pc.match_substring_regex(nodes.column("path"), _CANDIDATE))
    rows = [row for node in candidates.select(list(_SHARED_COLUMNS)).to_pylist() if (row := _row(node)) is not None]
    return pa.RecordBatch.from_pylist(rows, schema=LOG_SEGMENTS)


def _row(node: dict[str, Any]) -> dict[str, Any] | None:
    name, value = node["path"].rpartition("/")[2], node["value"]
    if _SEGMENT.fullmatch(name):
        kind = LogSegmentKind.IN_PROGRESS if name.startswith("inprogress_") else LogSegmentKind.COMPLETED
    elif value == b"":
        # This log has pre-allocated nothing.
        return None
    else:
        kind = LogSegmentKind.ALLOCATION
    row = {**node, "kind": kind.value, "ledger_id": None}
    if node["unreadable"] is not None:
        return row
    # A segment's record has at least three fields, of which the second is the ledger.
    fields = [b"", value, b""] if kind is LogSegmentKind.ALLOCATION else value.split(b";")
    text = fields[1] if len(fields) > 2 else b""
    ledger_id = parse_ledger_id(text.decode("latin-1"))
    if ledger_id is not None:
        return {**row, "ledger_id": ledger_id}
    return {**row, "unreadable": "this record does not name a ledger; inspect the node with ZooKeeper's zkCli.sh"}


def dump(
    source: NodeSource,
    live: CursorLedgers | None,
    open_output: OpenOutput,
    clock: Clock,
    report: Report,
    *,
    ledgers_root: str,
    without_ledgers: bool,
    tool_version: str,
) -> Manifest:
    """Make a dump; references outside of nodes come from the ``live`` cluster, and are marked unreadable without one.

    `InvalidInputError`: there is something at the output's place. `TemporaryError`: the source could not be read whole;
    nothing is left behind.
    """
    started_ms = clock.now_ms()
    tally = _Tally(ledgers_root, source.source.kind.keeps_times)
    with open_output(schemas_of(Table.NODES, Table.CURSOR_LEDGERS, Table.LOG_SEGMENTS)) as output:
        _copy_nodes(source, output, tally, report)
        ending = source.ending()
        instance_id = tally.demand_a_cluster(without_ledgers)
        _read_cursor_ledgers(live, output, tally, report)
        # The source's own end, or that of the newest node if it is later.
        last = [ending.zxids.last, None if tally.newest is None else tally.newest.zxid]
        manifest = Manifest(
            kind=InputKind.DUMP,
            source=source.source,
            tool_version=tool_version,
            ledgers_root=ledgers_root,
            instance_id=instance_id,
            cluster_name=tally.clusters[0] if len(tally.clusters) == 1 else None,
            zxids=OrderRange(ending.zxids.first, max((zxid for zxid in last if zxid is not None), default=None)),
            as_of=tally.newest,
            counts=tally.counts(),
            left_out=(LEDGERS_LEFT_OUT,) if without_ledgers else (),
            allows_deletion=not ending.reservations,
            reservations=ending.reservations,
            proof=ending.proof,
            files=output.close_tables(),
            machine_times=(started_ms, clock.now_ms()),
        )
        output.finish(MANIFEST_NAME, manifest.document())
    return manifest


def _copy_nodes(source: NodeSource, output: TablesOutput, tally: "_Tally", report: Report) -> None:
    subtrees = Subtrees(tally.ledgers_root)
    nodes = unreadable = reported = 0
    for batch in source.batches():
        for subtree, part in subtrees.sort(batch):
            nodes += part.num_rows
            unreadable += tally.note(subtree, part)
            output.write(Table.NODES, part, subtree)
            if subtree not in (Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS, Subtree.LEDGERS):
                segments = log_segments(part)
                if segments.num_rows:
                    output.write(Table.LOG_SEGMENTS, segments)
                    tally.count(Table.LOG_SEGMENTS, segments)
        if nodes - reported >= _PROGRESS_NODES:
            reported = nodes
            report(f"{format_count(reported, 'node')} so far")
    report(f"{format_count(nodes, 'node')}, {unreadable:,} of them unreadable")


def _read_cursor_ledgers(live: CursorLedgers | None, output: TablesOutput, tally: "_Tally", report: Report) -> None:
    count = len(tally.compaction_cursors)
    for number, rows in enumerate(cursor_ledger_rows(tally.compaction_cursors, live), start=1):
        output.write(Table.CURSOR_LEDGERS, rows)
        tally.count(Table.CURSOR_LEDGERS, rows)
        if number % _PROGRESS_CURSORS == 0 or number == count:
            report(f"read the ledgers of {number:,} of {format_count(count, 'compaction cursor')}")


@dataclass(slots=True)
class _Tally:
    """Counts and identity of the cluster, gathered while nodes pass."""

    ledgers_root: str
    times_known: bool
    identity: dict[str, Node] = field(default_factory=dict)
    newest: NewestWrite | None = None
    compaction_cursors: list[str] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)
    _rows: Counter[str] = field(default_factory=Counter)
    _unreadable: Counter[str] = field(default_factory=Counter)

    def note(self, subtree: Subtree, nodes: pa.RecordBatch) -> int:
        """Record a part of a batch, and return the number of its unreadable nodes."""
        paths = nodes.column("path")
        self.newest = newest(self.newest, nodes)
        if subtree is Subtree.MANAGED_LEDGERS:
            is_compaction = pc.match_substring_regex(paths, _COMPACTION_CURSOR)
            self.compaction_cursors += paths.filter(is_compaction).to_pylist()
        elif subtree is Subtree.BOOKKEEPER:
            is_identity = pc.is_in(paths, pa.array(identity_paths(self.ledgers_root)))
            self._note_identity(nodes.filter(is_identity).to_pylist())
        elif subtree is Subtree.ADMIN:
            below = paths.filter(pc.starts_with(paths, _CLUSTERS)).to_pylist()
            names = (path.removeprefix(_CLUSTERS) for path in below)
            self.clusters += [name for name in names if "/" not in name and name != "global"]
        return self.count(subtree, nodes)

    def count(self, part: Subtree | Table, rows: pa.RecordBatch) -> int:
        """Count rows, and return the number of unreadable ones."""
        unreadable = rows.num_rows - rows.column("unreadable").null_count
        self._rows[part.value] += rows.num_rows
        self._unreadable[part.value] += unreadable
        return unreadable

    def counts(self) -> dict[str, RowCounts]:
        parts = (*Subtree, Table.CURSOR_LEDGERS, Table.LOG_SEGMENTS)
        return {part.value: RowCounts(self._rows[part.value], self._unreadable[part.value]) for part in parts}

    def demand_a_cluster(self, without_ledgers: bool) -> str:
        """Return the instance id; refuse an incomplete Pulsar cluster: an empty response is a failed response."""
        instance_id = instance_id_of(map(self.identity.get, identity_paths(self.ledgers_root)), self.ledgers_root)
        if not self._rows[Subtree.MANAGED_LEDGERS]:
            raise TemporaryError(
                f"{MANAGED_LEDGERS} does not exist: check the chroot, and that this is Pulsar's metadata store"
            )
        if not without_ledgers and not self._rows[Subtree.LEDGERS]:
            raise TemporaryError(f"there is no ledger below {self.ledgers_root}: check --ledgers-root-path")
        return instance_id

    def _note_identity(self, nodes: Iterable[Mapping[str, Any]]) -> None:
        for node in nodes:
            if node["value"] is None:
                raise TemporaryError(
                    f"{node['path']} cannot be read ({node['unreadable']}); "
                    "set a credential that may read it with --metadata-store-auth"
                )
            self.identity[node["path"]] = Node(
                node["path"],
                node["value"],
                NodeVersion(node["version"]),
                node["ctime_ms"],
                node["mtime_ms"],
                node["czxid"],
                times_known=self.times_known,
            )
