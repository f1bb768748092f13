"""Acknowledgement state as brokers report it: cursors in memory, the limits on their stored state, and the pause.

Brokers up to 4.0.8 return false where the policy ``dispatcherPauseOnAckStatePersistentEnabled`` is not set, and store
false where they should remove it. So the sidecar reads and removes a namespace's policy in the metadata store. A
topic's policies are events on a topic of the brokers' own; no other client writes there.
"""

import json
import threading
from typing import Final

from cachetools import TTLCache, cachedmethod

from pulsar_sidecar.adapters.pulsar_rest.admin_rest import (
    AdminRest,
    json_object,
    live_brokers,
    namespace_path,
    topic_path,
)
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import RuntimeConfiguration
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits, PauseSettings
from pulsar_sidecar.features.acknowledgements.results import TopicPolicy
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.entry_sizes import (
    DEFAULT_MAX_MESSAGE_SIZE,
    STOCK_JUTE_MAX_BUFFER,
    max_entry_bytes,
    max_node_bytes,
)
from pulsar_sidecar.model.errors import ConflictError, NotFoundError
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import POLICIES

_LIMITS_SECONDS: Final = 30.0
_MOST_BROKERS: Final = 1_000
_ROUTE: Final = "dispatcherPauseOnAckStatePersistent"
_FIELD: Final = "dispatcherPauseOnAckStatePersistentEnabled"
_TRIES: Final = 5
_BATCH_INDEXES: Final = 10_000
_NODE_RANGES: Final = 1_000
"""Defaults of ``ManagedLedgerConfig`` for brokers without the setting, such as 3.3.6."""


class BrokerAckStates(BrokerTopicAdmin):
    """`acknowledgements.ports.SubscriptionStats` and `PausePolicies`; safe for use by several threads."""

    def __init__(
        self, rest: AdminRest, store: MetadataStore, clock: Clock, jute_max_buffer: int = STOCK_JUTE_MAX_BUFFER
    ) -> None:
        super().__init__(rest)
        self._max_node_bytes = max_node_bytes(jute_max_buffer)
        self._store = store
        self._lock = threading.Lock()
        self._limits: TTLCache[object, AckStateLimits] = TTLCache(
            _MOST_BROKERS, _LIMITS_SECONDS, timer=clock.monotonic_seconds
        )

    @cachedmethod(lambda self: self._limits, lock=lambda self: self._lock)
    def limits(self, broker: str | None) -> AckStateLimits:
        found = [live for live in live_brokers(self._store) if live.broker_id == broker] if broker else []
        urls = self._rest.reachable(found[0].web_service_urls) if found else []
        configuration = RuntimeConfiguration.of(self._rest, urls[0] if urls else None)
        return AckStateLimits(
            max_unacked_ranges=configuration.number("managedLedgerMaxUnackedRangesToPersist"),
            max_batch_deleted_indexes=configuration.number(
                "managedLedgerMaxBatchDeletedIndexToPersist", _BATCH_INDEXES
            ),
            as_long_array=configuration.flag("managedLedgerPersistIndividualAckAsLongArray")
            and configuration.flag("managedLedgerUnackedRangesOpenCacheSetEnabled"),
            pause_enabled=configuration.flag(_FIELD),
            max_entry_bytes=max_entry_bytes(configuration.number("maxMessageSize", DEFAULT_MAX_MESSAGE_SIZE)),
            max_node_bytes=self._max_node_bytes,
            max_node_ranges=_max_node_ranges(configuration),
        )

    # --- the pause -------------------------------------------------------------------------------------------------

    def policies(self, topic: TopicName, broker: str | None) -> PauseSettings:
        path = topic_path(topic.base, f"/{_ROUTE}")
        is_true = any(self._rest.get(path, {"isGlobal": is_global}) is True for is_global in ("false", "true"))
        return PauseSettings(
            topic=TopicPolicy.TRUE if is_true else TopicPolicy.FALSE_OR_UNSET,
            namespace=self.of_namespace(topic.namespace),
            broker=self.limits(broker).pause_enabled,
        )

    def of_namespace(self, namespace: str) -> bool | None:
        value = self._stored(namespace)[1].get(_FIELD)
        return value if isinstance(value, bool) else None

    def enable_for_namespace(self, namespace: str) -> None:
        self._rest.change("POST", namespace_path(namespace, f"/{_ROUTE}"))

    def remove_from_namespace(self, namespace: str) -> bool | None:
        # First as any client would: that checks the role, and newer brokers remove the policy themselves.
        self._rest.change("DELETE", namespace_path(namespace, f"/{_ROUTE}"))
        for _ in range(_TRIES):
            node, policies = self._stored(namespace)
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

    def _stored(self, namespace: str) -> tuple[Node, dict[str, object]]:
        node = self._store.read(f"{POLICIES}/{namespace}")
        if node is None:
            raise NotFoundError(f"there is no namespace {namespace}")
        return node, json_object(node.data, node.path)


def _max_node_ranges(configuration: RuntimeConfiguration) -> int:
    deprecated = configuration.number("managedLedgerMaxUnackedRangesToPersistInZooKeeper", -1)
    current = configuration.number("managedLedgerMaxUnackedRangesToPersistInMetadataStore", _NODE_RANGES)
    return deprecated if deprecated > 0 else current
