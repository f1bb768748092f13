"""Delayed indexes that real brokers write, as the sidecar shows them; what was sent is known from the producer."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import requests
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import MAX_LEDGER_ID
from pulsar_sidecar.model.names import encode_cursor, java_url_encode, parse_topic_name
from pulsar_sidecar.ownership.exact_decoding import decode_exactly, unwrap
from pulsar_sidecar.ownership.paths import cursor_path
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

from tests.cluster.buckets import SMALL_BUCKETS
from tests.cluster.cancelling import Setup, set_up
from tests.cluster.choosing import line_under_test
from tests.cluster.delays import SHARED, DelayedTopic, Sent, now_ms
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.topics import unique


@pytest.fixture(scope="module")
def setup(special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with (
        special_cluster(broker_conf=SMALL_BUCKETS) as cluster,
        set_up(cluster, tmp_path_factory.mktemp("sidecars")) as opened,
    ):
        yield opened


def shown(setup: Setup, topic: DelayedTopic, subscription: str, **parameters: str) -> dict[str, Any]:
    path = f"{topic.path}/subscription/{java_url_encode(subscription)}/delayedIndex"
    (index,) = setup.sidecar.call("GET", path, **parameters)
    return index


def calendar_of(setup: Setup, topic: DelayedTopic, **parameters: str) -> dict[str, Any]:
    return setup.sidecar.call("GET", f"{topic.path}/delayedCalendar", **parameters)


def covered(bucket: dict[str, Any], sent: list[Sent]) -> list[Sent]:
    return [one for one in sent if bucket["startLedgerId"] <= one.ledger_id <= bucket["endLedgerId"]]


def by_its_size(tracker: str) -> str:
    """Return the tracker's kind, unknown from 4.1 on, where bitmaps may take as much memory as queues."""
    return tracker if line_under_test() <= (4, 0) else "unknown"


def test_show_prints_the_brokers_buckets(setup: Setup) -> None:
    with setup.topic() as topic:
        topic.subscribe("s/1", SHARED)
        due = now_ms() + 3_600_000
        with topic.consuming("s/1", SHARED):
            sent = topic.send(350, [due + number * 1_000 for number in range(350)])
            until(lambda: shown(setup, topic, "s/1")["indexes"] >= 300, "the full ledgers' buckets are there")
            index = shown(setup, topic, "s/1")
            loaded = shown(setup, topic, "s/1", askBroker="true")
        assert (index["configured"]["tracker"], index["nextLoad"]["tracker"]) == ("buckets", "buckets")
        assert loaded["running"]["tracker"] == by_its_size("buckets"), loaded["running"]
        assert index["problem"] is None
        for bucket in index["buckets"]:
            part = covered(bucket, sent)
            assert (bucket["indexes"], bucket["left"], bucket["done"]) == (len(part), len(part), 0)
            assert (bucket["firstDueMs"], bucket["lastDueMs"]) == (part[0].deliver_at, part[-1].deliver_at)
            assert (bucket["state"], bucket["problem"]) == ("CLOSED", None)
            assert all(segment["indexes"] <= 20 for segment in bucket["segments"])
            assert [segment["entry"] for segment in bucket["segments"]] == list(range(1, len(bucket["segments"]) + 1))

        cancelled = sent[10:40]
        topic.cancel_all(setup.sidecar, cancelled)
        topic.unload()
        after = shown(setup, topic, "s/1")
        assert (after["left"], after["done"]) == (after["indexes"] - 30, 30)
        first = after["buckets"][0]
        assert first["done"] == sum(one in cancelled for one in covered(first, sent))

        calendar = calendar_of(setup, topic)
        assert (calendar["delayed"], calendar["due"], calendar["unreadable"], calendar["unread"]) == (320, 0, 0, 0)
        assert calendar["fromBuckets"] == after["left"]
        assert 0 < calendar["resolutionMs"] < 20 * 1_000
        exact = calendar_of(setup, topic, exact="true", stepSeconds="1")
        waiting = Counter(one.deliver_at // 1_000 * 1_000 for one in sent if one not in cancelled)
        assert {time["fromMs"]: time["messages"] for time in exact["times"]} == waiting
        assert exact["resolutionMs"] == 0


def test_a_subscription_that_fell_back_to_memory_is_distinguished_from_one_on_buckets(setup: Setup) -> None:
    names = ("whole", "lost")
    with setup.topic() as topic, ExitStack() as stack:
        for name in names:
            topic.subscribe(name, SHARED)
        with topic.consuming("whole", SHARED), topic.consuming("lost", SHARED):
            topic.send(350, now_ms() + 3_600_000)
            until(
                lambda: all(shown(setup, topic, name)["indexes"] >= 300 for name in names),
                "the full ledgers' buckets are there",
            )
            assert shown(setup, topic, "lost")["running"]["tracker"] == "unknown", "nobody asked"
        topic.unload()
        store = stack.enter_context(ZooKeeperMetadataStore(setup.cluster.addresses.metadata_store_url, SystemClock()))
        path = cursor_path(topic.topic.managed_ledger_name, encode_cursor("lost"))
        node = store.read(path)
        assert node is not None
        info = decode_exactly(ml.ManagedCursorInfo, unwrap(node.data))
        info.cursorProperties[0].value = str(MAX_LEDGER_ID)
        store.write(path, info.SerializeToString(), node.version)
        assert [shown(setup, topic, name)["nextLoad"]["tracker"] for name in names] == ["buckets", "in-memory"]
        with topic.consuming("whole", SHARED), topic.consuming("lost", SHARED):
            until(
                lambda: (
                    [shown(setup, topic, name, askBroker="true")["running"]["tracker"] for name in names]
                    == [by_its_size("buckets"), by_its_size("in-memory")]
                ),
                "one runs on buckets and the other one in memory",
            )


def test_overdue_forecast_and_simulation_match_the_broker(setup: Setup) -> None:
    with setup.topic() as topic:
        for name in ("served", "idle"):
            topic.subscribe(name, SHARED)
        index = f"{topic.path}/delayedIndex"
        soon = now_ms() + 500
        with topic.consuming("served", SHARED) as deliveries:
            topic.send(5, soon)
            sent = topic.send(350, now_ms() + 3_600_000)
            until(lambda: shown(setup, topic, "served")["indexes"] >= 295, "three full ledgers are in buckets")
            until(lambda: len(deliveries.numbers) == 5, "those that were due are delivered")
            until(lambda: now_ms() > soon + 1_000, "a second is over")
            late = setup.sidecar.call("GET", f"{index}/overdue", lateMs="1000")
        counts = {
            one["subscription"]: (one["messages"], [why["reason"] for why in one["reasons"]])
            for one in late["subscriptions"]
        }
        assert counts == {"served": (0, []), "idle": (5, ["no consumer"])}

        topic.unload()
        forecast = setup.sidecar.call("GET", f"{index}/forecast")
        (place,) = forecast["worst"]
        costs = {one["subscription"]: one for one in place["subscriptions"]}
        assert forecast["bucketsConfigured"]
        assert costs["served"]["indexed"] >= 295
        assert costs["served"]["withBuckets"]["entries"] < costs["served"]["withoutBuckets"]["entries"] == 350
        assert (costs["idle"]["waiting"], costs["idle"]["indexed"]) == (355, 0)
        assert place["asConfigured"] == place["withBuckets"]

        (found,) = setup.sidecar.call("GET", f"{index}/simulate", subscription="served", minIndexCount="150")
        assert (found["delayed"], found["others"], found["complete"]) == (len(sent), 0, True)
        # The real index and today's simulation have the same messages and the same settings.
        real = shown(setup, topic, "served")
        assert found["today"]["settings"]["minIndexCount"] == 50
        assert found["today"]["buckets"] >= len(real["buckets"])
        assert 0 < found["simulated"]["buckets"] < found["today"]["buckets"]


def test_a_selection_finds_messages_inside_and_outside_buckets(setup: Setup) -> None:
    with setup.topic() as topic:
        topic.subscribe("s", SHARED)
        early = now_ms() + 3_600_000
        late = early + 3_600_000
        with topic.consuming("s", SHARED):
            sent = topic.send(350, [late if number % 7 == 0 else early for number in range(350)])
            until(lambda: shown(setup, topic, "s")["indexes"] >= 300, "three full ledgers are in buckets")
            path = f"{topic.path}/delayedMessages"
            preview = setup.sidecar.call("POST", f"{path}/preview", {"dueFrom": late})
            wanted = {(one.ledger_id, one.entry_id) for one in sent if one.deliver_at == late}
            assert (preview["count"], preview["unreadable"]) == (len(wanted), 0)
            body = {**preview["selection"], "hash": preview["hash"]}
            answer = setup.sidecar.request("POST", f"{path}/cancel", body)
            lines = [json.loads(line) for line in answer.text.splitlines()]
        assert all(line["cancelled"] for line in lines), lines[:3]
        assert {tuple(map(int, line["cancellationId"].split(":"))) for line in lines} == wanted
        assert topic.backlogs() == {"s": 350 - len(wanted)}


def test_a_partition_that_was_deleted_does_not_block_the_others(setup: Setup) -> None:
    parted = parse_topic_name(f"persistent://public/default/parted-{unique()}")
    path = f"/admin/v2/persistent/{parted.namespace}/{parted.local_name}"
    broker = setup.cluster.addresses.web_service_urls[0]
    requests.put(f"{broker}{path}/partitions", json=2, timeout=30).raise_for_status()
    requests.delete(f"{broker}{path}-partition-0?force=true", timeout=30).raise_for_status()
    with closing(DelayedTopic(setup.cluster.addresses, parted.partition(1))) as topic:
        topic.subscribe("s", SHARED)
        due = now_ms() + 3_600_000
        topic.send(5, due)
        preview = setup.sidecar.call("POST", f"{path}/delayedMessages/preview", {"dueFrom": due})
        assert (preview["count"], {one["topic"] for one in preview["sample"]}) == (5, {str(topic.topic)})
        report = setup.sidecar.call("GET", f"{path}/delayedIndex/overdue")
        assert {one["topic"] for one in report["subscriptions"]} == {str(topic.topic)}
        assert setup.sidecar.call("GET", f"{path}/delayedCalendar")["delayed"] == 5


def test_the_in_memory_tracker_has_a_calendar_and_no_buckets(setup: Setup) -> None:
    """Only as far as observable: too few messages for a bucket are in a broker's memory only, with either tracker."""
    with setup.topic() as topic:
        topic.subscribe("s", SHARED)
        due = now_ms() + 3_600_000
        with topic.consuming("s", SHARED):
            sent = topic.send(30, [due + number * 60_000 for number in range(30)])
            until(lambda: calendar_of(setup, topic)["delayed"] == 30, "all are counted")
            found = calendar_of(setup, topic)
            assert (found["fromBuckets"], found["resolutionMs"], found["undelayed"]) == (0, 0, 0)
            (counts,) = found["subscriptions"]
            assert (counts["firstDueMs"], counts["lastDueMs"]) == tuple(
                one.deliver_at // 1_000 * 1_000 for one in (sent[0], sent[-1])
            )
            assert shown(setup, topic, "s")["buckets"] == []


def test_a_watched_topic_is_in_the_metrics(setup: Setup) -> None:
    with setup.topic() as topic:
        topic.subscribe("s", SHARED)
        with topic.consuming("s", SHARED):
            topic.send(150, now_ms() + 3_600_000)
            until(lambda: shown(setup, topic, "s")["buckets"], "a bucket is there")
        watching = setup.sidecars.start(
            delayed_index_watched_topics=str(topic.topic), delayed_index_watch_interval_in_seconds=1
        )
        prefix = "pulsar_sidecar_delayed_message_index"
        until(lambda: f"{prefix}_bucket_total" in watching.metrics(), "the topic was looked at")
        metrics = watching.metrics()
        assert metrics[f"{prefix}_bucket_total"] == 1
        assert metrics[f"{prefix}_bucket_snapshot_size_bytes"] == shown(setup, topic, "s")["sizeBytes"]
        assert metrics[f"{prefix}_next_load_on_buckets"] == 1
