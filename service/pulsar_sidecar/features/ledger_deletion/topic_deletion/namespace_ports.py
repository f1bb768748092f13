"""Ports of namespace deletion besides those of ledger deletion."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.pulsar_versions import Line


@dataclass(frozen=True, slots=True)
class NamespaceClusters:
    """Clusters of a namespace (``Policies.replication_clusters`` and ``allowed_clusters``)."""

    replication: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()

    @classmethod
    def read(cls, policies: object) -> "NamespaceClusters":
        """Read the clusters from Pulsar's ``Policies``, as brokers return and store them."""
        found = policies if isinstance(policies, dict) else {}
        listed = [found.get(name) or () for name in ("replication_clusters", "allowed_clusters")]
        if not found or not all(isinstance(names, list | tuple) for names in listed):
            raise TemporaryError("the policies of a namespace cannot be read; try again")
        replication, allowed = (frozenset(map(str, names)) for names in listed)
        return cls(replication, allowed)


@dataclass(frozen=True, slots=True)
class DeletionSettings:
    """Settings of a broker on which its deletion of a namespace depends; ``line`` is None where it reports none."""

    cluster: str
    line: Line | None
    forced_deletion_allowed: bool = False
    authorization_enabled: bool = False


class NamespaceAdmin(Protocol):
    """Admin REST calls about namespaces (Pulsar ``Namespaces``, ``Clusters``, ``Brokers``)."""

    def namespace_exists(self, namespace: str) -> bool:
        """Return True if brokers know the namespace, ``tenant/namespace`` or ``tenant/cluster/namespace``."""

    def deletion_settings(self) -> DeletionSettings:
        """Return the settings of one broker."""

    def clusters_of(self, namespace: str) -> NamespaceClusters:
        """Return the namespace's clusters; raises `NotFoundError` if the namespace does not exist."""

    def cluster_url(self, cluster: str) -> str:
        """Return another cluster's web service URL; raises `NotFoundError` if the cluster does not exist."""

    def sidecar_url(self, cluster: str) -> str | None:
        """Return the address of another cluster's sidecar; None if it is not known."""

    def topics_in(self, namespace: str) -> Sequence[str]:
        """Return the namespace's topics except the brokers' own, including non-persistent ones."""

    def delete_namespace(self, namespace: str, *, force: bool) -> None:
        """Send ``DELETE /admin/v2/namespaces/...``; follows redirects.

        Raises:
            NotFoundError: the namespace does not exist.
            BrokerRefusedError: a permanent refusal, with the broker's own status and reason.
            TemporaryError: a bundle or a topic of it is moving, or was created meanwhile; try again.
            OutcomeUnknownError: 5xx, a timeout or a broken connection after sending.
        """
