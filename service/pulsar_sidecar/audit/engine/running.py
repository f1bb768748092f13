"""The embedded engine: one audit on one machine, without Spark.

Invariant: the tables appear all at once or not at all.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pyarrow as pa

from pulsar_sidecar.audit.columnar.reader import ColumnReader
from pulsar_sidecar.audit.engine.comparing import Comparing, EarlierAudit, Findings
from pulsar_sidecar.audit.engine.findings import is_deletable
from pulsar_sidecar.audit.policies import Policy
from pulsar_sidecar.audit.ports import AuditInputs, Say, TablesOutput
from pulsar_sidecar.audit.results.guards import Earlier, demand_fitting
from pulsar_sidecar.audit.results.metrics_text import METRICS_NAME, metrics_text
from pulsar_sidecar.audit.results.plans import PlanDigest
from pulsar_sidecar.audit.results.report import REPORT_NAME, extract_of, report_html
from pulsar_sidecar.audit.results.summaries import SUMMARY_NAME, AuditSummary, Engine, Plan
from pulsar_sidecar.audit.results.summing_up import About, audit_id, failed, summarize, unseen
from pulsar_sidecar.audit.results.tables import Table
from pulsar_sidecar.audit.sources.manifests import Manifest

AUDIT_TABLES = (Table.ORPHAN_LEDGERS, Table.MISSING_LEDGERS, Table.UNATTRIBUTED_LEDGERS, Table.LEDGER_USAGE)

OpenAudit = Callable[[tuple[Table, ...], str], AbstractContextManager[TablesOutput]]
"""Begins an audit's directory: its tables and the partition they are written under."""


@dataclass(frozen=True, slots=True)
class Order:
    """How to audit, beside the inputs.

    Attributes:
        place: the directory as its user wrote it.
        exact: leave every value to the exact decoder (`audit.columnar.reader`).
    """

    policy: Policy
    tool_version: str
    place: str
    exact: bool = False


def run_audit(
    inputs: AuditInputs, earlier: EarlierAudit | None, open_audit: OpenAudit, order: Order, say: Say
) -> AuditSummary:
    """Audit.

    Raises:
        InvalidInputError: no audit can be made of these inputs; nothing is left behind.
        TemporaryError: the audit could not be written.
    """
    demand_fitting(inputs.dump, inputs.listing, None if earlier is None else earlier.summary, order.policy)
    named = dict(inputs.inputs) if earlier is None else {**inputs.inputs, "previous": earlier.named}
    about = About(
        audit_id(inputs.dump, named, order.policy),
        Engine.EMBEDDED,
        order.tool_version,
        inputs.dump,
        named,
        order.policy,
        None if earlier is None else Earlier(earlier.summary, earlier.references),
    )
    findings = Comparing(inputs, about, earlier, ColumnReader(order.exact), say).find()
    with open_audit(AUDIT_TABLES, f"audit_id={about.audit_id}") as output:
        return _write(output, about, inputs.listing, findings, order)


def _write(output: TablesOutput, about: About, listing: Manifest, findings: Findings, order: Order) -> AuditSummary:
    tables = {
        Table.ORPHAN_LEDGERS: findings.orphans,
        Table.MISSING_LEDGERS: findings.missing,
        Table.UNATTRIBUTED_LEDGERS: findings.unattributed,
        Table.LEDGER_USAGE: findings.usage,
    }
    for table, rows in tables.items():
        for batch in rows.to_batches():
            output.write(table, batch)
    files = {file.path: file.sha256 for file in output.close_tables()}
    not_seen = unseen(findings.protection, about.dump, listing, findings.log_segments_unread, findings.found)
    plan = None if failed(findings.guards) else _plan(about, findings.orphans)
    summary = summarize(about, findings.found, findings.guards, not_seen, plan, files, findings.dangers)
    extract = extract_of(findings.orphans, findings.missing, findings.unattributed, findings.usage)
    output.write_text(REPORT_NAME, report_html(summary, extract, place=order.place))
    output.write_text(METRICS_NAME, metrics_text(summary))
    output.finish(SUMMARY_NAME, summary.document())
    return summary


def _plan(about: About, orphans: pa.Table) -> Plan:
    assert about.dump.instance_id is not None
    digest = PlanDigest(about.audit_id, about.dump.instance_id)
    for batch in orphans.to_batches():
        digest.add(batch.filter(is_deletable(batch)))
    return digest.plan()
