"""Walking a tree that lies, changes, falls behind or breaks off: the whole tree, or an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.metadata_access import WalkOptions
from pulsar_sidecar.adapters.zookeeper.multiread import GET_CHILDREN, GET_DATA
from pulsar_sidecar.adapters.zookeeper.zookeeper_walk import ZooKeeperWalk
from pulsar_sidecar.model.errors import TemporaryError

from tests.fakes.clock import FakeClock
from tests.fakes.walkable_zookeeper import WalkableZooKeeper

LEDGERS = [f"/ledgers/00/{directory:04d}/L{number:04d}" for directory in range(3) for number in range(130)]


def rows_of(walk: ZooKeeperWalk) -> list[dict[str, object]]:
    return [row for batch in walk.batches() for row in batch.to_pylist()]


def paths_of(walk: ZooKeeperWalk) -> list[str]:
    return [str(row["path"]) for row in rows_of(walk)]


@pytest.fixture
def server() -> WalkableZooKeeper:
    made = WalkableZooKeeper()
    for number, path in enumerate(LEDGERS):
        made.put(path, b"metadata %d" % number, version=number, czxid=number + 1, mzxid=number + 2)
    made.put("/managed-ledgers/t/n/persistent/topic", b"info")
    made.put("/managed-ledgers/t/n/persistent/topic/cursor", b"cursor")
    return made


def test_every_node_once_each_after_its_parent(server: WalkableZooKeeper) -> None:
    walk = server.walk()
    paths = paths_of(walk)
    assert sorted(paths) == sorted(server.nodes)
    for place, path in enumerate(paths):
        assert path == "/" or (path.rpartition("/")[0] or "/") in paths[:place]
    assert (walk.first_zxid, walk.last_zxid) == (100, 100)
    assert walk.checks["listsMatchingTheirCount"] == len({path.rpartition("/")[0] for path in paths})


def test_a_row_is_what_the_store_returned(server: WalkableZooKeeper) -> None:
    server.put("/e", b"", version=3, czxid=2**40, mzxid=2**41, ctime=1, mtime=2**42, owner=0x1_0000_0001)
    server.put("/container", owner=-(2**63))
    server.put("/ttl", owner=-(2**56) + 5)
    rows = {row["path"]: row for row in rows_of(server.walk())}
    assert rows["/e"] == {
        "path": "/e", "value": b"", "version": 3, "ctime_ms": 1, "mtime_ms": 2**42, "czxid": 2**40, "mzxid": 2**41,
        "ephemeral": True, "unreadable": None,
    }  # fmt: skip
    assert not rows["/container"]["ephemeral"]
    assert not rows["/ttl"]["ephemeral"]
    assert rows[LEDGERS[7]]["value"] == b"metadata 7"


PATHS = st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=5).map(lambda names: "/" + "/".join(names))


@given(st.dictionaries(PATHS, st.binary(max_size=40), max_size=25))
def test_any_tree(tree: dict[str, bytes]) -> None:
    server = WalkableZooKeeper()
    for path in sorted(tree):
        server.put(path, tree[path])
    assert {row["path"]: row["value"] for row in rows_of(server.walk())} == {
        path: node.value for path, node in server.nodes.items()
    }


def test_skipped_subtrees_and_unread_values(server: WalkableZooKeeper) -> None:
    walk = server.walk(
        is_skipped=lambda path: path == "/managed-ledgers", is_unread=lambda path: path.rpartition("/")[2][0] == "L"
    )
    rows = {row["path"]: row for row in rows_of(walk)}
    assert set(LEDGERS) <= set(rows)
    assert rows[LEDGERS[0]]["value"] is None
    assert not any(str(path).startswith("/managed-ledgers") for path in rows)


# --- lies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parent", ["/", "/ledgers", "/ledgers/00", "/ledgers/00/0001"])
def test_an_empty_or_short_list_of_children_fails(server: WalkableZooKeeper, parent: str) -> None:
    server.hidden_children[parent] = {server.children(parent)[0]}
    with pytest.raises(TemporaryError, match="returned inconsistent results"):
        rows_of(server.walk())
    server.hidden_children[parent] = set(server.children(parent))
    with pytest.raises(TemporaryError, match="returned inconsistent results"):
        rows_of(server.walk())


@pytest.mark.parametrize(
    "missing", ["/ledgers/00", "/ledgers/00/0001", LEDGERS[200], "/managed-ledgers/t/n/persistent"]
)
def test_a_node_that_is_listed_and_then_called_missing_fails(server: WalkableZooKeeper, missing: str) -> None:
    server.answered_as_missing[missing] = 10**6
    with pytest.raises(TemporaryError, match="lists it, and ZooKeeper has no such node"):
        rows_of(server.walk())


@pytest.mark.parametrize("missing", ["/ledgers/00", "/ledgers/00/0001", LEDGERS[200]])
def test_a_lie_that_ends_costs_nothing(server: WalkableZooKeeper, missing: str) -> None:
    server.answered_as_missing[missing] = 2
    walk = server.walk()
    assert set(paths_of(walk)) == set(server.nodes)
    assert walk.checks["branchesListedAgain"] >= 1


def test_a_missing_root_fails() -> None:
    with pytest.raises(TemporaryError, match="there is no /nowhere"):
        rows_of(WalkableZooKeeper().walk(root="/nowhere"))


def test_a_server_that_goes_back_fails(server: WalkableZooKeeper) -> None:
    def fall_behind(kind: int, path: str) -> None:
        if path == LEDGERS[250]:
            server.zxid = 99

    server.before = fall_behind
    with pytest.raises(TemporaryError, match="went back from zxid 0x64 to 0x63"):
        rows_of(server.walk())


def test_unexpected_error_code_fails_the_walk(server: WalkableZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fakes.walkable_zookeeper.NO_AUTH", -8)
    server.forbidden = {LEDGERS[5]}
    with pytest.raises(TemporaryError, match="code -8"):
        rows_of(server.walk())


def test_a_node_that_may_not_be_read_is_an_unreadable_row(server: WalkableZooKeeper) -> None:
    server.forbidden = {"/managed-ledgers/t", LEDGERS[0]}
    rows = {row["path"]: row for row in rows_of(server.walk())}
    for path in server.forbidden:
        assert "NoAuth" in str(rows[path]["unreadable"])
        assert rows[path]["value"] is None
    assert "/managed-ledgers/t/n" not in rows
    assert set(LEDGERS) <= set(rows)


def test_any_number_of_refusals_does_not_hold_up_the_rest(server: WalkableZooKeeper) -> None:
    """A scan that never gives back what a refused request had taken stops after as many as may be on their way."""
    server.forbidden = set(LEDGERS[:-1])
    rows = {row["path"]: row for row in rows_of(server.walk())}
    assert set(LEDGERS) <= set(rows)
    assert [path for path in LEDGERS if rows[path]["value"] is not None] == [LEDGERS[-1]]


# --- a living tree -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gone", [LEDGERS[200], "/ledgers/00/0001", "/ledgers", "/managed-ledgers/t/n/persistent/topic"]
)
def test_only_concurrently_deleted_nodes_are_omitted(server: WalkableZooKeeper, gone: str) -> None:
    stays = {path for path in server.nodes if path != gone and not path.startswith(f"{gone}/")}

    def delete_it(kind: int, path: str) -> None:
        if path == gone and kind == GET_DATA:
            server.remove(gone)

    server.before = delete_it
    walk = server.walk()
    assert stays == set(paths_of(walk))
    assert walk.checks["goneMeanwhile"] >= 1


def test_a_directory_that_is_deleted_while_its_children_are_read(server: WalkableZooKeeper) -> None:
    stays = {path for path in server.nodes if not path.startswith("/ledgers/00/0001")}

    def delete_it(kind: int, path: str) -> None:
        if path == "/ledgers/00/0001/L0100":
            server.remove("/ledgers/00/0001")

    server.before = delete_it
    assert stays <= set(paths_of(server.walk()))


def test_a_directory_that_changes_whenever_it_is_listed_fails_in_the_end(server: WalkableZooKeeper) -> None:
    added = iter(range(10**6))

    def change(kind: int, path: str) -> None:
        if path == "/ledgers/00/0001" and kind == GET_DATA:
            server.put(f"/ledgers/00/0001/L9{next(added):03d}")

    server.before = change
    with pytest.raises(TemporaryError, match="returned inconsistent results"):
        rows_of(server.walk())


def test_a_directory_that_changed_once_is_listed_again(server: WalkableZooKeeper) -> None:
    seen: list[int] = []

    def change(kind: int, path: str) -> None:
        if path == "/ledgers/00/0001":
            seen.append(kind)
            if seen == [GET_DATA, GET_CHILDREN, GET_DATA]:
                server.put("/ledgers/00/0001/L9999")

    server.before = change
    assert set(paths_of(server.walk())) == set(server.nodes)


@pytest.mark.parametrize("lost", [1, 2, 3, 7])
def test_a_lost_connection_costs_nothing(server: WalkableZooKeeper, lost: int) -> None:
    asked: list[str] = []

    def lose(kind: int, path: str) -> None:
        asked.append(path)
        if len(asked) in (3, 250):
            server.lost_requests = lost

    server.before = lose
    assert sorted(paths_of(server.walk())) == sorted(server.nodes)


def test_a_rate_is_kept(server: WalkableZooKeeper) -> None:
    clock = FakeClock()
    assert len(rows_of(server.walk(clock, options=WalkOptions(nodes_per_second=100)))) == len(server.nodes)
    assert len(server.nodes) / 100 <= clock.monotonic_seconds() < len(server.nodes) / 100 + 1
    assert server.requests >= len(server.nodes) / 10
