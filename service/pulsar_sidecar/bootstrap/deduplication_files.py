"""The composition root of commands that need only files: stuck cursors in a dump, duplicates in an extract."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from pulsar_sidecar.adapters.parquet.directories import open_tables, sha256_of
from pulsar_sidecar.adapters.parquet.dumped_deduplication import (
    DumpedDeduplication,
    DumpedDeduplicationSettings,
    DumpedSnapshots,
)
from pulsar_sidecar.adapters.parquet.inputs import Piece, Worked, Workers
from pulsar_sidecar.adapters.parquet.message_extracts import MessageExtract, disk_scratch
from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.bootstrap.process import ended_in_order, tool_version
from pulsar_sidecar.features.audit.sources.manifests import InputKind
from pulsar_sidecar.features.deduplication.inspection.lag_limits import LagLimits
from pulsar_sidecar.features.deduplication.inspection.stuck import StuckCursors
from pulsar_sidecar.features.deduplication.policies import BrokerDeduplication
from pulsar_sidecar.features.deduplication.results import StuckReport
from pulsar_sidecar.features.deduplication.stored import StoredDeduplications
from pulsar_sidecar.features.duplicates.extracts.embedded import EmbeddedEngine
from pulsar_sidecar.features.duplicates.extracts.results import conclude
from pulsar_sidecar.features.duplicates.requests import DuplicatesOutcome, DuplicatesRequest
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.reports.documents import MANIFEST_NAME
from pulsar_sidecar.reports.formatting import format_count

_MAX_THREADS = 8
_AHEAD = 2
"""Pieces submitted beyond one for each thread, so that no thread is idle while the caller processes a result."""


def find_stuck_in_dump(
    dump: Path, namespace: str | None, limits: LagLimits, most: int, broker_enabled: bool
) -> StuckReport:
    """Return the stuck cursors of a dump, without topics that have no deduplication cursor.

    Raises:
        InvalidInputError: the directory is not a dump, or was changed after it was written.
        NotFoundError: the dump has no such namespace.
    """
    open_tables(dump, InputKind.DUMP)
    nodes, alone = DumpedDeduplication(dump), DumpedSnapshots()
    stored = StoredDeduplications(nodes, alone, alone, alone)
    places = stored.topics.all_places() if namespace is None else stored.topics.places_below(namespace)
    settings = DumpedDeduplicationSettings(nodes, BrokerDeduplication(enabled=broker_enabled))
    report = StuckCursors(stored, settings, None).find(places, limits, most)
    return replace(report, unreadable=(*nodes.unreadable, *report.unreadable))


def look_for_duplicates(request: DuplicatesRequest, report: Report) -> DuplicatesOutcome:
    """Find the duplicates in an extract.

    Raises:
        InvalidInputError: the extract is incomplete, or the output exists; nothing is left behind.
        TemporaryError: the result could not be written.
    """
    if request.output.exists():
        raise InvalidInputError(f"{request.output} already exists; nothing is overwritten, name another directory")
    place = str(request.output)
    with ended_in_order(), few_ahead(min(len(os.sched_getaffinity(0)), _MAX_THREADS)) as workers:
        extract = MessageExtract(request.extract, workers)
        manifest, sha256 = extract.manifest, sha256_of(request.extract / MANIFEST_NAME)
        report(f"looking through {format_count(manifest.messages, 'row')} of {format_count(manifest.topics, 'topic')}")
        engine = EmbeddedEngine(
            extract, partial(parquet_output, request.output), partial(disk_scratch, request.output), report
        )
        summary = engine.search(manifest, sha256, tool_version=tool_version(), place=place)
    return conclude(summary, place)


@contextmanager
def few_ahead(count: int) -> Iterator[Workers]:
    """Yield ``count`` threads that process only the next few pieces, and cancel the rest after the ``with``.

    `Executor.map` submits all pieces at once: unread results would fill memory, and the end would wait for the rest.
    """
    threads = ThreadPoolExecutor(count)

    def work_on(work: Callable[[Piece], Worked], pieces: Sequence[Piece], /) -> Iterator[Worked]:
        begun: deque[Future[Worked]] = deque()
        for piece in pieces:
            begun.append(threads.submit(work, piece))
            if len(begun) >= count + _AHEAD:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()

    try:
        yield work_on
    finally:
        threads.shutdown(cancel_futures=True)
