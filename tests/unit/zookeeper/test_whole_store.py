"""What the watch and the delayed index read whole: nothing is left out, and what may not be read is named."""

import threading

import pytest
from pulsar_sidecar.features.ledger_deletion.watch.ports import WalkedNode
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import ledger_path

from tests.fakes.walkable_zookeeper import WalkableZooKeeper

LEDGERS = [LedgerId(number) for number in (0, 7, 12_345, 10_000_000_000, 2**63 - 1)]
TOPIC = "/managed-ledgers/t/n/persistent/topic"


@pytest.fixture
def server() -> WalkableZooKeeper:
    made = WalkableZooKeeper()
    for ledger_id in LEDGERS:
        made.put(ledger_path(ledger_id), b"metadata of %d" % ledger_id)
    made.put("/ledgers/INSTANCEID", b"id")
    made.put("/ledgers/available/127.0.0.1:3181")
    made.put(TOPIC, b"info")
    made.put("/schemas/t/n/topic", b"schema")
    made.put("/admin/policies/t")
    return made


def ids_of(server: WalkableZooKeeper) -> list[int]:
    return sorted(number for ids in server.whole_store().ledger_ids() for number in ids.tolist())


def nodes_of(server: WalkableZooKeeper) -> list[WalkedNode]:
    return [node for nodes in server.whole_store().nodes() for node in nodes]


def test_every_ledger_is_found_and_nothing_else(server: WalkableZooKeeper) -> None:
    assert ids_of(server) == LEDGERS
    assert dict(server.whole_store().ledgers()) == {each: b"metadata of %d" % each for each in LEDGERS}


def test_a_ledger_that_may_not_be_read_exists(server: WalkableZooKeeper) -> None:
    server.forbidden.add(ledger_path(LEDGERS[2]))
    assert ids_of(server) == LEDGERS
    with pytest.raises(TemporaryError, match="L2345 cannot be read"):
        list(server.whole_store().ledgers())


def test_a_directory_of_ledgers_that_may_not_be_listed_is_an_error(server: WalkableZooKeeper) -> None:
    server.forbidden.add("/ledgers/00/0001")
    for read in (server.whole_store().ledger_ids, server.whole_store().ledgers):
        with pytest.raises(TemporaryError, match="/ledgers/00/0001 cannot be read"):
            list(read())


def test_nodes_that_may_reference_ledgers_come_with_their_data(server: WalkableZooKeeper) -> None:
    found = {node.path: node.data for node in nodes_of(server)}
    assert found.pop(TOPIC) == b"info"
    assert found.pop("/schemas/t/n/topic") == b"schema"
    assert all(path.startswith(("/managed-ledgers/", "/schemas/")) for path in found)
    assert set(found.values()) == {b""}


def test_a_node_that_may_not_be_read_is_named_wherever_it_is(server: WalkableZooKeeper) -> None:
    server.forbidden |= {TOPIC, "/schemas"}
    unreadable = {node.path for node in nodes_of(server) if node.unreadable is not None}
    assert unreadable == {TOPIC, "/schemas"}


def test_what_is_below_topics_is_not_asked_for(server: WalkableZooKeeper) -> None:
    for folder in ("t/n", "t/c/n", "t/c/persistent"):
        server.put(f"/managed-ledgers/{folder}/persistent/a/cursor", b"1")
    asked: set[str] = set()
    server.before = lambda _kind, path: asked.add(path)
    walked = {path for nodes in server.whole_store().topics(threading.Event()) for path, _ in nodes}
    assert {path for path in asked if path.endswith("/cursor")} == set()
    assert {f"/managed-ledgers/{folder}/persistent/a" for folder in ("t/n", "t/c/n", "t/c/persistent")} < walked
    assert not any(path.startswith(("/ledgers", "/schemas")) for path in asked)


@pytest.mark.parametrize("path", ["/managed-ledgers", "/managed-ledgers/t/n/persistent/a", "/admin"])
def test_a_topic_that_may_not_be_read_is_an_error(server: WalkableZooKeeper, path: str) -> None:
    server.put("/managed-ledgers/t/n/persistent/a", b"")
    server.put("/admin/partitioned-topics")
    server.forbidden.add(path)
    with pytest.raises(TemporaryError, match=f"{path} cannot be read"):
        list(server.whole_store().topics(threading.Event()))
