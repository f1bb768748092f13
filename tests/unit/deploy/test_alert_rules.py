"""Every alert is about metrics that exist, and leads to a page that names it."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from pulsar_sidecar.ack_state.metrics import AckStateMetrics
from pulsar_sidecar.audit.results.report import metrics_registry
from pulsar_sidecar.deduplication.metrics import DeduplicationMetrics
from pulsar_sidecar.delayed_delivery.index.metrics import DelayedIndexMetrics, WatchedIndexes
from pulsar_sidecar.delayed_delivery.metrics import CancellationMetrics
from pulsar_sidecar.ledger_deletion.metrics import DeletionMetrics, GaugeReadings
from pulsar_sidecar.ledger_deletion.outcomes import Decision
from pulsar_sidecar.ledger_deletion.second_phase.decide import OutcomeReason
from pulsar_sidecar.ledger_deletion.service import InflightEstimate
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.observability.metrics import process_registry
from ruamel.yaml import YAML

from tests.cluster.choosing import PROJECT
from tests.fakes.ack_states import state_of
from tests.fakes.clock import FakeClock
from tests.fakes.deduplication import TOPIC as DEDUPLICATED
from tests.fakes.deduplication import DeduplicatedTopics
from tests.fakes.delayed_index import FakeBucketEntries, IndexedTopic, index_service
from tests.fakes.leaks import watching
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.audit.findings import orphan, summary

RUNBOOKS = PROJECT / "docs" / "runbooks"
SITE = "https://pulsar-sidecar.example.org/"
RULES = {
    str(rule["alert"]): rule
    for path in sorted((PROJECT / "deploy" / "prometheus").glob("*.rules.yml"))
    for group in YAML(typ="safe").load(path)["groups"]
    for rule in group["rules"]
}
_METRIC = re.compile(r"\b(?:pulsar|process)_\w+")
_MATCHED = re.compile(r"(\w+)([!=]~?)\"([^\"]+)\"")
_OF_PROMETHEUS = {"job"}
"""Labels that Prometheus adds."""


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


def deletion() -> Collector:
    metrics = DeletionMetrics("east")
    inflight = InflightEstimate(1, 0, 5, 9)
    metrics.bind(
        lambda: GaugeReadings(inflight, False, None, 1, watch=watching(), oldest_topic_deletion_ms=5, dead_letters=1)
    )
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
    texts = [generate_latest(each).decode() for each in (registry, metrics_registry(summary([orphan(1)])))]
    found: dict[str, dict[str, set[str]]] = {}
    for family in (family for text in texts for family in text_string_to_metric_families(text)):
        for sample in family.samples:
            for label, value in sample.labels.items():
                found.setdefault(sample.name, {}).setdefault(label, set()).add(value)
            found.setdefault(sample.name, {})
    return found


def selectors(expression: str) -> Sequence[tuple[str, str]]:
    """Each metric with what is between its braces."""
    return re.findall(r"\b((?:pulsar|process)_\w+)(?:\{([^}]*)\})?", expression)


@pytest.mark.parametrize("alert", RULES)
def test_a_query_names_metrics_and_labels_that_are_reported(alert: str) -> None:
    expression = str(RULES[alert]["expr"])
    assert selectors(expression) or "up{" in expression
    for metric, matchers in selectors(expression):
        assert metric in reported(), metric
        for label, operator, values in _MATCHED.findall(matchers or ""):
            if label not in _OF_PROMETHEUS and "!" not in operator:
                assert set(values.split("|")) <= reported()[metric][label], (metric, label)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_leads_to_a_page_that_names_it(alert: str) -> None:
    annotations: dict[str, Any] = RULES[alert]["annotations"]
    assert annotations["summary"]
    assert annotations["description"]
    page = re.fullmatch(re.escape(SITE) + r"runbooks/([\w-]+)\.html", annotations["runbook_url"])
    assert page is not None, annotations["runbook_url"]
    text = (RUNBOOKS / f"{page[1]}.md").read_text(encoding="utf-8")
    assert f"`{alert}`" in text.partition("\n## ")[0]
    assert page[1] in (RUNBOOKS / "index.md").read_text(encoding="utf-8").splitlines()


def test_pages_name_no_alert_that_does_not_exist() -> None:
    for page in RUNBOOKS.glob("*.md"):
        for alert in re.findall(r"`(Pulsar[A-Z]\w+)`", page.read_text(encoding="utf-8")):
            assert alert in RULES, (page.name, alert)


def test_every_part_of_the_sidecar_has_alerts() -> None:
    queries = " ".join(str(rule["expr"]) for rule in RULES.values())
    for prefix in (
        "pulsar_sidecar_ready",
        "pulsar_ledger_deletion_oldest",
        "pulsar_ledger_deletion_watch",
        "pulsar_delayed_message_cancellations",
        "pulsar_sidecar_audit",
        "pulsar_subscription_ack_state",
        "pulsar_sidecar_delayed_message_index",
        "pulsar_sidecar_deduplication",
    ):
        assert prefix in queries
