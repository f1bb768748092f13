"""The metrics of deduplication for watched topics."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pulsar_sidecar.features.deduplication.metrics import DeduplicationMetrics
from pulsar_sidecar.features.deduplication.policies import DeduplicationPolicy
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.ownership.paths import managed_ledger_path

from tests.fakes.deduplication import TOPIC, DeduplicatedTopics

PREFIX = "pulsar_sidecar_deduplication_"


class Watched:
    def __init__(self) -> None:
        self.topics = DeduplicatedTopics()
        self.topics.brokers.namespaces[DeduplicationPolicy.ENABLED, TOPIC.namespace] = True
        self.metrics = DeduplicationMetrics("east", self.topics.service)

    def seen(self) -> dict[str, float]:
        registry = CollectorRegistry()
        registry.register(self.metrics)
        samples = [
            sample
            for family in text_string_to_metric_families(generate_latest(registry).decode())
            for sample in family.samples
        ]
        assert all(sample.labels == {"cluster": "east", "topic": str(TOPIC)} for sample in samples)
        return {sample.name.removeprefix(PREFIX): sample.value for sample in samples}


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_topic_behind_its_snapshot(watched: Watched) -> None:
    watched.topics.put(mark_delete=(1, 4), sequences={"a": 7, "b": 9})
    watched.topics.cursor("billing", (2, 0))
    watched.metrics.update(TOPIC)
    seen = watched.seen()
    assert seen.pop("load_replay_seconds") > 0
    assert seen == {
        "snapshot_lag_entries": 25,
        "pinned_bytes": 2_000,
        "pinned_alone_bytes": 1_000,
        "producers": 2,
        "max_producers": 10_000,
        "cursor_left_over": 0,
        "unreadable": 0,
    }


def test_a_snapshot_at_the_end_is_not_late(watched: Watched) -> None:
    watched.topics.put(mark_delete=(3, 9))
    watched.metrics.update(TOPIC)
    assert watched.seen()["snapshot_lag_seconds"] == watched.seen()["snapshot_lag_entries"] == 0


def test_a_cursor_without_deduplication_is_left_over(watched: Watched) -> None:
    watched.topics.put(mark_delete=(1, 4))
    watched.topics.brokers.namespaces[DeduplicationPolicy.ENABLED, TOPIC.namespace] = False
    watched.metrics.update(TOPIC)
    assert (watched.seen()["cursor_left_over"], watched.seen()["load_replay_seconds"]) == (1, 0)


def test_without_a_cursor_nothing_is_held(watched: Watched) -> None:
    watched.topics.put()
    watched.metrics.update(TOPIC)
    seen = watched.seen()
    assert (seen["cursor_left_over"], seen["pinned_bytes"], seen["unreadable"]) == (0, 0, 0)
    assert "producers" not in seen


def test_unknown_values_are_absent(watched: Watched) -> None:
    watched.topics.put(mark_delete=(1, 4))
    watched.topics.lengths.unreadable = "ledger 3 cannot be measured"
    watched.metrics.update(TOPIC)
    seen = watched.seen()
    assert seen["unreadable"] == 1
    assert "snapshot_lag_entries" not in seen
    assert "load_replay_seconds" not in seen


def test_after_a_failed_look_nothing_old_is_shown(watched: Watched) -> None:
    watched.topics.put(mark_delete=(1, 4))
    watched.metrics.update(TOPIC)
    assert watched.seen()
    watched.topics.store.fail_next("read_many", TemporaryError("no ZooKeeper"))
    with pytest.raises(TemporaryError):
        watched.metrics.update(TOPIC)
    assert watched.seen() == {"unreadable": 1}, "silence would look like health"
    watched.metrics.update(TOPIC)
    assert watched.seen()["unreadable"] == 0
    watched.topics.store.remove(managed_ledger_path(TOPIC.managed_ledger_name))
    with pytest.raises(NotFoundError):
        watched.metrics.update(TOPIC)
    assert watched.seen() == {}, "a topic that is gone has no state"
