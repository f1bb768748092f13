"""Tables that hold every entry once, seen or not seen, and a manifest that counts them."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pulsar_sidecar.adapters.parquet.directories import demand_sha256
from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.adapters.pulsar_wire.message_rows import BookieTopicMessages, MessageRows
from pulsar_sidecar.features.duplicates.extract import extract
from pulsar_sidecar.features.duplicates.extracts.tables import TABLES
from pulsar_sidecar.features.duplicates.manifests import ExtractManifest, UnseenCount, parse_manifest
from pulsar_sidecar.features.duplicates.verify import Progress, TopicMessages
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerEntry, UnseenCause, UnseenEntries
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.reports.documents import FileDigest

from tests.fakes.clock import FakeClock
from tests.fakes.stored_batches import stored_batch, stored_message
from tests.fakes.stored_topics import StoredTopic
from tests.unit.duplicates.rows import Log
from tests.unit.duplicates.test_verify import Readings

ORIGIN = {
    "scope": "public/default",
    "source": "zk:zookeeper:2181",
    "instance_id": "instance",
    "tool_version": "1",
}
BATCH = stored_batch([(1, b"a"), (2, b"b")], "LZ4", replicated_from="west")
OTHER = parse_topic_name("persistent://public/default/other")


@pytest.fixture
def orders() -> Iterator[StoredTopic]:
    with StoredTopic() as topic:
        offloaded = topic.add(2, [b"is in tiered storage"] * 4)
        topic.add(3, [BATCH, b"no message", stored_message(b"c", sequence_id=2**64 - 1)])
        topic.add(4, [])
        topic.add(5, [BATCH], closed=False)
        topic.offload(offloaded)
        yield topic


def made(directory: Path, messages: TopicMessages, *topics: TopicName) -> ExtractManifest:
    clock = FakeClock()
    progress = Progress(lambda text: None, clock)
    return extract(topics, messages, partial(parquet_output, directory), progress, clock, **ORIGIN)


def table(directory: Path, name: str) -> pa.Table:
    return pq.read_table(directory / name, schema=TABLES[name])


def test_every_message_is_a_row(orders: StoredTopic, tmp_path: Path) -> None:
    made(tmp_path / "extract", BookieTopicMessages(orders.reader()), orders.name)
    decoder = MessageRows()
    expected = [
        row
        for ledger_id, entry_id in ((3, 0), (3, 2), (5, 0))
        for row in decoder.of(
            LedgerEntry(
                LedgerId(ledger_id),
                EntryId(entry_id),
                stored_message(b"c", sequence_id=2**64 - 1) if entry_id == 2 else BATCH,
            )
        )
    ]
    rows = table(tmp_path / "extract", "messages").to_pylist()
    assert rows == [{"topic": str(orders.name), **row._asdict()} for row in expected]
    assert [(row["sequence_id"], row["replicated_from"]) for row in rows[:3]] == [(1, "west"), (2, "west"), (-1, None)]


def test_the_manifest_counts_all_of_it(orders: StoredTopic, tmp_path: Path) -> None:
    directory = tmp_path / "extract"
    manifest = made(directory, BookieTopicMessages(orders.reader()), orders.name, OTHER)
    assert (manifest.topics, manifest.gone, manifest.ledgers, manifest.entries, manifest.messages) == (1, 1, 2, 3, 5)
    assert manifest.unseen == {"offloaded": UnseenCount(1, 4, 0), "unreadable": UnseenCount(1, 1, 0)}
    assert parse_manifest(json.loads((directory / "manifest.json").read_text())) == manifest
    for file in manifest.files:
        demand_sha256(directory / file.path, file.sha256)
    ledgers = table(directory, "ledgers").to_pylist()
    spans = [(row["ledger_id"], row["first_entry_id"], row["last_entry_id"], row["entries"]) for row in ledgers]
    assert spans == [(3, 0, 2, 2), (5, 0, 0, 1)]
    unseen = table(directory, "unseen").to_pylist()
    assert [(row["ledger_id"], row["first_entry_id"], row["last_entry_id"]) for row in unseen] == [(2, 0, 3), (3, 1, 1)]


def test_topics_follow_each_other_in_the_order_of_their_logs(tmp_path: Path) -> None:
    with ExitStack() as stack:
        topics = [stack.enter_context(StoredTopic(f"persistent://public/default/{name}")) for name in "ab"]
        readings = []
        for topic in topics:
            topic.add(3, [stored_message(b"", sequence_id=number) for number in range(300)])
            topic.add(9, [stored_message(b"", sequence_id=number) for number in range(300)], closed=False)
            readings.append(list(BookieTopicMessages(topic.reader()).read(topic.name)))
        made(tmp_path / "extract", Readings(*readings), *(topic.name for topic in topics))
    rows = table(tmp_path / "extract", "messages").to_pylist()
    order = [(row["topic"], row["ledger_id"], row["entry_id"]) for row in rows]
    assert len(order) == 1200
    assert order == sorted(order)


def test_an_extract_of_nothing_has_tables_all_the_same(tmp_path: Path) -> None:
    manifest = made(tmp_path / "extract", Readings())
    assert (manifest.topics, manifest.messages, len(manifest.files)) == (0, 0, 3)
    for name, schema in TABLES.items():
        assert pq.read_table(tmp_path / "extract" / name).schema.equals(schema)


def test_a_gap_between_entries_leaves_nothing_behind(tmp_path: Path) -> None:
    log = Log()
    rows = [log.add(number) for number in range(3)]
    for readings in ([[rows[0]], [rows[2]]], [[rows[1]]], [[rows[0]], _unseen(0)], [[rows[0]], _unseen(2)]):
        with pytest.raises(TemporaryError, match="not read in order"):
            made(tmp_path / "extract", Readings(readings), OTHER)
        assert list(tmp_path.iterdir()) == []
    unbounded = [[rows[0]], _unseen(1, None)]
    assert made(tmp_path / "extract", Readings(unbounded), OTHER).unseen == {"unreadable": UnseenCount(1, 0, 1)}


def _unseen(first: int, last: int | None = 9) -> UnseenEntries:
    end = None if last is None else EntryId(last)
    return UnseenEntries(LedgerId(0), EntryId(first), end, UnseenCause.UNREADABLE, "reason")


# --- manifests -----------------------------------------------------------------------------------------------------


MANIFEST = ExtractManifest(
    tool_version="1",
    scope="public/default",
    source="zk:zookeeper:2181",
    instance_id="id",
    topics=2,
    gone=1,
    ledgers=3,
    entries=9,
    messages=20,
    unseen={"offloaded": UnseenCount(1, 50, 0), "unreadable": UnseenCount(2, 0, 1)},
    files=(
        FileDigest("messages/part-00000.parquet", 20, 500, "ab"),
        FileDigest("ledgers/part-00000.parquet", 3, 500, "cd"),
        FileDigest("unseen/part-00000.parquet", 3, 500, "ef"),
    ),
    machine_times=(5, 6),
)


def test_manifest_round_trip() -> None:
    assert parse_manifest(MANIFEST.document()) == MANIFEST


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", "metadata-dump"),
        ("formatVersion", 2),
        ("complete", False),
        ("messages", 21),
        ("more", 1),
        ("files", None),
        ("unseen", {"offloaded": {"ranges": 1}}),
    ],
)
def test_every_other_value_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidInputError):
        parse_manifest(MANIFEST.document() | {name: value})


@pytest.mark.parametrize("name", sorted(MANIFEST.document()))
def test_missing_manifest_field_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_manifest({key: value for key, value in MANIFEST.document().items() if key != name})


@pytest.mark.parametrize("document", [None, [], "text", {}])
def test_other_documents_are_not_manifests(document: object) -> None:
    with pytest.raises(InvalidInputError):
        parse_manifest(document)
