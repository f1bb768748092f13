"""etcd while its server, its revisions or a lease go: missed changes are never ignored."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from pulsar_sidecar.adapters.etcd.etcd import EtcdMetadataStore
from pulsar_sidecar.adapters.etcd.etcd_changes import EtcdChanges
from pulsar_sidecar.adapters.etcd.etcd_walk import EtcdWalk
from pulsar_sidecar.adapters.heard_changes import store_scope
from pulsar_sidecar.adapters.metadata_access import SessionOptions
from pulsar_sidecar.features.ledger_deletion.watch.ports import Changes, ChangesLostError
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import DeletionResult, GuardedDeletion

from tests.cluster.patience import PATIENCE_SECONDS, until
from tests.contract.metadata_store_servers import CLOCK, PATIENT, empty_etcd, lone_etcd

HASTY = SessionOptions(timeout_ms=2_000, call_timeout_seconds=2.0)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with lone_etcd(tmp_path_factory.mktemp("etcd") / "members") as cluster:
        yield cluster


@pytest.fixture
def url(etcd: LocalCluster) -> str:
    url = etcd.addresses().metadata_store_url
    empty_etcd(url)
    return url


def compact(store: EtcdMetadataStore) -> None:
    revision = store.gateway.reading("read", "kv/range", {"key": "Lw=="})["header"]["revision"]
    store.gateway.writing("compact", "kv/compaction", {"revision": revision, "physical": True})


def test_a_watch_goes_on_where_the_server_went_away(etcd: LocalCluster, url: str) -> None:
    with (
        closing(EtcdMetadataStore(url, CLOCK, PATIENT)) as store,
        closing(EtcdChanges(url, CLOCK, store_scope("/ledgers"), HASTY)) as changes,
    ):
        changes.arm()
        store.create("/schemas/before", b"")
        etcd.kill("etcd")
        with pytest.raises(TemporaryError):
            changes.echo_seconds()
        etcd.restart("etcd")
        store.create("/schemas/after", b"")
        until(lambda: changes.echo_seconds() >= 0, "the watch has caught up")
        assert [path for path in changes.take(0).nodes if path != "/schemas"] == ["/schemas/before", "/schemas/after"]


def test_a_watch_whose_revisions_were_compacted_is_lost(etcd: LocalCluster, url: str) -> None:
    with (
        closing(EtcdMetadataStore(url, CLOCK, PATIENT)) as store,
        closing(EtcdChanges(url, CLOCK, store_scope("/ledgers"), PATIENT)) as changes,
    ):
        store.create("/schemas/missed", b"")
        compact(store)
        changes.arm()
        etcd.kill("etcd")
        # As if it had been away since before the compaction.
        changes._armed()._next = 2
        etcd.restart("etcd")
        with pytest.raises(ChangesLostError, match="compacted"):
            changes.take(PATIENCE_SECONDS)
        changes.arm()
        assert changes.take(0) == Changes()
        store.create("/schemas/again", b"")
        assert changes.catch_up() == ("/schemas/again",)


def test_a_walk_whose_revision_is_compacted_ends(url: str) -> None:
    with closing(EtcdMetadataStore(url, CLOCK, PATIENT)) as store:
        for number in range(150):
            store.create(f"/a/{number}", b"")
        pages = EtcdWalk(url, CLOCK).pages()
        next(pages)
        store.create("/b", b"")
        compact(store)
        with pytest.raises(TemporaryError, match="compacted"):
            list(pages)


def test_a_lease_that_expired_begins_another_epoch(url: str) -> None:
    with closing(EtcdMetadataStore(url, CLOCK, HASTY)) as store:
        store.create("/sidecars/one", b"", ephemeral=True)
        epoch = store.epoch
        store.gateway.writing("revoke", "lease/revoke", {"ID": str(store._lease.id())})
        assert store.read("/sidecars/one") is None
        until(lambda: store.epoch == epoch + 1, "the end of the lease is noticed")
        store.create("/sidecars/one", b"", ephemeral=True)


def test_a_lease_lives_as_long_as_its_store(url: str) -> None:
    with closing(EtcdMetadataStore(url, CLOCK, HASTY)) as store:
        store.create("/sidecars/one", b"", ephemeral=True)
        CLOCK.wait_seconds(2 * HASTY.timeout_ms / 1000)
        assert store.epoch == 1
        assert store.read("/sidecars/one") is not None


def test_a_write_keeps_the_lease(url: str) -> None:
    store = EtcdMetadataStore(url, CLOCK, HASTY)
    with closing(EtcdMetadataStore(url, CLOCK, HASTY)) as other:
        store.create("/sidecars/one", b"", ephemeral=True)
        other.write("/sidecars/one", b"2", NodeVersion(0))
        store.close()
        assert other.read("/sidecars/one") is None


def test_without_a_server_nothing_is_absent(etcd: LocalCluster, url: str) -> None:
    with closing(EtcdMetadataStore(url, CLOCK, HASTY)) as store:
        store.create("/a", b"")
        etcd.kill("etcd")
        try:
            for call in (
                lambda: store.read("/a"),
                lambda: store.children("/"),
                lambda: store.delete_many([GuardedDeletion("/a", NodeVersion(0))]),
                lambda: store.create("/b", b""),
            ):
                with pytest.raises(TemporaryError):
                    call()
        finally:
            etcd.restart("etcd")
        assert store.delete_many([GuardedDeletion("/a", NodeVersion(0))]) == [DeletionResult.DELETED]
