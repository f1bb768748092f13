"""Protection by nodes that could not be read or understood: a failed look-up is not an absence.

Invariant: every ledger that an unread node may reference is protected. The node's kind and path determine which
ledgers those are; where they do not, every ledger is protected.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pulsar_sidecar.ownership.claims import LedgerKind
from pulsar_sidecar.ownership.paths import SCHEMAS, tenant_of_owner
from pulsar_sidecar.ownership.places import Place, locate

_ALWAYS_KNOWN = frozenset({"pulsar"})
"""Every cluster has it: system topics, and brokers' heartbeats."""


class Scope(StrEnum):
    """Ledgers that an unread node may reference."""

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
    """A node, or a cursor's ledger, that was not read."""

    path: str
    scope: Scope
    reason: str


def unreadable_node(path: str, reason: str) -> UnreadableNode:
    """Return the record of a node that exists and was not read."""
    if path == SCHEMAS or path.startswith(f"{SCHEMAS}/"):
        return UnreadableNode(path, Scope.SCHEMA_BRANCH, reason)
    is_cursor = locate(path).place is Place.CURSOR
    return UnreadableNode(path, Scope.OWNER if is_cursor else Scope.BRANCH, reason)


def undecodable_node(path: str, place: Place, reason: str) -> UnreadableNode:
    """Return the record of a node that was read and not understood."""
    match place:
        case Place.MANAGED_LEDGER:
            return UnreadableNode(path, Scope.DATA, reason)
        case Place.CURSOR | Place.SCHEMA:
            return UnreadableNode(path, Scope.OWNER, reason)
        case Place.EITHER | Place.ODD:
            return UnreadableNode(path, Scope.EVERYTHING, reason)


class Protection:
    """Protection of ledgers that unread nodes or unknown tenants may claim.

    ``tenants`` are those in the policies; none means that the policies are kept elsewhere and exclude no tenant.
    """

    def __init__(self, unreadable_nodes: Iterable[UnreadableNode], tenants: Iterable[str] = ()) -> None:
        self._tenants = frozenset(tenants)
        self._by_scope: dict[Scope, dict[str, str]] = {scope: {} for scope in Scope}
        for node in sorted(unreadable_nodes):
            self._by_scope[node.scope].setdefault(node.path, node.reason)

    def reason(self, kind: LedgerKind, owner_path: str) -> str | None:
        """Return why a ledger of this kind that claims the owner at this path is protected; None if it is not."""
        found = self._anywhere(kind) or self._at(kind, owner_path)
        if found is not None:
            return f"{found[0]} was not read, and may reference it: {found[1]}"
        tenant = tenant_of_owner(owner_path)
        if self.knows_tenant(tenant):
            return None
        return f"/admin/policies does not have its tenant {tenant}, so it may belong to another Pulsar cluster"

    def counts(self) -> dict[Scope, int]:
        """Return the number of unread nodes by scope, without scopes that have none."""
        return {scope: len(paths) for scope, paths in self._by_scope.items() if paths}

    @property
    def knows_tenants(self) -> bool:
        """True if there are policies, which name the tenants."""
        return bool(self._tenants)

    def knows_tenant(self, tenant: str) -> bool:
        """Return True if a tenant may be this cluster's."""
        return not self._tenants or tenant in self._tenants or tenant in _ALWAYS_KNOWN

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
        return next(((path, branches[path]) for path in upwards(owner_path) if path in branches), None)


def upwards(path: str) -> Iterable[str]:
    """Yield the path and every path above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]
    yield "/"
