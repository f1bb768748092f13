"""The composition root of what needs files alone: stuck cursors in a dump, duplicates in an extract."""

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
from pulsar_sidecar.analysis.documents import MANIFEST_NAME
from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.audit.sources.manifests import InputKind
from pulsar_sidecar.bootstrap.process import ended_in_order, tool_version
from pulsar_sidecar.deduplication.inspection.lag_limits import LagLimits
from pulsar_sidecar.deduplication.inspection.stuck import StuckCursors, StuckReport
from pulsar_sidecar.deduplication.policies import BrokerDeduplication
from pulsar_sidecar.deduplication.stored import StoredDeduplications
from pulsar_sidecar.deduplication.verifying.duplicates.embedded import EmbeddedEngine
from pulsar_sidecar.deduplication.verifying.duplicates.requests import DuplicatesOutcome, DuplicatesRequest
from pulsar_sidecar.deduplication.verifying.duplicates.results import conclude
from pulsar_sidecar.deduplication.verifying.duplicates.running import find_duplicates
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.progress import Report

_MAX_THREADS = 8
_AHEAD = 2
"""So many pieces wait or are answered beyond those in work, so that no thread is idle while an answer is looked at."""


def find_stuck_in_dump(
    dump: Path, namespace: str | None, limits: LagLimits, most: int, broker_enabled: bool
) -> StuckReport:
    """The cursors of a dump that are stuck; a topic without a deduplication cursor is left out.

    Raises:
        InvalidInputError: the directory is not a dump, or not what was written.
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
    """Look through an extract.

    Raises:
        InvalidInputError: it is not whole, or there is something at the output's place; nothing is left behind.
        TemporaryError: what was found could not be written.
    """
    if request.output.exists():
        raise InvalidInputError(f"{request.output} exists already; nothing is overwritten, name another directory")
    place = str(request.output)
    with ended_in_order(), few_ahead(min(len(os.sched_getaffinity(0)), _MAX_THREADS)) as workers:
        extract = MessageExtract(request.extract, workers)
        manifest, sha256 = extract.manifest, sha256_of(request.extract / MANIFEST_NAME)
        report(f"looking through {format_count(manifest.messages, 'row')} of {format_count(manifest.topics, 'topic')}")
        engine = EmbeddedEngine(
            extract, partial(parquet_output, request.output), partial(disk_scratch, request.output), report
        )
        summary = find_duplicates(engine, manifest, sha256, tool_version=tool_version(), place=place)
    return conclude(summary, place)


@contextmanager
def few_ahead(count: int) -> Iterator[Workers]:
    """So many threads, which work on the next few pieces only; what waits is not begun once the ``with`` is left.

    `Executor.map` takes all pieces at once: unread answers would fill the memory, and an end would wait for the rest.
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
