"""The composition root of looking through an extract of messages with the embedded engine."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pulsar_sidecar.adapters.parquet.directories import sha256_of
from pulsar_sidecar.adapters.parquet.message_extracts import MessageExtract, disk_scratch
from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.analysis.documents import MANIFEST_NAME
from pulsar_sidecar.bootstrap.process import ended_in_order, tool_version
from pulsar_sidecar.deduplication.verifying.duplicates.embedded import EmbeddedEngine
from pulsar_sidecar.deduplication.verifying.duplicates.requests import DuplicatesOutcome, DuplicatesRequest
from pulsar_sidecar.deduplication.verifying.duplicates.results import conclude
from pulsar_sidecar.deduplication.verifying.duplicates.running import OpenedExtract, RunOptions, find_duplicates
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.progress import Report

_MAX_THREADS = 8


def look_for_duplicates(request: DuplicatesRequest, report: Report) -> DuplicatesOutcome:
    """Look through an extract.

    Raises:
        InvalidInputError: it is not whole, or there is something at the output's place; nothing is left behind.
        TemporaryError: what was found could not be written.
    """
    if request.output.exists():
        raise InvalidInputError(f"{request.output} exists already; nothing is overwritten, name another directory")
    threads = ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), _MAX_THREADS))
    with ended_in_order(), threads:
        extract = MessageExtract(request.extract, threads.map)
        opened = OpenedExtract(extract.manifest, sha256_of(request.extract / MANIFEST_NAME))
        report(f"looking through {opened.manifest.messages:,} rows of {opened.manifest.topics:,} topics")
        engine = EmbeddedEngine(
            extract, partial(parquet_output, request.output), partial(disk_scratch, request.output), report
        )
        summary = find_duplicates(engine, opened, RunOptions(tool_version(), str(request.output)))
    return conclude(summary, str(request.output))
