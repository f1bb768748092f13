"""Memory of a sidecar that drains a large backlog: at the start, on the way, and at its highest.

A share of the records names ledgers that exist; the others' ledgers are gone already, as after a broker deleted them
itself. Records are published before the sidecar starts, so what it needs for receiving them is not in the figures.
"""

import argparse
import contextlib
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pulsar
from pulsar_sidecar.adapters.pulsar_topics.deletion_topics import topic_name
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo, encode_record
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import TopicName

from tests.benchmarks.clusters import add_drain_arguments, benchmark_sidecars, resident_mb, wait_until_quiet
from tests.benchmarks.drain import backlog_gauge
from tests.cluster.clients import PatientClient
from tests.cluster.orphans import Orphan, OrphanMaker
from tests.reporting import Table

NAME = "memory"
_LOOK_SECONDS = 0.25
_BACKLOG_EVERY = 8
_FIRST_GONE = 2_000_000_000
_PATIENCE_SECONDS = 3_600


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the process."""

    seconds: float
    resident_mb: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=200_000, help="1000000 for the published figure")
    parser.add_argument("--existing", type=int, default=20_000, help="how many of them name ledgers that exist")
    add_drain_arguments(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with ExitStack() as stack:
        addresses, sidecars = stack.enter_context(benchmark_sidecars(arguments.cluster))
        maker = stack.enter_context(contextlib.closing(OrphanMaker(addresses, arguments.topics)))
        sidecars.start_with_defaults()  # it makes the topics
        sidecars.end_all()
        orphans = maker.make(arguments.existing)
        _publish(addresses, _records(orphans, maker.topics, arguments.records))
        wait_until_quiet(addresses)
        sidecar = sidecars.start_with_defaults()
        samples = _drain(addresses, sidecar.pid)
        metrics = sidecar.metrics()
        if maker.remaining(orphans):
            raise RuntimeError("ledgers are left; the figures are worthless")
    seen = int(metrics["pulsar_ledger_deletion_acknowledged_total"])
    return [_table(samples, arguments, seen, _peak_mb(samples))]


def _records(orphans: Sequence[Orphan], topics: Sequence[TopicName], count: int) -> Iterator[PendingDeleteLedgerInfo]:
    """The existing ones evenly among the others."""
    step = max(1, count // max(1, len(orphans)))
    for number in range(count):
        place, exists = number // step, number % step == 0 and number // step < len(orphans)
        topic = orphans[place].topic if exists else topics[number % len(topics)]
        ledger_id = orphans[place].ledger_id if exists else LedgerId(_FIRST_GONE + number)
        yield PendingDeleteLedgerInfo(topic, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id)


def _publish(addresses: ClusterAddresses, records: Iterable[PendingDeleteLedgerInfo]) -> None:
    client = PatientClient(addresses)
    producer = client.create_producer(
        str(topic_name(DeletionTopic.PENDING)),
        f"benchmark-{secrets.token_hex(4)}",
        batching_enabled=True,
        batching_max_messages=1_000,
        batching_max_publish_delay_ms=20,
        batching_type=pulsar.BatchingType.KeyBased,
        block_if_queue_full=True,
    )
    refused: list[pulsar.Result] = []
    for record in records:
        producer.send_async(
            encode_record(record),
            lambda result, _: None if result == pulsar.Result.Ok else refused.append(result),
            partition_key=str(record.topic),
        )
    producer.flush()
    client.close()
    if refused:
        raise RuntimeError(f"{len(refused)} records could not be published; the figures are worthless")


def _drain(addresses: ClusterAddresses, pid: int) -> list[Sample]:
    """A sample every quarter of a second, until nothing waits."""
    gauge = backlog_gauge(addresses)
    started = time.monotonic()
    samples: list[Sample] = []
    while time.monotonic() - started < _PATIENCE_SECONDS:
        samples.append(Sample(time.monotonic() - started, resident_mb(pid)))
        if len(samples) % _BACKLOG_EVERY == 0 and gauge.measure().total == 0:
            return samples
        time.sleep(_LOOK_SECONDS)
    raise RuntimeError(f"records are left after {_PATIENCE_SECONDS} s")


def _peak_mb(samples: Sequence[Sample]) -> float:
    return max(sample.resident_mb for sample in samples)


def _slope_mb(samples: Sequence[Sample]) -> float:
    """Return the growth of memory from start to end, by a straight line through all samples."""
    count = len(samples)
    mean_at = sum(sample.seconds for sample in samples) / count
    mean_mb = sum(sample.resident_mb for sample in samples) / count
    spread = sum((sample.seconds - mean_at) ** 2 for sample in samples)
    together = sum((sample.seconds - mean_at) * (sample.resident_mb - mean_mb) for sample in samples)
    return together / spread * (samples[-1].seconds - samples[0].seconds) if spread else 0.0


def _table(samples: Sequence[Sample], arguments: argparse.Namespace, seen: int, peak_mb: float) -> Table:
    seconds = samples[-1].seconds
    later = samples[len(samples) // 2 :]
    quarters = [samples[min(len(samples) - 1, len(samples) * part // 4)].resident_mb for part in (1, 2, 3, 4)]
    return Table(
        f"Draining {arguments.records:,} records, {arguments.existing:,} of ledgers that exist",
        (
            "seconds",
            "records/s",
            "acknowledged",
            "MB at the start",
            *(f"{part}/4 of the time" for part in (1, 2, 3, 4)),
            "highest",
            "growth over the second half",
        ),
        [
            (
                f"{seconds:.0f}",
                f"{arguments.records / seconds:,.0f}",
                f"{seen:,}",
                f"{samples[0].resident_mb:.0f}",
                *(f"{each:.0f}" for each in quarters),
                f"{peak_mb:.0f}",
                f"{_slope_mb(later):+.1f} MB",
            )
        ],
    )
