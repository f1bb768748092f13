"""Behaviour of every metadata store, in memory and real."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from pulsar_sidecar.adapters.etcd.etcd import EtcdMetadataStore
from pulsar_sidecar.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import DeletionResult, Guard, GuardedDeletion, MetadataStore, NewNode, Node

from tests.contract.metadata_store_servers import TwoSessions, empty_etcd, sessions_of

DELETED, GONE, CONFLICT = DeletionResult.DELETED, DeletionResult.GONE, DeletionResult.CONFLICT
NOT_SENT = DeletionResult.NOT_SENT
V0, V1 = NodeVersion(0), NodeVersion(1)
BAD_PATHS = ["", "a", "a/b", "/a/", "/a//b", "/./a", "/a/..", "/a\x00b", "/a\x1fb", "/a\ud800", "/\U0001f600", "//"]


@pytest.fixture
def sessions(store_url: str | None) -> Iterator[TwoSessions]:
    with sessions_of(store_url) as opened:
        yield opened


@pytest.fixture
def store(sessions: TwoSessions) -> MetadataStore:
    return sessions.store


def fill(store: MetadataStore, count: int, data: bytes = b"x") -> list[str]:
    """Create ``/n/0000...``, from several threads because a real store has the time of a round trip for each."""
    paths = [f"/n/{number:06d}" for number in range(count)]
    if paths:
        store.create(paths[0], data)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda path: store.create(path, data), paths[1:]))
    return paths


def deletions(paths: Sequence[str], *guards: Guard) -> list[GuardedDeletion]:
    return [GuardedDeletion(path, V0, guards) for path in paths]


def timeless(node: Node | None) -> Node | None:
    """A node as another look must show it: a store without times may show later ones."""
    return node if node is None or node.times_known else replace(node, created_ms=0, modified_ms=0)


def existing(store: MetadataStore, paths: Sequence[str]) -> list[str]:
    return [node.path for node in store.read_many(paths) if node is not None]


# Reading ---------------------------------------------------------------------------------------------------------


def test_what_is_not_there_reads_as_none(store: MetadataStore) -> None:
    assert store.read("/nothing") is None
    assert store.read("/nothing/below") is None
    assert store.children("/nothing") is None
    assert store.read_many(["/nothing", "/nothing"]) == [None, None]
    assert store.read_many([]) == []


def test_the_root_is_there(store: MetadataStore) -> None:
    root = store.read("/")
    assert root is not None
    assert root.path == "/"
    assert store.children("/") == []


@pytest.mark.parametrize("data", [b"", b"\x00", bytes(range(256)) * 5])
def test_a_created_node_reads_as_created(store: MetadataStore, data: bytes) -> None:
    created = store.create("/tenant/ns/persistent/a%2Fb+c%23", data)
    assert timeless(created) == timeless(store.read("/tenant/ns/persistent/a%2Fb+c%23"))
    assert (created.data, created.version, created.ephemeral) == (data, V0, False)
    assert created.children_count in (0, None)
    assert created.created_ms == created.modified_ms
    assert created.created_ms > 0


@pytest.mark.parametrize("name", ["ü", "日本", "a b", "a.b", "..a", "...", "%00", "ﬀ", "\u3000"])
def test_names_beyond_ascii(store: MetadataStore, name: str) -> None:
    store.create(f"/{name}/{name}", name.encode())
    node = store.read(f"/{name}/{name}")
    assert node is not None
    assert node.data == name.encode()
    assert store.children(f"/{name}") == [name]


def test_many_nodes_with_gaps_keep_their_order(store: MetadataStore) -> None:
    paths = fill(store, 4_000, b"y" * 220)
    assert store.delete_many(deletions(paths[::7])) == [DELETED] * len(paths[::7])
    asked = list(reversed(paths))
    found = store.read_many(asked)
    gone = set(paths[::7])
    assert [None if path in gone else path for path in asked] == [node and node.path for node in found]
    assert {node.data for node in found if node} == {b"y" * 220}


def test_the_same_path_may_be_asked_for_twice(store: MetadataStore) -> None:
    node = store.create("/a", b"1")
    assert store.read_many(["/a", "/b", "/a"]) == [node, None, node]


def test_megabytes_in_one_read(store: MetadataStore) -> None:
    data = {f"/n/{number:06d}": bytes([number % 256]) * (6_000 + number) for number in range(500)}
    for path, content in data.items():
        store.create(path, content)
    found = store.read_many(list(data))
    assert {node.path: node.data for node in found if node} == data


def test_nodes_near_a_megabyte_among_small_ones(store: MetadataStore) -> None:
    paths = fill(store, 200)
    large = [f"/large/{number}" for number in range(12)]
    for path in large:
        store.create(path, path.encode() * ((1_048_576 - 2048) // len(path)))
    asked = [*paths, *large, *paths]
    found = store.read_many(asked)
    assert [node and node.path for node in found] == asked
    assert all(len(node.data) > 1_000_000 for node in found[200:212] if node)


def test_children_are_complete_and_sorted(store: MetadataStore) -> None:
    paths = fill(store, 3_000)
    assert store.children("/n") == [path.rpartition("/")[2] for path in paths]
    assert store.children(paths[0]) == []
    parent = store.read("/n")
    assert parent is not None
    assert parent.children_count in (3_000, None)


@pytest.mark.parametrize("path", BAD_PATHS)
def test_what_is_no_path_is_refused_and_never_absent(store: MetadataStore, path: str) -> None:
    for call in (
        lambda: store.read(path),
        lambda: store.read_many(["/", path]),
        lambda: store.children(path),
        lambda: store.children_many(["/", path]),
        lambda: store.create_together([NewNode("/a", b""), NewNode(path, b"")]),
        lambda: store.delete_together([path]),
        lambda: store.create(path, b""),
        lambda: store.write(path, b"", V0),
        lambda: store.delete(path),
        lambda: store.delete_many([GuardedDeletion(path, V0)]),
        lambda: store.delete_many([GuardedDeletion("/a", V0, (Guard(path, V0),))]),
    ):
        with pytest.raises(InvalidInputError):
            call()
    assert store.read("/") is not None


def test_children_of_many_are_those_of_each(store: MetadataStore) -> None:
    paths = fill(store, 300)
    for path in paths[::3]:
        store.create(f"{path}/b", b"")
        store.create(f"{path}/a", b"x" * 10_000)
    asked = [*paths, "/n", "/not-there"]
    assert store.children_many(asked) == [store.children(path) for path in asked]
    assert store.children_many([]) == []


# Several nodes in one step ---------------------------------------------------------------------------------------


def test_nodes_are_created_together_with_their_parents(store: MetadataStore) -> None:
    store.create_together([NewNode("/p/q/one", b"1"), NewNode("/p/q/one/below", b"2", ephemeral=True)])
    one, below = store.read_many(["/p/q/one", "/p/q/one/below"])
    assert one is not None
    assert below is not None
    assert (one.data, one.version, one.ephemeral) == (b"1", V0, False)
    assert one.children_count in (1, None)
    assert (below.data, below.ephemeral) == (b"2", True)


def test_of_nodes_one_of_which_is_there_none_is_created(store: MetadataStore) -> None:
    store.create("/p/two", b"")
    with pytest.raises(AlreadyExistsError):
        store.create_together([NewNode("/p/one", b""), NewNode("/p/two", b""), NewNode("/p/three", b"")])
    assert store.children("/p") == ["two"]


def test_nodes_are_deleted_together_or_not_at_all(store: MetadataStore) -> None:
    for path in ("/p/one/below", "/p/two"):
        store.create(path, b"")
    for paths in (["/p/two", "/p/one"], ["/p/two", "/p/three"], ["/p/one", "/p/one/below"], ["/p/two", "/p/two"]):
        with pytest.raises(ConflictError):
            store.delete_together(paths)
        assert store.children("/p") == ["one", "two"]
    store.write("/p/two", b"at any version", V0)
    store.delete_together(["/p/one/below", "/p/one", "/p/two"])
    assert store.children("/p") == []


# Writing ---------------------------------------------------------------------------------------------------------


def test_a_node_is_created_once(store: MetadataStore) -> None:
    store.create("/a/b", b"1")
    with pytest.raises(AlreadyExistsError):
        store.create("/a/b", b"2")
    with pytest.raises(AlreadyExistsError):
        store.create("/a", b"2")
    node = store.read("/a/b")
    assert node is not None
    assert node.data == b"1"


def test_of_many_creators_one_succeeds(sessions: TwoSessions) -> None:
    start = threading.Barrier(8)

    def create(number: int) -> bool:
        start.wait()
        try:
            (sessions.store if number % 2 else sessions.rival).create("/race/one", str(number).encode())
        except AlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(8))) == 1


def test_a_write_compares_the_version(store: MetadataStore) -> None:
    created = store.create("/a", b"1")
    assert store.write("/a", b"2", created.version) == V1
    with pytest.raises(ConflictError):
        store.write("/a", b"3", created.version)
    with pytest.raises(ConflictError):
        store.write("/a", b"3", NodeVersion(7))
    with pytest.raises(NotFoundError):
        store.write("/b", b"3", V0)
    node = store.read("/a")
    assert node is not None
    assert (node.data, node.version, node.created_order) == (b"2", V1, created.created_order)
    assert node.modified_ms >= node.created_ms


@pytest.mark.parametrize("version", [-1, 2**31, -(2**31) - 1])
def test_the_version_that_means_any_is_refused(store: MetadataStore, version: int) -> None:
    store.create("/a", b"1")
    any_version = NodeVersion(version)
    for call in (
        lambda: store.write("/a", b"2", any_version),
        lambda: store.delete("/a", any_version),
        lambda: store.delete_many([GuardedDeletion("/a", any_version)]),
        lambda: store.delete_many([GuardedDeletion("/a", V0, (Guard("/", any_version),))]),
    ):
        with pytest.raises(InvalidInputError):
            call()
    assert store.read("/a") is not None


def test_a_node_made_again_is_another_node(store: MetadataStore) -> None:
    first = store.create("/a", b"1")
    assert store.delete("/a", first.version) is DELETED
    second = store.create("/a", b"1")
    assert second.version == first.version
    assert second.created_order > first.created_order


def test_a_write_is_seen_by_another_session_at_once(sessions: TwoSessions) -> None:
    for number in range(20):
        sessions.store.create(f"/a/{number}", b"")
        assert sessions.rival.read(f"/a/{number}") is not None
        assert sessions.rival.children("/a") == sorted(str(earlier) for earlier in range(number + 1))


def test_delete(store: MetadataStore) -> None:
    store.create("/a/b", b"")
    store.write("/a/b", b"2", V0)
    assert store.delete("/a/b", V0) is CONFLICT
    assert store.delete("/a") is CONFLICT
    assert store.delete("/a/b", V1) is DELETED
    assert store.delete("/a/b", V1) is GONE
    assert store.delete("/a") is DELETED
    with pytest.raises(InvalidInputError):
        store.delete("/")


# Guarded deletions -----------------------------------------------------------------------------------------------


def test_no_deletions(store: MetadataStore) -> None:
    assert store.delete_many([]) == []


@pytest.mark.parametrize("every", [0, 100, 2, 1])
def test_gone_ones_do_not_stop_their_neighbours(sessions: TwoSessions, every: int) -> None:
    store = sessions.store
    paths = fill(store, 1_000)
    guard = Guard("/guard", store.create("/guard", b"").version)
    gone = set(paths[::every]) if every else set()
    assert set(sessions.rival.delete_many(deletions(sorted(gone)))) <= {DELETED}
    results = store.delete_many(deletions(paths, guard))
    assert results == [GONE if path in gone else DELETED for path in paths]
    assert existing(store, paths) == []
    assert store.children("/n") == []


def test_conflicts_do_not_stop_their_neighbours(sessions: TwoSessions) -> None:
    store = sessions.store
    paths = fill(store, 700)
    changed, parents, gone = set(paths[::10]), set(paths[5::97]), set(paths[3::11])
    for path in changed:
        sessions.rival.write(path, b"changed", V0)
    for path in parents - changed:
        sessions.rival.create(f"{path}/child", b"")
    sessions.rival.delete_many(deletions(sorted(gone - changed - parents)))
    expected = [CONFLICT if path in changed | parents else GONE if path in gone else DELETED for path in paths]
    assert store.delete_many(deletions(paths)) == expected
    assert existing(store, paths) == [path for path in paths if path in changed | parents]


def test_a_broken_guard_stops_exactly_the_deletions_that_name_it(sessions: TwoSessions) -> None:
    store = sessions.store
    paths = fill(store, 450)
    good, bad = store.create("/good", b""), store.create("/bad", b"")
    sessions.rival.write("/bad", b"changed", bad.version)
    wanted = []
    for number, path in enumerate(paths):
        guards = (Guard("/good", good.version),) + ((Guard("/bad", bad.version),) if number % 3 == 0 else ())
        wanted.append(GuardedDeletion(path, V0, guards))
    assert store.delete_many(wanted) == [DELETED if number % 3 else CONFLICT for number in range(450)]
    assert existing(store, paths) == paths[::3]


def test_a_node_made_again_at_the_version_that_was_read_is_kept(etcd_url: str) -> None:
    empty_etcd(etcd_url)
    with sessions_of(etcd_url) as sessions:
        store = sessions.store
        read = [store.create(path, b"") for path in ("/ledger", "/owner", "/other")]
        guard = Guard("/owner", V0, read[1].modified_order)
        for node in read[:2]:
            sessions.rival.delete(node.path)
            sessions.rival.create(node.path, b"")
        own = GuardedDeletion("/ledger", V0, (), read[0].modified_order)
        guarded = [GuardedDeletion(path, V0, (guard,)) for path in ("/other", "/gone")]
        assert store.delete_many([own, *guarded]) == [CONFLICT] * 3
        assert store.delete("/ledger", V0, read[0].modified_order) is CONFLICT
        again = store.read("/owner")
        assert again is not None
        guard = Guard("/owner", again.version, again.modified_order)
        assert store.delete_many([GuardedDeletion("/other", V0, (guard,), read[2].modified_order)]) == [DELETED]
        assert store.delete("/owner", V0, again.modified_order) is DELETED


def test_a_missing_guard_is_a_broken_one(store: MetadataStore) -> None:
    paths = fill(store, 3)
    assert store.delete_many(deletions(paths, Guard("/missing", V0))) == [CONFLICT] * 3
    assert existing(store, paths) == paths


def test_guards_at_different_versions_of_one_node(store: MetadataStore) -> None:
    first, second = fill(store, 2)
    store.create("/guard", b"")
    store.write("/guard", b"2", V0)
    results = store.delete_many([*deletions([first], Guard("/guard", V0)), *deletions([second], Guard("/guard", V1))])
    assert results == [CONFLICT, DELETED]


def test_a_guard_is_judged_before_the_node(store: MetadataStore) -> None:
    store.create("/n/other", b"")
    assert store.delete_many(deletions(["/n/gone", "/n/other"], Guard("/missing", V0))) == [CONFLICT, CONFLICT]


def test_a_node_named_twice_is_deleted_once(store: MetadataStore) -> None:
    paths = fill(store, 10)
    assert store.delete_many(deletions([*paths, *paths])) == [DELETED] * 10 + [GONE] * 10


def test_children_before_their_parent(store: MetadataStore) -> None:
    store.create("/a/b/c", b"")
    assert store.delete_many(deletions(["/a/b/c", "/a/b", "/a"])) == [DELETED] * 3
    assert store.read("/a") is None


def test_parents_stay_when_they_become_empty(store: MetadataStore) -> None:
    store.create("/ledgers/00/0000/L0001", b"")
    assert store.delete_many(deletions(["/ledgers/00/0000/L0001"])) == [DELETED]
    assert store.children("/ledgers/00/0000") == []


def test_hundreds_of_guards_each(store: MetadataStore) -> None:
    guards = tuple(Guard(path, V0) for path in fill(store, 450))
    store.create("/a", b"")
    store.create("/b", b"")
    # More than etcd compares in a transaction, by its default: it must not be deleted with fewer.
    first = CONFLICT if isinstance(store, EtcdMetadataStore) else DELETED
    assert store.delete_many(deletions(["/a"], *guards) + deletions(["/b"], *guards[:1])) == [first, DELETED]
    assert store.delete_many(deletions(["/c"], *guards[:120])) == [GONE]


def test_the_guarded_node_may_be_large(sessions: TwoSessions) -> None:
    store = sessions.store
    paths = fill(store, 250)
    store.create("/guard", b"g" * 900_000)
    sessions.rival.delete(paths[100])
    results = store.delete_many(deletions(paths, Guard("/guard", V0)))
    assert results == [GONE if number == 100 else DELETED for number in range(250)]


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_what_is_not_allowed_any_more_is_not_sent(sessions: TwoSessions, allowed: int) -> None:
    store = sessions.store
    paths = fill(store, 600)
    changed = set(paths[::7])
    for path in changed:
        sessions.rival.write(path, b"changed", V0)
    answers = iter([True] * allowed)
    results = store.delete_many(deletions(paths), lambda: next(answers, False))
    assert results.count(NOT_SENT) >= 600 - allowed * 100
    assert (results.count(NOT_SENT) < 600) == (allowed > 0)
    deleted = {path for path, result in zip(paths, results, strict=True) if result is DELETED}
    assert not deleted & changed
    assert existing(store, paths) == [path for path in paths if path not in deleted]


def test_two_deleters_share_the_work(sessions: TwoSessions) -> None:
    paths = fill(sessions.store, 2_000)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(sessions.store.delete_many, deletions(paths))
        second = pool.submit(sessions.rival.delete_many, deletions(paths))
    for mine, theirs in zip(first.result(), second.result(), strict=True):
        assert {mine, theirs} == {DELETED, GONE}


# Sessions and time -----------------------------------------------------------------------------------------------


def test_ephemeral_nodes_vanish_with_their_session(sessions: TwoSessions) -> None:
    created = sessions.rival.create("/sidecars/one", b"1", ephemeral=True)
    assert created.ephemeral
    assert timeless(sessions.store.read("/sidecars/one")) == timeless(created)
    with pytest.raises(ConflictError):
        sessions.rival.create("/sidecars/one/below", b"")
    sessions.rival.close()
    assert sessions.store.read("/sidecars/one") is None
    assert sessions.store.children("/sidecars") == []


def test_the_session_epoch_is_steady(sessions: TwoSessions) -> None:
    sessions.store.create("/a", b"")
    epoch = sessions.store.epoch
    assert epoch >= 1
    sessions.store.read("/a")
    assert sessions.store.epoch == epoch


def test_the_stores_clock_is_that_of_its_nodes(store: MetadataStore) -> None:
    before = store.now_ms()
    node = store.create("/a", b"")
    after = store.now_ms()
    late_ms = 1000 if node.times_known else 2000
    assert before - 1000 <= node.created_ms <= after + late_ms
    assert before <= after


def test_two_sessions_have_one_clock(sessions: TwoSessions) -> None:
    assert abs(sessions.store.now_ms() - sessions.rival.now_ms()) <= 1000


def test_threads_share_a_store(store: MetadataStore) -> None:
    def work(number: int) -> list[DeletionResult]:
        paths = [f"/t{number}/{item}" for item in range(60)]
        nodes: list[Node | None] = [store.create(path, path.encode()) for path in paths]
        assert [timeless(node) for node in store.read_many(paths)] == [timeless(node) for node in nodes]
        store.now_ms()
        return store.delete_many(deletions(paths))

    with ThreadPoolExecutor(8) as pool:
        for results in pool.map(work, range(8)):
            assert results == [DELETED] * 60
