"""Parts of dumps and listings: subtrees, records, cursors' ledgers; and requests."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.audit.requests import dump_source, pushgateway_group, zookeeper_rate
from pulsar_sidecar.features.audit.results.tables import CURSOR_LEDGERS, NODES, Subtree
from pulsar_sidecar.features.audit.sources.cursor_ledgers import CursorLedgers
from pulsar_sidecar.features.audit.sources.dumping import Subtrees, log_segments
from pulsar_sidecar.features.audit.sources.manifests import SourceKind
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import ledger_path

from tests.fakes.bookkeeper import FakeLedgerEntries, cursor_bytes, ledger_metadata_bytes, position_entry
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.audit.sources import node

# --- subtrees ------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.from_regex(r"(/(ledgers|managed-ledgers|admin|schemas|zookeeper|00|0x|pulsar|a)){1,3}", fullmatch=True))
)
def test_every_node_belongs_to_exactly_one_part(paths: list[str]) -> None:
    batch = pa.RecordBatch.from_pylist(
        [node(path, b"1\nBKDL\n" if path == "/pulsar" else b"") for path in paths], NODES
    )
    parts = [(subtree, row["path"]) for subtree, part in Subtrees("/ledgers").sort(batch) for row in part.to_pylist()]
    assert sorted(path for _, path in parts) == sorted(p for p in paths if p.split("/")[1] != "zookeeper")
    for subtree, path in parts:
        first, *more = path.split("/")[1:]
        assert (subtree is Subtree.MANAGED_LEDGERS) == (first == "managed-ledgers")
        assert (subtree is Subtree.LEDGERS) == (first == "ledgers" and bool(more) and more[0][0] == "0")
        assert (subtree is Subtree.DISTRIBUTED_LOG) == (first == "pulsar" and "/pulsar" in paths)


# --- DistributedLog ------------------------------------------------------------------------------------------------

SEGMENT = b"4294967301;130;6;9223372036854775807;1795169995318;1;2;0;0;0;0"


@pytest.mark.parametrize(("path", "value", "kind", "ledger_id"), [
    ("/pulsar/packages/f/t/n/p/1/<default>/ledgers/logrecs_000000000000000001", SEGMENT, "completed", 130),
    ("/stream/storage/s/ledgers/inprogress_000000000000000002", b"4294967301;131;6", "inprogress", 131),
    ("/pulsar/packages/x/<default>/allocation", b"132", "allocation", 132),
    ("/pulsar/functions/.allocation_pool/pool/000001", b"133", "allocation", 133),
])  # fmt: skip
def test_records_name_their_ledgers(path: str, value: bytes, kind: str, ledger_id: int) -> None:
    (row,) = segments(node(path, value))
    assert (row["kind"], row["ledger_id"], row["value"], row["unreadable"]) == (kind, ledger_id, value, None)


@pytest.mark.parametrize("value", [b"", b"x", b"1;2", b"1;x;3", b"1;-4;3", b"1;99999999999999999999;3", b";;"])
def test_a_record_that_cannot_be_read_is_unknown_and_not_absent(value: bytes) -> None:
    (row,) = segments(node("/a/logrecs_000000000000000001", value))
    assert row["ledger_id"] is None
    assert "zkCli.sh" in row["unreadable"]


def test_a_record_that_may_not_be_read_is_marked_unreadable() -> None:
    (row,) = segments(node("/a/logrecs_000000000000000001", unreadable="NoAuth"))
    assert (row["ledger_id"], row["unreadable"]) == (None, "NoAuth")


@pytest.mark.parametrize("path", ["/a/allocation", "/a/logrecs", "/a/xlogrecs_1", "/a/lock", "/logrecs_1/child"])
def test_nodes_that_are_no_records(path: str) -> None:
    assert segments(node(path, b"")) == []


def segments(*nodes: dict[str, Any]) -> list[dict[str, Any]]:
    return log_segments(pa.RecordBatch.from_pylist(list(nodes), schema=NODES)).to_pylist()


# --- cursors' ledgers ----------------------------------------------------------------------------------------------

CURSOR = "/managed-ledgers/t/n/persistent/topic/__compaction"


@pytest.fixture
def store() -> FakeMetadataStore:
    made = FakeMetadataStore()
    made.put(CURSOR, cursor_bytes(cursor_ledger=116))
    made.put(ledger_path(LedgerId(116)), ledger_metadata_bytes(last_entry_id=1))
    return made


@pytest.fixture
def entries() -> FakeLedgerEntries:
    made = FakeLedgerEntries()
    made.put(116, position_entry(), position_entry(115))
    return made


def rows(store: FakeMetadataStore, entries: FakeLedgerEntries) -> list[dict[str, Any]]:
    found = CursorLedgers(store, entries, "/ledgers").rows(CURSOR)
    return pa.RecordBatch.from_pylist(found, schema=CURSOR_LEDGERS).to_pylist()


def test_the_last_two_entries_are_kept_as_they_are(store: FakeMetadataStore, entries: FakeLedgerEntries) -> None:
    found = rows(store, entries)
    assert [(row["state"], row["ledger_id"], row["entry_id"], row["entry"]) for row in found] == [
        ("read", 116, 0, position_entry()),
        ("read", 116, 1, position_entry(115)),
    ]
    assert {row["cursor_value"] for row in found} == {cursor_bytes(cursor_ledger=116)}


@pytest.mark.parametrize(
    ("there", "kept"), [({115}, [115]), ({114, 115}, [114, 115]), ({114}, [114, 115]), (set(), [114, 115])]
)
def test_an_entry_goes_only_with_a_compacted_ledger_that_was_replaced(
    store: FakeMetadataStore, entries: FakeLedgerEntries, there: set[int], kept: list[int]
) -> None:
    entries.put(116, position_entry(114), position_entry(115))
    for ledger_id in there:
        store.put(ledger_path(LedgerId(ledger_id)), ledger_metadata_bytes())
    assert [row["entry"] for row in rows(store, entries)] == [position_entry(each) for each in kept]


def test_an_entry_that_is_not_understood_is_kept(store: FakeMetadataStore, entries: FakeLedgerEntries) -> None:
    entries.put(116, b"garbage", position_entry(115))
    store.put(ledger_path(LedgerId(115)), ledger_metadata_bytes())
    assert [row["entry"] for row in rows(store, entries)] == [b"garbage", position_entry(115)]


def test_what_is_gone_is_no_obstacle(store: FakeMetadataStore, entries: FakeLedgerEntries) -> None:
    store.remove(ledger_path(LedgerId(116)))
    (row,) = rows(store, entries)
    assert (row["state"], row["ledger_id"], row["unreadable"]) == ("ledger-gone", 116, None)
    store.put(CURSOR, cursor_bytes(compacted_ledger=115))
    (row,) = rows(store, entries)
    assert (row["state"], row["cursor_value"]) == ("no-ledger", cursor_bytes(compacted_ledger=115))
    store.remove(CURSOR)
    assert [row["state"] for row in rows(store, entries)] == ["no-cursor"]


@pytest.mark.parametrize("arrange", [
    lambda store, entries: entries.fail(TemporaryError("too few bookies")),
    lambda store, entries: entries.drop(116),
    lambda store, entries: store.put(CURSOR, b"garbage"),
    lambda store, entries: store.put(ledger_path(LedgerId(116)), b"garbage"),
    lambda store, entries: store.fail_next("read", TemporaryError("no store")),
], ids=["bookies", "no-entry", "cursor", "metadata", "store"])  # fmt: skip
def test_undecodable_node_is_an_unreadable_row(
    store: FakeMetadataStore,
    entries: FakeLedgerEntries,
    arrange: Callable[[FakeMetadataStore, FakeLedgerEntries], None],
) -> None:
    arrange(store, entries)
    (row,) = rows(store, entries)
    assert row["state"] == "unreadable"
    assert row["unreadable"]


def test_topic_unloaded_during_the_read_is_read_again(store: FakeMetadataStore, entries: FakeLedgerEntries) -> None:
    def unload() -> None:
        store.put(CURSOR, cursor_bytes(compacted_ledger=115))
        store.remove(ledger_path(LedgerId(116)))
        entries.drop(116)

    store.before("read", unload, path=ledger_path(LedgerId(116)))
    (row,) = rows(store, entries)
    assert (row["state"], row["cursor_value"]) == ("no-ledger", cursor_bytes(compacted_ledger=115))


def test_ledger_moved_during_the_read_is_read_again(store: FakeMetadataStore, entries: FakeLedgerEntries) -> None:
    moved = ledger_metadata_bytes(last_entry_id=1, ensemble=("bookie-3:3181", "bookie-4:3181"))
    entries.fail(TemporaryError("the bookie is gone"))

    def move() -> None:
        store.put(ledger_path(LedgerId(116)), moved)
        entries.fail(None)

    # The second look at the cursor comes after the entries could not be read.
    store.before("read", lambda: store.before("read", move, path=CURSOR), path=CURSOR)
    assert [row["state"] for row in rows(store, entries)] == ["read", "read"]


def test_a_cursor_that_never_holds_still_is_unreadable(store: FakeMetadataStore, entries: FakeLedgerEntries) -> None:
    store.before("read", lambda: store.put(CURSOR, cursor_bytes(cursor_ledger=116)), path=CURSOR, times=-1)
    (row,) = rows(store, entries)
    assert "changed during each of" in row["unreadable"]


# --- requests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "kind", "address"), [
    ("zk://a:1,b:2/c", SourceKind.ZOOKEEPER, "a:1,b:2/c"),
    ("zk:a:1,b:2/c", SourceKind.ZOOKEEPER, "a:1,b:2/c"),
    ("zk-snapshot:/x/snapshot.1", SourceKind.ZOOKEEPER_SNAPSHOT, "/x/snapshot.1"),
    ("rocksdb-copy:/x/metadata", SourceKind.ROCKSDB_COPY, "/x/metadata"),
])  # fmt: skip
def test_sources_of_dumps(text: str, kind: SourceKind, address: str) -> None:
    assert dump_source(text) == (kind, address)


@pytest.mark.parametrize(
    "text", ["", "zk:", "zk://", "zk-admin:http://a:8080", "zk-snapshot:", "rocksdb-copy:", "/x/snapshot.1", "http://a"]
)
def test_invalid_dump_sources_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="zk-snapshot:FILE"):
        dump_source(text)


def test_the_address_of_a_pushgateway_takes_no_password() -> None:
    with pytest.raises(InvalidInputError, match="must not contain a user or a password") as refusal:
        pushgateway_group("http://me:s3cret@a:9091/metrics/job/audit")
    assert "s3cret" not in str(refusal.value)


def test_a_living_zookeeper_is_read_gently_by_default() -> None:
    assert zookeeper_rate(None) == 20_000
    assert (zookeeper_rate(5), zookeeper_rate(0)) == (5, None)
