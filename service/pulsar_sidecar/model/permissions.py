"""Administrators of tenants, and rights to produce and consume in namespaces, as brokers keep them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from pulsar_sidecar.model.names import TopicName


class Action(StrEnum):
    """Actions on topics of ``org.apache.pulsar.common.policies.data.AuthAction``."""

    PRODUCE = "produce"
    CONSUME = "consume"


ActionsByRole = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class NamespacePermissions:
    """``auth_policies`` of a namespace: actions by role, in the whole namespace and by topics' full names."""

    in_namespace: ActionsByRole = field(default_factory=dict)
    on_topics: Mapping[str, ActionsByRole] = field(default_factory=dict)

    def actions(self, role: str, topic: TopicName | None) -> frozenset[str]:
        """Return the role's actions in the namespace and on the topic; a partition has its topic's permissions."""
        found = self.in_namespace.get(role, frozenset())
        if topic is not None:
            for name in {str(topic), str(topic.base)}:
                found |= self.on_topics.get(name, {}).get(role, frozenset())
        return found


class TenantPolicies(Protocol):
    """Brokers' policies of tenants and namespaces; every method raises `TemporaryError` when it cannot read them."""

    def admin_roles(self, tenant: str) -> frozenset[str]:
        """Return the tenant's admin roles; empty for a tenant that does not exist."""

    def permissions(self, namespace: str) -> NamespacePermissions:
        """Return the permissions in a namespace; empty for one that does not exist."""
