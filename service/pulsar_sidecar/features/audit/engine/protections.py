"""Descriptions of nodes that were not read, and the subtrees of a metadata store that the audit does not know."""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.ownership.migration import MIGRATION, migration_of
from pulsar_sidecar.ownership.protections import Protection, Scope, UnreadableNode
from pulsar_sidecar.reports.documents import Limitation

_KNOWN = (
    "namespace", "loadbalance", "service_unit_state", "counters", "bookies", "pulsar", "stream", "pulsar-sidecar",
)  # fmt: skip
"""Subtrees beside managed ledgers, schemas, ``/admin`` and BookKeeper's ledgers: bundles' owners, load reports, names
of producers, racks, bindings of DistributedLog's namespaces (``LoadBalanceResources`` and others), and the sidecar's
own nodes. None of them makes a ledger stay."""

_NAMED_BY_TENANTS = ("namespace", "loadbalance", "service_unit_state", "counters", "bookies", "pulsar-sidecar")
"""Subtrees whose nodes are named after tenants and namespaces, which may be called "schemas"."""

_CONSEQUENCES = {
    Scope.EVERYTHING: ("nodes of an unknown kind", "they may reference any ledger, so none is deletable"),
    Scope.CLUSTER: (
        "nodes of other Pulsar clusters in the same metadata store",
        "these clusters may keep their ledgers in the same BookKeeper, so none is deletable",
    ),
    Scope.DATA: (
        "managed ledgers that cannot be understood",
        "they may be shadow topics and list any topic's ledgers, so no data ledger is deletable",
    ),
    Scope.BRANCH: (
        "nodes of managed ledgers that cannot be read, nor what is below them",
        "no data ledger is deletable, and no ledger that an owner below them may reference",
    ),
    Scope.SCHEMA_BRANCH: (
        "nodes of schemas that cannot be read, nor what is below them",
        "no ledger of the schemas below them is deletable",
    ),
    Scope.OWNER: ("cursors and schemas that cannot be understood", "no ledger that claims one of them is deletable"),
    Scope.COMPACTED: (
        "compaction cursors whose ledger was not read",
        "no compacted ledger of their topics is deletable",
    ),
    Scope.NOTHING: (
        "partitioned topics that cannot be understood",
        "they may be shadow topics that endanger their sources' ledgers; they reference none themselves",
    ),
}


def unseen(protection: Protection) -> list[Limitation]:
    """Describe the nodes that were not read."""
    named = ((*_CONSEQUENCES[scope], count) for scope, count in protection.counts().items())
    return [Limitation(what, count, consequence) for what, consequence, count in named]


def unknown_subtrees(nodes: pa.RecordBatch, foreign: Collection[str]) -> list[UnreadableNode]:
    """Return other Pulsar clusters, and the subtrees of an unknown kind, among nodes of `Subtree.OTHER`, each once.

    Where a node of an unknown kind holds data, a newer version's references may be in it, so no ledger is deletable
    until the user excludes it: ``foreign`` has the paths below which nothing is Pulsar's. Another cluster's managed
    ledgers or schemas are found wherever they are, also below subtrees of a known kind and below those in ``foreign``:
    it may use the same BookKeeper. ``nodes`` have ``path`` and ``value``.
    """
    paths = nodes.column("path")
    known = pc.match_substring_regex(paths, f"^/({'|'.join(_KNOWN)})?(/|$)")
    # A directory without data names nothing; a node that could not be read may.
    holds = pc.fill_null(pc.greater(pc.binary_length(nodes.column("value")), 0), True)
    left = paths.filter(pc.and_not(holds, known)).to_pylist()
    tops = {f"/{path.split('/')[1]}" for path in left if not any(_is_below(path, root) for root in foreign)}
    return [*_migrations(nodes), *_other_clusters(paths, foreign), *map(_unknown, sorted(tops))]


def _unknown(top: str) -> UnreadableNode:
    return UnreadableNode(
        top,
        Scope.EVERYTHING,
        f"this version does not know such nodes; if {top} is not Pulsar's, set --foreign-subtree {top}",
    )


def _migrations(nodes: pa.RecordBatch) -> list[UnreadableNode]:
    """Return the brokers' migration to another store, if one has begun: later references may exist only there."""
    values = nodes.filter(pc.equal(nodes.column("path"), MIGRATION)).column("value").to_pylist()
    reasons = (migration_of(value or b"") for value in values)
    return [UnreadableNode(MIGRATION, Scope.EVERYTHING, reason) for reason in reasons if reason is not None]


def _other_clusters(paths: pa.Array, foreign: Collection[str]) -> list[UnreadableNode]:
    """Return managed ledgers and schemas of clusters below a chroot, unless their own path is named as foreign."""
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
            "another Pulsar cluster keeps its metadata there, and may keep its ledgers in this BookKeeper; if that "
            f"cluster has its own BookKeeper, set --foreign-subtree {path}",
        )
        for path in sorted(found.difference(root.rstrip("/") for root in foreign))
    ]


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root.rstrip('/')}/")
