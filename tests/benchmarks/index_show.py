"""Showing a subscription with many buckets: metadata, entry 0 of each from the bookies, and the JSON of all segments.

The topic is one that no broker has ever loaded: its nodes and its buckets are written here.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import numpy as np
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.bucket_snapshots import BookieBucketEntries, BookieBucketSnapshots
from pulsar_sidecar.adapters.bookkeeper.ledger_writer import LedgerWriter, Replication
from pulsar_sidecar.adapters.bookkeeper.stored_cursors import BookieStoredCursors
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperLedgerIds, ZooKeeperMetadataStore
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.inspection.show import view_of
from pulsar_sidecar.features.delayed_index.ports import BucketOwner
from pulsar_sidecar.features.delayed_index.results.inspection import IndexView, Tracker, TrackerState
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes, segment_metadata_of
from pulsar_sidecar.features.delayed_index.stored import StoredIndex, StoredIndexes, StoredTopic
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName, encode_cursor, parse_topic_name
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, cursor_path, managed_ledger_path
from pydantic import TypeAdapter

from tests.benchmarks.clusters import add_cluster_argument, benchmark_cluster, wait_until_quiet
from tests.cluster.topics import unique
from tests.fakes.bookkeeper import cursor_bytes, managed_ledger_bytes
from tests.reporting import Table

NAME = "index_show"
_SUBSCRIPTION = "s"
_FIRST_LEDGER = 2**40
_WRITERS = 4
Found = TypeVar("Found")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--buckets", type=int, default=1_000, help="of the subscription")
    parser.add_argument("--messages", type=int, default=1_000, help="in each bucket")
    parser.add_argument("--segments", type=int, default=10, help="of each bucket")
    parser.add_argument("--rounds", type=int, default=5)
    add_cluster_argument(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    topic = parse_topic_name(f"persistent://public/default/shown-{unique()}")
    with benchmark_cluster(arguments.cluster) as addresses, _opened(addresses) as (store, entries, buckets):
        _write(store, entries, topic, arguments)
        stored = StoredIndexes(
            store, buckets, BookieStoredCursors(store, entries, DEFAULT_LEDGERS_ROOT), DEFAULT_LEDGERS_ROOT
        )
        wait_until_quiet(addresses)
        reading, showing = [], []
        for _ in range(arguments.rounds + 1):
            index, read = _timed(lambda: _read(stored, topic))
            assert len(index.buckets) == arguments.buckets
            _, shown = _timed(lambda index=index: _document(index))  # type: ignore[misc]
            reading.append(read)
            showing.append((read[0] + shown[0], read[1] + shown[1]))
    rows = [_row("read: metadata, entry 0 of each", reading[1:]), _row("shown: counted, and as JSON", showing[1:])]
    count = arguments.buckets * arguments.messages
    title = f"A subscription with {arguments.buckets:,} buckets, {count:,} messages"
    return [Table(title, ("", "seconds, median", "least, most", "processor time here"), rows, [])]


@contextmanager
def _opened(
    addresses: ClusterAddresses,
) -> Iterator[tuple[ZooKeeperMetadataStore, BookieEntries, BookieBucketEntries]]:
    with ExitStack() as stack:
        store = stack.enter_context(ZooKeeperMetadataStore(addresses.metadata_store_url, SystemClock()))
        entries = BookieEntries(BookieConnections(store))
        stack.callback(entries.close)
        buckets = BookieBucketEntries(entries)
        stack.callback(buckets.close)
        yield store, entries, buckets


def _write(
    store: ZooKeeperMetadataStore, entries: BookieEntries, topic: TopicName, arguments: argparse.Namespace
) -> None:
    connections = BookieConnections(store)
    ids = ZooKeeperLedgerIds(store, DEFAULT_LEDGERS_ROOT)
    storage = BookieBucketSnapshots(
        store, entries, LedgerWriter(store, ids.next, connections), lambda: Replication(2, 2, 2)
    )

    def write(number: int) -> tuple[str, int]:
        ledger = LedgerId(_FIRST_LEDGER + number)
        segments = _segments(ledger, arguments.messages, arguments.segments)
        metadata = tuple(map(segment_metadata_of, segments))
        key = BucketKey(ledger, ledger)
        return str(key), storage.create_bucket_snapshot(metadata, segments, BucketOwner(key, str(topic), _SUBSCRIPTION))

    with ThreadPoolExecutor(_WRITERS) as threads:
        written = dict(threads.map(write, range(arguments.buckets)))
    name = topic.managed_ledger_name
    ledgers = range(_FIRST_LEDGER, _FIRST_LEDGER + arguments.buckets + 1)
    store.create(managed_ledger_path(name), managed_ledger_bytes(ledgers))
    cursor = cursor_bytes(mark_delete=(_FIRST_LEDGER, arguments.messages // 2), buckets=written)
    store.create(cursor_path(name, encode_cursor(_SUBSCRIPTION)), cursor)
    connections.close()


def _segments(ledger: LedgerId, messages: int, count: int) -> list[DelayedIndexes]:
    """Due times that know nothing of the order of publishing."""
    due = np.sort(np.random.default_rng(ledger).integers(0, 3_600_000, messages)) + 1_900_000_000_000
    order = np.random.default_rng(ledger + 1).permutation(messages).astype(np.int64)
    whole = DelayedIndexes(due.astype(np.int64), np.full(messages, ledger, np.int64), order)
    return [whole[slice(start, start + -(-messages // count))] for start in range(0, messages, -(-messages // count))]


def _read(stored: StoredIndexes, topic: TopicName) -> StoredIndex:
    ((_, found),) = stored.read([topic], _SUBSCRIPTION)
    assert isinstance(found, StoredTopic)
    index = found.subscriptions[_SUBSCRIPTION]
    assert isinstance(index, StoredIndex)
    return index


def _document(index: StoredIndex) -> bytes:
    state = TrackerState(Tracker.UNKNOWN, "not asked")
    view = view_of(index.topic, index.subscription, index, state, state, state)
    assert view.unreadable == 0
    return TypeAdapter(list[IndexView]).dump_json([view])


def _timed(work: Callable[[], Found]) -> tuple[Found, tuple[float, float]]:
    """The result, and how many seconds passed and were this process's own."""
    start, used = time.perf_counter(), time.process_time()
    found = work()
    return found, (time.perf_counter() - start, time.process_time() - used)


def _row(name: str, measured: Sequence[tuple[float, float]]) -> Sequence[str]:
    seconds, used = zip(*measured, strict=True)
    median = f"{statistics.median(seconds):.2f}"
    return name, median, f"{min(seconds):.2f}, {max(seconds):.2f}", f"{statistics.median(used):.2f}"
