"""Nodes that nobody who is known to keep anything beside Pulsar's ledgers has written.

Invariant: where such a node holds data, some newer version's references may be in it, so no ledger is condemned until
somebody says that it is not Pulsar's.
"""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from service.audit.shields import Damage, Reach

_KNOWN = (
    "namespace", "loadbalance", "service_unit_state", "counters", "bookies", "pulsar", "stream", "pulsar-sidecar",
)  # fmt: skip
"""What stands beside managed ledgers, schemas, ``/admin`` and BookKeeper's ledgers: bundles' owners, load reports,
names of producers, racks, what DistributedLog's namespaces are bound to (``LoadBalanceResources`` and others), and what
this tool keeps itself. None of it is why a ledger must stay."""


def unknown_subtrees(nodes: pa.RecordBatch, foreign: Collection[str]) -> list[Damage]:
    """The subtrees of an unknown kind among nodes of `Subtree.OTHER`, each once.

    Args:
        nodes: with ``path`` and ``value``.
        foreign: paths below which nothing is Pulsar's, as its user says.
    """
    paths = nodes.column("path")
    known = pc.match_substring_regex(paths, f"^/({'|'.join(_KNOWN)})?(/|$)")
    # A directory without data names nothing; what could not be read may.
    holds = pc.fill_null(pc.greater(pc.binary_length(nodes.column("value")), 0), True)
    left = paths.filter(pc.and_not(holds, known)).to_pylist()
    tops = {f"/{path.split('/')[1]}" for path in left if not any(_is_below(path, root) for root in foreign)}
    return [
        Damage(
            top,
            Reach.EVERYTHING,
            f"this version knows no such nodes ({top} is not Pulsar's? then say --foreign-subtree {top})",
        )
        for top in sorted(tops)
    ]


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root.rstrip('/')}/")
