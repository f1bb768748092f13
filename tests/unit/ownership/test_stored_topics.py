"""Topics as the metadata store knows them; a walk over many does not end where one of them is deleted meanwhile."""

import pytest
from pulsar_sidecar.model.errors import NotFoundError, UnreachableError
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS
from pulsar_sidecar.ownership.stored_topics import StoredTopics

from tests.fakes.metadata import FakeMetadataStore

NAMESPACES = ("shop/orders", "shop/returns", "shop/global/old", "web/clicks")


@pytest.fixture
def store() -> FakeMetadataStore:
    made = FakeMetadataStore()
    for namespace in NAMESPACES:
        for name in ("a-partition-0", "b"):
            made.put(f"{MANAGED_LEDGERS}/{namespace}/persistent/{name}", b"")
    return made


def listed(store: FakeMetadataStore, scope: str | None = None) -> list[str]:
    topics = StoredTopics(store)
    return [str(place) for place in (topics.all_places() if scope is None else topics.places_below(scope))]


def places(*namespaces: str) -> list[str]:
    return [f"persistent://{namespace}/{name}" for namespace in namespaces for name in ("a-partition-0", "b")]


def test_every_scope(store: FakeMetadataStore) -> None:
    assert sorted(listed(store)) == sorted(places(*NAMESPACES))
    assert sorted(listed(store, "shop")) == sorted(places(*NAMESPACES[:3]))
    assert listed(store, "web/clicks") == places("web/clicks")
    with pytest.raises(NotFoundError, match="no namespace or tenant web/views"):
        listed(store, "web/views")


def test_a_single_partition_is_a_scope_of_its_own(store: FakeMetadataStore) -> None:
    partition = parse_topic_name("persistent://web/clicks/a-partition-0")
    assert StoredTopics(store).places_of(partition) == [partition]


def test_transaction_logs_are_not_topics(store: FakeMetadataStore) -> None:
    mine = ["__transaction_log_x", "my__transaction_pending_ack-sub"]
    logs = ["web/clicks/persistent/b-sub__transaction_pending_ack", "pulsar/system/persistent/__transaction_log_12"]
    for name in (*logs, *(f"web/clicks/persistent/{each}" for each in mine)):
        store.put(f"{MANAGED_LEDGERS}/{name}", b"")
    assert sorted(listed(store)) == sorted(
        [*places(*NAMESPACES), *(f"persistent://web/clicks/{each}" for each in mine)]
    )


@pytest.mark.parametrize("scope", [None, "shop"])
@pytest.mark.parametrize("gone", ["shop/returns", "shop/returns/persistent"])
def test_a_namespace_is_deleted_in_the_walk(store: FakeMetadataStore, scope: str | None, gone: str) -> None:
    path = f"{MANAGED_LEDGERS}/{gone}"
    store.before("children", lambda: store.remove(path), path=path)
    found = listed(store, scope)
    assert set(places("shop/orders", "shop/global/old")) <= set(found)
    assert not set(places("shop/returns")) & set(found)


def test_unreachable_store_is_not_absence(store: FakeMetadataStore) -> None:
    store.fail_next("children", UnreachableError("lost"), path=f"{MANAGED_LEDGERS}/shop/returns")
    with pytest.raises(UnreachableError):
        listed(store)
