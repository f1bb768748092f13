"""Guarantees of watching changes and of reading the whole store, on the store in memory and on the real one."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pytest
from pulsar_sidecar.adapters.metadata_stores import open_changes, open_store, open_whole_store
from pulsar_sidecar.adapters.zookeeper.zookeeper_watches import CANARIES
from pulsar_sidecar.features.ledger_deletion.watch.ports import (
    Changes,
    ChangesLostError,
    StoreChanges,
    WalkedNode,
    WholeStore,
)
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId, NodeVersion
from pulsar_sidecar.model.metadata import Guard, GuardedDeletion, MetadataStore
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.cluster.patience import PATIENCE_SECONDS
from tests.contract.metadata_store_servers import CLOCK, PATIENT
from tests.fakes.clock import FakeClock
from tests.fakes.metadata import FakeMetadataStore
from tests.fakes.watched_store import FakeStoreChanges, FakeWholeStore

V0 = NodeVersion(0)
ROOT = "/ledgers"
TOPIC = "/managed-ledgers/t/n/persistent/a%2Fb"
CURSOR = f"{TOPIC}/sub"
SCHEMA = "/schemas/t/n/a"
TOPIC_ROOTS = ("/managed-ledgers", "/admin/partitioned-topics")
SHORT, LONG = LedgerId(7), LedgerId(2**31 + 5)


@dataclass(frozen=True, slots=True)
class Watched:
    """A store, who listens to it, and who reads it whole."""

    store: MetadataStore
    changes: StoreChanges
    whole: WholeStore

    def heard(self) -> Changes:
        """Everything that changed before this call."""
        self.changes.echo_seconds()
        return self.changes.take(0)


@pytest.fixture
def unarmed(store_url: str | None) -> Iterator[Watched]:
    if store_url is None:
        fake = FakeMetadataStore()
        rival = fake.other_session()
        yield Watched(fake, FakeStoreChanges(rival, FakeClock()), FakeWholeStore(rival))
        return
    with (
        open_store(store_url, CLOCK, PATIENT) as store,
        closing(open_changes(store_url, CLOCK, ROOT, PATIENT)) as changes,
    ):
        yield Watched(store, changes, open_whole_store(store_url, CLOCK, ROOT))


@pytest.fixture
def watched(unarmed: Watched) -> Watched:
    # No watched node exists yet.
    unarmed.changes.arm()
    return unarmed


# Changes ---------------------------------------------------------------------------------------------------------


def test_every_node_below_is_named_parents_too(watched: Watched) -> None:
    watched.store.create(CURSOR, b"1")
    watched.store.create(SCHEMA, b"1")
    assert list(watched.heard().nodes) == [
        "/managed-ledgers/t",
        "/managed-ledgers/t/n",
        "/managed-ledgers/t/n/persistent",
        TOPIC,
        CURSOR,
        "/schemas/t",
        "/schemas/t/n",
        SCHEMA,
    ]
    assert watched.heard() == Changes()


@pytest.mark.parametrize(
    "path", [TOPIC, CURSOR, SCHEMA, "/managed-ledgers/n\u00e4me \u2713 100%", "/schemas" + "/x" * 40]
)
def test_a_write_and_a_removal_name_the_node(watched: Watched, path: str) -> None:
    watched.store.create(path, b"1")
    watched.heard()
    watched.store.write(path, b"1", V0)
    assert watched.heard() == Changes((path,))
    watched.store.delete(path)
    assert watched.heard() == Changes((path,))


def test_each_node_is_named_once_in_order_of_its_first_event(watched: Watched) -> None:
    watched.store.create(CURSOR, b"1")
    watched.store.create(SCHEMA, b"1")
    watched.heard()
    watched.store.write(SCHEMA, b"2", V0)
    watched.store.write(CURSOR, b"2", V0)
    watched.store.write(SCHEMA, b"3", NodeVersion(1))
    watched.store.delete(CURSOR)
    assert watched.heard() == Changes((SCHEMA, CURSOR))
    watched.store.delete(SCHEMA)
    assert watched.heard() == Changes((SCHEMA,))


def test_each_deletion_of_many_in_one_step_is_named(watched: Watched) -> None:
    paths = [f"{TOPIC}/{number:03d}" for number in range(300)]
    ledgers = [ledger_path(LedgerId(number)) for number in range(300)]
    for path in (*paths, *ledgers):
        watched.store.create(path, b"")
    watched.heard()
    guard = Guard(TOPIC, V0)
    watched.store.delete_many([GuardedDeletion(path, V0, (guard,)) for path in (*paths, *ledgers)])
    assert watched.heard() == Changes(tuple(paths), dict.fromkeys(map(LedgerId, range(300)), False))


def test_ledgers_are_listed_by_their_last_event(watched: Watched) -> None:
    watched.store.create(ledger_path(SHORT), b"open")
    watched.store.create(ledger_path(LONG), b"open")
    assert watched.heard() == Changes(ledgers={SHORT: True, LONG: True})
    watched.store.write(ledger_path(SHORT), b"closed", V0)
    assert watched.heard() == Changes()
    watched.store.delete(ledger_path(SHORT))
    assert watched.heard() == Changes(ledgers={SHORT: False})
    watched.store.delete(ledger_path(LONG))
    watched.store.create(ledger_path(LONG), b"open")
    watched.store.create(ledger_path(SHORT), b"open")
    watched.store.delete(ledger_path(SHORT))
    assert watched.heard() == Changes(ledgers={SHORT: False, LONG: True})


@pytest.mark.parametrize(
    "path",
    [
        "/ledgers/INSTANCEID",
        "/ledgers/available/127.0.0.1:3181",
        "/ledgers/underreplication/ledgers/0000/0000/0000/0007/urL0000000007",
        "/ledgers/00/0000/L00070",
        "/ledgers/000/0000/0000/0000/L0007",
        "/ledgersx/00/0000/L0007",
        "/managed-ledgersx/a",
        "/schemas-of-others/a",
        "/admin/policies/t/n",
        "/pulsar-sidecar/ledger-deletion/watch/leaks/7",
    ],
)
def test_other_nodes_are_not_named(watched: Watched, path: str) -> None:
    watched.store.create(path, b"")
    watched.store.write(path, b"1", V0)
    watched.store.delete(path)
    assert watched.heard() == Changes()


def test_what_comes_while_one_waits_ends_the_wait(watched: Watched) -> None:
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(watched.changes.take, 60.0)
        watched.store.create("/schemas/a", b"")
        heard = taking.result(PATIENCE_SECONDS)
    assert heard in (Changes(("/schemas/a",)), Changes())


def test_nothing_is_heard_before_arming(unarmed: Watched) -> None:
    for call in (lambda: unarmed.changes.take(0), unarmed.changes.echo_seconds):
        with pytest.raises(ChangesLostError):
            call()
    unarmed.store.create("/schemas/a", b"")
    unarmed.changes.arm()
    assert unarmed.heard() == Changes()


def test_arming_again_forgets_and_goes_on(watched: Watched) -> None:
    watched.store.create("/schemas/a", b"")
    # Events in flight when the watches are set again may be reported.
    watched.changes.echo_seconds()
    watched.changes.arm()
    assert watched.heard() == Changes()
    watched.changes.arm()
    watched.store.create("/schemas/b", b"")
    watched.store.create(ledger_path(SHORT), b"")
    assert watched.heard() == Changes(("/schemas/b",), {SHORT: True})


def test_an_echo_takes_no_time_to_speak_of_and_leaves_nothing(watched: Watched) -> None:
    for _ in range(20):
        assert 0 <= watched.changes.echo_seconds() < 30
    assert watched.heard() == Changes()
    assert not watched.store.children(CANARIES)


def test_nothing_is_heard_after_closing(watched: Watched) -> None:
    watched.store.create("/schemas/a", b"")
    watched.changes.close()
    watched.changes.close()
    with pytest.raises(ChangesLostError):
        watched.changes.take(0)


# The whole store -------------------------------------------------------------------------------------------------


def test_the_whole_store_is_read(watched: Watched) -> None:
    nodes = {TOPIC: b"1", CURSOR: b"", SCHEMA: b"\x00\xff", "/managed-ledgers/t/n/other/deep/er": b"4"}
    ledgers = [LedgerId(number) for number in (0, 1, 10**6, 2**31 - 2, 2**31 - 1, 2**40)]
    for path, data in nodes.items():
        watched.store.create(path, data)
    for ledger_id in ledgers:
        watched.store.create(ledger_path(ledger_id), b"")
    for path in ("/admin/x", "/ledgers/INSTANCEID", "/ledgers/available/a", "/managed-ledgersx/a", "/schema/a"):
        watched.store.create(path, b"")
    walked = {node.path: node for piece in watched.whole.nodes() for node in piece}
    parents = {path.rsplit("/", depth)[0] for path in nodes for depth in range(1, path.count("/") - 1)}
    assert walked == {path: WalkedNode(path, nodes.get(path, b"")) for path in parents | nodes.keys()}
    found = list(watched.whole.ledger_ids())
    assert all(ids.dtype == np.int64 for ids in found)
    assert sorted(int(ledger_id) for ids in found for ledger_id in ids) == ledgers


@pytest.mark.parametrize("is_hurried", [False, True])
def test_possible_shadows_are_found_among_topics_own_nodes(watched: Watched, is_hurried: bool) -> None:
    folders = ("t/n/persistent", "t/c/n/persistent", "t/c/persistent/persistent", "t/n/persistent/persistent")
    shadows = {
        f"{root}/{folder}/a%2Fb": f"{root} {SHADOW_SOURCE}".encode() for root in TOPIC_ROOTS for folder in folders
    }
    shadows["/managed-ledgers/many/n/persistent/77"] = b"\x47\x78 wrapped"
    plain = {f"/managed-ledgers/many/n/persistent/plain-{number}": b"" for number in range(300)}
    others = (CURSOR, "/managed-ledgers/t/c/n/persistent/a%2Fb/cursor", "/admin/policies/t/n", SCHEMA)
    for path, data in {**shadows, **plain, **dict.fromkeys(others, b"other")}.items():
        watched.store.create(path, data)
    watched.store.create("/admin/partitioned-topics/t/n/non-persistent/a", b"")
    hurry = threading.Event()
    if is_hurried:
        hurry.set()
    pieces = list(watched.whole.possible_shadows(hurry))
    found = [node for _, nodes in pieces for node in nodes]
    assert dict(found) == shadows
    assert len(found) == len(shadows)
    assert sum(count for count, _ in pieces) >= len(shadows) + len(plain)


def test_a_cluster_without_topics_has_no_nodes(watched: Watched) -> None:
    assert [node for piece in watched.whole.nodes() for node in piece] == []
    assert not any(nodes for _, nodes in watched.whole.possible_shadows(threading.Event()))


def test_no_ledgers_root_is_an_error(watched: Watched) -> None:
    with pytest.raises(TemporaryError, match="/ledgers"):
        list(watched.whole.ledger_ids())
