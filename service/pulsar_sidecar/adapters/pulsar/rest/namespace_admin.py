"""What the sidecar asks brokers to do with whole namespaces.

Invariant: only a refusal that would come again is one; what a bundle or a topic on the move causes may work later.
"""

from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.broker_configuration import RuntimeConfiguration
from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError, TemporaryError

_V1_PARTS = 3
_MAY_PASS = (409, 412)
_FOR_GOOD = ("Cannot delete non empty namespace", "Cannot delete the global namespace")
"""Brokers use the codes above for these, too (4.0.8 ``NamespacesBase``)."""


class BrokerNamespaceAdmin:
    """`ledger_deletion.topic_deletion.namespace_ports.NamespaceAdmin` (Pulsar ``Namespaces``)."""

    def __init__(self, rest: AdminRest) -> None:
        self._rest = rest

    def namespace_exists(self, namespace: str) -> bool:
        try:
            self._rest.get(_path(namespace))
        except NotFoundError:
            return False
        return True

    def forced_deletion_allowed(self) -> bool:
        return RuntimeConfiguration.of(self._rest).flag("forceDeleteNamespaceAllowed")

    def delete_namespace(self, namespace: str, *, force: bool) -> None:
        try:
            self._rest.change("DELETE", _path(namespace), params={"force": "true" if force else "false"})
        except BrokerRefusedError as error:
            if error.status in _MAY_PASS and not error.reason.startswith(_FOR_GOOD):
                raise TemporaryError(str(error)) from error
            raise


def _path(namespace: str) -> str:
    version = "" if namespace.count("/") == _V1_PARTS - 1 else "/v2"
    return f"/admin{version}/namespaces/{namespace}"
