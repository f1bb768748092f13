"""Subscriptions and cursors in brokers' memory, and the settings by which brokers write cursors down."""

import threading
from typing import Final

from pulsar_sidecar.ack_state.limits import AckStateLimits
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.known_brokers import live_brokers
from pulsar_sidecar.adapters.pulsar.rest.runtime_configuration import RuntimeConfiguration
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.rest.topic_stats import parse_internal_stats, parse_stats
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import TopicInternalStats, TopicStats

_REMEMBERED_SECONDS: Final = 30.0


class BrokerSubscriptions:
    """`ack_state.ports.Subscriptions`; safe for use by several threads."""

    def __init__(self, rest: AdminRest, store: MetadataStore, clock: Clock) -> None:
        self._rest = rest
        self._store = store
        self._clock = clock
        self._admin = BrokerTopicAdmin(rest)
        self._limits: dict[str | None, tuple[float, AckStateLimits]] = {}
        self._lock = threading.Lock()

    def partitions(self, topic: TopicName) -> int | None:
        return self._admin.partitions(topic)

    def stats(self, topic: TopicName) -> TopicStats:
        return parse_stats(self._admin.stats(topic, {"excludePublishers": "true"}), topic)

    def internal_stats(self, topic: TopicName) -> TopicInternalStats:
        return parse_internal_stats(self._admin.internal_stats(topic), topic)

    def limits(self, broker: str | None) -> AckStateLimits:
        now = self._clock.monotonic_seconds()
        with self._lock:
            read, limits = self._limits.get(broker, (float("-inf"), AckStateLimits()))
        if now - read > _REMEMBERED_SECONDS:
            limits = _limits(self._configuration(broker))
            with self._lock:
                self._limits[broker] = (now, limits)
        return limits

    def _configuration(self, broker: str | None) -> RuntimeConfiguration:
        found = [live for live in live_brokers(self._store) if live.broker_id == broker] if broker else []
        urls = self._rest.reachable(found[0].web_service_urls) if found else []
        return RuntimeConfiguration.of(self._rest, urls[0] if urls else None)


def _limits(configuration: RuntimeConfiguration) -> AckStateLimits:
    return AckStateLimits(
        max_unacked_ranges=configuration.number("managedLedgerMaxUnackedRangesToPersist"),
        max_batch_deleted_indexes=configuration.number("managedLedgerMaxBatchDeletedIndexToPersist"),
        as_long_array=configuration.flag("managedLedgerPersistIndividualAckAsLongArray")
        and configuration.flag("managedLedgerUnackedRangesOpenCacheSetEnabled"),
        pause_enabled=configuration.flag("dispatcherPauseOnAckStatePersistentEnabled"),
    )
