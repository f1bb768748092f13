"""A broker's report of the trackers that it runs."""

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import VERSION_PATH
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import RUNTIME_CONFIGURATION
from pulsar_sidecar.adapters.pulsar_rest.broker_trackers import RestBrokerTrackers
from pulsar_sidecar.features.delayed_index.settings import BUCKET_TRACKER_FACTORY
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.admin_answers import FakeAdminRest
from tests.fakes.metadata import FakeMetadataStore

TOPIC = parse_topic_name("persistent://public/default/orders")
STATS = "/admin/v2/persistent/public/default/orders/stats"


def trackers(answers: dict[str, object]) -> RestBrokerTrackers:
    rest = FakeAdminRest()
    rest.answers = answers
    return RestBrokerTrackers(rest, FakeMetadataStore())  # type: ignore[arg-type]


def subscription(**more: int) -> dict[str, object]:
    return {"consumers": [], "msgOutCounter": 0, **more}


def test_the_size_of_a_tracker_is_the_brokers() -> None:
    subscriptions = {"a": subscription(msgDelayed=3, delayedMessageIndexSizeInBytes=40), "b": subscription()}
    found = trackers({STATS: {"publishers": [], "subscriptions": subscriptions}}).subscriptions(TOPIC)
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
    answers = {RUNTIME_CONFIGURATION: factory | dict.fromkeys(names, configured), VERSION_PATH: "4.0.8"}
    settings = trackers(answers).configured(None).settings
    assert (settings.max_indexes_per_segment, settings.max_num_buckets) == (indexes, buckets)


@pytest.mark.parametrize(
    ("version", "in_queue"), [("3.3.6", True), ("4.0.8", True), ("4.1.0", False), ("4.2.4", False), ("", False)]
)
def test_the_version_decides_whether_the_in_memory_tracker_is_a_queue(version: str, in_queue: bool) -> None:
    answers: dict[str, object] = {
        RUNTIME_CONFIGURATION: {"delayedDeliveryTrackerFactoryClassName": BUCKET_TRACKER_FACTORY},
        VERSION_PATH: version,
    }
    answers |= {f"http://b:8080{path}": answer for path, answer in answers.items()}
    for asked in (None, "http://b:8080"):
        assert trackers(answers).configured(asked).memory_in_queue is in_queue


def test_statistics_in_another_form_are_asked_for_again() -> None:
    with pytest.raises(TemporaryError, match="statistics of persistent://public/default/orders"):
        trackers({STATS: {}}).subscriptions(TOPIC)
