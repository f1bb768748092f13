"""The composition root of an audit by the embedded engine.

It is apart from the other commands and imports what works on rows last, Arrow above all, so that the processes of a
large audit start as early as they can.
"""

from functools import partial
from typing import TYPE_CHECKING

from pulsar_sidecar.adapters.parquet.manifest_files import read_manifest
from pulsar_sidecar.adapters.parquet.workers import opened_workers
from pulsar_sidecar.audit.requests import Audited, AuditRequest
from pulsar_sidecar.audit.sources.manifests import Kind
from pulsar_sidecar.bootstrap.process import ended_in_order, tool_version
from pulsar_sidecar.model.errors import InvalidInputError

if TYPE_CHECKING:
    from pulsar_sidecar.audit.ports import Say

_WORTH_WORKERS_ROWS = 400_000


def make_audit(request: AuditRequest, say: "Say") -> Audited:
    """Audit with the embedded engine.

    Raises:
        InvalidInputError: no audit can be made of these inputs; nothing is left behind.
        TemporaryError: the audit could not be written.
    """
    if request.output.exists():
        raise InvalidInputError(f"{request.output} exists already; nothing is overwritten, name another directory")
    manifests = read_manifest(request.dump, Kind.DUMP), read_manifest(request.listing, Kind.LISTING)
    rows = sum(file.rows for manifest in manifests for file in manifest.files)
    with ended_in_order(), opened_workers(worth_it=rows >= _WORTH_WORKERS_ROWS) as workers:
        from pulsar_sidecar.adapters.parquet.inputs import open_earlier, open_inputs
        from pulsar_sidecar.adapters.parquet.output import parquet_output
        from pulsar_sidecar.audit.engine.comparing import EmbeddedEngine
        from pulsar_sidecar.audit.engine.running import Opened, Order, run_audit
        from pulsar_sidecar.audit.results.formatting import conclude
        from pulsar_sidecar.audit.results.guards import exit_code

        earlier = None if request.previous is None else open_earlier(request.previous)
        inputs = open_inputs(request.dump, request.listing, *manifests, workers)
        order = Order(request.policy, tool_version(), str(request.output), request.exact)
        engine = EmbeddedEngine(inputs, order, earlier, partial(parquet_output, request.output), say)
        named = inputs.inputs if earlier is None else {**inputs.inputs, "previous": earlier.named}
        opened = Opened(*manifests, named, None if earlier is None else earlier.earlier)
        summary = run_audit(engine, opened, order)
    conclusion = conclude(summary, str(request.output))
    return Audited(exit_code(summary), f"{conclusion.verdict.value}: {conclusion.sentence}", conclusion.next_step)
