"""What a broker reports of the trackers that it runs."""

import json

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.broker_trackers import RestBrokerTrackers
from pulsar_sidecar.features.delayed_index.settings import BUCKET_TRACKER_FACTORY
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.http_servers import Answer, Arrived, http_server
from tests.fakes.metadata import FakeMetadataStore

TOPIC = parse_topic_name("persistent://public/default/orders")


def subscription(**more: int) -> dict[str, object]:
    return {"consumers": [], "msgOutCounter": 0, **more}


def test_the_size_of_a_tracker_is_the_brokers() -> None:
    subscriptions = {"a": subscription(msgDelayed=3, delayedMessageIndexSizeInBytes=40), "b": subscription()}
    body = json.dumps({"publishers": [], "subscriptions": subscriptions}).encode()
    with http_server(lambda arrived: Answer(200, body)) as broker:
        trackers = RestBrokerTrackers(AdminRest([broker.url]), FakeMetadataStore())
        found = trackers.subscriptions(TOPIC)
    assert {name: (each.delayed_messages, each.delayed_index_bytes) for name, each in found.items()} == {
        "a": (3, 40),
        "b": (0, 0),
    }


@pytest.mark.parametrize(
    ("configured", "indexes", "buckets"), [("0", 1, -1), ("-1", -1, -1), ("-2", 1, -1), ("7", 7, 7)]
)
def test_numbers_that_a_broker_takes_are_read_as_it_reads_them(configured: str, indexes: int, buckets: int) -> None:
    names = ("delayedDeliveryMaxIndexesPerBucketSnapshotSegment", "delayedDeliveryMaxNumBuckets")
    factory = {"delayedDeliveryTrackerFactoryClassName": BUCKET_TRACKER_FACTORY}
    body = json.dumps(factory | dict.fromkeys(names, configured)).encode()
    with http_server(lambda arrived: Answer(200, body)) as broker:
        trackers = RestBrokerTrackers(AdminRest([broker.url]), FakeMetadataStore())
        settings = trackers.configured(None).settings
    assert (settings.max_indexes_per_segment, settings.max_num_buckets) == (indexes, buckets)


@pytest.mark.parametrize(
    ("version", "in_queue"), [("3.3.6", True), ("4.0.8", True), ("4.1.0", False), ("4.2.4", False), ("", False)]
)
def test_the_version_decides_whether_the_in_memory_tracker_is_a_queue(version: str, in_queue: bool) -> None:
    configuration = json.dumps({"delayedDeliveryTrackerFactoryClassName": BUCKET_TRACKER_FACTORY}).encode()

    def answer(arrived: Arrived) -> Answer:
        return Answer(200, version.encode() if arrived.target.endswith("/brokers/version") else configuration)

    with http_server(answer) as broker:
        trackers = RestBrokerTrackers(AdminRest([broker.url]), FakeMetadataStore())
        for asked in (None, broker.url):
            assert trackers.configured(asked).memory_in_queue is in_queue


def test_statistics_in_another_form_are_asked_for_again() -> None:
    with http_server(lambda arrived: Answer(200, b"{}")) as broker:
        trackers = RestBrokerTrackers(AdminRest([broker.url]), FakeMetadataStore())
        with pytest.raises(TemporaryError, match="statistics of persistent://public/default/orders"):
            trackers.subscriptions(TOPIC)
