"""Refusals of a namespace's deletion, in the brokers' order and words, before anything is deleted.

Source: ``NamespacesBase.precheckWhenDeleteNamespace`` of 4.0.8 and 4.2.4. Without these checks a broker, called last,
would refuse a namespace whose topics are gone by then. docs/pip-186.md compares brokers' preconditions with these.
"""

from dataclasses import dataclass

from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_contents import NamespaceContents
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_ports import (
    DeletionSettings,
    NamespaceAdmin,
    NamespaceClusters,
)
from pulsar_sidecar.model.errors import ForeignRedirectError, NotFoundError, RefusedBeforehandError
from pulsar_sidecar.model.metadata import MetadataStore

POLICIES_READ_ONLY = "/admin/flags/policies-readonly"
"""Node during whose existence brokers change no policies (``NamespaceResources.getPoliciesReadOnlyAsync``)."""
_EVERY_CLUSTER = "global"
_V2_ONLY = (4, 2)
"""First line whose brokers no longer know names with a cluster (V1)."""


@dataclass(frozen=True, slots=True)
class NamespaceRefusals:
    """Checker of a broker's preconditions."""

    store: MetadataStore
    admin: NamespaceAdmin

    def check(self, namespace: str, *, force: bool) -> None:
        """Raise unless a broker would begin to delete the namespace.

        Raises:
            RefusedBeforehandError, NotFoundError, NotAuthorizedError: brokers would refuse.
            ForeignRedirectError: brokers would redirect to another cluster.
        """
        settings = self.admin.deletion_settings()
        if self.store.read(POLICIES_READ_ONLY) is not None:
            raise RefusedBeforehandError(403, "Broker is forbidden to do read-write operations")
        if force and not settings.forced_deletion_allowed:
            raise RefusedBeforehandError(
                405,
                "Broker doesn't allow forced deletion of namespaces: set forceDeleteNamespaceAllowed=true in the "
                "brokers' configuration, or delete the namespace's topics first",
            )
        self._refuse_other_clusters(namespace, settings)
        if not force and self._has_topics(namespace):
            raise RefusedBeforehandError(409, "Cannot delete non empty namespace")

    def _refuse_other_clusters(self, namespace: str, settings: DeletionSettings) -> None:
        _, *named, _ = namespace.split("/")
        of_one_cluster = named not in ([], [_EVERY_CLUSTER])
        if of_one_cluster and settings.authorization_enabled and named != [settings.cluster]:
            raise self._redirect(namespace, named[0])
        try:
            clusters = self.admin.clusters_of(namespace)
        except NotFoundError as error:
            raise NotFoundError(f"Namespace {namespace} does not exist.") from error
        if of_one_cluster or (named and clusters == NamespaceClusters()):
            return
        if len(clusters.replication) != 1 or len(clusters.allowed) > 1:
            raise RefusedBeforehandError(412, _still_shared(namespace, settings))
        (only,) = clusters.replication
        if only != settings.cluster:
            raise self._redirect(namespace, only)

    def _redirect(self, namespace: str, cluster: str) -> ForeignRedirectError:
        try:
            url = self.admin.cluster_url(cluster)
        except NotFoundError as error:
            raise RefusedBeforehandError(404, f"Cluster {cluster} does not exist") from error
        return ForeignRedirectError(
            f"brokers redirect the deletion of {namespace} to {url}, because {cluster} is its only cluster; nothing "
            "was deleted here: send the request to a sidecar of that cluster",
            self.admin.sidecar_url(cluster),
        )

    def _has_topics(self, namespace: str) -> bool:
        return not NamespaceContents(self.store, namespace).is_empty() or bool(self.admin.topics_in(namespace))


def _still_shared(namespace: str, settings: DeletionSettings) -> str:
    or_none = " or replication clusters is empty" if settings.line is not None and settings.line >= _V2_ONLY else ""
    return (
        f"Cannot delete the global namespace {namespace}. There are still more than one replication clusters "
        f"configured{or_none}."
    )
