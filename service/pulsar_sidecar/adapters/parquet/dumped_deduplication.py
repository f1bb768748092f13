"""The topics in a dump that have a deduplication cursor, as if they were read from the metadata store.

Two passes over the dump: one for the cursors, one for what belongs to their topics; memory grows with these alone.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pulsar_sidecar.ack_state.stored import stored_in_node
from pulsar_sidecar.adapters.parquet.inputs import node_batches
from pulsar_sidecar.audit.results.tables import Subtree
from pulsar_sidecar.deduplication.policies import (
    BrokerDeduplication,
    DeduplicationPolicy,
    PolicyValues,
    value_of_namespace,
)
from pulsar_sidecar.deduplication.snapshots import Snapshot, snapshot_in_node
from pulsar_sidecar.ledger_ownership.paths import POLICIES
from pulsar_sidecar.ledger_ownership.references import LedgerReference, cursor_references
from pulsar_sidecar.model.errors import SidecarError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId, NodeVersion
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import DEDUPLICATION_CURSOR

_CURSOR = f"/{DEDUPLICATION_CURSOR}"
_UNKNOWN = -1


class DumpedDeduplication:
    """`model.metadata.NodeReader` over a dump that was opened with `directories.open_tables`."""

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
        """What the dump could not read of these topics, which are left out, and of namespaces' policies."""

    def read(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def policies(self, namespace: str) -> Node | Unreadable | None:
        """A namespace's; None if it has none."""
        path = f"{POLICIES}/{namespace}"
        reason = self._unreadable_policies.get(path)
        return self.read(path) if reason is None else Unreadable(reason)

    def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        return [self._nodes.get(path) for path in paths]

    def children(self, path: str) -> list[str] | None:
        return sorted(self._children[path]) if path in self._children else None

    def _take(self, dump: Path, subtree: Subtree, topics: Collection[str] | None) -> Iterator[tuple[str, str]]:
        """Keep the nodes of these topics, or the policies of namespaces; those that the dump could not read."""
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


class DumpedSnapshots:
    """`StoredSnapshots`, `LedgerLengths` and `CursorPositions`, as far as the nodes of the metadata store go.

    Of a topic that was loaded they have older positions, and of the ledger that was written to no entries.
    """

    def snapshots(self, cursors: Sequence[bytes]) -> Sequence[Snapshot | Unreadable]:
        return [_snapshot(data) for data in cursors]

    def measured(self, ledgers: Mapping[LedgerId, LedgerReference]) -> Mapping[LedgerId, LedgerReference]:
        return ledgers

    def lengths(self, ledgers: Mapping[LedgerId, LedgerReference]) -> Mapping[LedgerId, int]:
        return {ledger_id: ledger.entries for ledger_id, ledger in ledgers.items()}

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
        return PolicyValues(self._broker.enabled, value)

    def of_topic(self, topic: TopicName) -> PolicyValues | Unreadable:
        return Unreadable("a dump holds no policies of topics")


def _snapshot(data: bytes) -> Snapshot | Unreadable:
    try:
        # A snapshot in a ledger of which no entry is known.
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
