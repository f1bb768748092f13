"""Brokers' operations on whole namespaces.

Invariant: only a refusal that would come again is permanent; one caused by a moving bundle or topic is temporary.
"""

from collections.abc import Mapping, Sequence

from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest, is_v1, namespace_path, shown_address
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import RuntimeConfiguration, broker_version
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_ports import DeletionSettings, NamespaceClusters
from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError, TemporaryError
from pulsar_sidecar.model.names import java_url_encode
from pulsar_sidecar.model.pulsar_versions import line_of

_MAY_PASS = (409, 412)
_FOR_GOOD = ("Cannot delete non empty namespace", "Cannot delete the global namespace")
"""Permanent refusals for which brokers use the codes above too (4.0.8 ``NamespacesBase``)."""


class BrokerNamespaceAdmin:
    """`ledger_deletion.topic_deletion.namespace_ports.NamespaceAdmin` (Pulsar ``Namespaces``)."""

    def __init__(self, rest: AdminRest, sidecars: Mapping[str, str] = {}) -> None:
        """``sidecars`` are the addresses of other clusters' sidecars by cluster."""
        self._rest, self._sidecars = rest, sidecars

    def sidecar_url(self, cluster: str) -> str | None:
        return self._sidecars.get(cluster)

    def namespace_exists(self, namespace: str) -> bool:
        try:
            self._rest.get(namespace_path(namespace))
        except NotFoundError:
            return False
        return True

    def deletion_settings(self) -> DeletionSettings:
        configuration = RuntimeConfiguration.of(self._rest)
        cluster = configuration.text("clusterName")
        if not cluster:
            raise TemporaryError("a broker's configuration lacks clusterName; try again")
        return DeletionSettings(
            cluster=cluster,
            line=line_of(broker_version(self._rest) or ""),
            forced_deletion_allowed=configuration.flag("forceDeleteNamespaceAllowed"),
            authorization_enabled=configuration.flag("authorizationEnabled"),
        )

    def clusters_of(self, namespace: str) -> NamespaceClusters:
        return NamespaceClusters.read(self._rest.get(namespace_path(namespace)))

    def cluster_url(self, cluster: str) -> str:
        document = self._rest.get(f"/admin/v2/clusters/{java_url_encode(cluster)}")
        found = document if isinstance(document, dict) else {}
        url = found.get("serviceUrl") or found.get("serviceUrlTls")
        return shown_address(str(url)) if url else "an address that its cluster does not name"

    def topics_in(self, namespace: str) -> Sequence[str]:
        listing = "/destinations" if is_v1(namespace) else "/topics"
        # Of topics that are not persistent, a broker lists its own only; the other route queries the owner of each
        # bundle.
        return [
            *self._listed(namespace, namespace_path(namespace, listing), {"mode": "ALL"}),
            *self._listed(namespace, namespace_path(namespace, collection="non-persistent")),
        ]

    def _listed(self, namespace: str, path: str, parameters: Mapping[str, str] | None = None) -> list[str]:
        found = self._rest.get(path, parameters)
        if not isinstance(found, list):
            raise TemporaryError(f"a broker did not list the topics of {namespace}; try again")
        return [str(each) for each in found]

    def delete_namespace(self, namespace: str, *, force: bool) -> None:
        try:
            self._rest.change("DELETE", namespace_path(namespace), params={"force": "true" if force else "false"})
        except BrokerRefusedError as error:
            if error.status in _MAY_PASS and not error.reason.startswith(_FOR_GOOD):
                raise TemporaryError(str(error)) from error
            raise
