"""etcd as a source of dumps and listings: the keys of a walk as tables."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from pulsar_sidecar.adapters.etcd.etcd_walk import EtcdWalk, demand_root
from pulsar_sidecar.adapters.etcd.gateway import Key
from pulsar_sidecar.features.audit.ports import ReadResult
from pulsar_sidecar.features.audit.results.tables import NODES
from pulsar_sidecar.features.audit.sources.listing import ledgers_among
from pulsar_sidecar.features.audit.sources.manifests import OrderRange, Proof, Source, SourceKind
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.ownership.paths import read_instance_id


class EtcdNodes:
    """`audit.ports.NodeSource` by walking; times are those before which the keys were made and written."""

    def __init__(self, walk: EtcdWalk) -> None:
        self.source = Source(SourceKind.ETCD, ",".join(walk.gateway.endpoints))
        self._walk = walk

    def batches(self) -> Iterator[pa.RecordBatch]:
        for keys in self._walk.pages():
            if keys:
                yield self._table(keys)

    def ending(self) -> ReadResult:
        """Return the revision of all keys."""
        revision = self._walk.revision
        if revision is None:
            raise TemporaryError("the walk is not over; begin again")
        marker = f"revision {revision}"
        return ReadResult(
            OrderRange(revision, revision), Proof(marker, marker, {"keysMatchingTheirCount": self._walk.keys})
        )

    def _table(self, keys: Sequence[Key]) -> pa.RecordBatch:
        before_ms = self._walk.gateway.times.made_before_ms
        columns: Sequence[Sequence[object]] = (
            [key.path for key in keys],
            [None if self._walk.keys_only else key.data for key in keys],
            [key.version - 1 for key in keys],
            [before_ms(key.created) for key in keys],
            [before_ms(key.modified) for key in keys],
            [key.created for key in keys],
            [key.modified for key in keys],
            [key.lease != 0 for key in keys],
            [None] * len(keys),
        )
        arrays = [pa.array(values, field.type) for values, field in zip(columns, NODES, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=NODES)


class EtcdLedgers(EtcdNodes):
    """`audit.ports.LedgerSource` from BookKeeper's own nodes; ``walk`` is of the root of ledgers."""

    def __init__(self, walk: EtcdWalk, store: MetadataStore, ledgers_root: str) -> None:
        super().__init__(walk)
        self._store, self._root = store, ledgers_root

    def instance_id(self) -> str:
        """Return the id as `LedgerSource.instance_id`; here it is always known."""
        return read_instance_id(self._store, self._root)

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from ledgers_among(super().batches(), self._root)
        demand_root(self._walk, self._root)
