"""Tenants' admin roles and namespaces' permissions in memory."""

from dataclasses import dataclass, field

from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.permissions import NamespacePermissions


@dataclass(slots=True)
class FakeTenantPolicies:
    """Policies that raise ``failure`` if set; ``asked`` has the tenants and namespaces in order."""

    admins: dict[str, frozenset[str]] = field(default_factory=dict)
    granted: dict[str, NamespacePermissions] = field(default_factory=dict)
    failure: SidecarError | None = None
    asked: list[str] = field(default_factory=list)

    def admin_roles(self, tenant: str) -> frozenset[str]:
        self._ask(tenant)
        return self.admins.get(tenant, frozenset())

    def permissions(self, namespace: str) -> NamespacePermissions:
        self._ask(namespace)
        return self.granted.get(namespace, NamespacePermissions())

    def _ask(self, name: str) -> None:
        self.asked.append(name)
        if self.failure is not None:
            raise self.failure
