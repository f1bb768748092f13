"""The watch for leaked ledgers: memory, a walk after a disconnect, how soon a leak is deleted, and its cost at rest.

Each part has a control in the same run: the made-up nodes alone, a walk that decodes nothing, records that a client
appends by hand, a sidecar without a watch. What hearing of changes costs others is the benchmark ``changes``.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from kazoo.client import KazooClient
from pulsar_sidecar.adapters.metadata_access import WalkOptions
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.adapters.zookeeper.whole_store import ZooKeeperWholeStore
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.adapters.zookeeper.zookeeper_changes import ZooKeeperChanges
from pulsar_sidecar.adapters.zookeeper.zookeeper_walk import LedgerNodes, ZooKeeperWalk
from pulsar_sidecar.features.ledger_deletion.watch.ports import LedgerIds, WalkedNode
from pulsar_sidecar.features.ledger_deletion.watch.reference_counts import ReferenceCounts
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, ledger_path, managed_ledger_path

from tests.benchmarks.clusters import processor_seconds
from tests.cluster.deletion import BROKER_CONF
from tests.cluster.orphans import create_nodes
from tests.cluster.patience import until
from tests.cluster.running import ExternalClusterUnderTest
from tests.cluster.sidecars import BASE, SidecarProcess, Sidecars
from tests.cluster.topics import TopicLedgers, Workload, numbered_topics, unique
from tests.fakes.bookkeeper import cursor_bytes, data_custom_metadata, ledger_metadata_bytes, managed_ledger_bytes
from tests.fakes.bookkeeper import schema_locator_bytes as schema_bytes
from tests.made_clusters import FIRST_LEDGER, Numbers, varint4
from tests.reporting import Table

NAME = "leak_watch"
_PARTS = ("memory", "walk", "delay", "rest")
_LEDGERS_OF_A_TOPIC = 10
_NODES_OF_A_TOPIC = 3
_IN_LIST = 8
_TOPICS_AT_ONCE = 10_000
_SCATTER = 15_485_863
"""A prime: with it, a topic's ledgers get ids far apart, as where all topics roll at the same time."""
_GAP = 2
_ZOOKEEPER_OPTIONS = ("-XX:TieredStopAtLevel=4", "-Xmx3g")
_BROKER_OPTIONS = ("-XX:TieredStopAtLevel=4", "-Xmx512m")
_MEGABYTE = 1_000_000
SETTLE_SECONDS = 10
_LEDGERS_OF_A_LEAK = 4
_TOPICS_OF_A_GROUP = 10
_LOOK_SECONDS = 0.05
_PAUSE_SECONDS = 0.5
_PATIENCE_SECONDS = 120.0
_SESSION_SECONDS = 40.0
"""The longest that ZooKeeper grants: one that writes millions of nodes answers late."""
_WARM_UP_SECONDS = 20.0
_CLOCK = SystemClock()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS)
    parser.add_argument("--ledgers", type=int, nargs="+", default=[1_000_000, 10_000_000], help="in memory")
    parser.add_argument("--nodes", type=int, default=1_000_000, help="in the living ZooKeeper that is walked")
    parser.add_argument("--rounds", type=int, default=3, help="of walks")
    parser.add_argument("--leaks", type=int, default=120, help="ledgers that leak, and as many appended by hand")
    parser.add_argument("--rest-seconds", type=float, default=60.0)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    tables: list[Table] = []
    if "memory" in arguments.parts:
        tables.append(_memory(arguments.ledgers))
    if "walk" in arguments.parts:
        tables.append(_walks(arguments.nodes, arguments.rounds))
    if {"delay", "rest"} & set(arguments.parts):
        tables += _on_a_cluster(arguments)
    return tables


def _load() -> str:
    return f"Load of the machine in the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."


# Made-up clusters ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MadeTopics:
    """Topics with ten ledgers in three nodes each: eight in the list, one of a cursor, one of a schema."""

    count: int

    def ids(self) -> Iterator[LedgerIds]:
        """Every ledger, in pieces."""
        return (self._ids_of(topics).reshape(-1) for topics in self._pieces())

    def nodes(self) -> Iterator[list[WalkedNode]]:
        """Every node that names ledgers, in pieces; those above others come first."""
        owned = _filled(managed_ledger_bytes([FIRST_LEDGER] * _IN_LIST))
        cursor = _filled(cursor_bytes(FIRST_LEDGER))
        schema = _filled(schema_bytes([FIRST_LEDGER]))
        for topics in self._pieces():
            ids = self._ids_of(topics)
            names = [
                f"orders-eu/checkout-service/persistent/order-status-{n // 8:07d}-partition-{n % 8}" for n in topics
            ]
            values = zip(names, owned(ids[:, :_IN_LIST]), cursor(ids[:, -2:-1]), schema(ids[:, -1:]), strict=True)
            piece: list[WalkedNode] = []
            for name, of_list, of_cursor, of_schema in values:
                path = f"/managed-ledgers/{name}"
                piece.append(WalkedNode(path, of_list))
                piece.append(WalkedNode(f"{path}/fulfilment-worker", of_cursor))
                piece.append(WalkedNode(f"/schemas/{name.replace('/persistent', '')}", of_schema))
            yield piece

    def _pieces(self) -> Iterator[Numbers]:
        step = _TOPICS_AT_ONCE
        return (np.arange(start, min(start + step, self.count)) for start in range(0, self.count, step))

    def _ids_of(self, topics: Numbers) -> Numbers:
        slots = topics[:, None] * _LEDGERS_OF_A_TOPIC + np.arange(_LEDGERS_OF_A_TOPIC)
        return FIRST_LEDGER + _GAP * (slots * _SCATTER % (self.count * _LEDGERS_OF_A_TOPIC))


def _filled(template: bytes) -> Callable[[Numbers], list[bytes]]:
    """Makes the template once for each row of ids, which take turns where it has `FIRST_LEDGER`."""
    mark = varint4(np.array(FIRST_LEDGER)).tobytes()
    places = [at for at in range(len(template)) if template.startswith(mark, at)]

    def fill(ids: Numbers) -> list[bytes]:
        rows = np.tile(np.frombuffer(template, np.uint8), (len(ids), 1))
        for number, at in enumerate(places):
            rows[:, at : at + len(mark)] = varint4(ids[:, number % ids.shape[1]])
        return [row.tobytes() for row in rows]

    return fill


# Memory ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Walked:
    """A walk of a counts: seconds and bytes, of the process's own and with what it had before."""

    seconds: float
    resident: int
    peak: int


@dataclass(slots=True)
class _Counted:
    """One process's report."""

    control_seconds: float = 0.0
    before: int = 0
    walks: list[_Walked] = field(default_factory=list)


def _memory(sizes: Sequence[int]) -> Table:
    found: list[tuple[int, _Counted]] = []
    for ledgers in sizes:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            found.append((ledgers, pool.submit(_counted, ledgers // _LEDGERS_OF_A_TOPIC).result()))
    rows = []
    for ledgers, counted in found:
        nodes = ledgers // _LEDGERS_OF_A_TOPIC * _NODES_OF_A_TOPIC
        for name, walked in zip(("first walk", "walk anew"), counted.walks, strict=True):
            seconds = walked.seconds - counted.control_seconds
            sizes_of = [f"{size / _MEGABYTE:,.0f} MB" for size in (counted.before, walked.resident, walked.peak)]
            rows.append([f"{ledgers:,} in {nodes:,}", name, f"{seconds:.1f}", *sizes_of])
    notes = [f"Seconds without those that making up the nodes takes. {_load()}"]
    if len(found) > 1:
        (fewer, less), (more, much) = found[0], found[-1]
        ends = [(less.walks[-1].resident, much.walks[-1].resident), (less.walks[-1].peak, much.walks[-1].peak)]
        steady, peak = ((last - first) / (more - fewer) for first, last in ends)
        steady_gb, peak_gb = (
            (last + slope * (100_000_000 - more)) / 1e9 for (_, last), slope in zip(ends, (steady, peak), strict=True)
        )
        notes.append(
            f"A ledger with its share of nodes takes {steady:.0f} bytes, and {peak:.0f} at the peak of a walk anew; "
            f"by that slope 100 million take {steady_gb:.1f} and {peak_gb:.1f} GB."
        )
    header = ("ledgers, nodes", "", "seconds", "process before", "afterwards", "peak meanwhile")
    return Table("Memory of the counts", header, rows, notes)


def _counted(topics: int) -> _Counted:
    made = MadeTopics(topics)
    counted = _Counted()
    counted.control_seconds = _timed(lambda: (deque(made.ids(), maxlen=0), deque(made.nodes(), maxlen=0)))
    counts = ReferenceCounts()
    counted.before = _status_bytes("VmRSS")
    for _ in range(2):
        # Begins the highest anew.
        Path("/proc/self/clear_refs").write_text("5")
        seconds = _timed(lambda: counts.walk(made.ids(), made.nodes()))
        counted.walks.append(_Walked(seconds, _status_bytes("VmRSS"), _status_bytes("VmHWM")))
    expected = topics * _LEDGERS_OF_A_TOPIC
    if (counts.ledgers, counts.references, len(counts.unreferenced())) != (expected, expected, 0):
        raise RuntimeError("the counts is not what was made up; the figures are worthless")
    return counted


def _status_bytes(name: str) -> int:
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) * 1024


def _timed(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


# Walks of a living ZooKeeper -------------------------------------------------------------------------------------


def _walks(nodes: int, rounds: int) -> Table:
    topics = MadeTopics(nodes // (_LEDGERS_OF_A_TOPIC + _NODES_OF_A_TOPIC))
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-sidecar-benchmark-")))
        spec = ClusterSpec(
            scratch / "cluster", brokers=0, bookies=0, java_options=_ZOOKEEPER_OPTIONS, ends_with_starter=True
        )
        url = stack.enter_context(LocalCluster.up(spec)).addresses().metadata_store_url
        fill_zookeeper(url, topics)
        store = stack.enter_context(ZooKeeperMetadataStore(url, _CLOCK))
        changes = stack.enter_context(closing(ZooKeeperChanges(url, _CLOCK)))
        counts = ReferenceCounts()

        def bare(rate: float | None) -> int:
            return _bare(url, store, rate)

        def walk_anew(rate: float | None) -> int:
            changes.arm()
            whole = ZooKeeperWholeStore(url, _CLOCK, DEFAULT_LEDGERS_ROOT, WalkOptions(nodes_per_second=rate))
            counts.walk(whole.ledger_ids(), whole.nodes())
            return counts.ledgers + counts.nodes

        walk_anew(None)
        contenders: Mapping[str, tuple[Callable[[float | None], int], float | None]] = {
            "control: walk that decodes nothing, no limit": (bare, None),
            "armed, walked and compared, no limit": (walk_anew, None),
            "control at 20,000 nodes a second": (bare, 20_000.0),
            "armed, walked and compared at 20,000 a second": (walk_anew, 20_000.0),
        }
        expected = topics.count * (_LEDGERS_OF_A_TOPIC + _NODES_OF_A_TOPIC)
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, (work, rate) in contenders.items():
                started, used = time.monotonic(), time.process_time()
                if work(rate) < expected:
                    raise RuntimeError("nodes are missing; the figures are worthless")
                took[name].append((time.monotonic() - started, time.process_time() - used))
    rows = []
    for name, pairs in took.items():
        seconds = [each for each, _ in pairs]
        span = f"{min(seconds):.1f} to {max(seconds):.1f}"
        rows.append([name, f"{statistics.median(seconds):.1f}", span, f"{statistics.median(u for _, u in pairs):.1f}"])
    title = f"A walk after a disconnect, {expected:,} nodes, {topics.count * _LEDGERS_OF_A_TOPIC:,} of them ledgers"
    notes = (f"Ledgers are listed and not read: the limit counts their directories. {_load()}",)
    return Table(title, ("", "seconds", "range", "of processor time"), rows, notes)


def _bare(url: str, store: ZooKeeperMetadataStore, rate: float | None) -> int:
    """The same nodes as `ZooKeeperWholeStore` reads."""
    others = ZooKeeperWalk(
        url,
        _CLOCK,
        WalkOptions(nodes_per_second=rate),
        is_skipped=lambda path: not path.startswith(("/managed-ledgers", "/schemas")),
    )
    ledgers = LedgerNodes(url, store, _CLOCK, DEFAULT_LEDGERS_ROOT, WalkOptions(nodes_per_second=rate))
    return sum(batch.num_rows for walk in (ledgers, others) for batch in walk.batches())


def fill_zookeeper(url: str, topics: MadeTopics) -> None:
    """Write all of their nodes, and those of their ledgers."""
    metadata = ledger_metadata_bytes(custom_metadata=data_custom_metadata("orders-eu/checkout-service/persistent/any"))
    kazoo = KazooClient(parse_metadata_store_url(url).hosts, timeout=_SESSION_SECONDS)
    kazoo.start()
    try:
        for above in ("/managed-ledgers/orders-eu/checkout-service/persistent", "/schemas/orders-eu/checkout-service"):
            kazoo.ensure_path(above)
        for piece in topics.nodes():
            create_nodes(kazoo, [(node.path, node.data) for node in piece])
        directories: set[str] = set()
        for ids in topics.ids():
            paths = [ledger_path(LedgerId(ledger_id)) for ledger_id in ids.tolist()]
            for directory in {path.rpartition("/")[0] for path in paths} - directories:
                kazoo.ensure_path(directory)
                directories.add(directory)
            create_nodes(kazoo, [(path, metadata) for path in paths])
    finally:
        kazoo.stop()
        kazoo.close()


# On a cluster of brokers -----------------------------------------------------------------------------------------


def _on_a_cluster(arguments: argparse.Namespace) -> Iterator[Table]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-sidecar-benchmark-")))
        spec = ClusterSpec(
            scratch / "cluster", broker_conf=BROKER_CONF, java_options=_BROKER_OPTIONS, ends_with_starter=True
        )
        addresses = stack.enter_context(LocalCluster.up(spec)).addresses()
        sidecars = Sidecars(addresses, scratch)
        stack.callback(sidecars.end_all)
        if "delay" in arguments.parts:
            yield _delays(addresses, sidecars, arguments.leaks)
        if "rest" in arguments.parts:
            yield _rest(sidecars, arguments.rest_seconds)


def _delays(addresses: ClusterAddresses, sidecars: Sidecars, leaks: int) -> Table:
    watched: list[float] = []
    by_hand: list[float] = []
    with closing(Workload(ExternalClusterUnderTest(addresses))) as workload:
        # A watch that begins counts what vanished from nothing: each group stays under the brake's limit of 50.
        for _ in range(-(-leaks // (_TOPICS_OF_A_GROUP * _LEDGERS_OF_A_LEAK))):
            for mode, delays in (("append", watched), ("off", by_hand)):
                topics = _filled_topics(workload)
                sidecar = sidecars.start(
                    ledger_deletion_watch=mode, ledger_deletion_watch_settle_in_seconds=SETTLE_SECONDS
                )
                if mode != "off":
                    _wait_until_watching(sidecar)
                delays.extend(_leak(workload, topics, sidecar if mode == "off" else None))
                sidecars.end_all()
    rows = [
        _delay_row("watch, without its settle time", [delay - SETTLE_SECONDS for delay in watched]),
        _delay_row("control: their records appended by hand", by_hand),
    ]
    notes = (
        f"Settle time {SETTLE_SECONDS} s (200 by default), the waits of ledger deletion cut down to seconds as in "
        f"tests; looked at every {_LOOK_SECONDS * 1000:.0f} ms. {_load()}",
    )
    return Table("From vanished reference to deleted ledger", ("", "ledgers", "median", "p99", "longest"), rows, notes)


def _filled_topics(workload: Workload) -> list[TopicLedgers]:
    """Topics that no broker has loaded."""
    namespace = f"public/{unique()}"
    workload.create_namespace(namespace)
    topics = numbered_topics(namespace, _TOPICS_OF_A_GROUP)
    for topic in topics:
        workload.fill(topic, _LEDGERS_OF_A_LEAK)
        workload.unload(topic)
    return [workload.ledgers(topic) for topic in topics]


def _wait_until_watching(sidecar: SidecarProcess) -> None:
    until(lambda: sidecar.call("GET", f"{BASE}/watch")["state"] == "watching", f"it watches\n{sidecar.log()}")


def _leak(workload: Workload, topics: Sequence[TopicLedgers], informed: SidecarProcess | None) -> list[float]:
    """Seconds for each ledger from its list's end, or from its append to a sidecar, to its own end."""
    waiting: dict[LedgerId, float] = {}
    delays: list[float] = []
    upcoming = deque(topics)
    begun = time.monotonic()
    next_at = begun
    while upcoming or waiting:
        if upcoming and time.monotonic() >= next_at:
            next_at += _PAUSE_SECONDS
            topic = upcoming.popleft()
            workload.store.delete(_list_of(topic.topic))
            started = time.monotonic()
            if informed is not None:
                informed.append(topic.records())
            waiting |= dict.fromkeys(topic.all, started)
        existing = workload.existing(waiting)
        now = time.monotonic()
        delays += [now - waiting.pop(ledger_id) for ledger_id in waiting.keys() - existing]
        if now - begun > _PATIENCE_SECONDS:
            raise RuntimeError(f"ledgers are left: {sorted(waiting)}")
        time.sleep(_LOOK_SECONDS)
    return delays


def _list_of(topic: TopicName) -> str:
    return managed_ledger_path(topic.managed_ledger_name)


def _delay_row(name: str, delays: Sequence[float]) -> list[str]:
    figures = (statistics.median(delays), statistics.quantiles(delays, n=100)[-1], max(delays))
    return [name, f"{len(delays):,}", *(f"{figure:.2f} s" for figure in figures)]


def _rest(sidecars: Sidecars, seconds: float) -> Table:
    started = {mode: sidecars.start_with_defaults(ledger_deletion_watch=mode) for mode in ("off", "report")}
    _wait_until_watching(started["report"])
    time.sleep(_WARM_UP_SECONDS)
    before = {mode: processor_seconds(sidecar.pid) for mode, sidecar in started.items()}
    time.sleep(seconds)
    shares = {mode: (processor_seconds(sidecar.pid) - before[mode]) / seconds for mode, sidecar in started.items()}
    sidecars.end_all()
    rows = [
        ["control: a sidecar without a watch", f"{shares['off']:.2%}"],
        ["a sidecar that watches", f"{shares['report']:.2%}"],
        ["difference", f"{shares['report'] - shares['off']:.2%}"],
    ]
    return Table(f"At rest, {seconds:.0f} s, beside each other", ("", "of a core"), rows, (_load(),))
