"""What could not be read or understood, and which ledgers it protects: a failed look-up is not an absence.

Invariant: whatever an unread node may reference is protected. Its kind and its path tell how far that goes; where they
do not, everything is protected.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.engine.places import Place, locate
from pulsar_sidecar.audit.results.summaries import Unseen
from pulsar_sidecar.audit.results.tables import LedgerKind
from pulsar_sidecar.ledger_ownership.paths import SCHEMAS

_ALWAYS_KNOWN = frozenset({"pulsar"})
"""Every cluster has it: system topics, and brokers' heartbeats."""

_KNOWN = (
    "namespace", "loadbalance", "service_unit_state", "counters", "bookies", "pulsar", "stream", "pulsar-sidecar",
)  # fmt: skip
"""What stands beside managed ledgers, schemas, ``/admin`` and BookKeeper's ledgers: bundles' owners, load reports,
names of producers, racks, what DistributedLog's namespaces are bound to (``LoadBalanceResources`` and others), and what
this tool keeps itself. None of it is why a ledger must stay."""

_NAMED_BY_TENANTS = ("namespace", "loadbalance", "service_unit_state", "counters", "bookies", "pulsar-sidecar")
"""Below these, nodes are called as tenants and namespaces are, which may be "schemas"."""


class Scope(StrEnum):
    """Which ledgers an unread node may reference; `_CONSEQUENCES` has the same in words."""

    EVERYTHING = "everything"
    CLUSTER = "cluster"
    DATA = "data"
    BRANCH = "branch"
    SCHEMA_BRANCH = "schema-branch"
    OWNER = "owner"
    COMPACTED = "compacted"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, order=True)
class UnreadableNode:
    """One node, or one cursor's ledger, that was not read."""

    path: str
    scope: Scope
    reason: str


_CONSEQUENCES = {
    Scope.EVERYTHING: ("nodes of an unknown kind", "they may reference any ledger, so none is condemned"),
    Scope.CLUSTER: (
        "nodes of other Pulsar clusters in the same metadata store",
        "these clusters may keep their ledgers in the same BookKeeper, so none is condemned",
    ),
    Scope.DATA: (
        "managed ledgers that cannot be understood",
        "they may be shadow topics and list any topic's ledgers, so no data ledger is condemned",
    ),
    Scope.BRANCH: (
        "nodes of managed ledgers that cannot be read, nor what is below them",
        "nothing is condemned that an owner below them may reference, and no data ledger",
    ),
    Scope.SCHEMA_BRANCH: (
        "nodes of schemas that cannot be read, nor what is below them",
        "no ledger of the schemas below them is condemned",
    ),
    Scope.OWNER: (
        "cursors and schemas that cannot be understood",
        "no ledger that claims one of them is condemned",
    ),
    Scope.COMPACTED: (
        "compaction cursors whose ledger was not read",
        "no compacted ledger of their topics is condemned",
    ),
    Scope.NOTHING: (
        "partitioned topics that cannot be understood",
        "they may be shadow topics that endanger their sources' ledgers; they reference none themselves",
    ),
}


def unreadable_node(path: str, reason: str) -> UnreadableNode:
    """A node that exists and was not read."""
    if path == SCHEMAS or path.startswith(f"{SCHEMAS}/"):
        return UnreadableNode(path, Scope.SCHEMA_BRANCH, reason)
    is_cursor = locate(path).place is Place.CURSOR
    return UnreadableNode(path, Scope.OWNER if is_cursor else Scope.BRANCH, reason)


def undecodable_node(path: str, place: Place, reason: str) -> UnreadableNode:
    """A node that was read and not understood."""
    match place:
        case Place.MANAGED_LEDGER:
            return UnreadableNode(path, Scope.DATA, reason)
        case Place.CURSOR | Place.SCHEMA:
            return UnreadableNode(path, Scope.OWNER, reason)
        case Place.EITHER | Place.ODD:
            return UnreadableNode(path, Scope.EVERYTHING, reason)


class Protection:
    """Tells which claims are protected.

    ``tenants`` are those that the policies know; where there are none, they are kept elsewhere: nothing is concluded.
    """

    def __init__(self, unreadable_nodes: Iterable[UnreadableNode], tenants: Iterable[str] = ()) -> None:
        self._tenants = frozenset(tenants)
        self._by_scope: dict[Scope, dict[str, str]] = {scope: {} for scope in Scope}
        for node in sorted(unreadable_nodes):
            self._by_scope[node.scope].setdefault(node.path, node.reason)

    def reason(self, kind: LedgerKind, owner_path: str) -> str | None:
        """Why a ledger of this kind, which claims the owner at this path, is protected; None if it is not."""
        found = self._anywhere(kind) or self._at(kind, owner_path)
        if found is not None:
            return f"{found[0]} was not read, and may reference it: {found[1]}"
        tenant = owner_path.split("/")[2]  # of a managed ledger's, a cursor's or a schema's node
        if self.knows_tenant(tenant):
            return None
        return f"/admin/policies does not know its tenant {tenant}, so it may be another Pulsar cluster's"

    @property
    def knows_tenants(self) -> bool:
        """Whether there are policies that tell tenants."""
        return bool(self._tenants)

    def knows_tenant(self, tenant: str) -> bool:
        """Whether a tenant may be this cluster's."""
        return not self._tenants or tenant in self._tenants or tenant in _ALWAYS_KNOWN

    def unseen(self) -> list[Unseen]:
        """What was not read, in words."""
        named = ((*_CONSEQUENCES[scope], len(paths)) for scope, paths in self._by_scope.items() if paths)
        return [Unseen(what, count, consequence) for what, consequence, count in named]

    def _anywhere(self, kind: LedgerKind) -> tuple[str, str] | None:
        scopes: tuple[Scope, ...] = (Scope.CLUSTER, Scope.EVERYTHING)
        if kind is LedgerKind.DATA:
            scopes += (Scope.DATA, Scope.BRANCH)
        return next((item for scope in scopes for item in self._by_scope[scope].items()), None)

    def _at(self, kind: LedgerKind, owner_path: str) -> tuple[str, str] | None:
        exact = (Scope.OWNER, Scope.COMPACTED) if kind is LedgerKind.COMPACTED else (Scope.OWNER,)
        for scope in exact:
            if owner_path in self._by_scope[scope]:
                return owner_path, self._by_scope[scope][owner_path]
        branches = self._by_scope[Scope.SCHEMA_BRANCH if kind is LedgerKind.SCHEMA else Scope.BRANCH]
        return next(((path, branches[path]) for path in _upwards(owner_path) if path in branches), None)


def _upwards(path: str) -> Iterable[str]:
    """The path and every path above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield "/"


def unknown_subtrees(nodes: pa.RecordBatch, foreign: Collection[str]) -> list[UnreadableNode]:
    """Other Pulsar clusters, and the subtrees of an unknown kind, among nodes of `Subtree.OTHER`, each once.

    Where such a node holds data, some newer version's references may be in it, so no ledger is deletable until the user
    says that it is not Pulsar's: ``foreign`` has the paths below which nothing is. Another cluster's managed ledgers or
    schemas are found wherever they are, below subtrees of a known kind and below those in ``foreign`` too: it may use
    the same BookKeeper. ``nodes`` have ``path`` and ``value``.
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
