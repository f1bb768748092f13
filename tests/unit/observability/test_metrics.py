import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from pulsar_sidecar.ledger_deletion.second_phase.adaptive_limit import LimitReadings
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.observability.metrics import AckStateGauges, AckStateReading, DeletionMetrics, GaugeReadings

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
    return DeletionMetrics(CollectorRegistry(), cluster="east", instance="host-8750", version="1")


def samples(metrics: DeletionMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(metrics: DeletionMetrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((name, frozenset({"cluster": "east", **labels}.items())))


def test_every_metric_of_the_pip_is_there_from_the_start(metrics: DeletionMetrics) -> None:
    assert {name for name, _ in samples(metrics)} >= PIP_186


def test_ledgers_and_offload_ledgers_are_counted_apart(metrics: DeletionMetrics) -> None:
    metrics.deleted(LedgerType.LEDGER, LedgerComponent.MANAGED_LEDGER, 3, 700)
    metrics.deleted(LedgerType.OFFLOAD_LEDGER, LedgerComponent.MANAGED_LEDGER, 2)

    name = "pulsar_ledger_deletion_deleted_total"
    assert value(metrics, name, ledger_type="ledger", component="managed_ledger") == 3
    assert value(metrics, name, ledger_type="offload_ledger", component="managed_ledger") == 2
    bytes_name = "pulsar_ledger_deletion_deleted_bytes_total"
    assert value(metrics, bytes_name, ledger_type="ledger", component="managed_ledger") == 700


def test_each_method_moves_its_own_counter(metrics: DeletionMetrics) -> None:
    before = samples(metrics)
    metrics.sent(LedgerType.LEDGER, LedgerComponent.SCHEMA_STORAGE, 2)
    metrics.received(5)
    metrics.delete_failed(LedgerType.LEDGER, LedgerComponent.MANAGED_CURSOR)
    metrics.acknowledged(4)
    metrics.max_retry_reached()
    metrics.decided("keep", "in use", 6)
    metrics.batch_seconds(0.2)

    changed = {
        name: after - before.get((name, labels), 0)
        for (name, labels), after in samples(metrics).items()
        if after != before.get((name, labels), 0) and not name.endswith("_bucket")
    }
    assert changed == {
        "pulsar_ledger_deletion_sent_total": 2,
        "pulsar_ledger_deletion_received_total": 5,
        "pulsar_ledger_deletion_delete_failed_total": 1,
        "pulsar_ledger_deletion_acknowledged_total": 4,
        "pulsar_ledger_deletion_max_retry_reached_total": 1,
        "pulsar_ledger_deletion_decisions_total": 6,
        "pulsar_ledger_deletion_batch_seconds_count": 1,
        "pulsar_ledger_deletion_batch_seconds_sum": pytest.approx(0.2),
    }


def test_every_sample_names_its_cluster_and_no_creation_time_is_reported(metrics: DeletionMetrics) -> None:
    for name, labels in samples(metrics):
        assert dict(labels)["cluster"] == "east"
        assert not name.endswith("_created")


def test_gauges_are_read_at_the_scrape_and_unknown_ones_are_absent(metrics: DeletionMetrics) -> None:
    readings = [
        GaugeReadings(7, None, None, False, None, 1),
        GaugeReadings(8, 1.5, 99, True, 20.0, 0, LimitReadings(25.0, 1.5, None)),
    ]
    metrics.bind(lambda: readings[0])
    assert value(metrics, "pulsar_ledger_deletion_inflight") == 7
    assert value(metrics, "pulsar_ledger_deletion_paused") == 0
    assert value(metrics, "pulsar_ledger_deletion_oldest_pending_age_seconds") is None
    assert value(metrics, "pulsar_ledger_deletion_rate_limit_per_second") is None
    assert value(metrics, "pulsar_ledger_deletion_in_flight_limit") is None

    readings.reverse()
    assert value(metrics, "pulsar_ledger_deletion_inflight") == 8
    assert value(metrics, "pulsar_ledger_deletion_oldest_pending_age_seconds") == 1.5
    assert value(metrics, "pulsar_ledger_deletion_waiting_bytes") == 99
    assert value(metrics, "pulsar_ledger_deletion_paused") == 1
    assert value(metrics, "pulsar_ledger_deletion_rate_limit_per_second") == 20
    assert value(metrics, "pulsar_ledger_deletion_topic_deletions_running") == 0
    assert value(metrics, "pulsar_ledger_deletion_in_flight_limit") == 25
    assert value(metrics, "pulsar_ledger_deletion_metadata_store_idle_p99_seconds") == 0.0015
    assert value(metrics, "pulsar_ledger_deletion_metadata_store_working_p99_seconds") is None


def test_a_scrape_survives_a_source_that_cannot_answer(metrics: DeletionMetrics) -> None:
    def unreachable() -> GaugeReadings:
        raise TemporaryError("no broker answers")

    metrics.bind(unreachable)
    assert value(metrics, "pulsar_ledger_deletion_inflight") is None
    assert value(metrics, "pulsar_ledger_deletion_received_total") == 0


def test_subscriptions_that_are_watched_have_their_gauges_and_what_cannot_be_told_has_none() -> None:
    registry = CollectorRegistry()
    readings = [
        AckStateReading("persistent://t/n/a", "s", True, 12_000, 10_000, 1_999),
        AckStateReading("persistent://t/n/b", "s", None, 3, 10_000, 0),
    ]
    registry.register(AckStateGauges("east", lambda: readings))
    metrics = DeletionMetrics(registry, cluster="east", instance="host-8750", version="1")
    first = {"topic": "persistent://t/n/a", "subscription": "s"}
    second = {"topic": "persistent://t/n/b", "subscription": "s"}
    assert value(metrics, "pulsar_subscription_blocked_on_ack_state_persistent", **first) == 1
    assert value(metrics, "pulsar_subscription_blocked_on_ack_state_persistent", **second) is None
    assert value(metrics, "pulsar_subscription_ack_state_ranges", **first) == 12_000
    assert value(metrics, "pulsar_subscription_ack_state_max_ranges", **second) == 10_000
    assert value(metrics, "pulsar_subscription_ack_state_unstored_entries", **first) == 1_999
    readings.clear()
    assert value(metrics, "pulsar_subscription_ack_state_ranges", **first) is None, "nobody asks any more"
