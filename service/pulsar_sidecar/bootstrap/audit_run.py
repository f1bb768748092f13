"""The composition root of an audit by the embedded engine.

It is apart from the other commands and imports Arrow and other modules that process rows last, so that the processes of
a large audit start as early as possible.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, TypeVar

from pulsar_sidecar.adapters.parquet.directories import read_manifest, sha256_of
from pulsar_sidecar.bootstrap.process import ended_in_order, tool_version
from pulsar_sidecar.features.audit.requests import AuditRequest, AuditResult
from pulsar_sidecar.features.audit.sources.manifests import InputKind
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.reports.documents import MANIFEST_NAME

if TYPE_CHECKING:
    from pulsar_sidecar.adapters.parquet.inputs import Workers

Worked = TypeVar("Worked")

_WORTH_WORKERS_ROWS = 400_000
_MAX_PROCESSES = 8


def perform_audit(request: AuditRequest, report: Report) -> AuditResult:
    """Audit with the embedded engine.

    Raises:
        InvalidInputError: these inputs cannot be audited; nothing is left behind.
        TemporaryError: the audit could not be written.
    """
    if request.output.exists():
        raise InvalidInputError(f"{request.output} already exists; nothing is overwritten, name another directory")
    manifests = read_manifest(request.dump, InputKind.DUMP), read_manifest(request.listing, InputKind.LISTING)
    offloaded = None
    if request.offloaded is not None:
        offloaded = request.offloaded, read_manifest(request.offloaded, InputKind.OFFLOADED)
    rows = sum(file.rows for manifest in manifests for file in manifest.files)
    with ended_in_order(), _workers(worth_it=rows >= _WORTH_WORKERS_ROWS) as workers:
        from pulsar_sidecar.adapters.parquet.inputs import ParquetInputs, open_earlier
        from pulsar_sidecar.adapters.parquet.output import parquet_output
        from pulsar_sidecar.features.audit.engine.comparing import EmbeddedEngine
        from pulsar_sidecar.features.audit.engine.running import AuditOptions, OpenedInputs, input_of, run_audit
        from pulsar_sidecar.features.audit.results.guards import exit_code
        from pulsar_sidecar.features.audit.results.verdicts import conclude

        earlier = None if request.previous is None else open_earlier(request.previous)
        inputs = ParquetInputs(request.dump, request.listing, *manifests, *workers, offloaded)
        options = AuditOptions(request.policy, tool_version(), str(request.output), request.exact)
        engine = EmbeddedEngine(inputs, options, earlier, partial(parquet_output, request.output), report)
        directories = zip(("dump", "listing"), manifests, (request.dump, request.listing), strict=True)
        named = {role: input_of(read, sha256_of(place / MANIFEST_NAME)) for role, read, place in directories}
        if earlier is not None:
            named["previous"] = earlier.named
        if offloaded is not None:
            named["offloaded"] = input_of(offloaded[1], sha256_of(offloaded[0] / MANIFEST_NAME))
        opened = OpenedInputs(*manifests, named, None if earlier is None else earlier.earlier, inputs.offloaded)
        summary = run_audit(engine, opened, options)
    conclusion = conclude(summary, str(request.output))
    return AuditResult(exit_code(summary), f"{conclusion.verdict.value}: {conclusion.sentence}", conclusion.next_step)


@contextmanager
def _workers(*, worth_it: bool) -> "Iterator[tuple[Workers, Workers]]":
    """Yield processes and threads, as many as there are processors; the processes start meanwhile."""
    count = min(len(os.sched_getaffinity(0)), _MAX_PROCESSES)
    if count == 1 or not worth_it:
        yield map, map
        return
    with ExitStack() as stack:
        # Never forked: this process has Arrow's threads.
        processes = ProcessPoolExecutor(count, get_context("spawn"), _preload)
        stack.callback(processes.shutdown, cancel_futures=True)
        for _ in range(count):
            # A process starts only with its first task.
            processes.submit(os.getpid)
        threads = stack.enter_context(ThreadPoolExecutor(count))
        yield lambda work, pieces: _unbroken(processes.map(work, pieces)), threads.map


def _preload() -> None:
    """Import modules before there is work."""
    from pulsar_sidecar.adapters.parquet import row_groups  # noqa: F401
    from pulsar_sidecar.features.audit.engine import admin_nodes, decoding, judging  # noqa: F401


def _unbroken(answers: Iterator[Worked]) -> Iterator[Worked]:
    try:
        yield from answers
    except BrokenProcessPool as error:
        raise TemporaryError(
            "a worker process of this audit was killed; check the kernel log for the OOM killer, and add memory"
        ) from error
