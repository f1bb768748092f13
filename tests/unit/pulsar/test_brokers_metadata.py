"""Brokers of another cluster are known by their metadata's URLs, whatever names these use."""

import pytest
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import AdminBrokersMetadata
from pulsar_sidecar.model.errors import TemporaryError

from tests.fakes.admin_answers import FakeAdminRest
from tests.fakes.metadata import FakeMetadataStore

BOOKKEEPER = "metadata-store:zk:zk-1:2181/ledgers"


def mismatch(
    advertised: object,
    bookkeeper: object = BOOKKEEPER,
    *,
    own: str = "zk:zk-1:2181,zk-2:2181",
    root: str = "/ledgers",
    brokers: object = (),
    registered: str | None = None,
) -> str | None:
    rest, store = FakeAdminRest(), FakeMetadataStore()
    rest.answers = {
        "/admin/v2/brokers/internal-configuration": {
            "metadataStoreUrl": advertised,
            "bookkeeperMetadataServiceUri": bookkeeper,
            "ledgersRootPath": "/ledgers",
        },
        "/admin/v2/brokers": brokers,
    }
    if registered is not None:
        store.put(f"/loadbalance/brokers/{registered}", b"{}")
    compared = AdminBrokersMetadata(rest, store, own, root)  # type: ignore[arg-type]
    return compared.mismatch()


@pytest.mark.parametrize("advertised", ["zk:zk-1:2181", "zk-2:2181,zk-3:2181", "zk:zk-1,zk-7"])
def test_the_same_store_by_another_name(advertised: str) -> None:
    assert mismatch(advertised) is None


@pytest.mark.parametrize("advertised", ["zk:zk-9:2181", "zk:zk-1:2182", "zk:zk-1:2181/pulsar-b", "zk:no-one"])
def test_another_store(advertised: str) -> None:
    message = mismatch(advertised)
    assert message is not None
    assert advertised in message
    assert "set metadataStoreUrl" in message


def test_brokers_on_a_store_that_cannot_be_read() -> None:
    """The case of a sidecar with ``zk:localhost:2181`` beside a ``pulsar standalone`` of the default."""
    message = mismatch("rocksdb:///pulsar/data/metadata")
    assert message is not None
    assert "PULSAR_STANDALONE_USE_ZOOKEEPER=1" in message


def test_a_store_by_other_names_is_known_by_its_brokers() -> None:
    for advertised in ("zk:inside:2181", "zk:zk-1.svc:2181"):
        assert mismatch(advertised, brokers=["b-1:8080"], registered="b-1:8080") is None
    assert mismatch("zk:inside:2181", brokers=["b-1:8080"], registered="b-2:8080") is not None
    assert mismatch("zk:inside:2181/pulsar-b", brokers=["b-1:8080"], registered="b-1:8080") is not None


@pytest.mark.parametrize(
    "uri",
    [None, "", "metadata-store:zk:zk-1:2181/ledgers", "zk+hierarchical://zk-1:2181/ledgers", "zk://zk-1;zk-2/ledgers/"],
)
def test_the_same_ledgers(uri: object) -> None:
    assert mismatch("zk:zk-1:2181", uri) is None


@pytest.mark.parametrize(
    "uri", ["metadata-store:zk:zk-1:2181/pulsar-a/ledgers", "zk://zk-1/other", "metadata-store:zk:zk-1"]
)
def test_other_ledgers(uri: str) -> None:
    """The case of a second cluster that was initialised with ``--existing-bk-metadata-service-uri``."""
    message = mismatch("zk:zk-1:2181", uri)
    assert message is not None
    assert uri in message


def test_without_a_uri_the_root_path_counts() -> None:
    assert mismatch("zk:zk-1:2181/a", None, own="zk:zk-1:2181/a") is None
    message = mismatch("zk:zk-1:2181", None, root="/other/ledgers")
    assert message is not None
    assert "/other/ledgers" in message


def test_a_chroot_is_part_of_both() -> None:
    bookkeeper = "metadata-store:zk:zk-1:2181/a/ledgers"
    assert mismatch("zk:zk-1:2181/a", bookkeeper, own="zk:zk-1:2181/a") is None
    assert mismatch("zk:zk-1:2181/a", "metadata-store:zk:zk-1:2181/ledgers", own="zk:zk-1:2181/a") is not None


def test_response_without_url_is_an_error() -> None:
    with pytest.raises(TemporaryError, match="internal-configuration"):
        mismatch(None)
