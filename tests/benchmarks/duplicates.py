"""Duplicates: made-up extracts of millions of messages through the engine, and the obvious grouping by Spark.

The figure of the engine is for the whole way: every file compared with its manifest, all messages looked at, findings,
tables and report written. Spark's grouping of ids by topic and producer only counts those that are there twice; it
compares no payloads, gives no order, and reads nothing but these columns. Each runs in a process of its own, so that
memory is its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.features.duplicates.extracts.row_groups import Mask, Numbers, TopicProducer, fingerprints
from pulsar_sidecar.features.duplicates.extracts.tables import LEDGERS, MESSAGES, TABLES
from pulsar_sidecar.features.duplicates.manifests import ExtractManifest
from pulsar_sidecar.features.duplicates.rows import NOT_CHUNKED
from pulsar_sidecar.reports.documents import MANIFEST_NAME

from tests.benchmarks.audit_processes import largest_process_mb, processor_seconds
from tests.reporting import Table

NAME = "duplicates"
_DRIVER_MEMORY = "3g"
_FINISHED = (0, 2)
_ROWS_AT_ONCE = 131_072
_ENTRIES_OF_A_LEDGER = 50_000
_RESENT = 5
"""So many messages follow each other in a resend."""


@dataclass(frozen=True, slots=True)
class MadeUpExtract:
    """Messages of producers that take turns, of which some are resent in one go."""

    messages: int
    topics: int
    producers_of_a_topic: int
    resent_share: float

    @property
    def duplicates(self) -> int:
        return sum(int(self._is_resent(rows).sum()) for _, rows in self._parts())

    def write(self, directory: Path) -> None:
        with parquet_output(directory, TABLES) as output:
            for topic, rows in self._parts():
                output.write("messages", self._batch(topic, rows))
            for batch in self._ledgers().to_batches():
                output.write("ledgers", batch)
            files = output.close_tables()
            manifest = ExtractManifest(
                tool_version="benchmark",
                scope="made-up",
                source="zk:nowhere",
                instance_id="none",
                topics=self.topics,
                gone=0,
                ledgers=self.topics,
                entries=self.messages,
                messages=self.messages,
                unseen={},
                files=files,
                machine_times=(0, 1),
            )
            output.finish(MANIFEST_NAME, manifest.document())

    def _parts(self) -> Iterator[tuple[int, Numbers]]:
        """Topics, each with the places of some rows in it."""
        of_a_topic = self.messages // self.topics
        for topic in range(self.topics):
            for start in range(0, of_a_topic, _ROWS_AT_ONCE):
                yield topic, np.arange(start, min(start + _ROWS_AT_ONCE, of_a_topic))

    def _is_resent(self, rows: Numbers) -> Mask:
        turn = rows // self.producers_of_a_topic
        every = int(_RESENT / self.resent_share)
        return (turn % every >= every - _RESENT) & (turn >= every)

    def _batch(self, topic: int, rows: Numbers) -> pa.RecordBatch:
        turn, producer = np.divmod(rows, self.producers_of_a_topic)
        sequence_id = np.where(self._is_resent(rows), turn - _RESENT, turn)
        small = np.zeros(len(rows), np.int32)
        names = [f"producer-{number}" for number in range(self.producers_of_a_topic)]
        producers = [TopicProducer(f"topic-{topic}", name, None) for name in names]
        columns = {
            "topic": _name(small, [f"persistent://tenant/namespace/topic-{topic}-partition-0"]),
            "producer": _name(producer.astype(np.int32), names),
            "sequence_id": sequence_id,
            "ledger_id": topic * 1_000_000 + rows // _ENTRIES_OF_A_LEDGER,
            "entry_id": rows % _ENTRIES_OF_A_LEDGER,
            "batch_index": small,
            "batch_size": small + 1,
            "chunk_id": small + NOT_CHUNKED,
            "chunks": small + 1,
            "publish_time_ms": 1_700_000_000_000 + rows,
            # Different for all but the resent, and without a pattern that would make files smaller than true ones.
            "payload_hash": fingerprints(producers, producer, sequence_id),
            "kind": small.astype(np.int8),
            "payload_state": small.astype(np.int8),
            "replicated_from": pa.DictionaryArray.from_arrays(
                pa.array(small, mask=np.ones(len(rows), np.bool_)), pa.array(["r"])
            ),
        }
        arrays = [each if isinstance(each, pa.Array) else pa.array(each) for each in columns.values()]
        return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)

    def _ledgers(self) -> pa.Table:
        of_a_topic = self.messages // self.topics
        about = {"ledger_id": 0, "first_entry_id": 0, "last_entry_id": of_a_topic - 1, "entries": of_a_topic}
        names = (f"persistent://tenant/namespace/topic-{topic}-partition-0" for topic in range(self.topics))
        return pa.Table.from_pylist([{"topic": name, **about, "messages": of_a_topic} for name in names], LEDGERS)


def _name(codes: npt.NDArray[np.int32], names: list[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names))


_SHAPES = {
    "20 topics, 50 producers each": (20, 50, 0.001),
    "20 topics, 50 producers each, one in ten resent": (20, 50, 0.1),
    "one producer has everything": (1, 1, 0.001),
}
_ENGINES = {
    "embedded": "embedded engine, everything",
    "group-by": f"Spark's groupBy of ids alone (local[2], {_DRIVER_MEMORY} driver)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--shapes", type=int, nargs="+", default=range(len(_SHAPES)), help="by their places: 0 1 2")
    parser.add_argument("--engines", nargs="+", default=list(_ENGINES), choices=list(_ENGINES))
    parser.add_argument("--scratch", type=Path, default=None, help="where the made-up extracts lie meanwhile")


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    shapes = list(_SHAPES.items())
    return [_measured(*shapes[place], arguments) for place in arguments.shapes]


def _measured(title: str, shape: tuple[int, int, float], arguments: argparse.Namespace) -> Table:
    topics, producers, share = shape
    extract = MadeUpExtract(arguments.messages // topics * topics, topics, producers, share)
    rows = []
    with tempfile.TemporaryDirectory(prefix="pulsar-sidecar-duplicates-", dir=arguments.scratch) as made:
        place = Path(made)
        extract.write(place / "extract")
        size_mb = sum(file.stat().st_size for file in place.rglob("*.parquet")) / 1e6
        for name in arguments.engines:
            figures = _in_a_process(name, place)
            if figures["found"] != extract.duplicates:
                raise RuntimeError(f"{name} found {figures['found']} duplicates of {extract.duplicates}")
            times = (f"{figures[unit]:,.1f}" for unit in ("seconds", "cpu_seconds"))
            rows.append((_ENGINES[name], *times, f"{figures['memory_mb']:,.0f}"))
    heading = f"{extract.messages:,} messages ({title}), {extract.duplicates:,} duplicates, {size_mb:,.0f} MB"
    return Table(heading, ("", "seconds", "seconds of processor time", "largest process, MB"), rows)


def _in_a_process(name: str, place: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.duplicates", name, str(place)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{name} failed: {ran.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return figures


# --- in the process ------------------------------------------------------------------------------------------------


def _embedded(place: Path) -> int:
    output = place / f"embedded-{os.getpid()}"
    options = [f"--extract={place / 'extract'}", f"--output={output}"]
    command = [sys.executable, "-m", "pulsar_sidecar", "deduplication", "duplicates", *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode not in _FINISHED:
        raise RuntimeError(ran.stderr[-2000:])
    return int(json.loads((output / "summary.json").read_text())["findings"]["duplicate"])


def _group_by(place: Path) -> int:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812  # the usual name

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", _DRIVER_MEMORY)
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    rows = builder.getOrCreate().read.parquet(str(place / "extract" / "messages"))
    ids = rows.groupBy("topic", "producer", "replicated_from", "sequence_id").count()
    return int(ids.where("count > 1").agg(F.sum(F.col("count") - 1)).first()[0])


def _main(name: str, place: Path) -> None:
    started, used = time.perf_counter(), processor_seconds()
    found = {"embedded": _embedded, "group-by": _group_by}[name](place)
    figures = {
        "found": found,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": processor_seconds() - used,
        "memory_mb": largest_process_mb(),
    }
    sys.stdout.write(f"{json.dumps(figures)}\n")


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
