"""Brokers' delayed-message trackers and the replication of their ledgers, by the brokers' configuration."""

from collections.abc import Mapping
from dataclasses import replace

from pulsar_sidecar.adapters.bookkeeper.ledger_writer import Replication
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest, demand_brokers, topic_path
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import RuntimeConfiguration, broker_version
from pulsar_sidecar.adapters.pulsar_rest.topic_stats import parse_stats
from pulsar_sidecar.features.delayed_index.settings import BrokerTracker, TrackerSettings
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.pulsar_versions import line_of
from pulsar_sidecar.model.topic_stats import Subscription

_MS_PER_SECOND = 1000
_LAST_LINE_WITH_QUEUE = (4, 0)


class RestBrokerTrackers:
    """`delayed_index.ports.BrokerTrackers` and `RunningTrackers`."""

    def __init__(self, rest: AdminRest, store: MetadataStore) -> None:
        self._rest = rest
        self._store = store

    def trackers(self) -> Mapping[str, BrokerTracker]:
        found = {}
        for broker in demand_brokers(self._store):
            urls = self._rest.reachable(broker.web_service_urls)
            if not urls:
                raise TemporaryError(f"broker {broker.broker_id} has no address that the sidecar may use")
            found[broker.broker_id] = _tracker(RuntimeConfiguration.of(self._rest, urls[0]))
        return found

    def configured(self, broker: str | None) -> BrokerTracker:
        line = line_of(broker_version(self._rest, broker) or "")
        tracker = _tracker(RuntimeConfiguration.of(self._rest, broker))
        return replace(tracker, memory_in_queue=line is not None and line <= _LAST_LINE_WITH_QUEUE)

    def subscriptions(self, topic: TopicName) -> Mapping[str, Subscription]:
        return parse_stats(self._rest.get(topic_path(topic, "/stats")), topic).subscriptions

    def replication(self) -> Replication:
        """Return the replication that brokers give a new bucket (``BookkeeperBucketSnapshotStorage.createLedger``)."""
        configuration = RuntimeConfiguration.of(self._rest)
        return Replication(
            configuration.number("managedLedgerDefaultEnsembleSize"),
            configuration.number("managedLedgerDefaultWriteQuorum"),
            configuration.number("managedLedgerDefaultAckQuorum"),
        )


def _tracker(configuration: RuntimeConfiguration) -> BrokerTracker:
    factory = configuration.text("delayedDeliveryTrackerFactoryClassName")
    if factory is None:
        raise TemporaryError("a broker's configuration lacks delayedDeliveryTrackerFactoryClassName; try again")
    usual = TrackerSettings()
    most_indexes = configuration.number(
        "delayedDeliveryMaxIndexesPerBucketSnapshotSegment", usual.max_indexes_per_segment
    )
    most_buckets = configuration.number("delayedDeliveryMaxNumBuckets", usual.max_num_buckets)
    step = "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds"
    return BrokerTracker(
        factory,
        TrackerSettings(
            tick_time_ms=configuration.number("delayedDeliveryTickTimeMillis", usual.tick_time_ms),
            strict=configuration.flag("isDelayedDeliveryDeliverAtTimeStrict"),
            min_index_count=configuration.number("delayedDeliveryMinIndexCountPerBucket", usual.min_index_count),
            time_step_ms=configuration.number(step, usual.time_step_ms // _MS_PER_SECOND) * _MS_PER_SECOND,
            # A broker takes any number: it ends a segment with at least so many indexes, unless that is -1, and
            # merges only if the number is positive.
            max_indexes_per_segment=most_indexes if most_indexes == -1 else max(1, most_indexes),
            max_num_buckets=most_buckets if most_buckets > 0 else -1,
        ),
    )
