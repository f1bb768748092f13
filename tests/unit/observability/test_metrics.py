import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pulsar_sidecar.features.acknowledgements.metrics import AckStateMetrics
from pulsar_sidecar.features.delayed_messages.metrics import CancellationMetrics
from pulsar_sidecar.features.ledger_deletion.metrics import DeletionMetrics, GaugeReadings
from pulsar_sidecar.features.ledger_deletion.results import InflightEstimate, LimitReadings
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.observability.metrics import process_registry

from tests.fakes.acknowledging_broker import state_of
from tests.fakes.leaks import standby, watching

PIP_186 = {
    "pulsar_ledger_deletion_sent_total",
    "pulsar_ledger_deletion_received_total",
    "pulsar_ledger_deletion_deleted_total",
    "pulsar_ledger_deletion_delete_failed_total",
    "pulsar_ledger_deletion_acknowledged_total",
    "pulsar_ledger_deletion_max_retry_reached_total",
}


@pytest.fixture
def metrics() -> DeletionMetrics:
    return DeletionMetrics("east")


@pytest.fixture
def registry(metrics: DeletionMetrics) -> CollectorRegistry:
    found = process_registry(cluster="east", instance="host-8750", version="1", ready=lambda: True)
    found.register(metrics)
    return found


def samples(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.startswith("process_")
    }


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return samples(registry).get((name, frozenset({"cluster": "east", **labels}.items())))


def test_every_metric_of_the_pip_is_there_from_the_start(registry: CollectorRegistry) -> None:
    assert {name for name, _ in samples(registry)} >= PIP_186


def test_ledgers_and_offload_ledgers_are_counted_apart(metrics: DeletionMetrics, registry: CollectorRegistry) -> None:
    for length_bytes in (300, 400):
        metrics.deleted(LedgerType.LEDGER, LedgerComponent.MANAGED_LEDGER, length_bytes=length_bytes)
    metrics.deleted(LedgerType.OFFLOAD_LEDGER, LedgerComponent.MANAGED_LEDGER, length_bytes=0)

    name = "pulsar_ledger_deletion_deleted_total"
    assert value(registry, name, ledger_type="ledger", component="managed_ledger") == 2
    assert value(registry, name, ledger_type="offload_ledger", component="managed_ledger") == 1
    bytes_name = "pulsar_ledger_deletion_deleted_bytes_total"
    assert value(registry, bytes_name, ledger_type="ledger", component="managed_ledger") == 700


def test_readiness_is_asked_at_the_scrape() -> None:
    answers = [True, False]
    found = process_registry(cluster="east", instance="a", version="1", ready=lambda: answers.pop(0))
    assert [value(found, "pulsar_sidecar_ready"), value(found, "pulsar_sidecar_ready")] == [1, 0]


def test_cancellations_are_counted_from_the_first_one_on_and_only_those_who_may_lead_show_it() -> None:
    registry = CollectorRegistry()
    metrics = CancellationMetrics("east")
    registry.register(metrics)
    prefix = "pulsar_delayed_message_cancellations"
    metrics.bind(lambda: 3, None)
    assert value(registry, f"{prefix}_seconds_count", proof="unknown") == 0
    assert value(registry, f"{prefix}_refused_total", cause="acknowledgement_state_full") == 0
    assert value(registry, f"{prefix}_reconcile_failed_total") == 0
    assert value(registry, f"{prefix}_open") == 3
    assert value(registry, f"{prefix}_leading") is None

    metrics.bind(lambda: 3, lambda: False)
    metrics.reconcile_failed()
    assert value(registry, f"{prefix}_leading") == 0
    assert value(registry, f"{prefix}_reconcile_failed_total") == 1


def test_each_method_moves_its_own_counter(metrics: DeletionMetrics, registry: CollectorRegistry) -> None:
    before = samples(registry)
    metrics.sent(LedgerType.LEDGER, LedgerComponent.SCHEMA_STORAGE)
    metrics.received.inc(5)
    metrics.delete_failed(LedgerType.LEDGER, LedgerComponent.MANAGED_CURSOR)
    metrics.acknowledged.inc(4)
    metrics.max_retry_reached.inc()
    metrics.decided("keep", "in use", 6)
    metrics.batch_seconds.observe(0.2)

    changed = {
        name: after - before.get((name, labels), 0)
        for (name, labels), after in samples(registry).items()
        if after != before.get((name, labels), 0) and not name.endswith("_bucket")
    }
    assert changed == {
        "pulsar_ledger_deletion_sent_total": 1,
        "pulsar_ledger_deletion_received_total": 5,
        "pulsar_ledger_deletion_delete_failed_total": 1,
        "pulsar_ledger_deletion_acknowledged_total": 4,
        "pulsar_ledger_deletion_max_retry_reached_total": 1,
        "pulsar_ledger_deletion_decisions_total": 6,
        "pulsar_ledger_deletion_batch_seconds_count": 1,
        "pulsar_ledger_deletion_batch_seconds_sum": pytest.approx(0.2),
    }


def test_every_sample_names_its_cluster_and_no_creation_time_is_reported(registry: CollectorRegistry) -> None:
    for name, labels in samples(registry):
        assert dict(labels)["cluster"] == "east"
        assert not name.endswith("_created")


def test_gauges_are_read_at_the_scrape_and_unknown_ones_are_absent(
    metrics: DeletionMetrics, registry: CollectorRegistry
) -> None:
    readings = [
        GaugeReadings(InflightEstimate(7, 0, None, 0), False, None, 1),
        GaugeReadings(InflightEstimate(8, 0, 1_500, 99), True, 20.0, 0, LimitReadings(25.0, 1.5, None), dead_letters=6),
        GaugeReadings(
            None,
            False,
            None,
            3,
            stuck_topic_deletions=2,
            oldest_topic_deletion_ms=90_000,
            running_namespace_deletions=1,
        ),
    ]
    metrics.bind(lambda: readings.pop(0))
    for shown in (
        {
            "inflight": 7,
            "paused": 0,
            "oldest_pending_age_seconds": None,
            "rate_limit_per_second": None,
            "in_flight_limit": None,
            "waiting_bytes": 0,
        },
        {
            "inflight": 8,
            "oldest_pending_age_seconds": 1.5,
            "waiting_bytes": 99,
            "paused": 1,
            "rate_limit_per_second": 20,
            "topic_deletions_running": 0,
            "topic_deletions_oldest_age_seconds": None,
            "dead_letters": 6,
            "in_flight_limit": 25,
            "metadata_store_idle_p99_seconds": 0.0015,
            "metadata_store_working_p99_seconds": None,
        },
        {
            **dict.fromkeys(("inflight", "oldest_pending_age_seconds", "waiting_bytes", "dead_letters")),
            "topic_deletions_running": 3,
            "namespace_deletions_running": 1,
            "topic_deletions_stuck": 2,
            "topic_deletions_oldest_age_seconds": 90,
        },
    ):
        scraped = samples(registry)
        east = frozenset({"cluster": "east"}.items())
        assert {name: scraped.get((f"pulsar_ledger_deletion_{name}", east)) for name in shown} == shown


def test_the_watch_is_reported_by_the_sidecar_that_watches(
    metrics: DeletionMetrics, registry: CollectorRegistry
) -> None:
    readings = [standby(), watching(), watching(braked="too many")]
    metrics.bind(lambda: GaugeReadings(None, False, None, 0, watch=readings[0]))
    watch = "pulsar_ledger_deletion_watch"
    known = ("braked", "lag_seconds", "walk_seconds", "walk_timestamp_seconds", "ledgers", "references")
    more = ("unlinked_ledgers", "unreadable_nodes", "vanished_references", "brake_limit", "appended_total")
    assert value(registry, f"{watch}_state", state="standby") == 1
    assert value(registry, f"{watch}_state", state="watching") == 0
    assert [name for name in (*known, *more) if value(registry, f"{watch}_{name}") is not None] == []
    assert value(registry, f"{watch}_leaks_total", cause="trim") is None

    del readings[0]
    assert value(registry, f"{watch}_state", state="standby") == 0
    assert value(registry, f"{watch}_state", state="watching") == 1
    assert [value(registry, f"{watch}_{name}") for name in known] == [0, 0.1, 2.5, 1_700_000_000, 10, 9]
    assert [value(registry, f"{watch}_{name}") for name in more] == [2, 1, 3, 50, 4]
    assert value(registry, f"{watch}_leaks_total", cause="trim") == 2
    assert value(registry, f"{watch}_leaks_total", cause="schema") == 0
    assert value(registry, f"{watch}_candidates", state="leaked") == 3
    assert value(registry, f"{watch}_candidates", state="settling") == 0
    assert value(registry, f"{watch}_candidates", state="deleted") is None

    del readings[0]
    assert value(registry, f"{watch}_braked") == 1


def test_a_scrape_survives_a_source_that_cannot_answer(metrics: DeletionMetrics, registry: CollectorRegistry) -> None:
    def unreachable() -> GaugeReadings:
        raise TemporaryError("no broker answers")

    metrics.bind(unreachable)
    assert value(registry, "pulsar_ledger_deletion_inflight") is None
    assert value(registry, "pulsar_ledger_deletion_received_total") == 0


def test_subscriptions_that_are_watched_have_their_gauges_and_what_is_unknown_has_none() -> None:
    registry = CollectorRegistry()
    states = [
        state_of(parse_topic_name("persistent://t/n/a")),
        state_of(parse_topic_name("persistent://t/n/b"), is_told=False),
    ]
    registry.register(AckStateMetrics("east", lambda: states))
    first = {"topic": "persistent://t/n/a", "subscription": "s"}
    second = {"topic": "persistent://t/n/b", "subscription": "s"}
    assert value(registry, "pulsar_subscription_blocked_on_ack_state_persistent", **first) == 1
    assert value(registry, "pulsar_subscription_blocked_on_ack_state_persistent", **second) is None
    assert value(registry, "pulsar_subscription_ack_state_ranges", **first) == 30
    assert value(registry, "pulsar_subscription_ack_state_max_ranges", **second) == 20
    assert value(registry, "pulsar_subscription_ack_state_unstored_entries", **first) == 9
    states.clear()
    assert value(registry, "pulsar_subscription_ack_state_ranges", **first) is None, "nobody asks now"
