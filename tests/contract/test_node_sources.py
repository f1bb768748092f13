"""Behaviour of every source of a dump: a walk of a server in memory, a walk of the real one, and a snapshot."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from pulsar_sidecar.adapters.etcd.etcd import EtcdMetadataStore
from pulsar_sidecar.adapters.etcd.etcd_source import EtcdNodes
from pulsar_sidecar.adapters.etcd.etcd_walk import EtcdWalk
from pulsar_sidecar.adapters.zookeeper.snapshots import SnapshotFile
from pulsar_sidecar.adapters.zookeeper.zookeeper_walk import ZooKeeperWalk
from pulsar_sidecar.features.audit.ports import NodeSource
from pulsar_sidecar.features.audit.results.tables import NODES
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import TemporaryError

from tests.contract.metadata_store_servers import PATIENT, chroot, empty_etcd, open_patiently
from tests.fakes.walkable_zookeeper import WalkableZooKeeper
from tests.fakes.zookeeper_snapshots import SnapshotNode, SnapshotWriter

Tree = Mapping[str, bytes]
OpenSource = Callable[[Tree], NodeSource]

TREE: Tree = {
    "/": b"",
    "/empty": b"",
    "/large": bytes(range(256)) * 2000,
    "/ledgers": b"",
    **{f"/ledgers/{number:04d}": b"%d" % number for number in range(700)},
    "/deep": b"0",
    **{"/deep" + "/x" * depth: b"%d" % depth for depth in range(1, 12)},
    "/näme with spaces, 100% and +": "wert ✓".encode(),
}


@pytest.fixture(params=["memory", "snapshot", "zookeeper", "etcd"])
def open_source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenSource]:
    if request.param == "memory":
        yield _in_memory
    elif request.param == "snapshot":
        yield lambda tree: _snapshot(tmp_path / "snapshot.5", tree)
    elif request.param == "etcd":
        yield partial(_in_etcd, request.getfixturevalue("etcd_url"))
    else:
        cluster = request.getfixturevalue("cluster")
        with chroot(cluster.addresses.metadata_store_url) as url:
            yield lambda tree: _living(url, tree)


def _in_memory(tree: Tree) -> NodeSource:
    server = WalkableZooKeeper()
    for path, value in tree.items():
        if path != "/":
            server.put(path, value)
    return server.walk()


def _snapshot(path: Path, tree: Tree) -> NodeSource:
    nodes = [SnapshotNode(name, value) for name, value in tree.items() if name != "/"]
    path.write_bytes(SnapshotWriter(last_zxid=9).snapshot(nodes))
    return SnapshotFile(path)


def _living(url: str, tree: Tree) -> NodeSource:
    with open_patiently(url) as store:
        for path, value in tree.items():
            if path != "/":
                store.create(path, value)
    return ZooKeeperWalk(url, SystemClock())


def _in_etcd(url: str, tree: Tree) -> NodeSource:
    empty_etcd(url)
    with EtcdMetadataStore(url, SystemClock(), PATIENT) as store:
        for path, value in tree.items():
            if path != "/":
                store.create(path, value)
    return EtcdNodes(EtcdWalk(url, SystemClock()))


def test_every_node_once_as_it_is(open_source: OpenSource) -> None:
    rows = [row for batch in open_source(TREE).batches() for row in batch.to_pylist()]
    assert len({row["path"] for row in rows}) == len(rows)
    # etcd has no key for the root.
    assert {"/": b"", **{row["path"]: row["value"] for row in rows}} == TREE
    assert {row["version"] for row in rows} == {0}
    assert {row["unreadable"] for row in rows} == {None}
    assert not any(row["ephemeral"] for row in rows)


def test_each_node_comes_after_its_parent(open_source: OpenSource) -> None:
    seen: set[str] = set()
    for batch in open_source(TREE).batches():
        assert batch.schema.equals(NODES)
        for path in batch.column("path").to_pylist():
            assert path == "/" or (path.rpartition("/")[0] or "/") in {"/", *seen}
            seen.add(path)


def test_the_ending_is_known_at_the_end(open_source: OpenSource) -> None:
    source = open_source({"/": b"", "/a": b"1"})
    with pytest.raises(TemporaryError):
        source.ending()
    newest = max(row["mzxid"] for batch in source.batches() for row in batch.to_pylist())
    ending = source.ending()
    assert ending.zxids.first is not None
    assert ending.zxids.last is not None
    assert ending.zxids.first <= ending.zxids.last
    assert newest <= ending.zxids.last
    assert ending.proof.checks


def test_a_tree_without_nodes_is_its_root(open_source: OpenSource) -> None:
    paths = [row["path"] for batch in open_source({"/": b""}).batches() for row in batch.to_pylist()]
    assert paths in (["/"], [])
