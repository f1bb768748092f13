from collections.abc import Callable

import pytest
from pulsar_sidecar.adapters.zookeeper.addressing import ZooKeeperUrl, parse_metadata_store_url
from pulsar_sidecar.features.audit.requests import dump_source
from pulsar_sidecar.model.errors import InvalidInputError


@pytest.mark.parametrize(
    ("url", "servers", "chroot"),
    [
        ("zk:127.0.0.1:2181", ("127.0.0.1:2181",), ""),
        ("zk:a:1,b:2,c:3", ("a:1", "b:2", "c:3"), ""),
        ("zk:a:1, b:2/pulsar/one", ("a:1", "b:2"), "/pulsar/one"),
        ("zk:a", ("a:2181",), ""),
        ("zk:a:2181/", ("a:2181",), ""),
        ("zk:a:2181/pulsar/", ("a:2181",), "/pulsar"),
        ("a:2181", ("a:2181",), ""),
        ("zk://a:1,b:2/pulsar", ("a:1", "b:2"), "/pulsar"),
        ("zookeeper-0.zk_svc:2181,zookeeper-1:2181/p", ("zookeeper-0.zk_svc:2181", "zookeeper-1:2181"), "/p"),
        ("zk:[::1]:2182", ("[::1]:2182",), ""),
        ("zk:[fe80::1]", ("[fe80::1]:2181",), ""),
        (" zk:a:1 ", ("a:1",), ""),
    ],
)
def test_the_forms_that_pulsar_takes(url: str, servers: tuple[str, ...], chroot: str) -> None:
    assert parse_metadata_store_url(url) == ZooKeeperUrl(servers, chroot)


def test_zookeepers_connect_string() -> None:
    assert parse_metadata_store_url("zk:a:1,b/x/y").hosts == "a:1,b:2181/x/y"


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("oxia://a:6648/ns", "Oxia is not supported; .* ZooKeeper"),
        ("rocksdb:///data", "PULSAR_STANDALONE_USE_ZOOKEEPER=1 .* zk:localhost:2181; or .* rocksdb-copy:DIRECTORY"),
        ("memory:local", "PULSAR_STANDALONE_USE_ZOOKEEPER=1 .* zk:localhost:2181"),
    ],
)
@pytest.mark.parametrize("read", [parse_metadata_store_url, dump_source])
def test_a_store_that_cannot_be_read_is_named_with_what_to_do(
    read: Callable[[str], object], url: str, advice: str
) -> None:
    with pytest.raises(InvalidInputError, match=advice):
        read(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "zk:",
        "zk:,a:1",
        "zk:a:1,",
        "zk:a:0",
        "zk:a:65536",
        "zk:a:x",
        "zk:a:1:2",
        "zk:a b:1",
        "zk:a:1//x",
        "zk:a:1/x/../y",
        "zk:zk:a:1",
        "zk://",
        "zk://user:password@a:1",
        "zk://zk://a:1",
        "http://a:1",
        "zk:user:password@a:1",
        "/chroot",
    ],
)
def test_errors_for_malformed_urls_name_what_is_expected(url: str) -> None:
    with pytest.raises(InvalidInputError, match=r"zk:host:port|not a path"):
        parse_metadata_store_url(url)
