"""Brokers killed in trims and in offloads, with and without a sidecar that watches what they leave in tiered storage.

What was left is what the bucket has and no list names: without a sidecar some, with one nothing in the end.
"""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
import requests
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.cluster.background import in_parallel
from tests.cluster.offload_leaks import OffloadingTopics, offloading_to, watching
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.sidecars import BASE, Sidecars
from tests.cluster.topics import unique
from tests.contract.offload_storages import Refusals, S3Storage, s3_server
from tests.faults.harness import line_of
from tests.faults.load import pause

ENTRIES_PER_LEDGER = 5
LEDGERS = 3
TOPICS = 3
SUBSCRIPTION = "reader"
KILLED_AFTER_SECONDS = (0.0, 1.5)
IN_THE_END_SECONDS = 120


@pytest.fixture(scope="module")
def offloading(special_cluster: ClusterFactory) -> Iterator[OffloadingTopics]:
    refusals = Refusals()
    with s3_server(refusals) as endpoint:
        bucket = S3Storage(endpoint)
        with offloading_to(bucket, special_cluster, ENTRIES_PER_LEDGER, brokers=2) as cluster:
            yield OffloadingTopics(cluster, bucket, refusals, ("broker-1", "broker-2"))


@pytest.mark.usefixtures("full_run")
def test_brokers_killed_in_trims_and_offloads(
    request: pytest.FixtureRequest, offloading: OffloadingTopics, rng: random.Random, tmp_path: Path
) -> None:
    tally = line_of(request)
    unseen = filled(offloading)
    kill_in_the_middle(offloading, unseen, rng)
    left = offloading.unnamed(unseen)
    assert left, "without a sidecar brokers that were killed left nothing"
    tally.fault("left in tiered storage without a sidecar: objects", len(left))
    seen = filled(offloading)
    with closing(Sidecars(offloading.cluster.addresses, tmp_path)) as sidecars:
        sidecar = sidecars.start(**watching(offloading.bucket, "append"))
        until(lambda: sidecar.call("GET", f"{BASE}/watch")["state"] == "watching", "the sidecar watches")
        kill_in_the_middle(offloading, seen, rng)
        tally.fault("brokers killed in trims and offloads", len(offloading.brokers))
        sidecar.call("POST", f"{BASE}/watch/resume")
        until(
            lambda: offloading.unnamed([*unseen, *seen]) <= left,
            f"nothing stays that the sidecar has seen\n{sidecar.log()}",
            IN_THE_END_SECONDS,
        )
        appended = sidecar.call("GET", f"{BASE}/watch")["appended"]
        assert appended, "brokers that were killed left nothing beside the sidecar"
        tally.fault("left in tiered storage beside a sidecar, and handed on: copies", appended)
    for topic in [*unseen, *seen]:
        requests.delete(f"{url_of(offloading, topic)}", params={"force": "true"}, timeout=60).raise_for_status()
    for key in offloading.bucket.object_names():
        offloading.bucket.remove(key)


def url_of(offloading: OffloadingTopics, topic: TopicName) -> str:
    return (
        f"{offloading.cluster.addresses.web_service_urls[0]}/admin/v2/persistent/{topic.namespace}/{topic.local_name}"
    )


def filled(offloading: OffloadingTopics) -> Sequence[TopicName]:
    """Create topics with offloaded ledgers to be trimmed, and as many with ledgers to be offloaded."""
    topics = [parse_topic_name(f"persistent://public/default/killed-{unique()}") for _ in range(2 * TOPICS)]
    entries = LEDGERS * ENTRIES_PER_LEDGER + 1
    in_parallel(lambda topic: offloading.fill(topic, entries, SUBSCRIPTION), topics, len(topics))
    for topic in topics[:TOPICS]:
        offloading.offload(topic)
    for topic in topics[:TOPICS]:
        until(partial(is_offloaded, offloading, topic), f"{topic} is offloaded")
    return topics


def is_offloaded(offloading: OffloadingTopics, topic: TopicName) -> bool:
    return offloading.offload_state(topic) == "SUCCESS"


def kill_in_the_middle(offloading: OffloadingTopics, topics: Sequence[TopicName], rng: random.Random) -> None:
    """Kill the brokers in offloads, and again in trims and in the offloads that come after the failed ones."""
    trimmed, failing = topics[:TOPICS], topics[TOPICS:]
    offloading.refusals.indexes = offloading.refusals.deletions = True
    for topic in failing:
        offloading.offload(topic)
    pause(rng.uniform(*KILLED_AFTER_SECONDS))
    offloading.kill_brokers()
    offloading.refusals.deletions = True
    calls = [
        *(partial(trim, offloading, topic) for topic in trimmed),
        *(partial(offloading.offload, each) for each in failing),
    ]
    with ThreadPoolExecutor(len(calls)) as pool:
        for call in calls:
            pool.submit(quietly, call)
        until(lambda: any(not offloading.contexts(each) for each in trimmed), "a list is trimmed")
        pause(rng.uniform(*KILLED_AFTER_SECONDS))
        offloading.kill_brokers()
    for topic in failing:
        offloading.offload(topic)
        until(partial(is_offloaded, offloading, topic), f"{topic} is offloaded in the end")


def trim(offloading: OffloadingTopics, topic: TopicName) -> None:
    url = url_of(offloading, topic)
    requests.post(f"{url}/subscription/{SUBSCRIPTION}/skip_all", timeout=30).raise_for_status()
    while offloading.contexts(topic):
        requests.post(f"{url}/trim", timeout=30).raise_for_status()
        pause(0.2)


def quietly(call: partial[None]) -> None:
    """The broker may die in it."""
    with suppress(requests.RequestException):
        call()
