"""What the deletion of a namespace needs besides the ports of ledger deletion."""

from typing import Protocol

from pulsar_sidecar.ledger_deletion.service import TopicDeletionStatus
from pulsar_sidecar.model.errors import PermanentError
from pulsar_sidecar.model.names import TopicName


class NamespaceAdmin(Protocol):
    """The admin REST calls (Pulsar ``Namespaces``, ``Brokers``)."""

    def namespace_exists(self, namespace: str) -> bool:
        """Whether brokers know the namespace, ``tenant/namespace`` or ``tenant/cluster/namespace``."""

    def forced_deletion_allowed(self) -> bool:
        """The brokers' ``forceDeleteNamespaceAllowed``, which is off by default."""

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
