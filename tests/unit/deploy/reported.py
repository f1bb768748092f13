"""Metrics of sidecars and audits: the names of all samples, with the values of their labels, from fakes."""

from collections.abc import Mapping
from functools import cache

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from pulsar_sidecar.features.acknowledgements.metrics import AckStateMetrics
from pulsar_sidecar.features.audit.results.report import metrics_registry
from pulsar_sidecar.features.audit.results.summaries import LeftoverNodes
from pulsar_sidecar.features.deduplication.metrics import DeduplicationMetrics
from pulsar_sidecar.features.delayed_index.metrics import DelayedIndexMetrics, WatchedIndexes
from pulsar_sidecar.features.delayed_messages.metrics import CancellationMetrics
from pulsar_sidecar.features.ledger_deletion.metrics import DeletionMetrics, GaugeReadings
from pulsar_sidecar.features.ledger_deletion.outcomes import Decision
from pulsar_sidecar.features.ledger_deletion.results import InflightEstimate, LimitReadings
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import OutcomeReason
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.observability.metrics import process_registry

from tests.fakes.acknowledging_broker import state_of
from tests.fakes.clock import FakeClock
from tests.fakes.deduplication import TOPIC as DEDUPLICATED
from tests.fakes.deduplication import DeduplicatedTopics
from tests.fakes.delayed_index import FakeBucketEntries, IndexedTopic, index_service
from tests.fakes.leaks import watching
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.audit.findings import orphan, summary


def ack_states() -> Collector:
    state = state_of(parse_topic_name("persistent://t/n/a"))
    return AckStateMetrics("east", lambda: [state])


def delayed_index() -> Collector:
    store, entries = FakeMetadataStore(), FakeBucketEntries()
    topic = IndexedTopic(store, entries)
    topic.ledgers(7, 8)
    topic.seal("s", 101, 7, 7, [(5_000, 7, 0)])
    topic.cursor("s")
    metrics = DelayedIndexMetrics("east")
    WatchedIndexes(index_service(store, entries), metrics, FakeClock()).update(topic.topic)
    return metrics


def deduplication() -> Collector:
    topics = DeduplicatedTopics()
    metrics = DeduplicationMetrics("east", topics.service)
    topics.put(mark_delete=(3, 9), sequences={"a": 7})
    metrics.update(DEDUPLICATED)
    return metrics


def deletion() -> Collector:
    metrics = DeletionMetrics("east")
    inflight = InflightEstimate(1, 0, 5, 9)
    limit = LimitReadings(8, 1, 2)
    readings = GaugeReadings(inflight, False, 5, 1, limit, watching(), oldest_topic_deletion_ms=5, dead_letters=1)
    metrics.bind(lambda: readings)
    for decision in Decision:
        for reason in OutcomeReason:
            metrics.decided(decision.value, reason.value)
    return metrics


def cancelling() -> Collector:
    metrics = CancellationMetrics("east")
    metrics.bind(lambda: 1, lambda: True)
    return metrics


@cache
def reported() -> Mapping[str, Mapping[str, set[str]]]:
    """The values of each label of each sample that sidecars and audits report."""
    registry = process_registry(cluster="east", instance="a", version="1", ready=lambda: True)
    for collector in (ack_states(), delayed_index(), deduplication(), deletion(), cancelling()):
        registry.register(collector)
    audit = summary([orphan(1)], leftover_nodes=LeftoverNodes({"partitioned-topic": 1}))
    texts = [generate_latest(each).decode() for each in (registry, metrics_registry(audit))]
    found: dict[str, dict[str, set[str]]] = {}
    for family in (family for text in texts for family in text_string_to_metric_families(text)):
        for sample in family.samples:
            for label, value in sample.labels.items():
                found.setdefault(sample.name, {}).setdefault(label, set()).add(value)
            found.setdefault(sample.name, {})
    return found
