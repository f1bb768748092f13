"""Trackers of delayed messages: adding, handing out and holding them, beside the two of a broker.

Everything happens in memory, storage too, and only the processor time of the thread that does it counts; what Java's
compilers and collectors do meanwhile is Java's for free. The rounds before the measured ones warm up.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pulsar_sidecar.features.delayed_index.settings import TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes, encode_segment
from pulsar_sidecar.features.delayed_index.tracker.memory_storage import MemoryBucketProperties, MemorySnapshotStorage
from pulsar_sidecar.features.delayed_index.tracker.sealing import seal, sort_indexes
from pulsar_sidecar.features.delayed_index.tracker.tracker import BucketDelayedDeliveryTracker
from pulsar_sidecar.local_cluster.spec import DEFAULT_VERSION
from pyroaring import BitMap

from tests.fakes.clock import FakeClock
from tests.interop.java_tracker import JavaTrackers, java_trackers
from tests.reporting import Table

NAME = "delayed_index"
_FIRST_DUE_MS = 1_700_000_000_000
_NEVER_SEALS = 2**31
_CONTROL = "control: numbers sorted, bitmaps made and segments written, nothing else"
_HEADER = ("", "add", "hand out", "bytes an index in the queues", "indexes in memory", "bytes of snapshots")


@dataclass(frozen=True, slots=True)
class Round:
    """One tracker filled and emptied.

    Attributes:
        add_ns: processor time of adding all.
        pop_ns: of handing out all.
        queue_bytes: what the queues took when all were added.
        loaded: how many indexes were in them.
        snapshot_bytes: of all buckets that were written.
    """

    add_ns: int
    pop_ns: int
    queue_bytes: int
    loaded: int
    snapshot_bytes: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=400_000, help="delayed messages, due at random times")
    parser.add_argument("--ledgers", type=int, default=8, help="that they are in")
    parser.add_argument("--hours", type=float, default=1, help="within which they come due")
    parser.add_argument("--batch", type=int, default=1_000, help="number added and delivered at a time")
    parser.add_argument("--rounds", type=int, default=5)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    indexes = _indexes(arguments)
    buckets = TrackerSettings()
    in_memory = replace(buckets, min_index_count=_NEVER_SEALS)
    with tempfile.TemporaryDirectory(prefix="pulsar-sidecar-index-") as scratch:
        directory = Path(scratch)
        np.stack((indexes.ledgers, indexes.entries, indexes.deliver_at_ms), 1).astype("<i8").tofile(directory / "rows")
        with java_trackers(DEFAULT_VERSION, directory) as java:
            contenders: dict[str, Callable[[], list[Round]]] = {
                "broker's in-memory tracker": lambda: _java(java, "memory", directory, arguments, buckets),
                "broker's bucket tracker": lambda: _java(java, "bucket", directory, arguments, buckets),
                "tracker, in batches, that never seals": lambda: _python(indexes, in_memory, arguments, _add_batches),
                "tracker, in batches": lambda: _python(indexes, buckets, arguments, _add_batches),
                "tracker, one by one": lambda: _python(indexes, buckets, arguments, _add_one_by_one),
            }
            rows = [_row(name, measure(), arguments.messages) for name, measure in contenders.items()]
    bare = statistics.median(_bare_seals(indexes, buckets) for _ in range(arguments.rounds))
    rows.append((_CONTROL, f"{bare / arguments.messages:,.0f} ns", "", "", "", ""))
    title = (
        f"{arguments.messages:,} delayed messages of {arguments.ledgers} ledgers, due within {arguments.hours:g} h, "
        f"{arguments.batch:,} at a time"
    )
    return [Table(title, _HEADER, rows, ["Processor time a message, medians."])]


def _indexes(arguments: argparse.Namespace) -> DelayedIndexes:
    numbers = np.arange(arguments.messages, dtype=np.int64)
    per_ledger = -(-arguments.messages // arguments.ledgers)
    delays = np.random.default_rng(1).integers(0, round(arguments.hours * 3_600_000), arguments.messages)
    return DelayedIndexes(_FIRST_DUE_MS + delays, 10 + numbers // per_ledger, numbers % per_ledger)


def _java(
    java: JavaTrackers, tracker: str, directory: Path, arguments: argparse.Namespace, settings: TrackerSettings
) -> list[Round]:
    words = (
        settings.min_index_count,
        settings.time_step_ms,
        settings.max_indexes_per_segment,
        settings.max_num_buckets,
        settings.tick_time_ms,
    )
    parameters = f"{2 * arguments.rounds} {' '.join(map(str, words))} lax"
    measured = java.rounds(tracker, directory / "rows", arguments.messages, arguments.batch, parameters)
    for each in measured:
        _check(each["popped"], arguments.messages)
    names = ("addNanoseconds", "popNanoseconds", "bytes", "loaded", "snapshotBytes")
    return [Round(*(each[name] for name in names)) for each in measured[arguments.rounds :]]


def _python(
    indexes: DelayedIndexes,
    settings: TrackerSettings,
    arguments: argparse.Namespace,
    add: Callable[[BucketDelayedDeliveryTracker, DelayedIndexes, int], None],
) -> list[Round]:
    return [_round(indexes, settings, arguments.batch, add) for _ in range(arguments.rounds + 1)][1:]


def _round(
    indexes: DelayedIndexes,
    settings: TrackerSettings,
    batch: int,
    add: Callable[[BucketDelayedDeliveryTracker, DelayedIndexes, int], None],
) -> Round:
    clock, storage = FakeClock(0), MemorySnapshotStorage()
    tracker = BucketDelayedDeliveryTracker(
        settings, storage, MemoryBucketProperties(), clock.now_ms, topic_name="topic", cursor_name="sub"
    )
    begin = time.thread_time_ns()
    add(tracker, indexes, batch)
    added = time.thread_time_ns()
    queues = (tracker.mutable.queue, tracker.shared)
    queue_bytes, loaded = sum(queue.nbytes for queue in queues), sum(map(len, queues))
    snapshot_bytes = sum(stored.length for stored in storage.snapshots.values())
    clock.advance_ms(2 * _FIRST_DUE_MS)
    popping, popped = time.thread_time_ns(), 0
    while found := tracker.pop_scheduled(batch):
        popped += len(found)
    end = time.thread_time_ns()
    _check(popped, len(indexes))
    return Round(added - begin, end - popping, queue_bytes, loaded, snapshot_bytes)


def _add_batches(tracker: BucketDelayedDeliveryTracker, indexes: DelayedIndexes, batch: int) -> None:
    for start in range(0, len(indexes), batch):
        tracker.add_messages(indexes[start : start + batch])


def _bare_seals(indexes: DelayedIndexes, settings: TrackerSettings) -> int:
    """Processor time of what no seal can be without: one number for each message, sorted; a bitmap; segments' bytes."""
    numbers = indexes.deliver_at_ms - _FIRST_DUE_MS << 32 | indexes.ledgers << 24 | indexes.entries
    size = settings.min_index_count
    buckets = [indexes[start : start + size] for start in range(0, len(indexes), size)]
    segments = [segment for bucket in buckets for segment in seal(sort_indexes(bucket), settings).segments]
    begin = time.thread_time_ns()
    for start in range(0, len(indexes), size):
        np.sort(numbers[start : start + size])
        BitMap(indexes.entries[start : start + size].astype(np.uint32)).serialize()
    for segment in segments:
        encode_segment(segment)
    return time.thread_time_ns() - begin


def _add_one_by_one(tracker: BucketDelayedDeliveryTracker, indexes: DelayedIndexes, batch: int) -> None:
    del batch
    columns = (indexes.ledgers.tolist(), indexes.entries.tolist(), indexes.deliver_at_ms.tolist())
    for ledger_id, entry_id, due_ms in zip(*columns, strict=True):
        tracker.add_message(ledger_id, entry_id, due_ms)


def _check(popped: int, messages: int) -> None:
    if popped != messages:
        raise RuntimeError(f"{popped} of {messages} messages were handed out; the figures are worthless")


def _row(name: str, rounds: Sequence[Round], messages: int) -> tuple[str, ...]:
    last = rounds[-1]
    return (
        name,
        f"{statistics.median(each.add_ns for each in rounds) / messages:,.0f} ns",
        f"{statistics.median(each.pop_ns for each in rounds) / messages:,.0f} ns",
        f"{last.queue_bytes / last.loaded:.1f}",
        f"{last.loaded:,}",
        f"{last.snapshot_bytes:,}",
    )
