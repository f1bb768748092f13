"""One audit from its opened inputs to its summary, the same way on both engines.

Invariant: the tables appear all at once or not at all, and none of them condemns a ledger if a guard failed.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from pulsar_sidecar.audit.engine.protections import Protection
from pulsar_sidecar.audit.requests import Policy
from pulsar_sidecar.audit.results.guards import Earlier, demand_fitting, demand_plausible, guards
from pulsar_sidecar.audit.results.metrics_text import METRICS_NAME, metrics_text
from pulsar_sidecar.audit.results.report import REPORT_NAME, Extract, report_html
from pulsar_sidecar.audit.results.summaries import SUMMARY_NAME, AuditSummary, Danger, Engine, Input, Plan
from pulsar_sidecar.audit.results.summing_up import About, Found, audit_id, failed, summarize, unseen
from pulsar_sidecar.audit.results.tables import OrphanStatus, Table
from pulsar_sidecar.audit.sources.manifests import Manifest

AUDIT_TABLES = (Table.ORPHAN_LEDGERS, Table.MISSING_LEDGERS, Table.UNATTRIBUTED_LEDGERS, Table.LEDGER_USAGE)

Tables = TypeVar("Tables")


@dataclass(frozen=True, slots=True)
class Opened:
    """What an audit is made of: every file was compared with its manifest.

    Attributes:
        inputs: as a summary names them.
    """

    dump: Manifest
    listing: Manifest
    inputs: Mapping[str, Input]
    earlier: Earlier | None


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


@dataclass(frozen=True, slots=True)
class Findings(Generic[Tables]):
    """The engine's own tables, as if every guard had passed, and what was counted."""

    tables: Tables
    found: Found
    protection: Protection
    log_segments_unread: int
    dangers: tuple[Danger, ...]


class AuditFiles(Protocol):
    """The directory of an audit in the making."""

    def write_text(self, name: str, text: str) -> None:
        """Add a file that is no table."""
        ...

    def finish(self, name: str, document: Mapping[str, Any]) -> None:
        """Write the summary and let the directory appear, all at once."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """Tables that were written.

    Attributes:
        files: their digests by their names.
        plan: None if a guard failed.
        extract: the rows that the report shows.
    """

    output: AuditFiles
    files: Mapping[str, str]
    plan: Plan | None
    extract: Extract


class AuditEngine(Protocol[Tables]):
    """What each engine does in its own way."""

    kind: Engine

    def find(self) -> Findings[Tables]:
        """Compare and judge.

        Raises:
            InvalidInputError: no audit can be made of these inputs.
        """
        ...

    def write(self, findings: Findings[Tables], about: About, failed_guards: str) -> AbstractContextManager[Written]:
        """Withhold what ``failed_guards`` (their names, or nothing) do not allow, number the rest, write the tables.

        Leaving the context without `AuditFiles.finish` leaves nothing behind.
        """
        ...


def run_audit(engine: AuditEngine[Tables], opened: Opened, order: Order) -> AuditSummary:
    """Audit.

    Raises:
        InvalidInputError: no audit can be made of these inputs; nothing is left behind.
        TemporaryError: the audit could not be written.
    """
    dump, listing, earlier = opened.dump, opened.listing, opened.earlier
    demand_fitting(dump, listing, None if earlier is None else earlier.summary, order.policy)
    identity = audit_id(dump, opened.inputs, order.policy)
    about = About(identity, engine.kind, order.tool_version, dump, opened.inputs, order.policy, earlier)
    findings = engine.find()
    measured = findings.found.measured()
    demand_plausible(measured, dump)
    passed = guards(dump, listing, measured, earlier, order.policy)
    failed_guards = failed(passed)
    found = _withheld(findings.found) if failed_guards else findings.found
    with engine.write(findings, about, failed_guards) as written:
        not_seen = unseen(findings.protection, dump, listing, findings.log_segments_unread, found)
        summary = summarize(about, found, passed, not_seen, written.plan, written.files, findings.dangers)
        written.output.write_text(REPORT_NAME, report_html(summary, written.extract, place=order.place))
        written.output.write_text(METRICS_NAME, metrics_text(summary))
        written.output.finish(SUMMARY_NAME, summary.document())
    return summary


def _withheld(found: Found) -> Found:
    counts = dict(found.orphans_by["standing"])
    deletable = counts.pop(OrphanStatus.DELETABLE.value, None)
    if deletable is not None:
        counts[OrphanStatus.WITHHELD.value] = deletable
    return replace(found, orphans_by={**found.orphans_by, "standing": counts})
