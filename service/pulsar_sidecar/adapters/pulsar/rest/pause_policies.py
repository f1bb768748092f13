"""The policy ``dispatcherPauseOnAckStatePersistentEnabled`` of topics and namespaces.

Brokers up to 4.0.8 answer false where nothing is set, and store false where they are told to remove. So what a
namespace says is read from its policies in the metadata store, and that is where it is taken out again. A topic's
policies are events on a topic of the brokers' own; nobody else writes there.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from pulsar_sidecar.ack_state.pausing import Policies, TopicPolicy
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest, topic_path
from pulsar_sidecar.adapters.pulsar.rest.subscription_cursors import BrokerSubscriptions
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName

_ROUTE: Final = "dispatcherPauseOnAckStatePersistent"
_FIELD: Final = "dispatcherPauseOnAckStatePersistentEnabled"
_TRIES: Final = 5


class BrokerPausePolicies:
    """`ack_state.ports.PausePolicies`."""

    def __init__(self, rest: AdminRest, store: MetadataStore, subscriptions: BrokerSubscriptions) -> None:
        self._rest = rest
        self._store = store
        self._subscriptions = subscriptions

    def policies(self, topic: TopicName, broker: str | None) -> Policies:
        return Policies(
            topic=TopicPolicy.TRUE if self._topic_says_true(topic) else TopicPolicy.FALSE_OR_UNSET,
            namespace=self.of_namespace(topic.namespace),
            broker=self._subscriptions.limits(broker).pause_enabled,
        )

    def of_namespace(self, namespace: str) -> bool | None:
        value = _policies(self._node(namespace)).get(_FIELD)
        return value if isinstance(value, bool) else None

    def enable_for_namespace(self, namespace: str) -> None:
        self._rest.change("POST", _namespace_path(namespace))

    def remove_from_namespace(self, namespace: str) -> bool | None:
        # First as anybody would: it needs the role that may, and brokers that remove it leave nothing to be done.
        self._rest.change("DELETE", _namespace_path(namespace))
        for _ in range(_TRIES):
            node = self._node(namespace)
            policies = _policies(node)
            if policies.pop(_FIELD, None) is None:
                return None
            try:
                self._store.write(node.path, json.dumps(policies, separators=(",", ":")).encode(), node.version)
            except ConflictError:
                continue
        return self.of_namespace(namespace)

    def enable_for_topic(self, topic: TopicName) -> None:
        self._rest.change("POST", topic_path(topic, f"/{_ROUTE}"))

    def remove_from_topic(self, topic: TopicName) -> None:
        self._rest.change("DELETE", topic_path(topic, f"/{_ROUTE}"))

    def _topic_says_true(self, topic: TopicName) -> bool:
        path = topic_path(topic.base, f"/{_ROUTE}")
        return any(self._rest.get(path, {"isGlobal": is_global}) is True for is_global in ("false", "true"))

    def _node(self, namespace: str) -> Node:
        node = self._store.read(f"/admin/policies/{namespace}")
        if node is None:
            raise NotFoundError(f"there is no namespace {namespace}")
        return node


def _namespace_path(namespace: str) -> str:
    version = "/v2" if namespace.count("/") == 1 else ""
    return f"/admin{version}/namespaces/{namespace}/{_ROUTE}"


def _policies(node: Node) -> dict[str, Any]:
    try:
        document = json.loads(node.data)
    except ValueError as error:
        raise TemporaryError(f"the policies at {node.path} are no JSON document; try again") from error
    if not isinstance(document, Mapping):
        raise TemporaryError(f"the policies at {node.path} are no JSON object; try again")
    return dict(document)
