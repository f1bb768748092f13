"""Ledgers that brokers leave behind, killed and not, without a sidecar, by its deletions, and beside its watch.

Operations of all kinds are mixed, many at a time, each kind in namespaces of its own. Where brokers are killed, both
get SIGKILL at a random moment of each round and restart, and clients repeat what was not answered. Ledgers are counted
after the brokers' own retries, by a scan of the whole metadata store without a sidecar. A ledger's own metadata
names its owner; ZooKeeper's log shows whether a node ever named the ledger.
"""

import argparse
import itertools
import json
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pulsar
import pytest
import requests
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import DEFAULT_VERSION, ClusterSpec
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.claims import ForeignLedger, UnknownClaim, owner_path, read_claim
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS, SCHEMAS, managed_ledger_path
from pulsar_sidecar.ownership.places import Place, locate
from pulsar_sidecar.ownership.references import managed_ledger_references

from tests.benchmarks.leaks_page import Control, Mode, Operation, Row, controls, rates, write
from tests.cluster.background import in_parallel
from tests.cluster.cursor_rollovers import CURSOR_ROLLOVERS_CONF
from tests.cluster.deletion import BROKER_CONF
from tests.cluster.offload_leaks import KEYS, OffloadingTopics, offload_conf, watching
from tests.cluster.parts import killing_after, unreferenced
from tests.cluster.patience import holds_soon, until
from tests.cluster.running import BROKERS, LocalClusterUnderTest
from tests.cluster.sidecars import WATCH, SidecarProcess, Sidecars
from tests.cluster.topics import KEEP_NOTHING, Workload, numbered_topics, unique
from tests.cluster.transaction_log import TransactionLog
from tests.contract.offload_storages import Refusals, S3Storage, s3_server
from tests.reporting import Table

NAME = "leaks"
_BROKER_CONF = {**BROKER_CONF, **CURSOR_ROLLOVERS_CONF, "managedLedgerOffloadDeletionLagMs": "0"}
_NEWEST_OFFLOADERS = (4, 0, 8)
_AT_ONCE = 32
_MAKERS = 8
_LEDGERS, _FEW = 8, 3
_SUBSCRIPTIONS = 10
_OFFLOAD_SECONDS = 60
_KILL_WITHIN_SECONDS = 0.05
_LOOK_SECONDS = 5
_RECEIVE_MS = 60_000

Call = Callable[[], bool]
"""One operation; True if it was answered and done, otherwise the client repeats it."""
Cell = tuple[Mode | None, Operation | Control, bool]
"""An operation in a mode, with kills or without; no mode for topics that none of them made."""
_OTHERS: Cell = (None, Control.OTHERS, False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--versions", nargs="+", default=[DEFAULT_VERSION], help="of Pulsar, one after the other")
    parser.add_argument("--modes", nargs="+", type=Mode, choices=Mode, default=list(Mode), metavar="|".join(Mode))
    parser.add_argument("--operations", type=int, default=30, help="of each kind in each round")
    parser.add_argument("--rounds", type=int, default=5, help="with both brokers killed in each, and as many without")
    parser.add_argument("--seed", type=int, default=1, help="of the order of operations and the moments of kills")
    parser.add_argument("--wait-seconds", type=int, default=200, help="before the count: brokers retry for 180 s")
    parser.add_argument("--results", type=Path, help="file of JSON to which the counts are added")
    parser.add_argument("--page", type=Path, help="document whose table and picture are then written from that file")
    parser.add_argument("--draw", action="store_true", help="write the page from the file, and measure nothing")


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    rows: list[Row] = []
    for version in [] if arguments.draw else arguments.versions:
        rows += measured(version, arguments)
        write(rows, arguments.results, arguments.page)
    if arguments.draw:
        write([], arguments.results, arguments.page)
    return [rates(rows), controls(rows)] if rows else []


def measured(version: str, arguments: argparse.Namespace) -> list[Row]:
    """Return the counts of a version, in one mode after the other on one cluster.

    The watch comes last: it has never seen referenced what leaked before, and leaves that for 72 hours.
    """
    has_offloaders = tuple(map(int, version.split("."))) <= _NEWEST_OFFLOADERS
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-sidecar-leaks-")))
        refusals = Refusals()
        bucket = S3Storage(stack.enter_context(s3_server(refusals)))
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in KEYS.items():
            environment.setenv(name, value)
        spec = ClusterSpec(
            scratch / "cluster",
            version=version,
            broker_conf=_BROKER_CONF | (offload_conf(bucket) if has_offloaders else {}),
            offloaders=has_offloaders,
            ends_with_starter=True,
        )
        cluster = LocalClusterUnderTest(stack.enter_context(LocalCluster.up(spec)))
        workload = stack.enter_context(closing(Workload(cluster)))
        sidecars = stack.enter_context(closing(Sidecars(cluster.addresses, scratch)))
        offloading = OffloadingTopics(cluster, bucket, refusals, BROKERS)
        bench = _Bench(
            cluster, workload, offloading, TransactionLog(cluster), random.Random(f"{arguments.seed} {version}")
        )
        operations = [each for each in Operation if has_offloaders or each is not Operation.OFFLOAD]
        sidecar = None
        for mode in sorted(arguments.modes, key=list(Mode).index):
            sidecars.end_all()
            if mode is not Mode.NONE:
                sidecar = sidecars.start(**watching(bucket, "append" if mode is Mode.WATCH else "off"))
            if mode is Mode.WATCH:
                until(partial(_is_watching, sidecar), "the sidecar watches")
            bench.measure(mode, sidecar, operations, arguments)
        resumed = _wait(arguments.wait_seconds, sidecar if Mode.WATCH in arguments.modes else None)
        return bench.rows(version, arguments, resumed)


def _is_watching(sidecar: SidecarProcess) -> bool:
    return sidecar.call("GET", WATCH)["state"] == "watching"


def _has_seen(watching: SidecarProcess, ledger_ids: Iterable[LedgerId]) -> bool:
    return all(watching.call("GET", f"{WATCH}/leaks/{each}")["namedBy"] for each in ledger_ids)


def _wait(seconds: int, watching: SidecarProcess | None) -> int:
    """Wait while brokers and the watch may still delete; return how often an operator released its brake."""
    resumed, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        if watching is not None and watching.call("GET", WATCH)["braked"]:
            watching.call("POST", f"{WATCH}/resume")
            resumed += 1
        time.sleep(_LOOK_SECONDS)
    return resumed


@dataclass
class _Bench:
    """Rounds of operations on one cluster, and the count of what they left, by namespace."""

    cluster: LocalClusterUnderTest
    workload: Workload
    offloading: OffloadingTopics
    log: TransactionLog
    rng: random.Random
    deletions_url: str = ""
    cells: dict[str, Cell] = field(default_factory=dict)
    done: Counter[Cell] = field(default_factory=Counter)
    seconds: Counter[Cell] = field(default_factory=Counter)
    offloaded: list[TopicName] = field(default_factory=list)

    def measure(
        self, mode: Mode, sidecar: SidecarProcess | None, operations: Sequence[Operation], arguments: argparse.Namespace
    ) -> None:
        """Do the operations that differ in a mode, and its controls."""
        is_asked = mode is Mode.DELETIONS and sidecar is not None
        self.deletions_url = sidecar.url if is_asked else self.cluster.addresses.web_service_urls[0]
        chosen = [each for each in operations if each.is_by_sidecar or not is_asked]
        in_parallel(self._filled, self._topics((mode, Control.IDLE, False), arguments.operations), _MAKERS)
        self._leave_on_purpose((mode, Control.LEFT, False), sidecar if mode is Mode.WATCH else None)
        for kills in (False, True):
            for _ in range(arguments.rounds):
                self._round([(mode, each, kills) for each in chosen], arguments.operations)

    def _leave_on_purpose(self, cell: Cell, watching: SidecarProcess | None) -> None:
        """Take away lists of topics that no broker has loaded: their ledgers stay."""
        for topic in self._topics(cell, _FEW):
            self.workload.fill(topic, _FEW)
            self.workload.unload(topic)
            ledgers = self.workload.ledgers(topic).data
            if watching is not None:
                until(partial(_has_seen, watching, ledgers), f"the watch has seen the ledgers of {topic} referenced")
            self.workload.store.delete(managed_ledger_path(topic.managed_ledger_name))
            self.done[cell] += len(ledgers)

    def _round(self, cells: Sequence[Cell], count: int) -> None:
        """Do this many operations of each cell, in any order; with kills, kill both brokers once meanwhile."""
        makers: Mapping[Operation | Control, Callable[[Sequence[TopicName]], list[Call]]] = {
            Operation.TOPIC_DELETION: self._topic_deletions,
            Operation.TRIM: self._trims,
            Operation.REGISTRATION: lambda topics: [partial(self._register, topic) for topic in topics],
            Operation.RACE: lambda topics: [partial(self._register_twice, topic) for topic in topics],
            Operation.SCHEMA_DELETION: self._schema_deletions,
            Operation.CURSOR_ROLLOVER: self._cursor_rollovers,
            Operation.OFFLOAD: self._offloads,
        }
        made = {cell: makers[cell[1]](self._topics(cell, count)) for cell in cells}
        calls = list(itertools.chain.from_iterable(made.values()))
        self.rng.shuffle(calls)
        rolled, began = self._rollovers(), time.monotonic()
        if cells[0][2]:
            with killing_after(self.rng.randrange(len(calls)), self._kill_and_restart) as answered:
                left = _fire(calls, answered)
        else:
            left = _fire(calls)
        _repeat(left)
        for cell in cells:
            is_counted = cell[1] is Operation.CURSOR_ROLLOVER
            self.done[cell] += self._rollovers() - rolled if is_counted else len(made[cell])
            self.seconds[cell] += time.monotonic() - began

    def _rollovers(self) -> int:
        """Return how many ledgers the cursors had so far: a broker may store several acknowledgements at once."""
        self.log.read_on()
        cursors = (path for path in self.log.first_named_by.values() if locate(path).place is Place.CURSOR)
        return sum(self._cell(path)[1] is Operation.CURSOR_ROLLOVER for path in cursors)

    def _kill_and_restart(self) -> None:
        time.sleep(self.rng.uniform(0, _KILL_WITHIN_SECONDS))
        in_parallel(self.cluster.kill, BROKERS, len(BROKERS))
        in_parallel(self.cluster.restart, BROKERS, len(BROKERS))

    # --- operations ------------------------------------------------------------------------------------------------

    def _topics(self, cell: Cell, count: int) -> Sequence[TopicName]:
        """Return names of topics in a new namespace, which counts for a cell."""
        name = f"public/leaks-{unique()}"
        self.workload.create_namespace(name)
        self.cells[name] = cell
        self.done[cell] += 0
        self.done[cell[0], Control.SYSTEM_TOPICS, False] += 1
        return numbered_topics(name, count)

    def _filled(self, topic: TopicName) -> None:
        self.workload.fill(topic, _LEDGERS)
        self.workload.subscribe(topic, "reader", acknowledge=1)

    def _topic_deletions(self, topics: Sequence[TopicName]) -> list[Call]:
        in_parallel(self._filled, topics, _MAKERS)
        return [partial(self._delete, self.workload.of_topic(topic)) for topic in topics]

    def _delete(self, path: str) -> bool:
        answer = requests.delete(f"{self.deletions_url}/admin/v2/{path}", params={"force": "true"}, timeout=120)
        return answer.ok or answer.status_code == requests.codes.not_found

    def _trims(self, topics: Sequence[TopicName]) -> list[Call]:
        in_parallel(partial(self.workload.fill, ledgers=_LEDGERS), topics, _MAKERS)
        self.workload.admin("POST", f"namespaces/{topics[0].namespace}/retention", KEEP_NOTHING)
        return [partial(self._trim, topic) for topic in topics]

    def _trim(self, topic: TopicName) -> bool:
        is_answered = self.workload.request("POST", self.workload.of_topic(topic, "trim")).ok
        return is_answered and len(self.workload.ledgers(topic).data) == 1

    def _register(self, topic: TopicName) -> bool:
        schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": "string"}]}
        document = {"type": "AVRO", "schema": json.dumps(schema), "properties": {}}
        return self.workload.request("POST", _schema(topic), document).ok

    def _register_twice(self, topic: TopicName) -> bool:
        return all(in_parallel(self._register, [topic] * 2, 2))

    def _schema_deletions(self, topics: Sequence[TopicName]) -> list[Call]:
        in_parallel(partial(self.workload.store_schemas, versions=_FEW), topics, _MAKERS)
        return [partial(self._delete, _schema(topic)) for topic in topics]

    def _cursor_rollovers(self, topics: Sequence[TopicName]) -> list[Call]:
        """Return acknowledgements, after each of which a broker begins another ledger of the cursor."""
        found = in_parallel(self._second_messages, topics[: -(-len(topics) // _SUBSCRIPTIONS)], _MAKERS)
        return [partial(_acknowledge, *each) for each in itertools.chain.from_iterable(found)]

    def _second_messages(self, topic: TopicName) -> list[tuple[pulsar.Consumer, pulsar.Message]]:
        """Return a consumer and a message of each of a topic's subscriptions, whose cursors all have a ledger."""
        self.workload.fill(topic, 2)
        names = [f"s-{number}" for number in range(_SUBSCRIPTIONS)]
        earliest = pulsar.InitialPosition.Earliest
        consumers = [self.workload.client.subscribe(str(topic), each, initial_position=earliest) for each in names]
        for consumer in consumers:
            consumer.acknowledge(consumer.receive(_RECEIVE_MS))
        until(lambda: self.workload.ledgers(topic).cursors.keys() >= set(names), f"the cursors of {topic} have ledgers")
        return [(consumer, consumer.receive(_RECEIVE_MS)) for consumer in consumers]

    def _offloads(self, topics: Sequence[TopicName]) -> list[Call]:
        in_parallel(partial(self.workload.fill, ledgers=_FEW), topics, _MAKERS)
        self.offloaded += topics
        return [partial(self._offload, topic) for topic in topics]

    def _offload(self, topic: TopicName) -> bool:
        """Offload all closed ledgers, and let the broker delete BookKeeper's copies."""
        self.offloading.offload(topic)
        holds_soon(lambda: self.offloading.offload_state(topic) != "RUNNING", _OFFLOAD_SECONDS)
        self.workload.request("POST", self.workload.of_topic(topic, "trim"))
        node = self.workload.store.read(managed_ledger_path(topic.managed_ledger_name))
        closed = sorted(managed_ledger_references(node.data).ledgers.items())[: _FEW - 1]
        return not any(each.in_bookkeeper for _, each in closed)

    # --- the count -------------------------------------------------------------------------------------------------

    def rows(self, version: str, arguments: argparse.Namespace, resumed: int) -> list[Row]:
        """Count what is left, in every cell and elsewhere."""
        left: dict[Cell, Counter[str]] = {cell: Counter() for cell in (*self.done, _OTHERS)}
        never, copies = Counter[Cell](), Counter[Cell]()
        nodes = self.workload.ledger_nodes(unreferenced(self.workload))
        named = self.log.ever_named()
        for ledger_id, node in nodes.items():
            claim = read_claim(decode_ledger_metadata(node.data).custom_metadata)
            is_unclaimed = isinstance(claim, ForeignLedger | UnknownClaim)
            cell = _OTHERS if is_unclaimed else self._cell(owner_path(claim))
            left[cell]["unknown" if is_unclaimed else claim.kind.value] += 1
            never[cell] += ledger_id not in named
        # An attempt's data and index are two objects.
        attempts = {name.partition("-ledger-")[0]: name for name in self.offloading.unnamed(self.offloaded)}
        for name in attempts.values():
            copies[self._cell(f"{MANAGED_LEDGERS}/{self.offloading.bucket.managed_ledger_of(name)}")] += 1
        return [
            Row(
                version,
                cell[0],
                cell[1],
                kills=arguments.rounds if cell[2] else 0,
                operations=self.done[cell],
                leaked=kinds.total(),
                never_referenced=never[cell],
                kinds=dict(sorted(kinds.items())),
                copies=copies[cell],
                resumed=resumed if cell[0] is Mode.WATCH else 0,
                seed=arguments.seed,
                seconds=round(self.seconds[cell], 1),
            )
            for cell, kinds in left.items()
        ]

    def _cell(self, path: str) -> Cell:
        """Return the cell in whose namespace the node at a path is; brokers keep topics of their own there, too."""
        _, root, tenant, namespace, *rest = path.split("/")
        cell = self.cells.get(f"{tenant}/{namespace}", _OTHERS)
        is_system = rest[0 if f"/{root}" == SCHEMAS else 1].startswith("__")
        return (cell[0], Control.SYSTEM_TOPICS, False) if is_system and cell is not _OTHERS else cell


def _fire(calls: Sequence[Call], answered: Callable[[], object] = lambda: None) -> list[Call]:
    """Make the calls, many at a time, and return those that a client repeats."""

    def is_done(call: Call) -> bool:
        try:
            return call()
        except (requests.RequestException, pulsar.PulsarException):
            return False  # the broker died
        finally:
            answered()

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [call for call, done in zip(calls, pool.map(is_done, calls), strict=True) if not done]


def _repeat(left: list[Call]) -> None:
    def is_done() -> bool:
        left[:] = _fire(left)
        return not left

    until(is_done, "every operation is done in the end")


def _acknowledge(consumer: pulsar.Consumer, message: pulsar.Message) -> bool:
    consumer.acknowledge(message)
    return True


def _schema(topic: TopicName) -> str:
    return f"schemas/{topic.namespace}/{topic.local_name}/schema"
