"""How an audit describes nodes that were not read, and the subtrees of a metadata store that it does not know."""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.analysis.documents import Limitation
from pulsar_sidecar.ledger_ownership.migration import MIGRATION, migration_of
from pulsar_sidecar.ledger_ownership.protections import Protection, Scope, UnreadableNode

_KNOWN = (
    "namespace", "loadbalance", "service_unit_state", "counters", "bookies", "pulsar", "stream", "pulsar-sidecar",
)  # fmt: skip
"""What stands beside managed ledgers, schemas, ``/admin`` and BookKeeper's ledgers: bundles' owners, load reports,
names of producers, racks, what DistributedLog's namespaces are bound to (``LoadBalanceResources`` and others), and what
this tool keeps itself. None of it is why a ledger must stay."""

_NAMED_BY_TENANTS = ("namespace", "loadbalance", "service_unit_state", "counters", "bookies", "pulsar-sidecar")
"""Below these, nodes are called as tenants and namespaces are, which may be "schemas"."""

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
    Scope.OWNER: (
        "cursors and schemas that cannot be understood",
        "no ledger that claims one of them is deletable",
    ),
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
    """What was not read, in words."""
    named = ((*_CONSEQUENCES[scope], count) for scope, count in protection.counts().items())
    return [Limitation(what, count, consequence) for what, consequence, count in named]


def unknown_subtrees(nodes: pa.RecordBatch, foreign: Collection[str]) -> list[UnreadableNode]:
    """Other Pulsar clusters, and the subtrees of an unknown kind, among nodes of `Subtree.OTHER`, each once.

    Where such a node holds data, some newer version's references may be in it, so no ledger is deletable until the user
    excludes it: ``foreign`` has the paths below which nothing is. Another cluster's managed ledgers or
    schemas are found wherever they are, below subtrees of a known kind and below those in ``foreign`` too: it may use
    the same BookKeeper. ``nodes`` have ``path`` and ``value``.
    """
    paths = nodes.column("path")
    known = pc.match_substring_regex(paths, f"^/({'|'.join(_KNOWN)})?(/|$)")
    # A directory without data names nothing; what could not be read may.
    holds = pc.fill_null(pc.greater(pc.binary_length(nodes.column("value")), 0), True)
    left = paths.filter(pc.and_not(holds, known)).to_pylist()
    tops = {f"/{path.split('/')[1]}" for path in left if not any(_is_below(path, root) for root in foreign)}
    return [
        *_migrations(nodes),
        *_other_clusters(paths, foreign),
        *(_unknown(top) for top in sorted(tops)),
    ]


def _unknown(top: str) -> UnreadableNode:
    return UnreadableNode(
        top,
        Scope.EVERYTHING,
        f"this version does not know such nodes; if {top} is not Pulsar's, set --foreign-subtree {top}",
    )


def _migrations(nodes: pa.RecordBatch) -> list[UnreadableNode]:
    """The brokers' migration to another store, if one has begun: what references a ledger now may be there alone."""
    values = nodes.filter(pc.equal(nodes.column("path"), MIGRATION)).column("value").to_pylist()
    reasons = (migration_of(value or b"") for value in values)
    return [UnreadableNode(MIGRATION, Scope.EVERYTHING, reason) for reason in reasons if reason is not None]


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
            "another Pulsar cluster keeps its metadata there, and may keep its ledgers in this BookKeeper; if that "
            f"cluster has its own BookKeeper, set --foreign-subtree {path}",
        )
        for path in sorted(found.difference(root.rstrip("/") for root in foreign))
    ]


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root.rstrip('/')}/")
