"""Tenants' admin roles and namespaces' permissions, from the nodes where brokers keep them.

Policies are cached for seconds, so that a removed role loses its rights soon. Failed reads are not cached.
"""

import threading
from typing import TypeVar

import msgspec
from cachetools import TTLCache

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.metadata import NodeReader
from pulsar_sidecar.model.permissions import NamespacePermissions
from pulsar_sidecar.ownership.paths import POLICIES

REMEMBERED_SECONDS = 5.0
_REMEMBERED_NODES = 10_000


@decodable
class _Tenant(msgspec.Struct, rename="camel"):
    admin_roles: frozenset[str] | None = None


@decodable
class _Permissions(msgspec.Struct):
    namespace_auth: dict[str, frozenset[str]] | None = None
    destination_auth: dict[str, dict[str, frozenset[str]]] | None = None


@decodable
class _Namespace(msgspec.Struct):
    auth_policies: _Permissions | None = None


_Read = TypeVar("_Read", bound=msgspec.Struct)


class StoredTenantPolicies:
    """`TenantPolicies` of ``/admin/policies``; safe for use by several threads."""

    def __init__(self, store: NodeReader, clock: Clock) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._recent: TTLCache[str, msgspec.Struct | None] = TTLCache(
            _REMEMBERED_NODES, REMEMBERED_SECONDS, clock.monotonic_seconds
        )

    def admin_roles(self, tenant: str) -> frozenset[str]:
        found = self._node(tenant, _Tenant)
        return frozenset() if found is None else found.admin_roles or frozenset()

    def permissions(self, namespace: str) -> NamespacePermissions:
        found = self._node(namespace, _Namespace)
        stored = None if found is None else found.auth_policies
        if stored is None:
            return NamespacePermissions()
        return NamespacePermissions(stored.namespace_auth or {}, stored.destination_auth or {})

    def _node(self, name: str, kind: type[_Read]) -> _Read | None:
        with self._lock:
            if name in self._recent:
                found = self._recent[name]
                assert found is None or isinstance(found, kind)
                return found
        node = self._store.read(f"{POLICIES}/{name}")
        try:
            # Brokers create missing parents of a namespace's node without data.
            read = None if node is None or not node.data else msgspec.json.decode(node.data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UndecodableError(
                f"the policies of {name} cannot be read ({type(error).__name__}), so its roles are not known"
            ) from None
        with self._lock:
            self._recent[name] = read
        return read
