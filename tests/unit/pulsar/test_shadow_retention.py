"""A shadow is loaded for a question only where its retention is known to be infinite."""

import pytest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import endangered_source
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.fakes.admin_answers import FakeAdminRest
from tests.fakes.bookkeeper import managed_ledger_bytes
from tests.fakes.metadata import FakeMetadataStore

SOURCE = "persistent://public/default/orders"
SHADOW = parse_topic_name("persistent://public/default/shadow")
RETENTION = "/admin/v2/persistent/public/default/shadow/retention"
FOREVER = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


def asked(rest: FakeAdminRest, store: FakeMetadataStore, topic: TopicName = SHADOW) -> str | None:
    return endangered_source(rest, store, topic)  # type: ignore[arg-type]


@pytest.fixture
def store() -> FakeMetadataStore:
    store = FakeMetadataStore()
    path = managed_ledger_path(SHADOW.managed_ledger_name)
    store.put(path, managed_ledger_bytes([1], properties={SHADOW_SOURCE: SOURCE}))
    return store


@pytest.mark.parametrize(
    ("answer", "source"),
    [
        (FOREVER, None),
        ({"retentionTimeInMinutes": -1, "retentionSizeInMB": 100}, SOURCE),
        ({"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}, SOURCE),
        (None, SOURCE),
        ("unknown", SOURCE),
    ],
)
def test_only_infinite_retention_makes_a_shadow_harmless(
    store: FakeMetadataStore, answer: object, source: str | None
) -> None:
    rest = FakeAdminRest()
    if answer != "unknown":
        rest.answers[RETENTION] = answer
    assert asked(rest, store) == source


def test_a_partition_of_a_partitioned_shadow_counts_before_it_was_ever_loaded() -> None:
    store = FakeMetadataStore()
    node = b'{"partitions":2,"properties":{"PULSAR.SHADOW_SOURCE":"%s"}}' % SOURCE.encode()
    store.put(partitioned_topic_path(SHADOW), node)
    for topic in (SHADOW, SHADOW.partition(1)):
        assert asked(FakeAdminRest(), store, topic) == SOURCE


def test_brokers_are_not_queried_about_other_topics() -> None:
    store, rest = FakeMetadataStore(), FakeAdminRest()
    store.put(managed_ledger_path(SHADOW.managed_ledger_name), managed_ledger_bytes([1]))
    assert asked(rest, store) is None
    assert rest.asked == []


def test_a_node_that_cannot_be_read_is_not_taken_for_harmless(store: FakeMetadataStore) -> None:
    store.put(managed_ledger_path(SHADOW.managed_ledger_name), b"\x47\x78\x00")
    with pytest.raises(UndecodableError):
        asked(FakeAdminRest(), store)
