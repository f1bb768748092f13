"""The composition root of an audit by the embedded engine; apart from the others because it needs little of them."""

from functools import partial

from service.adapters.parquet.inputs import open_earlier, open_inputs
from service.adapters.parquet.output import parquet_output
from service.audit.guards import exit_code
from service.audit.ports import Say
from service.audit.requests import Audited, AuditRequest
from service.audit.running import Order, run_audit
from service.audit.verdicts import conclude
from service.command_process import ended_in_order, tool_version
from service.model.errors import InvalidInputError


def make_audit(request: AuditRequest, say: Say) -> Audited:
    """Audit with the embedded engine.

    Raises:
        InvalidInputError: no audit can be made of these inputs; nothing is left behind.
        TemporaryError: the audit could not be written.
    """
    if request.output.exists():
        raise InvalidInputError(f"{request.output} exists already; nothing is overwritten, name another directory")
    earlier = None if request.previous is None else open_earlier(request.previous)
    order = Order(request.policy, tool_version(), str(request.output))
    with ended_in_order(), open_inputs(request.dump, request.listing) as inputs:
        summary = run_audit(inputs, earlier, partial(parquet_output, request.output), order, say)
    conclusion = conclude(summary, str(request.output))
    return Audited(exit_code(summary), f"{conclusion.verdict.value}: {conclusion.sentence}", conclusion.next_step)
