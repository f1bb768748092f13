"""A scan of a real metadata store: whole, or an error."""

from collections.abc import Iterator, Mapping

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl
from pulsar_sidecar.adapters.zookeeper.whole_store import LiveTree, ZooKeeperWholeStore
from pulsar_sidecar.features.audit.reference_scan import ReferenceScan, demand_complete, scan_references
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.ownership.compaction import CompactedLedgers
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, ledger_path

from tests.cluster.running import ClusterUnderTest
from tests.contract.metadata_store_servers import chroot, open_patiently, raw_client
from tests.fakes.bookkeeper import (
    FakeLedgerEntries,
    cursor_bytes,
    ledger_metadata_bytes,
    managed_ledger_bytes,
    position_entry,
    schema_locator_bytes,
)

TOPIC = "/managed-ledgers/t/n/persistent/orders"
SCHEMA = "/schemas/t/n/orders"
NODES: Mapping[str, bytes] = {
    "/admin/policies/t/n": b"{}",
    "/ledgers/available/127.0.0.1:3181": b"",
    SCHEMA: schema_locator_bytes([4]),
    TOPIC: managed_ledger_bytes([1, 2]),
    f"{TOPIC}/sub": cursor_bytes(3),
    f"{TOPIC}/__compaction": cursor_bytes(5),
}
EXISTING = (1, 3, 4, 5, 6, 7)


@pytest.fixture
def url(cluster: ClusterUnderTest) -> Iterator[str]:
    with chroot(cluster.addresses.metadata_store_url) as url:
        yield url


def fill(url: str) -> None:
    with open_patiently(url) as store:
        for path, data in NODES.items():
            store.create(path, data)
        for ledger_id in EXISTING:
            store.create(ledger_path(LedgerId(ledger_id)), ledger_metadata_bytes(LedgerState.OPEN))


def scan(url: str) -> ReferenceScan:
    entries = FakeLedgerEntries()
    entries.put(5, position_entry(6))
    with open_patiently(url) as store:
        tree = LiveTree(ZooKeeperWholeStore(url, SystemClock(), DEFAULT_LEDGERS_ROOT))
        return scan_references(tree, CompactedLedgers(store, entries, DEFAULT_LEDGERS_ROOT))


def test_every_ledger_and_every_reference_is_counted(url: str) -> None:
    fill(url)
    found = scan(url)
    assert found.ledgers == set(EXISTING)
    assert found.references == {
        1: (TOPIC,),
        2: (TOPIC,),
        3: (f"{TOPIC}/sub",),
        4: (SCHEMA,),
        5: (f"{TOPIC}/__compaction",),
        6: (f"{TOPIC}/__compaction",),
    }
    assert (found.orphans, found.dangling) == ({7}, {2})


def test_no_ledger_at_all_is_no_scan(url: str) -> None:
    with open_patiently(url) as store:
        store.create(f"{DEFAULT_LEDGERS_ROOT}/available", b"")
    with pytest.raises(TemporaryError, match="no ledger was found"):
        demand_complete(scan(url))


@pytest.mark.parametrize("path", [TOPIC, SCHEMA, "/ledgers/00"])
def test_what_may_not_be_read_is_an_error(url: str, path: str) -> None:
    fill(url)
    with raw_client(url) as owner:
        owner.set_acls(path, [make_digest_acl("somebody", "else", all=True)])
        try:
            with pytest.raises(TemporaryError, match=f"{path}.*credential"):
                scan(url)
        finally:
            owner.add_auth("digest", "somebody:else")
            owner.set_acls(path, OPEN_ACL_UNSAFE)
