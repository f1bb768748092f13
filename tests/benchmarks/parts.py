"""Subscriptions and schemas deleted at the brokers and through the sidecar: the cost, and what killed brokers leave.

Contenders take turns, each with parts of its own. Brokers write two entries to a ledger and keep delayed indexes in
small buckets, so that a few messages give a subscription several ledgers.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import requests
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import parse_topic_name

from tests.benchmarks.clusters import SERVER_OPTIONS, wait_until_quiet
from tests.cluster.deletion import BROKER_CONF
from tests.cluster.parts import (
    VERSIONS,
    delete_parts,
    delete_rest,
    end_promises,
    killing_after,
    make_parts,
    unreferenced,
)
from tests.cluster.patience import until
from tests.cluster.running import LocalClusterUnderTest
from tests.cluster.sidecars import SidecarProcess, Sidecars
from tests.cluster.topics import Workload, unique
from tests.reporting import Table

NAME = "parts"
_BROKERS, _SIDECAR = "brokers", "the sidecar"
_MEMBERS = ("broker-1", "broker-2")
_REQUEST_SECONDS = 120
_KILL_AFTER_SHARE = 0.2

Make = Callable[[int], Sequence[str]]
"""Makes so many parts; the paths at which they are deleted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deletions", type=int, default=60, help="of each kind, for each contender and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--subscriptions", type=int, default=200, help="while both brokers are killed")
    parser.add_argument("--schemas", type=int, default=50, help="while both brokers are killed")
    parser.add_argument("--kills", type=int, default=3, help="how often that is done by each contender")


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-sidecar-parts-")))
        spec = ClusterSpec(
            scratch / "cluster", broker_conf=BROKER_CONF, java_options=SERVER_OPTIONS, ends_with_starter=True
        )
        cluster = LocalClusterUnderTest(stack.enter_context(LocalCluster.up(spec)))
        bench = _Bench(cluster, stack.enter_context(closing(Workload(cluster))))
        tables, sizes = [], (arguments.subscriptions, arguments.schemas)
        # Before there is a sidecar, which might look after what brokers leave.
        plain = [bench.killed(*sizes) for _ in range(arguments.kills)]
        sidecars = Sidecars(cluster.addresses, scratch)
        stack.callback(sidecars.end_all)
        if arguments.kills:
            sidecar = sidecars.start()
            recorded = [bench.killed(*sizes, sidecar) for _ in range(arguments.kills)]
            tables.append(_leaks(arguments, plain, recorded))
        sidecars.end_all()
        if arguments.deletions:
            tables.append(_cost(bench, sidecars.start_with_defaults().url, arguments.deletions, arguments.rounds))
        return tables


@dataclass(frozen=True, slots=True)
class _Killed:
    """Outcomes of deletions while both brokers were killed.

    Attributes:
        left: ledgers of the deleted parts that nothing references afterwards.
        made: other such ledgers: a broker that is killed has made some for topics and cursors, and linked them nowhere.
    """

    at_once: int
    parts: int
    left: frozenset[LedgerId]
    made: frozenset[LedgerId]
    ledgers: int
    broken: int
    promised: int


@dataclass(frozen=True, slots=True)
class _Bench:
    cluster: LocalClusterUnderTest
    workload: Workload

    @property
    def url(self) -> str:
        return self.cluster.addresses.web_service_urls[0]

    def namespace(self) -> str:
        name = f"public/{unique()}"
        self.workload.create_namespace(name)
        return name

    def killed(self, subscriptions: int, schemas: int, sidecar: SidecarProcess | None = None) -> _Killed:
        parts = make_parts(self.workload, self.namespace(), subscriptions, schemas)
        mixed = random.Random(0).sample(parts.paths, len(parts.paths))
        before = unreferenced(self.workload)
        url, count = self.url if sidecar is None else sidecar.url, len(parts.paths)
        with killing_after(int(_KILL_AFTER_SHARE * count), self._kill_and_restart) as answered:
            refused = delete_parts(url, mixed, answered)
        done = count - len(refused)
        delete_rest(self.workload, url, parts, refused)
        promised = 0
        if sidecar is not None:
            end_promises(self.workload, sidecar, parts)
            until(lambda: _is_drained(sidecar), "the sidecar has nothing more to do")
            promised = sidecar.whole_log.count("topic deletion ended")
        broken = parts.broken(self.workload)
        wait_until_quiet(self.cluster.addresses)
        left = unreferenced(self.workload) - before
        return _Killed(
            done, count, left & parts.ledgers, left - parts.ledgers, len(parts.ledgers), len(broken), promised
        )

    def _kill_and_restart(self) -> None:
        with ThreadPoolExecutor(len(_MEMBERS)) as pool:
            list(pool.map(self.cluster.kill, _MEMBERS))
            list(pool.map(self.cluster.restart, _MEMBERS))

    def simple(self, count: int) -> list[str]:
        """Subscriptions whose cursors are closed into their nodes, on loaded topics."""
        topic = parse_topic_name(f"persistent://{self.namespace()}/simple")
        paths = [self.workload.of_topic(topic, f"subscription/s-{number}") for number in range(count)]
        self.workload.produce(topic, [b"x"])
        for path in paths:
            self.workload.admin("PUT", path, {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
        self.workload.unload(topic)
        self.workload.admin("GET", self.workload.of_topic(topic, "stats"))
        return paths

    def with_buckets(self, count: int) -> Sequence[str]:
        return make_parts(self.workload, self.namespace(), count, 0).paths

    def schemas(self, count: int) -> Sequence[str]:
        return make_parts(self.workload, self.namespace(), 0, count).paths


def _is_drained(sidecar: SidecarProcess) -> bool:
    status = sidecar.status()
    inflight = status["inflight"]
    return inflight is not None and (inflight["count"], status["runningTopicDeletions"]) == (0, 0)


def _cost(bench: _Bench, sidecar: str, count: int, rounds: int) -> Table:
    kinds: dict[str, Make] = {
        "a subscription without ledgers": bench.simple,
        "a subscription with a cursor's ledger and buckets": bench.with_buckets,
        f"a schema of {VERSIONS} versions": bench.schemas,
    }
    rows = []
    for kind, make in kinds.items():
        took: dict[str, list[float]] = {_BROKERS: [], _SIDECAR: []}
        for _ in range(rounds):
            for name, url in ((_BROKERS, bench.url), (_SIDECAR, sidecar)):
                paths = make(count)
                wait_until_quiet(bench.cluster.addresses)
                took[name] += _timed(url, paths)
        p50 = {name: 1000 * statistics.median(found) for name, found in took.items()}
        p90 = {name: 1000 * statistics.quantiles(found, n=10)[-1] for name, found in took.items()}
        cells = [f"p50 {p50[name]:.1f} ms, p90 {p90[name]:.1f} ms" for name in (_BROKERS, _SIDECAR)]
        rows.append((kind, *cells, f"{p50[_SIDECAR] - p50[_BROKERS]:+.1f} ms"))
    return Table(
        f"One deleted at a time, {rounds} rounds of {count}", ("", _BROKERS, _SIDECAR, "more by the sidecar"), rows
    )


def _timed(url: str, paths: Sequence[str]) -> list[float]:
    took = []
    with requests.Session() as session:
        for path in paths:
            began = time.monotonic()
            answer = session.delete(f"{url}/admin/v2/{path}", params={"force": "true"}, timeout=_REQUEST_SECONDS)
            took.append(time.monotonic() - began)
            answer.raise_for_status()
    return took


def _leaks(arguments: argparse.Namespace, plain: Sequence[_Killed], recorded: Sequence[_Killed]) -> Table:
    rows = [
        (
            name,
            ", ".join(f"{each.at_once} of {each.parts}" for each in found),
            ", ".join(str(each.ledgers) for each in found),
            ", ".join(str(each.promised) for each in found),
            ", ".join(str(len(each.left)) for each in found),
            ", ".join(str(len(each.made)) for each in found),
            ", ".join(str(each.broken) for each in found),
        )
        for name, found in ((_BROKERS, plain), (_SIDECAR, recorded))
    ]
    return Table(
        f"{arguments.subscriptions} subscriptions with delayed indexes in buckets and {arguments.schemas} schemas of "
        f"{VERSIONS} versions deleted, both brokers killed after a fifth of the answers",
        (
            "asked",
            "accepted at the first try",
            "their ledgers",
            "promised and ended by sidecars",
            "of them left that nothing references",
            "others that killed brokers had made and not linked",
            "subscriptions that brokers can no longer delete",
        ),
        rows,
    )
