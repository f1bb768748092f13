"""PIP-195's metrics: findings of a check, and changes between two checks."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pulsar_sidecar.features.delayed_index.metrics import DelayedIndexMetrics, WatchedIndexes
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path

from tests.fakes.clock import FakeClock
from tests.fakes.delayed_index import TOPIC, IndexesInMemory, index_service

PREFIX = "pulsar_sidecar_delayed_message_index"


class Watched(IndexesInMemory):
    def __init__(self) -> None:
        super().__init__(6, 7, 8, 9)
        self.clock = FakeClock(now_ms=2_500)
        self.topic.seal("s", 100, 6, 6, [(1_000, 6, 0)], [(3_000, 6, 1), (4_000, 6, 2)], [(9_000, 6, 3)])
        self.topic.seal("s", 101, 7, 7, [(5_000, 7, 0)])
        self.topic.cursor("s")
        self.metrics = DelayedIndexMetrics("east")
        self.registry = CollectorRegistry()
        self.registry.register(self.metrics)
        self._watched = WatchedIndexes(index_service(self.store, self.entries), self.metrics, self.clock)

    def update(self, took_ms: int = 0) -> None:
        self.store.before("read_many", lambda: self.clock.advance_ms(took_ms))
        self._watched.update(TOPIC)

    def drop(self, key: str) -> None:
        del self.topic._buckets["s"][f"#pulsar.internal.delayed.bucket_{key}"]

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(
            f"{PREFIX}_{name}", {"cluster": "east", "topic": str(TOPIC), "subscription": "s", **labels}
        )

    def operations(self) -> dict[tuple[str, str], float]:
        families = text_string_to_metric_families(generate_latest(self.registry).decode())
        samples = [sample for family in families for sample in family.samples if sample.name.endswith("op_count")]
        return {(sample.labels["type"], sample.labels["state"]): sample.value for sample in samples if sample.value}


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_the_gauges_are_what_the_last_look_found(watched: Watched) -> None:
    watched.update()
    size = sum(len(payload) for payload in watched.entries.payloads.values())
    found = [watched.value(name) for name in ("bucket_total", "loaded", "bucket_snapshot_size_bytes")]
    # Of the first bucket, the first segment is over: a broker would load the second one, with two indexes.
    assert found == [2, 3, size]
    assert (watched.value("bucket_unreadable"), watched.value("next_load_on_buckets")) == (0, 1)
    watched.store.remove(ledger_path(LedgerId(101)))
    watched.update()
    assert (watched.value("bucket_unreadable"), watched.value("next_load_on_buckets")) == (1, 0)
    assert watched.operations() == {("load", "succeed"): 3, ("load", "failed"): 1, ("load", "all"): 4}


def test_failed_reads_change_no_gauge(watched: Watched) -> None:
    watched.update()
    names = ("bucket_total", "loaded", "bucket_snapshot_size_bytes", "bucket_unreadable", "next_load_on_buckets")
    node = managed_ledger_path(TOPIC.managed_ledger_name) + "/s"
    watched.store.put(node, b"\xff")
    with pytest.raises(TemporaryError, match="cannot be read"):
        watched.update()
    assert {watched.value(name) for name in names} == {None}
    watched.topic.cursor("s")
    watched.update()
    assert [watched.value(name) for name in names][:2] == [2, 3]
    assert watched.operations() == {("load", "succeed"): 4, ("load", "all"): 4}


def test_without_buckets_there_is_nothing_to_recover(watched: Watched) -> None:
    watched.drop("6_6")
    watched.drop("7_7")
    watched.topic.cursor("s")
    watched.update()
    assert (watched.value("bucket_total"), watched.value("next_load_on_buckets")) == (0, None)


def test_changes_by_brokers_between_two_reads_are_counted(watched: Watched) -> None:
    watched.update()
    loads = {("load", "succeed"): 2, ("load", "all"): 2}
    assert watched.operations() == loads
    watched.drop("6_6")
    watched.drop("7_7")
    watched.topic.seal("s", 102, 6, 7, [(9_000, 6, 3)])
    watched.topic.seal("s", 103, 8, 8, [(9_000, 8, 3)])
    watched.topic.cursor("s")
    watched.update()
    done = {("create", 2), ("delete", 2), ("merge", 1), ("load", 4)}
    assert watched.operations() == {(kind, state): count for kind, count in done for state in ("succeed", "all")}


@pytest.mark.parametrize(
    ("took_ms", "quantile"), [(0, "50"), (50, "50"), (51, "100"), (60_000, "60000"), (60_001, "overflow")]
)
def test_latencies_are_in_the_classes_of_the_pip(watched: Watched, took_ms: int, quantile: str) -> None:
    watched.update(took_ms)
    classes = ("50", "100", "500", "1000", "5000", "30000", "60000", "overflow")
    found = {each: watched.value("bucket_op_latency_ms", type="load", quantile=each) for each in classes}
    assert found == {each: float(each == quantile) for each in classes}
    assert watched.value("bucket_op_latency_ms_count", type="load") == 1
    assert watched.value("bucket_op_latency_ms_sum", type="load") == took_ms


def test_a_topic_that_is_gone_disappears(watched: Watched) -> None:
    watched.update()
    watched.store.remove(managed_ledger_path(TOPIC.managed_ledger_name) + "/s")
    watched.store.remove(managed_ledger_path(TOPIC.managed_ledger_name))
    with pytest.raises(NotFoundError):
        watched.update()
    assert watched.value("bucket_total") is None
    assert watched.operations() == {("load", "succeed"): 2, ("load", "all"): 2}
