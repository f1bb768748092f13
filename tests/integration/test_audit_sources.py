"""Dumps and listings of a real cluster: by every way the same, and nothing is missing that references a ledger."""

import itertools
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
from pulsar_sidecar.adapters.parquet.directories import open_tables
from pulsar_sidecar.adapters.parquet.inputs import read_table
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.bootstrap.audit_sources import export_listing, take_dump
from pulsar_sidecar.features.audit.requests import DumpRequest, ListingRequest
from pulsar_sidecar.features.audit.results.summaries import Count
from pulsar_sidecar.features.audit.results.tables import CursorLedgerState, Subtree, Table
from pulsar_sidecar.features.audit.sources.manifests import InputKind, Manifest
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS, ledger_id_of_path
from pulsar_sidecar.ownership.references import (
    cursor_references,
    managed_ledger_references,
    position_entry_compacted_ledger,
    schema_references,
)

from tests.cluster.audits import Audits, Look, demand_unused
from tests.cluster.background import running_until
from tests.cluster.broker_view import BrokerView
from tests.cluster.choosing import FAST_BOOKIE_SESSIONS
from tests.cluster.deletion import BROKER_CONF
from tests.cluster.every_kind import EVERY_KIND_CONF, Churn, EveryKind
from tests.cluster.function_state import FunctionState, function_state
from tests.cluster.patience import OPERATION_SECONDS, until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.shadows import Shadows
from tests.cluster.sidecars import run_command
from tests.cluster.topics import Workload
from tests.made_audits import dumped_nodes

NAMESPACE = "public/audited"
CHURN_SEED = 5
# Nodes that brokers and sessions write all the time.
_RESTLESS = ("/loadbalance", "/counters", "/ledgers/idgen", "/pulsar-sidecar")


@dataclass(frozen=True, slots=True)
class QuietCluster:
    """A quiet cluster with ledgers of every kind."""

    cluster: ClusterUnderTest
    every: EveryKind
    state: FunctionState
    view: BrokerView
    directory: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def zookeeper(self) -> str:
        return self.cluster.addresses.metadata_store_url.removeprefix("zk:")

    def dump(self) -> Path:
        """Dump the running ZooKeeper in this process; the tests make too many dumps for a command."""
        directory = self._new_directory()
        take_dump(DumpRequest(f"zk://{self.zookeeper}", directory), lambda text: None)
        return directory

    def listing(self) -> Path:
        """List the ledgers' nodes in this process."""
        directory = self._new_directory()
        url = self.cluster.addresses.metadata_store_url
        export_listing(ListingRequest(directory, url), lambda text: None)
        return directory

    def _new_directory(self) -> Path:
        return self.directory / str(next(self.numbers))

    def take(self, *arguments: str) -> Path:
        """Run a command that must succeed; its directory."""
        directory = self._new_directory()
        ran = run_command(*arguments, "--output", str(directory))
        assert ran.exit_code == 0, ran.stderr
        return directory


@pytest.fixture(scope="module")
def quiet(special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuietCluster]:
    options: dict[str, Any] = {
        "zookeeper_conf": {"admin.enableServer": "true"},
        "bookie_conf": FAST_BOOKIE_SESSIONS,
        "broker_conf": {**BROKER_CONF, **EVERY_KIND_CONF},
    }
    directory = tmp_path_factory.mktemp("audit")
    with (
        special_cluster(**options) as cluster,
        closing(Workload(cluster)) as workload,
        closing(BrokerView(cluster.addresses)) as view,
        function_state(cluster.addresses, directory) as state,
    ):
        every = EveryKind(workload, cluster.addresses, NAMESPACE)
        every.fill()
        yield QuietCluster(cluster, every, state, view, directory)


def nodes_of(directory: Path) -> dict[str, dict[str, Any]]:
    """Return every node, without those that change without requests."""
    rows = read_table(directory, Table.NODES).to_pylist()
    assert len({row["path"] for row in rows}) == len(rows)
    return {row["path"]: row for row in rows if not row["ephemeral"] and not row["path"].startswith(_RESTLESS)}


def manifest_of(directory: Path) -> Manifest:
    return open_tables(directory, InputKind.DUMP)


def test_walking_and_a_file_see_the_same_nodes(quiet: QuietCluster) -> None:
    walked = quiet.dump()
    take_snapshot(quiet)
    read = quiet.take("metadata", "dump", "--source", f"zk-snapshot:{newest_snapshot(quiet)}")
    manifests = [manifest_of(directory) for directory in (walked, read)]
    since = min(manifest.zxids.first or 0 for manifest in manifests)
    last = nodes_of(read)
    steady = {path: row for path, row in last.items() if row["mzxid"] <= since}
    assert len(steady) > 80
    nodes = nodes_of(walked)
    assert {path: nodes.get(path) for path in steady} == steady
    assert all(last[path]["czxid"] > since for path in set(last) - set(nodes))
    assert len({manifest.instance_id for manifest in manifests}) == 1
    assert [manifest.cluster_name for manifest in manifests] == ["local"] * 2
    assert [manifest.allows_deletion for manifest in manifests] == [True, False]
    for manifest in manifests:
        assert manifest.as_of is not None
        assert abs(manifest.as_of.store_time_ms - SystemClock().now_ms()) < 600_000


def take_snapshot(quiet: QuietCluster) -> None:
    url = f"{quiet.cluster.addresses.zookeeper_admin_url}/commands/snapshot?streaming=false"
    requests.get(url, headers={"Authorization": "digest any:"}, timeout=OPERATION_SECONDS).raise_for_status()


def newest_snapshot(quiet: QuietCluster) -> Path:
    """Copy ZooKeeper's data directory like an operator."""
    root = quiet.cluster.addresses.directory
    assert root is not None
    snapshots = (root / "zookeeper" / "data" / "version-2").glob("snapshot.*")
    newest = max(snapshots, key=lambda path: int(path.name.partition(".")[2], 16))
    return Path(shutil.copy(newest, quiet.directory / newest.name))


def test_everything_that_references_a_ledger_is_in_a_dump(quiet: QuietCluster) -> None:
    listed, dumped = quiet.listing(), quiet.dump()
    existing = {row["ledger_id"] for row in read_table(listed, Table.LEDGERS).to_pylist()}
    used = quiet.every.workload.ledgers(quiet.every.everything)
    assert used.all <= existing
    assert used.compacted <= compacted_of(dumped)
    packages, state = segments_of(dumped, "/pulsar/packages/"), segments_of(dumped, "/stream/storage/")
    assert packages
    # The table of tables, the root of each storage container, and the functions' table.
    assert len(state) > 2
    assert packages | state <= existing
    until(
        lambda: unreferenced(quiet) == quiet.view.unreferenced(),
        "nothing is unreferenced but what no broker knows",
    )


def unreferenced(quiet: QuietCluster) -> set[int]:
    """Return ledgers that were listed, still exist in the dump after it, and are named nowhere in it."""
    listed, dumped = quiet.listing(), quiet.dump()
    before = {row["ledger_id"] for row in read_table(listed, Table.LEDGERS).to_pylist()}
    return before & set(creation_times(dumped)) - nodes_references(dumped) - compacted_of(dumped) - segments_of(dumped)


def creation_times(dumped: Path) -> dict[int, int]:
    """Return the creation time of every ledger in a dump, milliseconds by the store's clock."""
    rows = dumped_nodes(dumped, Subtree.LEDGERS)
    found = {ledger_id_of_path(row["path"]): row["ctime_ms"] for row in rows}
    return {ledger_id: ctime_ms for ledger_id, ctime_ms in found.items() if ledger_id is not None}


def compacted_of(directory: Path) -> set[int]:
    rows = read_table(directory, Table.CURSOR_LEDGERS).to_pylist()
    assert {row["state"] for row in rows} <= {CursorLedgerState.READ.value, CursorLedgerState.NO_LEDGER.value}
    named = {position_entry_compacted_ledger(row["entry"]) for row in rows if row["entry"] is not None}
    return {ledger_id for ledger_id in named if ledger_id is not None}


def segments_of(directory: Path, root: str = "") -> set[int]:
    rows = read_table(directory, Table.LOG_SEGMENTS).to_pylist()
    assert {row["unreadable"] for row in rows} <= {None}
    return {row["ledger_id"] for row in rows if row["path"].startswith(root)}


def nodes_references(directory: Path) -> set[int]:
    found: set[int] = set()
    for row in dumped_nodes(directory, Subtree.SCHEMAS):
        found |= schema_references(row["value"]) if row["value"] else set()
    for row in dumped_nodes(directory, Subtree.MANAGED_LEDGERS):
        parts = row["path"].removeprefix(f"{MANAGED_LEDGERS}/").split("/")
        depth = len(parts) - parts.index("persistent") if "persistent" in parts else 0
        if depth == 2:
            found |= set(managed_ledger_references(row["value"]).ledgers)
        elif depth == 3:
            cursor = cursor_references(row["value"])
            found |= {cursor.cursor_ledger, cursor.compacted_ledger, *cursor.buckets.values()} - {None}
    return found


def test_nothing_in_use_is_deletable_while_topics_and_cursors_come_and_go(quiet: QuietCluster, tmp_path: Path) -> None:
    audits = Audits(quiet.cluster.addresses, tmp_path)
    audits.look()
    churn = Churn(quiet.every.workload, quiet.cluster.addresses, "public/churned", random.Random(CHURN_SEED))
    with churn.running(threads=2):
        quiet.state.put("meanwhile", "18")
        # What is used after the first dump must not be deletable by the second.
        in_use = quiet.view.references()
        look = audits.look()
        demand_unused(look, look.deletable, in_use)
    assert churn.done.total() > 0, churn.failed
    demand_unused(look, look.deletable, quiet.view.references())
    quiet.every.check()
    quiet.state.check()


def test_sizes_are_those_of_bookkeepers_closed_ledgers(quiet: QuietCluster, tmp_path: Path) -> None:
    """Unloaded topics too, whose lists give no size of their last ledger; a shadow's ledgers are its source's."""
    urls = quiet.cluster.addresses.web_service_urls
    pair = Shadows(quiet.every.workload, urls).pair(quiet.every.topic("shadowed"), ledgers=2, partitions=2)
    shadows = [quiet.every.topic("shadow"), *pair.shadows]
    for shadow in pair.shadows:
        # Loading it copies the source's list.
        assert quiet.every.workload.read_all(shadow)
    topics = [*(topic for topic in quiet.every.written if topic not in shadows), *pair.sources]
    for topic in topics:
        quiet.every.workload.unload(topic)
    audits = Audits(quiet.cluster.addresses, tmp_path)

    def agreeing() -> tuple[Look, dict[int, int | None]] | None:
        look = audits.look()
        lengths = lengths_of(look.directory.parent / "dump")
        unknown = sum(length is None for length in lengths.values())
        known = sum(length for length in lengths.values() if length is not None)
        return (look, lengths) if look.summary.existing == Count(len(lengths), known, unknown) else None

    # Brokers make and delete ledgers of their own between a listing and its dump.
    look, lengths = until(agreeing, "the audit's total is that of BookKeeper's closed ledgers")
    bytes_of = {row["topic"]: row["bytes"] for row in look.rows(Table.LEDGER_USAGE) if row["kind"] == "data"}
    for topic in topics:
        of_topic = [lengths[ledger_id] for ledger_id in quiet.every.workload.ledgers(topic).data]
        assert bytes_of[str(topic)] == sum(length or 0 for length in of_topic) > 0, topic
    for shadow in shadows:
        assert quiet.every.workload.ledgers(shadow).data, shadow
        assert str(shadow) not in bytes_of, shadow


def lengths_of(dumped: Path) -> dict[int, int | None]:
    """Return the length of every ledger in a dump, None for one that is not closed."""
    found = {}
    for row in dumped_nodes(dumped, Subtree.LEDGERS):
        ledger_id = ledger_id_of_path(row["path"])
        if ledger_id is not None:
            metadata = decode_ledger_metadata(row["value"])
            found[int(ledger_id)] = metadata.length_bytes if metadata.state is LedgerState.CLOSED else None
    return found


def test_a_listing_has_the_ledgers_of_a_dump(quiet: QuietCluster) -> None:
    url = quiet.cluster.addresses.metadata_store_url

    def agreeing() -> tuple[Path, Path] | None:
        listed = quiet.take("ledgers", "list", "--metadata-store-url", url, "--with-metadata")
        dumped, rows = quiet.dump(), read_table(listed, Table.LEDGERS).to_pylist()
        assert all(row["unreadable"] is None and row["metadata"] for row in rows)
        ids = [row["ledger_id"] for row in rows]
        assert len(set(ids)) == len(ids)
        same = {row["ledger_id"]: row["ctime_ms"] for row in rows} == creation_times(dumped)
        return (listed, dumped) if same else None

    # Brokers make and delete ledgers of their own meanwhile.
    listed, dumped = until(agreeing, "the listing and the dump agree")
    assert open_tables(listed, InputKind.LISTING).instance_id == manifest_of(dumped).instance_id


def test_a_walk_while_nodes_come_and_go_misses_none_that_stays(quiet: QuietCluster) -> None:
    stop = threading.Event()
    clock = SystemClock()
    with ZooKeeperMetadataStore(quiet.cluster.addresses.metadata_store_url, clock) as store:
        staying = {f"/managed-ledgers/churn/{n:03d}" for n in range(300)}
        for path in sorted(staying):
            store.create(path, b"")
        with running_until(stop, [lambda: churn(store, stop)]):
            for _ in range(3):
                dumped = quiet.dump()
                paths = [r["path"] for r in dumped_nodes(dumped, Subtree.MANAGED_LEDGERS)]
                assert staying <= set(paths)
        for path in sorted(staying):
            store.delete(path)


def churn(store: ZooKeeperMetadataStore, stop: threading.Event) -> None:
    number = 0
    while not stop.is_set():
        branch = f"/managed-ledgers/churn/{number % 300:03d}/{number}"
        for leaf in ("a", "b"):
            store.create(f"{branch}/{leaf}", b"x")
        for gone in (f"{branch}/a", f"{branch}/b", branch):
            store.delete(gone)
        number += 1


def test_failures_leave_nothing(quiet: QuietCluster, tmp_path: Path) -> None:
    cut = tmp_path / newest_snapshot(quiet).name
    cut.write_bytes(newest_snapshot(quiet).read_bytes()[:-60])
    commands = [
        (1, "metadata", "dump", "--source", f"zk-snapshot:{cut}"),
        (1, "metadata", "dump", "--source", f"zk://{quiet.zookeeper}/no/such/chroot"),
        (1, "metadata", "dump", "--source", f"zk://{quiet.zookeeper}", "--ledgers-root-path", "/nowhere"),
        (3, "ledgers", "list", "--metadata-store-url", "zk:127.0.0.1:9"),
        (3, "metadata", "dump", "--source", "zk://127.0.0.1:9"),
    ]
    made = tmp_path / "made"
    made.mkdir()
    for code, *command in commands:
        ran = run_command(*command, "--output", str(made / "out"))
        assert (ran.exit_code, ran.stdout) == (code, ""), f"{command}: {ran.stderr}"
        assert "Traceback" not in ran.stderr
        assert ran.stderr.strip()
        assert list(made.iterdir()) == []


def test_a_bookie_that_is_down_makes_unreadable_rows(quiet: QuietCluster) -> None:
    workload, topic = quiet.every.workload, quiet.every.everything
    # Brokers compact only what is new, and the cursor of an unloaded topic has no ledger.
    workload.produce(topic, [b"one more"], key="key")
    workload.compact(topic)
    until(lambda: COMPACTION_CURSOR in workload.ledgers(topic).cursors, "the cursor of compaction has a ledger")
    quiet.cluster.kill("bookie-1")
    try:
        dumped = quiet.dump()
    finally:
        quiet.cluster.restart("bookie-1")
    unreadable = [row for row in read_table(dumped, Table.CURSOR_LEDGERS).to_pylist() if row["unreadable"]]
    assert unreadable
    assert manifest_of(dumped).counts[Table.CURSOR_LEDGERS.value].unreadable == len(unreadable)
