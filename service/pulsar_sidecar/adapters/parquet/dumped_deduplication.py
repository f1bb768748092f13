"""Topics in a dump with a deduplication cursor, as if read from the metadata store.

It passes over the dump twice: for the cursors, and for their topics' nodes; memory grows only with these.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pulsar_sidecar.adapters.parquet.inputs import node_batches
from pulsar_sidecar.features.acknowledgements.stored import stored_in_node
from pulsar_sidecar.features.audit.results.tables import Subtree
from pulsar_sidecar.features.deduplication.policies import (
    BrokerDeduplication,
    DeduplicationPolicy,
    value_of_namespace,
)
from pulsar_sidecar.features.deduplication.results import PolicyValues
from pulsar_sidecar.features.deduplication.snapshots import Snapshot, snapshot_in_node
from pulsar_sidecar.model.errors import SidecarError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId, NodeVersion
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import DEDUPLICATION_CURSOR
from pulsar_sidecar.ownership.paths import POLICIES
from pulsar_sidecar.ownership.ports import LedgerLengths
from pulsar_sidecar.ownership.references import LedgerReference, cursor_references

_CURSOR = f"/{DEDUPLICATION_CURSOR}"
_UNKNOWN = -1


class DumpedDeduplication:
    """`model.metadata.NodeReader` over a dump opened with `directories.open_tables`."""

    def __init__(self, dump: Path) -> None:
        self._nodes: dict[str, Node] = {}
        self._children: defaultdict[str, set[str]] = defaultdict(set)
        topics = {
            path.removesuffix(_CURSOR)
            for batch in node_batches(dump, Subtree.MANAGED_LEDGERS, ["path"])
            for path in batch.column("path").to_pylist()
            if path.endswith(_CURSOR)
        }
        unreadable = dict(self._take(dump, Subtree.MANAGED_LEDGERS, topics))
        for topic in sorted({path if path in topics else path.rpartition("/")[0] for path in unreadable}):
            self._drop(topic)
        self._unreadable_policies = dict(self._take(dump, Subtree.ADMIN, None))
        unreadable |= self._unreadable_policies
        self.unreadable = tuple(f"{path}: {reason}" for path, reason in sorted(unreadable.items()))
        """Nodes of these topics that the dump could not read, which are left out, and of namespaces' policies."""

    def read(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def policies(self, namespace: str) -> Node | Unreadable | None:
        path = f"{POLICIES}/{namespace}"
        reason = self._unreadable_policies.get(path)
        return self.read(path) if reason is None else Unreadable(reason)

    def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        return [self._nodes.get(path) for path in paths]

    def children(self, path: str) -> list[str] | None:
        return sorted(self._children[path]) if path in self._children else None

    def _take(self, dump: Path, subtree: Subtree, topics: Collection[str] | None) -> Iterator[tuple[str, str]]:
        """Keep these topics' or namespaces' nodes; yield those that the dump could not read."""
        columns = ["path", "value", "version", "ctime_ms", "mtime_ms", "czxid", "unreadable"]
        for batch in node_batches(dump, subtree, columns):
            paths = batch.column("path").to_pylist()
            wanted = pa.array([_is_wanted(path, topics) for path in paths], pa.bool_())
            for row in batch.filter(wanted).to_pylist():
                if row["unreadable"] is not None:
                    yield row["path"], row["unreadable"]
                else:
                    self._put(row)

    def _put(self, row: Mapping[str, Any]) -> None:
        path: str = row["path"]
        self._nodes[path] = Node(
            path,
            row["value"] or b"",
            NodeVersion(_known(row["version"])),
            _known(row["ctime_ms"]),
            _known(row["mtime_ms"]),
            _known(row["czxid"]),
        )
        parent, _, name = path.rpartition("/")
        while parent and name not in self._children[parent]:
            self._children[parent].add(name)
            parent, _, name = parent.rpartition("/")

    def _drop(self, topic: str) -> None:
        for path in [topic, *(f"{topic}/{name}" for name in self._children.pop(topic, ()))]:
            self._nodes.pop(path, None)
        parent, _, name = topic.rpartition("/")
        self._children[parent].discard(name)


class DumpedSnapshots(LedgerLengths):
    """`StoredSnapshots`, `LedgerLengths` and `CursorPositions`, from the nodes of the metadata store alone.

    A topic that was loaded has older positions there, and the ledger that was written to has no entries.
    """

    def snapshots(self, cursors: Sequence[bytes]) -> Sequence[Snapshot | Unreadable]:
        return [_snapshot(data) for data in cursors]

    def measured(self, ledgers: Mapping[LedgerId, LedgerReference]) -> Mapping[LedgerId, LedgerReference]:
        return ledgers

    def acknowledged(
        self, cursors: Sequence[bytes], lengths: Mapping[LedgerId, int]
    ) -> Sequence[PositionRanges | Unreadable]:
        return [_acknowledged(data, lengths) for data in cursors]


class DumpedDeduplicationSettings:
    """`deduplication.inspection.stuck.DeduplicationSettings`: namespaces' policies.

    A dump holds neither topics' policies nor brokers' settings.
    """

    def __init__(self, nodes: DumpedDeduplication, broker: BrokerDeduplication) -> None:
        self._nodes = nodes
        self._broker = broker

    def broker(self) -> BrokerDeduplication:
        return self._broker

    def inherited(self, namespace: str) -> PolicyValues | Unreadable:
        node = self._nodes.policies(namespace)
        if isinstance(node, Unreadable):
            return node
        try:
            value = None if node is None else value_of_namespace(DeduplicationPolicy.ENABLED, node.data)
        except UndecodableError as error:
            return Unreadable(str(error))
        return PolicyValues.of(self._broker.enabled, value)

    def of_topic(self, topic: TopicName) -> PolicyValues | Unreadable:
        return Unreadable("a dump holds no policies of topics")


def _snapshot(data: bytes) -> Snapshot | Unreadable:
    try:
        # The snapshot is in a ledger whose entries are unknown.
        return replace(snapshot_in_node(data), ledger_id=cursor_references(data).cursor_ledger)
    except SidecarError as error:
        return Unreadable(str(error))


def _acknowledged(data: bytes, lengths: Mapping[LedgerId, int]) -> PositionRanges | Unreadable:
    try:
        return stored_in_node(data, lengths).acknowledged
    except SidecarError as error:
        return Unreadable(str(error))


def _is_wanted(path: str, topics: Collection[str] | None) -> bool:
    if topics is None:
        return path.startswith(f"{POLICIES}/")
    return path in topics or path.rpartition("/")[0] in topics


def _known(number: int | None) -> int:
    return _UNKNOWN if number is None else number
