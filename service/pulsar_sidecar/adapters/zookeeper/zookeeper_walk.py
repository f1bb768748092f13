"""A live ZooKeeper as a source of dumps and listings: the nodes of a walk as tables."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pulsar_sidecar.adapters.metadata_access import UNLIMITED, WalkOptions
from pulsar_sidecar.adapters.zookeeper.node_walk import NOT_PERMITTED, NodeWalk, WalkedNodes, ledger_filters
from pulsar_sidecar.adapters.zookeeper.raw_nodes import named_nodes, read_nodes
from pulsar_sidecar.features.audit.ports import ReadResult
from pulsar_sidecar.features.audit.sources.listing import ledgers_among
from pulsar_sidecar.features.audit.sources.manifests import OrderRange, Proof
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.ownership.paths import read_instance_id


class ZooKeeperWalk(NodeWalk):
    """`audit.ports.NodeSource` by walking."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        for piece in self.pieces():
            yield from _tables_of(piece)

    def ending(self) -> ReadResult:
        """Return the result of the syncs at both ends."""
        if self.first_zxid is None or self.last_zxid is None:
            raise TemporaryError("the walk is not over; begin again")
        proof = Proof(f"sync at zxid 0x{self.first_zxid:x}", f"sync at zxid 0x{self.last_zxid:x}", dict(self.checks))
        return ReadResult(OrderRange(self.first_zxid, self.last_zxid), proof)


class LedgerNodes(ZooKeeperWalk):
    """`audit.ports.LedgerSource` from BookKeeper's own nodes."""

    def __init__(
        self,
        url: str,
        store: MetadataStore,
        clock: Clock,
        ledgers_root: str,
        options: WalkOptions = UNLIMITED,
        *,
        with_metadata: bool = False,
    ) -> None:
        is_skipped, is_unread = ledger_filters(ledgers_root, with_metadata=with_metadata)
        super().__init__(url, clock, options, root=ledgers_root, is_skipped=is_skipped, is_unread=is_unread)
        self._store = store

    def instance_id(self) -> str:
        """Return the id as `LedgerSource.instance_id`; here it is always known."""
        return read_instance_id(self._store, self._root)

    def batches(self) -> Iterator[pa.RecordBatch]:
        return ledgers_among(super().batches(), self._root)


def _tables_of(piece: WalkedNodes) -> Iterator[pa.RecordBatch]:
    if piece.paths:
        starts, ends = (np.array(places, np.int32) for places in piece.values)
        yield read_nodes(pa.array(piece.paths, pa.string()), piece.data, starts, ends, ends)
    if piece.unreadable:
        yield named_nodes(piece.unreadable, NOT_PERMITTED)
    if piece.unread:
        yield named_nodes(piece.unread, None)
