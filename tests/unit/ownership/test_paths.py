"""Paths against those seen in a 4.0.8 cluster's metadata store."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, LedgerId, NodeVersion
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.names import CursorName, ManagedLedgerName, parse_topic_name
from pulsar_sidecar.ownership import paths


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "/ledgers/00/0000/L0000"),
        (27, "/ledgers/00/0000/L0027"),
        (2147483646, "/ledgers/21/4748/L3646"),
        (2147483647, "/ledgers/000/0000/0021/4748/L3647"),
        (9223372036854775807, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_ledger_paths(ledger_id: int, path: str) -> None:
    assert paths.ledger_path(LedgerId(ledger_id)) == path
    assert paths.ledger_id_of_path(path) == ledger_id


@given(st.integers(0, MAX_LEDGER_ID), st.sampled_from(["/ledgers", "/bk/ledgers-2"]))
def test_ledger_paths_round_trip(ledger_id: int, root: str) -> None:
    assert paths.ledger_id_of_path(paths.ledger_path(LedgerId(ledger_id), root), root) == ledger_id


@pytest.mark.parametrize(
    "path",
    [
        "/ledgers",
        "/ledgers/00",
        "/ledgers/00/0000",
        "/ledgers/idgen",
        "/ledgers/idgen-long/HOB-0000000001",
        "/ledgers/LAYOUT",
        "/ledgers/00/0000/L0027/x",
        "/ledgers/00/0000/L27",
        "/ledgers/00/0000/L00٢7",
        "/other/00/0000/L0027",
        "00/0000/L0027",
        "/ledgers/99/9999/L9999",
        "/ledgers/000/0000/0000/0000/L0027",
        "/ledgers/999/9999/9999/9999/L9999",
        "/ledgers/00/0000/L0027\n",
    ],
)
def test_other_nodes_are_no_ledgers(path: str) -> None:
    assert paths.ledger_id_of_path(path) is None


def test_under_replication_as_bookkeeper_spells_it() -> None:
    assert paths.under_replication_mark_path(LedgerId(27)) == (
        "/ledgers/underreplication/ledgers/0000/0000/0000/001b/urL0000000027"
    )
    assert paths.under_replication_mark_path(LedgerId(2**40 + 10)) == (
        "/ledgers/underreplication/ledgers/0000/0100/0000/000a/urL1099511627786"
    )
    assert paths.replication_lock_path(LedgerId(27)) == "/ledgers/underreplication/locks/urL0000000027"


def test_pulsars_nodes() -> None:
    topic = parse_topic_name("persistent://public/default/a b")
    managed_ledger = ManagedLedgerName("public/default/persistent/a+b")
    assert paths.managed_ledger_path(topic.managed_ledger_name) == "/managed-ledgers/public/default/persistent/a+b"
    assert paths.cursor_path(managed_ledger, CursorName("sub%2Fa")) == (
        "/managed-ledgers/public/default/persistent/a+b/sub%2Fa"
    )
    assert paths.schema_path(topic.schema_id) == "/schemas/public/default/a+b"
    assert paths.partitioned_topic_path(topic) == "/admin/partitioned-topics/public/default/persistent/a+b"
    assert paths.identity_paths() == ("/ledgers/INSTANCEID", "/ledgers/LAYOUT")


def test_below_another_root() -> None:
    ledger_id = LedgerId(27)
    assert paths.identity_paths("/bk") == ("/bk/INSTANCEID", "/bk/LAYOUT")
    assert paths.under_replication_mark_path(ledger_id, "/bk") == (
        "/bk/underreplication/ledgers/0000/0000/0000/001b/urL0000000027"
    )
    assert paths.replication_lock_path(ledger_id, "/bk") == "/bk/underreplication/locks/urL0000000027"


def test_the_instance_id_and_where_it_is_missed() -> None:
    node = Node("/bk/INSTANCEID", b"a-1\xff", NodeVersion(0), created_ms=0, modified_ms=0, created_order=0)
    layout = Node("/bk/LAYOUT", b"2\n...", NodeVersion(3), created_ms=1795945862678, modified_ms=9, created_order=7)
    assert paths.instance_id_of([node, layout], "/bk") == "a-1\ufffd"
    assert paths.instance_id_of([node, None], "/bk") == "a-1\ufffd"
    assert paths.instance_id_of([None, layout], "/bk") == "layout-7-1795945862678"
    missing = (
        "there is no BookKeeper instance id at /bk/INSTANCEID, and no layout: "
        "check ledgersRootPath and the metadata store's address"
    )
    with pytest.raises(TemporaryError, match=f"^{missing}$"):
        paths.instance_id_of([None, None], "/bk")


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("/managed-ledgers/t/n/persistent/topic", True),
        ("/managed-ledgers/t/c/n/persistent/topic", True),
        ("/admin/partitioned-topics/t/n/persistent/%2F%E2%9C%93", True),
        ("/managed-ledgers/t/n/persistent/topic/cursor", False),
        ("/managed-ledgers/t/n/persistent/persistent/cursor", True),
        ("/managed-ledgers/t/n/non-persistent/topic", False),
        ("/managed-ledgers/t/persistent/topic", False),
        ("/managed-ledgers/t/n/persistent", False),
        ("/managed-ledgers/t/c/n/persistent", False),
        ("/schemas/t/n/persistent/topic", False),
        ("/managed-ledgersx/t/n/persistent/topic", False),
    ],
)
def test_topic_nodes_are_recognized(path: str, is_one: bool) -> None:
    assert paths.is_topic_node(path) is is_one
