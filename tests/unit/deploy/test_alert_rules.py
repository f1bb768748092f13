"""The alerts are about metrics that a sidecar reports, and lead to pages that exist."""

import re
from collections.abc import Sequence

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from pulsar_sidecar.ack_state.metrics import AckStateMetrics
from pulsar_sidecar.deduplication.metrics import DeduplicationMetrics
from pulsar_sidecar.delayed_delivery.index.metrics import DelayedIndexMetrics, WatchedIndexes
from pulsar_sidecar.ledger_deletion.metrics import DeletionMetrics, GaugeReadings
from pulsar_sidecar.ledger_deletion.watch.evidence import LeakCause
from pulsar_sidecar.ledger_deletion.watch.service import LeakState, WatchState
from pulsar_sidecar.model.names import parse_topic_name
from ruamel.yaml import YAML

from tests.cluster.choosing import PROJECT
from tests.fakes.ack_states import state_of
from tests.fakes.clock import FakeClock
from tests.fakes.deduplication import TOPIC as DEDUPLICATED
from tests.fakes.deduplication import DeduplicatedTopics
from tests.fakes.delayed_index import FakeBucketEntries, IndexedTopic, index_service
from tests.fakes.leaks import watching
from tests.fakes.metadata import FakeMetadataStore

RULES = PROJECT / "deploy" / "prometheus"
_METRIC = re.compile(r"pulsar_\w+")
_LABELS = {"state": {member.value for member in (*LeakState, *WatchState)}, "cause": {each.value for each in LeakCause}}


def ack_states() -> Collector:
    state = state_of(parse_topic_name("persistent://t/n/a"), "s")
    return AckStateMetrics("east", lambda: [state])


def delayed_index() -> Collector:
    store, entries = FakeMetadataStore(), FakeBucketEntries()
    topic = IndexedTopic(store, entries)
    topic.ledgers(7, 8)
    topic.seal("s", 101, 7, 7, [(5_000, 7, 0)])
    topic.cursor("s")
    metrics = DelayedIndexMetrics("east")
    WatchedIndexes(index_service(store, entries), metrics, FakeClock()).look(topic.topic)
    return metrics


def deduplication() -> Collector:
    topics = DeduplicatedTopics()
    metrics = DeduplicationMetrics("east", topics.service)
    topics.put(mark_delete=(3, 9), sequences={"a": 7})
    metrics.look(DEDUPLICATED)
    return metrics


def ledger_watch() -> Collector:
    metrics = DeletionMetrics("east")
    metrics.bind(lambda: GaugeReadings(None, False, None, 0, watch=watching()))
    return metrics


def rules_of(file: str) -> Sequence[dict[str, dict[str, str]]]:
    (group,) = YAML(typ="safe").load(RULES / file)["groups"]
    rules: Sequence[dict[str, dict[str, str]]] = group["rules"]
    return rules


@pytest.mark.parametrize(
    ("file", "reporting", "alerts"),
    [
        ("ack-state.rules.yml", ack_states(), 3),
        ("deduplication.rules.yml", deduplication(), 6),
        ("delayed-index.rules.yml", delayed_index(), 3),
        ("ledger-deletion.rules.yml", ledger_watch(), 1),
        ("ledger-watch.rules.yml", ledger_watch(), 6),
    ],
)
def test_alerts_are_about_metrics_that_a_sidecar_reports(file: str, reporting: Collector, alerts: int) -> None:
    registry = CollectorRegistry()
    registry.register(reporting)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    reported = {sample.name for family in families for sample in family.samples}
    rules = rules_of(file)
    assert len({str(rule["alert"]) for rule in rules}) == len(rules) == alerts
    for rule in rules:
        asked = set(_METRIC.findall(str(rule["expr"])))
        assert asked
        assert asked <= reported
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


@pytest.mark.parametrize("file", [path.name for path in sorted(RULES.glob("*.yml"))])
def test_pages_and_labels_of_alerts_exist(file: str) -> None:
    for rule in rules_of(file):
        for page in re.findall(r"docs/[\w/-]+\.md", rule["annotations"]["description"]):
            assert (PROJECT / page).exists(), page
        for label, values in re.findall(r"(state|cause)=~?\"([^\"]+)\"", str(rule["expr"])):
            assert set(values.split("|")) <= _LABELS[label]
