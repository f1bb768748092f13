"""Which part of the metadata store a node belongs to, decided for a whole batch of nodes at once.

Invariant: every node belongs to exactly one part; ZooKeeper's own nodes belong to none.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.results.tables import Subtree
from pulsar_sidecar.ledger_ownership.paths import MANAGED_LEDGERS, SCHEMAS

_ADMIN = "/admin"
_ZOOKEEPER = "/zookeeper"
_NAMESPACE_BINDING = b"1\nBKDL\n"
"""How the value of a DistributedLog namespace's root node begins (``BKDLConfig``)."""


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
