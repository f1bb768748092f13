"""Nodes beside this cluster's: of an unknown kind, or of another Pulsar cluster in the same metadata store.

Invariant: where such a node holds data, some newer version's references may be in it, so no ledger is condemned until
somebody says that it is not Pulsar's. Another cluster's managed ledgers or schemas are found wherever they are, below
subtrees of a known kind and below those that were named as not Pulsar's too: it may use the same BookKeeper.
"""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.engine.protections import Scope, UnreadableNode

_KNOWN = (
    "namespace", "loadbalance", "service_unit_state", "counters", "bookies", "pulsar", "stream", "pulsar-sidecar",
)  # fmt: skip
"""What stands beside managed ledgers, schemas, ``/admin`` and BookKeeper's ledgers: bundles' owners, load reports,
names of producers, racks, what DistributedLog's namespaces are bound to (``LoadBalanceResources`` and others), and what
this tool keeps itself. None of it is why a ledger must stay."""


_NAMED_BY_TENANTS = ("namespace", "loadbalance", "service_unit_state", "counters", "bookies", "pulsar-sidecar")
"""Below these, nodes are called as tenants and namespaces are, which may be "schemas"."""


def unknown_subtrees(nodes: pa.RecordBatch, foreign: Collection[str]) -> list[UnreadableNode]:
    """Other Pulsar clusters, and the subtrees of an unknown kind, among nodes of `Subtree.OTHER`, each once.

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
    return _other_clusters(paths, foreign) + [
        UnreadableNode(
            top,
            Scope.EVERYTHING,
            f"this version knows no such nodes ({top} is not Pulsar's? then say --foreign-subtree {top})",
        )
        for top in sorted(tops)
    ]


def _other_clusters(paths: pa.Array, foreign: Collection[str]) -> list[UnreadableNode]:
    """Managed ledgers and schemas of clusters below a chroot; only their own path, named as foreign, takes one out."""
    nested = pc.match_substring_regex(paths, "/(managed-ledgers|schemas)$")
    named_by_tenants = pc.match_substring_regex(paths, f"^/({'|'.join(_NAMED_BY_TENANTS)})/")
    with_topics = pc.match_substring_regex(paths, "/managed-ledgers/[^/]+/[^/]+(/[^/]+)?/persistent$")
    found = set(paths.filter(pc.and_not(nested, named_by_tenants)).to_pylist())
    for path in paths.filter(with_topics).to_pylist():
        found.add(path[: path.rindex("/managed-ledgers/")] + "/managed-ledgers")
    return [
        UnreadableNode(
            path,
            Scope.CLUSTER,
            "another Pulsar cluster keeps its metadata there, and may keep its ledgers in this BookKeeper (it has a "
            f"BookKeeper of its own? then say --foreign-subtree {path})",
        )
        for path in sorted(found.difference(root.rstrip("/") for root in foreign))
    ]


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root.rstrip('/')}/")
