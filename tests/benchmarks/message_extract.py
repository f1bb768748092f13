"""Extracting and verifying stored messages, and as a control the bare reading of the same entries.

The topic is one that no broker has ever loaded: its node and its ledgers are written here.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.ledger_writer import LedgerWriter, Replication
from pulsar_sidecar.adapters.bookkeeper.topic_entries import BookieTopicEntries
from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.adapters.pulsar_wire.message_rows import BookieTopicMessages
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperLedgerIds, ZooKeeperMetadataStore
from pulsar_sidecar.features.duplicates.extract import extract
from pulsar_sidecar.features.duplicates.verify import Progress, TopicResult, verify_topic
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import Pace, SystemClock
from pulsar_sidecar.model.ledgers import LedgerEntry
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, managed_ledger_path
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

from tests.benchmarks.clusters import add_cluster_argument, benchmark_cluster, wait_until_quiet
from tests.cluster.topics import unique
from tests.fakes.stored_batches import stored_batch, stored_message
from tests.reporting import Table

NAME = "message-extract"
_ENTRIES_PER_LEDGER = 5_000
_PAYLOAD_BYTES = 100
_CLOSED_MS = 1_700_000_000_000
_CLOCK = SystemClock()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=1_000_000, help="of 100 bytes, in LZ4 batches")
    parser.add_argument("--batch", type=int, default=100, help="messages in each")
    parser.add_argument("--singles", type=int, default=100_000, help="messages of 100 bytes that are in no batch")
    parser.add_argument("--rounds", type=int, default=3)
    add_cluster_argument(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with benchmark_cluster(arguments.cluster) as addresses, _opened(addresses) as (store, entries):
        batched = _write(store, _batches(arguments.messages, arguments.batch))
        single = _write(store, _singles(arguments.singles))
        wait_until_quiet(addresses)
        reader = BookieTopicEntries(store, entries, DEFAULT_LEDGERS_ROOT, Pace(_CLOCK, None))
        rows = [
            *_measured(f"batches of {arguments.batch}", reader, batched, arguments.messages, arguments.rounds),
            *_measured("not batched", reader, single, arguments.singles, arguments.rounds),
        ]
    header = ("", "messages/s, median", "lowest, highest", "processor time here, µs a message")
    title = f"{arguments.messages:,} messages in batches and {arguments.singles:,} without, {_PAYLOAD_BYTES} bytes each"
    return [Table(title, header, rows)]


@contextmanager
def _opened(addresses: ClusterAddresses) -> Iterator[tuple[ZooKeeperMetadataStore, BookieEntries]]:
    with (
        ZooKeeperMetadataStore(addresses.metadata_store_url, _CLOCK) as store,
        closing(BookieEntries(BookieConnections(store))) as entries,
    ):
        yield store, entries


def _batches(messages: int, batch: int) -> Iterator[bytes]:
    rng = random.Random(1)
    for first in range(0, messages, batch):
        ids = range(first, min(first + batch, messages))
        # Half of each payload compresses, as that of records of one kind does.
        singles = [(number, rng.randbytes(_PAYLOAD_BYTES // 2) + bytes(_PAYLOAD_BYTES // 2)) for number in ids]
        yield stored_batch(singles, "LZ4", producer_name=f"producer {first // batch % 10}")


def _singles(messages: int) -> Iterator[bytes]:
    rng = random.Random(2)
    for number in range(messages):
        yield stored_message(rng.randbytes(_PAYLOAD_BYTES), sequence_id=number, producer_name=f"p {number % 10}")


def _write(store: ZooKeeperMetadataStore, payloads: Iterator[bytes]) -> TopicName:
    topic = parse_topic_name(f"persistent://public/default/extracted-{unique()}")
    with closing(BookieConnections(store)) as connections:
        writer = LedgerWriter(store, ZooKeeperLedgerIds(store, DEFAULT_LEDGERS_ROOT).next, connections)
        info = ml.ManagedLedgerInfo()
        waiting = list(payloads)
        for start in range(0, len(waiting), _ENTRIES_PER_LEDGER):
            some = waiting[start : start + _ENTRIES_PER_LEDGER]
            ledger_id = writer.write(some, {}, Replication(2, 2, 2))
            info.ledgerInfo.add(ledgerId=ledger_id, entries=len(some), size=sum(map(len, some)), timestamp=_CLOSED_MS)
    store.create(managed_ledger_path(topic.managed_ledger_name), info.SerializeToString())
    return topic


def _measured(
    what: str, reader: BookieTopicEntries, topic: TopicName, messages: int, rounds: int
) -> Iterator[Sequence[str]]:
    ways: dict[str, Callable[[], None]] = {
        "control, entries alone": lambda: _read(reader, topic),
        "verify": lambda: _verify(reader, topic, messages),
        "extract": lambda: _extract(reader, topic, messages),
    }
    measured: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(rounds + 1):
        for way, work in ways.items():
            started, used = time.perf_counter(), time.process_time()
            work()
            measured[way].append((time.perf_counter() - started, time.process_time() - used))
    for way, times in measured.items():
        rates = sorted(messages / seconds for seconds, _ in times[1:])
        used_us = statistics.median(seconds for _, seconds in times[1:]) / messages * 1e6
        between = f"{rates[0]:,.0f}, {rates[-1]:,.0f}"
        yield f"{what}: {way}", f"{statistics.median(rates):,.0f}", between, f"{used_us:.2f}"


def _read(reader: BookieTopicEntries, topic: TopicName) -> None:
    assert all(isinstance(each, LedgerEntry) for each in reader.read(topic))


def _verify(reader: BookieTopicEntries, topic: TopicName, messages: int) -> None:
    found = verify_topic(topic, BookieTopicMessages(reader), _progress())
    assert (found.result, sum(counts.messages for counts in found.producers.values())) == (TopicResult.CLEAN, messages)


def _extract(reader: BookieTopicEntries, topic: TopicName, messages: int) -> None:
    with TemporaryDirectory(prefix="pulsar-sidecar-benchmark-") as scratch:
        output = partial(parquet_output, Path(scratch) / "extract")
        origin = {"scope": str(topic), "source": "", "instance_id": "", "tool_version": ""}
        made = extract([topic], BookieTopicMessages(reader), output, _progress(), _CLOCK, **origin)
    assert (made.messages, made.unseen) == (messages, {})


def _progress() -> Progress:
    return Progress(lambda text: None, _CLOCK)
