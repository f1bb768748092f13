"""Who administers a tenant, and who may produce and consume in a namespace, as brokers keep it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from pulsar_sidecar.model.names import TopicName


class Action(StrEnum):
    """Of ``org.apache.pulsar.common.policies.data.AuthAction``, what concerns topics."""

    PRODUCE = "produce"
    CONSUME = "consume"


ActionsByRole = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class NamespacePermissions:
    """``auth_policies`` of a namespace: actions by role, in the whole of it and by the full names of topics."""

    in_namespace: ActionsByRole = field(default_factory=dict)
    on_topics: Mapping[str, ActionsByRole] = field(default_factory=dict)

    def actions(self, role: str, topic: TopicName | None) -> frozenset[str]:
        """What the role may do in the whole namespace, and on the topic; a partition has its topic's permissions."""
        found = self.in_namespace.get(role, frozenset())
        if topic is not None:
            for name in {str(topic), str(topic.base)}:
                found |= self.on_topics.get(name, {}).get(role, frozenset())
        return found


class TenantPolicies(Protocol):
    """What brokers keep of tenants and namespaces; every method raises `TemporaryError` when it cannot be read."""

    def admin_roles(self, tenant: str) -> frozenset[str]:
        """The tenant's admin roles; empty for a tenant that does not exist."""

    def permissions(self, namespace: str) -> NamespacePermissions:
        """The permissions in a namespace; empty for one that does not exist."""
