"""What the deletion of a namespace needs besides the ports of ledger deletion."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pulsar_sidecar.ledger_deletion.service import TopicDeletionStatus
from pulsar_sidecar.model.errors import PermanentError, TemporaryError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.pulsar_versions import Line


@dataclass(frozen=True, slots=True)
class NamespaceClusters:
    """Where a namespace is (``Policies.replication_clusters`` and ``allowed_clusters``)."""

    replication: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()

    @classmethod
    def read(cls, policies: object) -> "NamespaceClusters":
        """Read them from Pulsar's ``Policies``, as brokers answer and store them."""
        found = policies if isinstance(policies, dict) else {}
        listed = [found.get(name) or () for name in ("replication_clusters", "allowed_clusters")]
        if not found or not all(isinstance(names, list | tuple) for names in listed):
            raise TemporaryError("the policies of a namespace cannot be read; try again")
        replication, allowed = (frozenset(map(str, names)) for names in listed)
        return cls(replication, allowed)


@dataclass(frozen=True, slots=True)
class DeletionSettings:
    """A broker's configuration, as far as its deletion of a namespace depends on it.

    Attributes:
        cluster: the broker's own (``clusterName``).
        line: of its version; None where the broker names none.
        forced_deletion_allowed: ``forceDeleteNamespaceAllowed``, which is off by default.
        authorization_enabled: ``authorizationEnabled``.
    """

    cluster: str
    line: Line | None
    forced_deletion_allowed: bool = False
    authorization_enabled: bool = False


class NamespaceAdmin(Protocol):
    """The admin REST calls (Pulsar ``Namespaces``, ``Clusters``, ``Brokers``)."""

    def namespace_exists(self, namespace: str) -> bool:
        """Whether brokers know the namespace, ``tenant/namespace`` or ``tenant/cluster/namespace``."""

    def deletion_settings(self) -> DeletionSettings:
        """The settings of one broker."""

    def clusters_of(self, namespace: str) -> NamespaceClusters:
        """Where the namespace is; `NotFoundError` if brokers know no such namespace."""

    def cluster_url(self, cluster: str) -> str:
        """The web service URL of another cluster; `NotFoundError` if brokers know no such cluster."""

    def topics_in(self, namespace: str) -> Sequence[str]:
        """The namespace's topics but for the brokers' own, those that are not persistent included."""

    def delete_namespace(self, namespace: str, *, force: bool) -> None:
        """``DELETE /admin/v2/namespaces/...``, following redirects.

        Raises:
            NotFoundError: brokers know no such namespace.
            BrokerRefusedError: a refusal for good, with the broker's own status and reason.
            TemporaryError: a bundle or a topic of it is moving, or came meanwhile; ask again.
            OutcomeUnknownError: 5xx, a timeout or a broken connection after sending.
        """


class TopicDeletions(Protocol):
    """The deletion of single topics, for any number of threads."""

    def delete(
        self, topic: TopicName, *, partitioned: bool, requested_by: str | None
    ) -> tuple[TopicDeletionStatus, PermanentError | None]:
        """Delete the topic by force, with its partitions if any; what became of it, and a refusal.

        What is RUNNING, any sidecar continues. Raises what `TopicDeleter.begin` does.
        """

    def running(self) -> list[TopicDeletionStatus]:
        """Those of all namespaces that have not ended."""

    def delete_shadow(self, topic: TopicName, *, requested_by: str | None) -> str | None:
        """Delete a shadow topic without touching its source; what it waits for, None once it is deleted."""
