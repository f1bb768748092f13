"""Cancelling delayed messages: one at a time and in bulk, beside the Java client and a Redis sorted set.

Every contender cancels the same messages of the same topic, each on a subscription of its own with a live backlog of
delayed messages; the sidecar with every check and its durable log, the Java client by acknowledging the ids that it is
given (no check; once without a log, once after storing a record of each), Redis by removing members of a sorted set.
The bound is this process: with the sidecar's own adapters it reads the entries, appends to a log and acknowledges, and
decides nothing.
"""

import argparse
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import requests
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.pulsar_wire.acknowledger import ConsumerAcknowledger
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnections, TopicOwners
from pulsar_sidecar.adapters.pulsar_wire.delayed_entries import BulkDelayedEntries
from pulsar_sidecar.adapters.pulsar_wire.producers import LogProducers
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.features.delayed_messages.cancel.log_records import encode_all
from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.local_cluster.spec import DEFAULT_VERSION
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.topic_stats import Subscription, SubscriptionType
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT

from tests.benchmarks.clusters import (
    ProcessorTime,
    add_cluster_argument,
    add_control_argument,
    benchmark_sidecars,
    versions,
    wait_until_quiet,
)
from tests.benchmarks.redis_peer import RedisPeer, redis_peer
from tests.cluster.delays import SHARED, DelayedTopic, Sent, now_ms
from tests.cluster.java_programs import JavaProgram, java_program, quiet_log_configuration
from tests.cluster.sidecars import SidecarProcess, Sidecars
from tests.cluster.topics import unique
from tests.reporting import Table

NAME = "cancel"
_PROGRAM = Path(__file__).with_name("AckIds.java")
_DELAY_MS = 3_600_000
_LINES_AT_ONCE = 20_000
_RUN = 20
"""Messages side by side that are cancelled together, so that 50,000 make 2,500 holes; a cursor stores 10,000."""
_JAVA = {"Java client": "java", "Java client with a log": "java-with-a-log"}
"""Its subscriptions; it keeps a log on the last one."""
_SIDECAR, _BEFORE, _BOUND = "pulsar-sidecar, to ACKED", "pulsar-sidecar before", "bound: nothing decided"
_SUBSCRIPTIONS = {_SIDECAR: "sidecar", _BEFORE: "before", _BOUND: "bound", **_JAVA}
_BATCH, _BATCHES_AT_ONCE = 5000, 3
_WARM_SINGLES = 3000
_WARM_MESSAGES = 20_000
"""Cancelled first by each, on another topic: the members' JVMs compile what they run only after very many requests."""
_TO_FORGET_MS = 120_000
_IDLE_SECONDS = 10.0
_FORGET_PATIENCE_SECONDS = 120
_SECONDS_A_DAY = 86_400
_A_DAY = 40_000_000
SETTINGS = {"delayed_message_cancelling_enabled": "true", "log_level": "WARNING"}


@dataclass(frozen=True, slots=True)
class _Result:
    name: str
    seconds: float
    cpu: Mapping[str, float]
    proof: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=50_000, help="cancelled in bulk by each contender")
    parser.add_argument("--singles", type=int, default=500, help="cancelled one after the other by each")
    parser.add_argument("--forgotten", type=int, default=50_000, help="cancelled and then forgotten; 0 leaves it out")
    add_cluster_argument(parser)
    add_control_argument(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with (
        tempfile.TemporaryDirectory(prefix="pulsar-sidecar-cancel-") as scratch,
        benchmark_sidecars(arguments.cluster) as (addresses, sidecars),
    ):
        return _measured(arguments, addresses, sidecars, Path(scratch))


def _measured(
    arguments: argparse.Namespace, addresses: ClusterAddresses, sidecars: Sidecars, scratch: Path
) -> Sequence[Table]:
    with _delayed_topic(addresses) as topic, _delayed_topic(addresses) as other:
        due = now_ms() + _DELAY_MS
        singles = topic.send(arguments.singles * 2, due)[::2]
        bulk = _in_runs(topic.send(arguments.messages * 2, due))
        warm = _in_runs(other.send(_WARM_MESSAGES * 2, due)), other.send(_WARM_SINGLES * 2, due)[::2]
        environments = versions(arguments.control)
        started = sidecars.start_with_defaults_in(next(iter(environments.values())), **SETTINGS)
        options = ("-Xmx512m", f"-Dlog4j2.configurationFile={quiet_log_configuration(scratch)}")
        with (
            java_program(
                _PROGRAM, DEFAULT_VERSION, options, [addresses.broker_service_url], scratch / "java.log"
            ) as java,
            redis_peer(scratch) as redis,
        ):
            contenders = _Contenders(addresses, topic, started, java, redis, scratch)
            before = []
            if arguments.control is not None:
                replace(contenders, topic=other).warm_bulk(_BEFORE, warm[0])
                before.append(contenders.measure(_BEFORE, "checks, log, acknowledged", bulk))
                started.terminate()
                contenders = replace(contenders, sidecar=sidecars.start_with_defaults(**SETTINGS))
            replace(contenders, topic=other).warm(*warm)
            wait_until_quiet(addresses)
            tables = [contenders.singles(singles), *contenders.bulk(bulk, before)]
            if arguments.forgotten:
                tables.append(replace(contenders, topic=other).forgetting(arguments.forgotten))
            return tables


@contextmanager
def _delayed_topic(addresses: ClusterAddresses) -> Iterator[DelayedTopic]:
    topic = DelayedTopic(addresses, parse_topic_name(f"persistent://public/default/cancel-{unique()}"))
    try:
        for name in _SUBSCRIPTIONS.values():
            topic.subscribe(name, SHARED)
        yield topic
    finally:
        topic.close()


def _in_runs(sent: Sequence[Sent]) -> list[Sent]:
    """Every other run of messages side by side."""
    return [one for one in sent if one.number // _RUN % 2]


@dataclass(frozen=True, slots=True)
class _Contenders:
    addresses: ClusterAddresses
    topic: DelayedTopic
    sidecar: SidecarProcess
    java: JavaProgram
    redis: RedisPeer | None
    scratch: Path

    def warm_bulk(self, name: str, sent: Sequence[Sent]) -> None:
        self._by_sidecar(sent, _SUBSCRIPTIONS[name])
        self._wait_until_stored()

    def warm(self, sent: Sequence[Sent], singles: Sequence[Sent]) -> None:
        self.warm_bulk(_SIDECAR, sent)
        self._by_bound(sent)
        self._latencies(singles)
        for subscription in _JAVA.values():
            self._by_java(subscription, sent)
            self._java_latencies(subscription, singles)

    # --- one at a time ---------------------------------------------------------------------------------------------

    def singles(self, sent: Sequence[Sent]) -> Table:
        """One after the other."""
        rows = [_latency_row("pulsar-sidecar, to ACKED", "checks, log, acknowledged", self._latencies(sent))]
        for name, subscription in _JAVA.items():
            rows.append(_latency_row(name, "acknowledged, receipt", self._java_latencies(subscription, sent)))
        if self.redis is not None:
            members = [f"{one.ledger_id}:{one.entry_id}" for one in sent]
            self.redis.fill("singles", members)
            rows.append(_latency_row("Redis ZREM", "removed, fsync", self.redis.remove_one_by_one("singles", members)))
        return Table(f"Cancelling {len(sent)} messages one after the other", _LATENCIES, rows)

    def _latencies(self, sent: Sequence[Sent]) -> list[float]:
        found = []
        # Python's own client and not requests, which would take as long by itself as the others' whole cancellation.
        connection = HTTPConnection(urlsplit(self.sidecar.url).netloc, timeout=30)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for one in sent:
            parameters = urlencode({**one.line, "subscriptionNames": "sidecar"})
            begin = time.perf_counter()
            connection.request("POST", f"{self.topic.path}/cancelDelayedMessage?{parameters}")
            answer = connection.getresponse()
            body = answer.read()
            found.append(time.perf_counter() - begin)
            assert answer.status == 204, body
        connection.close()
        return found

    def _java_latencies(self, subscription: str, sent: Sequence[Sent]) -> list[float]:
        self.java.write_line(f"one {self._java_task(subscription, sent)}")
        return [int(text) / 1e6 for text in self.java.read().split()]

    # --- many ------------------------------------------------------------------------------------------------------

    def measure(self, name: str, proof: str, sent: Sequence[Sent]) -> _Result:
        result = self._timed(name, proof, sent)
        self._wait_until_stored()
        return result

    def bulk(self, sent: Sequence[Sent], before: Sequence[_Result]) -> Sequence[Table]:
        """All at once."""
        now = self.measure(_SIDECAR, "checks, log, acknowledged", sent)
        results = [*before, now, self._timed(_BOUND, "read, log, acknowledged", sent)]
        results += [self._timed(name, "acknowledged, receipts", sent) for name in _JAVA]
        if self.redis is not None:
            self.redis.fill("bulk", [f"{one.ledger_id}:{one.entry_id}" for one in sent])
            results.append(self._timed("Redis ZREM", "removed, fsync", sent))
        rows = [_bulk_row(result, len(sent)) for result in results]
        title = f"Cancelling {len(sent):,} messages in bulk"
        load = f"Load of this machine over the last minute: {os.getloadavg()[0]:.1f}."
        note = f"Runs of {_RUN} messages side by side, every other run; {len(sent) // _RUN:,} holes in each cursor."
        return [Table(title, _BULK, rows, [note, load]), self._a_day(now, sent)]

    def forgetting(self, count: int) -> Table:
        """Resources that members use from the due time to the last forgotten cancellation."""
        pids = {**self.addresses.members, "sidecar": self.sidecar.pid}
        before = self._open()
        due = now_ms() + _TO_FORGET_MS
        self._by_sidecar(self.topic.send(count, due))
        self._wait_until_stored()
        idle = ProcessorTime(pids)
        time.sleep(_IDLE_SECONDS)
        idle_used = idle.used()
        assert now_ms() < due, "it was due before it was measured; take fewer, or a quicker machine"
        time.sleep((due - now_ms()) / 1000)
        used, begin = ProcessorTime(pids), time.monotonic()
        while self._open() > before:
            assert time.monotonic() - begin < _FORGET_PATIENCE_SECONDS, self.sidecar.log()
            time.sleep(0.5)
        seconds = time.monotonic() - begin
        cpu = {name: share - idle_used[name] * seconds / _IDLE_SECONDS for name, share in used.used().items()}
        row = ["forgotten", f"{seconds:.1f} s", *_shares(cpu, "sidecar"), f"{cpu['sidecar'] / count * 1e6:.0f} µs"]
        note = "From the due time on; what the processes use when nothing happens is taken off."
        return Table(f"Forgetting {count:,} cancellations whose time has passed", _FORGETTING, [row], [note])

    def _open(self) -> float:
        return self.sidecar.metrics()["pulsar_delayed_message_cancellations_open"]

    def _timed(self, name: str, proof: str, sent: Sequence[Sent]) -> _Result:
        pids = {**self.addresses.members, "sidecar": self.sidecar.pid, "java": self.java.pid, "bound": os.getpid()}
        if self.redis is not None:
            pids["redis"] = self.redis.pid
        used = ProcessorTime(pids)
        if name in _JAVA:
            seconds = self._by_java(_JAVA[name], sent)
        elif name in (_SIDECAR, _BEFORE):
            seconds = self._by_sidecar(sent, _SUBSCRIPTIONS[name])
        else:
            seconds = (self._by_bound if name == _BOUND else self._by_redis)(sent)
        return _Result(name, seconds, used.used(), proof)

    def _by_sidecar(self, sent: Sequence[Sent], subscription: str = "sidecar") -> float:
        url = f"{self.sidecar.url}{self.topic.path}/cancelDelayedMessages"
        bodies = [
            "\n".join(
                f'{{"ledgerId":{one.ledger_id},"entryId":{one.entry_id},"deliverAt":{one.deliver_at},'
                f'"subscriptionNames":["{subscription}"]}}'
                for one in sent[begin : begin + _LINES_AT_ONCE]
            )
            for begin in range(0, len(sent), _LINES_AT_ONCE)
        ]
        cancelled, begin = 0, time.perf_counter()
        for body in bodies:
            # Counted as bytes: as text, requests would first guess at megabytes' encoding.
            cancelled += requests.post(url, data=body, timeout=300).content.count(b'"cancelled":true')
        seconds = time.perf_counter() - begin
        assert cancelled == len(sent), f"{cancelled} of {len(sent)} were cancelled\n{self.sidecar.log()}"
        return seconds

    def _by_bound(self, sent: Sequence[Sent]) -> float:
        clock, topic, addresses = SystemClock(), self.topic.topic, self.addresses
        found = [
            Cancellation(topic, "bound", position, one.deliver_at, clock.now_ms(), CancellationStatus.ACCEPTED)
            for one in sent
            for position in [Position(LedgerId(one.ledger_id), EntryId(one.entry_id))]
        ]
        batches = [found[begin : begin + _BATCH] for begin in range(0, len(found), _BATCH)]
        records = [encode_all(batch) for batch in batches]
        with ExitStack() as stack:
            store = stack.enter_context(ZooKeeperMetadataStore(addresses.metadata_store_url, clock))
            bookies = stack.enter_context(closing(BookieEntries(BookieConnections(store))))
            entries = BulkDelayedEntries(store, bookies, None, DEFAULT_LEDGERS_ROOT, clock)
            connections = stack.enter_context(closing(BinaryConnections(ClientCredentials(), TlsOptions(), clock)))
            owners = TopicOwners(addresses.broker_service_url, connections)
            log_topic = parse_topic_name(f"{topic}-bound-log")
            log = stack.enter_context(closing(LogProducers(owners, clock, log_topic)))
            acknowledger = ConsumerAcknowledger(owners, clock)

            def carry_out(number: int) -> None:
                positions = [one.position for one in batches[number]]
                entries.read(topic, positions, max_age_seconds=60, only_decisive=True)
                log.publish(records[number])
                with acknowledger.join(topic, Subscription("bound", SubscriptionType.SHARED)) as consumer:
                    consumer.acknowledge(positions)

            begin = time.perf_counter()
            with ThreadPoolExecutor(_BATCHES_AT_ONCE) as pool:
                list(pool.map(carry_out, range(len(batches))))
            return time.perf_counter() - begin

    def _by_java(self, subscription: str, sent: Sequence[Sent]) -> float:
        self.java.write_line(self._java_task(subscription, sent))
        return int(self.java.read()) / 1e9

    def _java_task(self, subscription: str, sent: Sequence[Sent]) -> str:
        log = f" {self.topic.topic}-log" if subscription == _JAVA["Java client with a log"] else ""
        return f"{self.topic.topic} {subscription} {self._file(sent)}{log}"

    def _by_redis(self, sent: Sequence[Sent]) -> float:
        assert self.redis is not None
        return self.redis.remove_all("bulk", [f"{one.ledger_id}:{one.entry_id}" for one in sent])

    def _wait_until_stored(self) -> None:
        """Let the sidecar see everything stored, so that its work after the response is not others' burden."""
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            persisted = self.sidecar.metrics().get("pulsar_delayed_message_cancellations_seconds_count", 0)
            time.sleep(1.5)
            if self.sidecar.metrics().get("pulsar_delayed_message_cancellations_seconds_count", 0) == persisted:
                break
        wait_until_quiet(self.addresses)

    def _file(self, sent: Sequence[Sent]) -> Path:
        path = self.scratch / "ids.txt"
        path.write_text("\n".join(f"{one.ledger_id} {one.entry_id}" for one in sent))
        return path

    def _a_day(self, result: _Result, sent: Sequence[Sent]) -> Table:
        cpu = result.cpu["sidecar"] / len(sent)
        brokers = sum(used for name, used in result.cpu.items() if name.startswith("broker")) / len(sent)
        bookies = sum(used for name, used in result.cpu.items() if name.startswith("bookie")) / len(sent)
        stats = requests.get(f"{self.topic.urls[0]}{_LOG_TOPIC}/internalStats", timeout=60).json()
        stored = stats["totalSize"] / max(1, stats["numberOfEntries"])
        rows = [
            ["sidecar's CPU", f"{cpu * _A_DAY / _SECONDS_A_DAY:.3f} cores"],
            ["brokers' CPU", f"{brokers * _A_DAY / _SECONDS_A_DAY:.3f} cores"],
            ["bookies' CPU", f"{bookies * _A_DAY / _SECONDS_A_DAY:.3f} cores"],
            ["cancellations a second, on average", f"{_A_DAY / _SECONDS_A_DAY:.0f}"],
            ["log topic now", f"{stats['totalSize'] / 1e6:.1f} MB in {stats['numberOfEntries']:,} entries"],
            ["ranges", f"{_A_DAY:,} divided by how many lie side by side; 10,000 for each subscription and partition"],
        ]
        return Table(
            "What 40 million cancellations a day take, from the bulk figures",
            ("", ""),
            rows,
            [f"{stored:.0f} B an entry."],
        )


_PROCESSES = {"pulsar-sidecar": "sidecar", "bound": "bound", "Java client": "java", "Redis": "redis"}
_LOG_TOPIC = "/admin/v2/persistent/pulsar/system/__delayed_message_cancellations"
_LATENCIES = ("", "what the answer means", "p50", "p99", "max")
_FORGETTING = ("", "after the due time", "CPU: sidecar", "brokers", "bookies", "sidecar, each")
_BULK = ("", "what the answer means", "messages/s", "CPU: itself", "brokers", "bookies")


def _latency_row(name: str, proof: str, seconds: Sequence[float]) -> list[str]:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return [name, proof, *(f"{value * 1000:.2f} ms" for value in (statistics.median(ordered), p99, ordered[-1]))]


def _bulk_row(result: _Result, count: int) -> list[str]:
    own = next(process for start, process in _PROCESSES.items() if result.name.startswith(start))
    return [result.name, result.proof, f"{count / result.seconds:,.0f}", *_shares(result.cpu, own)]


def _shares(cpu: Mapping[str, float], own: str) -> list[str]:
    """Processor time of the one process, of all brokers and of all bookies."""
    return [
        f"{sum(used for name, used in cpu.items() if name.startswith(prefix)):.2f} s"
        for prefix in (own, "broker", "bookie")
    ]
