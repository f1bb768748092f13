"""Fifty thousand pending records to gone and acknowledged, beside BookKeeper's own client and beside the limit.

Each contender gets ledgers of its own, the contenders take turns, and the first turn of each only warms it up. The
sidecar is a real process with default settings; its records are on the topic before the clock starts, and the clock
stops when no ledger and no backlog is left.
"""

import argparse
import contextlib
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar_topics.deletion_topics import BacklogGauge
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.metadata import DeletionResult, Guard, GuardedDeletion
from pulsar_sidecar.ownership.paths import managed_ledger_path

from tests.benchmarks.bookkeeper_peer import bookkeeper_peer, own_driver, pulsar_driver
from tests.benchmarks.clusters import ProcessorTime, add_drain_arguments, benchmark_cluster, wait_until_quiet
from tests.cluster.orphans import Orphan, OrphanMaker
from tests.cluster.sidecars import BASE, SidecarProcess, Sidecars
from tests.cluster.topics import record
from tests.reporting import Table

NAME = "drain"
WINDOW = 1000
_WARM_UP_LEDGERS = 10_000
_RECORDS_PER_CALL = 5_000
_LOOK_SECONDS = 0.02
_PATIENCE_SECONDS = 900
_CLOCK = SystemClock()

SIDECAR = "sidecar, every check, to acknowledged"
UNLIMITED_SIDECAR = "the same, its adaptive limit off"
SIDECARS: Mapping[str, Mapping[str, object]] = {
    SIDECAR: {},
    UNLIMITED_SIDECAR: {"two_phase_deletion_latency_factor": 0},
}
OWN_CLIENT = f"BookKeeper's client, its own driver, window {WINDOW}"
BROKERS_CLIENT = f"BookKeeper's client, Pulsar's driver, window {WINDOW}"
LIMIT = "control: bare versioned multi-deletes"


@dataclass(frozen=True, slots=True)
class Turn:
    """One contender's turn.

    Attributes:
        seconds: from the start to gone and, for the sidecar, acknowledged.
        processor_seconds: what each process used meanwhile, by name.
    """

    seconds: float
    processor_seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Contender:
    """A contender that deletes ledgers.

    Attributes:
        prepare: what is done before the clock starts.
        delete: deletes them and returns the seconds it took.
        pid: whose processor time is reported.
    """

    name: str
    prepare: Callable[[Sequence[Orphan]], None]
    delete: Callable[[Sequence[Orphan]], float]
    pid: int


Starter = Callable[[], AbstractContextManager[Contender]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ledgers", type=int, default=50_000, help="for each contender and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="only contenders whose name contains this, or one of these|those")
    parser.add_argument("--side-by-side", type=int, default=1, help="a topic's ledgers that follow each other")
    parser.add_argument("--retried", type=int, default=0, help="records in a hundred that name ledgers in use")
    add_drain_arguments(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-sidecar-drain-")))
        addresses = stack.enter_context(benchmark_cluster(arguments.cluster))
        maker = stack.enter_context(contextlib.closing(OrphanMaker(addresses, arguments.topics)))
        starters = contender_starters(addresses, scratch, arguments.only or "", stack)
        for start in starters.values():
            _turn(start, maker, addresses, min(arguments.ledgers, _WARM_UP_LEDGERS), arguments)
        turns: dict[str, list[Turn]] = {name: [] for name in starters}
        for _ in range(arguments.rounds):
            for name, start in starters.items():
                turns[name].append(_turn(start, maker, addresses, arguments.ledgers, arguments))
    return [_table(turns, arguments)]


def _turn(
    start: Starter, maker: OrphanMaker, addresses: ClusterAddresses, count: int, arguments: argparse.Namespace
) -> Turn:
    orphans = maker.make(count, arguments.side_by_side)
    with start() as contender:
        contender.prepare(list(_with_retried(orphans, maker.in_use, arguments.retried)))
        wait_until_quiet(addresses)
        used = ProcessorTime({**addresses.members, "contender": contender.pid})
        seconds = contender.delete(orphans)
        processor_seconds = used.used()
    left = maker.remaining(orphans)
    if left:
        raise RuntimeError(f"{contender.name}: {left} ledgers are left; the figures are worthless")
    return Turn(seconds, processor_seconds)


def _with_retried(orphans: Sequence[Orphan], in_use: Sequence[Orphan], percent: int) -> Iterator[Orphan]:
    """Yield the orphans, and evenly among them ledgers in use, whose records go to the retry topic."""
    used = itertools.cycle(in_use)
    for number, orphan in enumerate(orphans):
        yield orphan
        if number * percent % 100 < percent:
            yield next(used)


# --- the contenders ----------------------------------------------------------------------------------------------


def contender_starters(
    addresses: ClusterAddresses, scratch: Path, only: str, stack: ExitStack, left_out: Collection[str] = ()
) -> dict[str, Starter]:
    """Return how to start each contender for a turn: a sidecar as a new process, since two would share the work."""
    kept: dict[str, Starter] = {
        OWN_CLIENT: partial(_bookkeeper, OWN_CLIENT, own_driver(addresses), scratch),
        BROKERS_CLIENT: partial(_bookkeeper, BROKERS_CLIENT, pulsar_driver(addresses), scratch),
    }
    return {
        **{
            name: partial(nullcontext, stack.enter_context(start()))
            for name, start in kept.items()
            if _is_wanted(name, only) and name not in left_out
        },
        **{
            name: partial(_sidecar, name, addresses, scratch, settings)
            for name, settings in SIDECARS.items()
            if _is_wanted(name, only)
        },
        **({LIMIT: partial(_bare, addresses)} if _is_wanted(LIMIT, only) else {}),
    }


def _is_wanted(name: str, only: str) -> bool:
    return any(part in name for part in only.split("|"))


@contextmanager
def _bookkeeper(name: str, uri: str, scratch: Path) -> Iterator[Contender]:
    with tempfile.TemporaryDirectory(dir=scratch) as directory, bookkeeper_peer(uri, WINDOW, Path(directory)) as peer:
        yield Contender(name, nothing, lambda found: peer.delete(found[0].ledger_id, len(found)), peer.pid)


@contextmanager
def _sidecar(
    name: str, addresses: ClusterAddresses, scratch: Path, settings: Mapping[str, object]
) -> Iterator[Contender]:
    sidecars = Sidecars(addresses, scratch)
    try:
        with ZooKeeperMetadataStore(addresses.metadata_store_url, _CLOCK) as store:
            drained = SidecarUnderLoad(sidecars.start_with_defaults(**settings), store, backlog_gauge(addresses))
            yield Contender(name, drained.record, drained.drain, drained.pid)
    finally:
        sidecars.end_all()


@contextmanager
def _bare(addresses: ClusterAddresses) -> Iterator[Contender]:
    with ZooKeeperMetadataStore(addresses.metadata_store_url, _CLOCK) as store:
        yield Contender(LIMIT, nothing, lambda found: delete_barely(store, found), os.getpid())


class SidecarUnderLoad:
    """A sidecar that is paused while records are made, and then resumed."""

    def __init__(self, sidecar: SidecarProcess, store: ZooKeeperMetadataStore, backlog: BacklogGauge) -> None:
        self._sidecar = sidecar
        self._store = store
        self._backlog = backlog
        self._recorded = 0

    @property
    def pid(self) -> int:
        return self._sidecar.pid

    def record(self, orphans: Sequence[Orphan]) -> None:
        """Have the records on the topic, and no consumer at work on them."""
        self._sidecar.call("POST", f"{BASE}/pause")
        self._recorded = self._backlog.measure().total + len(orphans)
        for start in range(0, len(orphans), _RECORDS_PER_CALL):
            self._sidecar.append(
                [
                    record(orphan.topic, LedgerComponent.MANAGED_LEDGER, orphan.ledger_id)
                    for orphan in orphans[start : start + _RECORDS_PER_CALL]
                ]
            )

    def drain(self, orphans: Sequence[Orphan]) -> float:
        """Let the sidecar go; the seconds until the ledgers are gone and their records acknowledged.

        Further records remain: they name ledgers in use, and wait on the retry topic.
        """
        retried = self._recorded - len(orphans)
        directories = sorted({orphan.directory for orphan in orphans})
        left = self._children(directories) - len(orphans)
        started = _CLOCK.monotonic_seconds()
        self._sidecar.call("POST", f"{BASE}/resume")
        _wait(lambda: self._children(directories) <= left, "the ledgers are gone")
        _wait(lambda: self._backlog.measure().total <= retried, "every record is acknowledged")
        return _CLOCK.monotonic_seconds() - started

    def _children(self, directories: Sequence[str]) -> int:
        # One small request, so that looking costs the store next to nothing.
        return sum(node.children_count for node in self._store.read_many(directories) if node is not None)


def delete_barely(store: ZooKeeperMetadataStore, orphans: Sequence[Orphan]) -> float:
    topics = sorted({orphan.topic for orphan in orphans}, key=str)
    nodes = store.read_many([managed_ledger_path(topic.managed_ledger_name) for topic in topics])
    guards = {topic: Guard(node.path, node.version) for topic, node in zip(topics, nodes, strict=True) if node}
    deletions = [GuardedDeletion(orphan.path, NodeVersion(0), (guards[orphan.topic],)) for orphan in orphans]
    started = _CLOCK.monotonic_seconds()
    results = store.delete_many(deletions)
    seconds = _CLOCK.monotonic_seconds() - started
    if set(results) != {DeletionResult.DELETED}:
        raise RuntimeError("the bare deletions did not do what they should; the figures are worthless")
    return seconds


def nothing(orphans: Sequence[Orphan]) -> None:
    """Nothing is to be prepared."""


def backlog_gauge(addresses: ClusterAddresses) -> BacklogGauge:
    admin = BrokerTopicAdmin(AdminRest(addresses.web_service_urls))
    return BacklogGauge(admin, _CLOCK)


def _wait(come: Callable[[], bool], what: str) -> None:
    give_up = _CLOCK.monotonic_seconds() + _PATIENCE_SECONDS
    while not come():
        if _CLOCK.monotonic_seconds() > give_up:
            raise RuntimeError(f"after {_PATIENCE_SECONDS} s it is not so that {what}")
        time.sleep(_LOOK_SECONDS)


# --- the report --------------------------------------------------------------------------------------------------


def _table(turns: Mapping[str, Sequence[Turn]], arguments: argparse.Namespace) -> Table:
    rows = [_row(name, found, turns, arguments.ledgers) for name, found in turns.items()]
    return Table(
        f"Draining {arguments.ledgers:,} records of {arguments.topics} loaded topics, median of {arguments.rounds}",
        (
            "",
            "ledgers/s",
            "lowest, highest",
            "against the control",
            "processor s: itself",
            "ZooKeeper",
            "bookies",
            "brokers",
        ),
        rows,
    )


def _row(name: str, found: Sequence[Turn], turns: Mapping[str, Sequence[Turn]], ledgers: int) -> tuple[str, ...]:
    rates = [ledgers / turn.seconds for turn in found]
    limit = [ledgers / turn.seconds for turn in turns.get(LIMIT, ())]
    share = f"{statistics.median(rates) / statistics.median(limit):.0%}" if limit else "-"
    return (
        name,
        f"{statistics.median(rates):,.0f}",
        f"{min(rates):,.0f}, {max(rates):,.0f}",
        share,
        *(f"{_median_used(found, part):.1f}" for part in ("contender", "zookeeper", "bookie", "broker")),
    )


def _median_used(turns: Sequence[Turn], part: str) -> float:
    return statistics.median(
        sum(seconds for name, seconds in turn.processor_seconds.items() if name.startswith(part)) for turn in turns
    )
