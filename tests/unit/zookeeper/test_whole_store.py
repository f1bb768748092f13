"""Whole reads for the watch and the delayed index: nothing is omitted, and unreadable nodes are named."""

import threading

import pytest
from pulsar_sidecar.adapters.zookeeper.multiread import GET_DATA
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
    list(server.whole_store().possible_shadows(threading.Event()))
    assert {path for path in asked if path.endswith("/cursor")} == set()
    assert {f"/managed-ledgers/{folder}/persistent/a" for folder in ("t/n", "t/c/n", "t/c/persistent")} < asked
    assert not any(path.startswith(("/ledgers", "/schemas")) for path in asked)


SHADOW_DATA = b"\n\x15PULSAR.SHADOW_SOURCE"
SHADOWS = {
    "/managed-ledgers/t/n/persistent/shadow": SHADOW_DATA,
    "/managed-ledgers/t/n/persistent/wrapped": b"\x47\x78\x00",
    "/managed-ledgers/t/n/persistent/persistent": SHADOW_DATA,
    "/managed-ledgers/t/n/persistent/0007": b"\x47\x78",
    "/managed-ledgers/t/c/persistent/persistent/shadow": SHADOW_DATA,
    "/admin/partitioned-topics/t/n/persistent/shadow": SHADOW_DATA,
}


@pytest.fixture
def topics(server: WalkableZooKeeper) -> WalkableZooKeeper:
    for namespace in ("t/n", "t/many"):
        for number in range(900):
            # The magic and the property count only where a node has them.
            data = b"" if number % 7 else b"1\x47\x78"
            server.put(f"/managed-ledgers/{namespace}/persistent/{number:04}", data)
            server.put(f"/managed-ledgers/{namespace}/persistent/{number:04}/cursor", SHADOW_DATA)
    for path, data in SHADOWS.items():
        server.put(path, data)
    return server


def possible_shadows(server: WalkableZooKeeper) -> tuple[int, dict[str, bytes]]:
    pieces = list(server.whole_store().possible_shadows(threading.Event()))
    found = [node for _, nodes in pieces for node in nodes]
    assert len(dict(found)) == len(found)
    return sum(count for count, _ in pieces), dict(found)


@pytest.mark.parametrize("lost", [0, 1, 3, 7])
def test_of_many_topics_only_possible_shadows_come(topics: WalkableZooKeeper, lost: int) -> None:
    topics.before = lambda kind, path: setattr(topics, "lost_requests", lost * path.endswith("/0500"))
    count, found = possible_shadows(topics)
    assert found == SHADOWS
    assert count == sum(
        "/cursor" not in path
        for path in topics.nodes
        if path in ("/", "/admin") or path.startswith(("/managed-ledgers", "/admin/partitioned-topics"))
    )


@pytest.mark.parametrize("path", [*SHADOWS, "/managed-ledgers/t/n/persistent/0005"])
def test_a_topic_that_is_called_missing_once_is_read(topics: WalkableZooKeeper, path: str) -> None:
    topics.answered_as_missing[path] = 1
    assert possible_shadows(topics)[1] == SHADOWS
    topics.answered_as_missing[path] = 1_000
    with pytest.raises(TemporaryError, match=f"{path} returned inconsistent results"):
        possible_shadows(topics)


@pytest.mark.parametrize("path", SHADOWS)
def test_a_topic_that_is_deleted_while_others_are_read_is_left_out(topics: WalkableZooKeeper, path: str) -> None:
    def delete(kind: int, asked: str) -> None:
        if kind == GET_DATA and asked == path and path in topics.nodes:
            topics.remove(path)

    topics.before = delete
    assert possible_shadows(topics)[1] == {each: data for each, data in SHADOWS.items() if each != path}


@pytest.mark.parametrize("path", ["/managed-ledgers", "/managed-ledgers/t/n/persistent/a", "/admin"])
def test_a_topic_that_may_not_be_read_is_an_error(server: WalkableZooKeeper, path: str) -> None:
    server.put("/managed-ledgers/t/n/persistent/a", b"")
    server.put("/admin/partitioned-topics")
    server.forbidden.add(path)
    with pytest.raises(TemporaryError, match=f"{path} cannot be read"):
        list(server.whole_store().possible_shadows(threading.Event()))
