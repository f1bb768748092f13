"""Reads of tenants and namespaces, and their validity."""

import json

import pytest
from pulsar_sidecar.adapters.zookeeper.tenant_policies import REMEMBERED_SECONDS, StoredTenantPolicies
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.permissions import NamespacePermissions

from tests.fakes.clock import FakeClock
from tests.fakes.metadata import FakeMetadataStore

# As a broker of 4.0.8 writes them.
TENANT = b'{"adminRoles":["tenant-admin"],"allowedClusters":["standalone"]}'
NAMESPACE = (
    b'{"auth_policies":{"namespace_auth":{"reader":["consume"],"both":["produce","consume","functions"]},'
    b'"destination_auth":{"persistent://t/n/x":{"writer":["produce"]}},"subscription_auth_roles":{}},'
    b'"replication_clusters":["standalone"],"bundles":{"boundaries":["0x00000000","0xffffffff"],"numBundles":1}}'
)


@pytest.fixture
def store() -> FakeMetadataStore:
    store = FakeMetadataStore()
    store.put("/admin/policies/t", TENANT)
    store.put("/admin/policies/t/n", NAMESPACE)
    return store


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def stored(store: FakeMetadataStore, clock: FakeClock) -> StoredTenantPolicies:
    return StoredTenantPolicies(store, clock)


def test_policies_are_read_as_brokers_write_them(stored: StoredTenantPolicies) -> None:
    assert stored.admin_roles("t") == {"tenant-admin"}
    permissions = stored.permissions("t/n")
    on_topic = parse_topic_name("persistent://t/n/x")
    assert permissions.actions("reader", None) == {"consume"}
    assert permissions.actions("both", on_topic) == {"produce", "consume", "functions"}
    assert permissions.actions("writer", on_topic) == {"produce"}
    assert permissions.actions("writer", None) == permissions.actions("other", on_topic) == frozenset()


@pytest.mark.parametrize("data", [b"", b"{}", b'{"adminRoles":null,"auth_policies":null}', b'{"auth_policies":{}}'])
def test_missing_policies_grant_nothing(store: FakeMetadataStore, stored: StoredTenantPolicies, data: bytes) -> None:
    store.put("/admin/policies/t", data)
    store.put("/admin/policies/t/n", data)
    for tenant in ("t", "absent"):
        assert stored.admin_roles(tenant) == frozenset()
        assert stored.permissions(f"{tenant}/n") == NamespacePermissions()


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"adminRoles":"admin","auth_policies":"all"}', b"\xff\xfe"])
def test_undecodable_policies_are_an_error(store: FakeMetadataStore, stored: StoredTenantPolicies, data: bytes) -> None:
    store.put("/admin/policies/t", data)
    store.put("/admin/policies/t/n", data)
    with pytest.raises(UndecodableError, match="policies of t "):
        stored.admin_roles("t")
    with pytest.raises(UndecodableError, match="policies of t/n "):
        stored.permissions("t/n")


def test_a_change_is_seen_within_seconds(
    store: FakeMetadataStore, stored: StoredTenantPolicies, clock: FakeClock
) -> None:
    assert stored.admin_roles("t") == {"tenant-admin"}
    store.put("/admin/policies/t", json.dumps({"adminRoles": []}).encode())
    clock.advance_ms(round(REMEMBERED_SECONDS * 1000) - 1)
    assert stored.admin_roles("t") == {"tenant-admin"}
    clock.advance_ms(2)
    assert stored.admin_roles("t") == frozenset()
    assert len([each for each in store.journal if each.method == "read"]) == 2


def test_a_failed_reading_is_not_remembered(store: FakeMetadataStore, stored: StoredTenantPolicies) -> None:
    store.fail_next("read", TemporaryError("the session is lost"))
    with pytest.raises(TemporaryError):
        stored.admin_roles("t")
    assert stored.admin_roles("t") == {"tenant-admin"}
