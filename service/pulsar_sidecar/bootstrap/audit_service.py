"""Audits of a directory for the server, with the functions of the commands; needs Arrow.

Invariant: the service compares a table with its audit's summary before it shows or sends any of it.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import structlog

from pulsar_sidecar.adapters.parquet.audit_archive import ArchivedAudit, AuditArchive
from pulsar_sidecar.adapters.parquet.directories import open_audit
from pulsar_sidecar.adapters.parquet.inputs import AuditTables
from pulsar_sidecar.bootstrap.audit_review import BegunApplication, begin_application, explain_ledger
from pulsar_sidecar.features.audit import applying
from pulsar_sidecar.features.audit.plan_progress import progress_of
from pulsar_sidecar.features.audit.requests import FindingsTable, RowsRequest
from pulsar_sidecar.features.audit.results.answers import (
    ApplicationState,
    Audit,
    AuditDetails,
    Audits,
    DeletionPlan,
    LedgerCount,
    LedgerInAudit,
    PastAudit,
    PlanApplication,
    RowGroup,
    TableRows,
)
from pulsar_sidecar.features.audit.results.show import TABLES, chosen_rows, counted_columns, counted_rows
from pulsar_sidecar.features.audit.results.tables import SCHEMAS
from pulsar_sidecar.features.audit.results.verdicts import conclude, orphans_of
from pulsar_sidecar.model.clocks import Clock, Pace, StopSignal
from pulsar_sidecar.model.errors import ConflictError, DisabledError, SidecarError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.progress import ReportCount
from pulsar_sidecar.reports.formatting import format_count

Send = Callable[[BegunApplication, applying.Batches, Pace, ReportCount, StopSignal], applying.SentRows]
"""Sends the rest of a plan: `bootstrap.audit_review.send_application` with the cluster."""
log = structlog.get_logger(__name__)


class AuditReviews:
    """`audit.http.AuditReview` over the audits below a directory."""

    def __init__(self, directory: Path, sending: "PlanSending", *, deletes: bool) -> None:
        """Initialise; ``deletes`` is True if this sidecar deletes ledgers, and so accepts plans."""
        self._archive = AuditArchive(directory)
        self._sending, self._deletes = sending, deletes
        # Readers take turns: of a hundred thousand findings, one page takes 50 MB while it is read.
        self._reading = threading.Lock()

    def audits(self, offset: int, limit: int) -> Audits:
        found, unreadable = self._archive.audits()
        page = tuple(Audit(**_overview(each)) for each in found[offset : offset + limit])
        return Audits(len(found), page, tuple(unreadable))

    def audit(self, audit_id: str) -> AuditDetails:
        found = self._archive.audit(audit_id)
        history = tuple(PastAudit.of(entry) for entry in found.summary.history)
        document = found.summary.document()
        del document["files"]
        return AuditDetails(**_overview(found), history=history, summary=document)

    def rows(self, audit_id: str, table: FindingsTable, wanted: RowsRequest) -> TableRows:
        tables, _ = self._opened(audit_id)
        with self._reading:
            return chosen_rows(table, tables.shown(TABLES[table]), wanted)

    def groups(self, audit_id: str, table: FindingsTable, wanted: RowsRequest) -> Sequence[RowGroup]:
        tables, _ = self._opened(audit_id)
        name = TABLES[table]
        with self._reading:
            return counted_rows(tables.table(name, columns=counted_columns(SCHEMAS[name].names, wanted)), wanted)

    def explain(self, audit_id: str, ledger_id: int, *, references: bool) -> LedgerInAudit:
        audit = self._archive.audit(audit_id)
        dump = self._archive.dump_of(audit.summary)
        if references and dump is None:
            raise ConflictError(
                f"the dump of audit {audit_id} is not in the auditsDirectory, so its nodes cannot be searched; "
                f"where it is kept: pulsar-sidecar audit explain AUDIT {ledger_id} --dump DIR"
            )
        explained = explain_ledger(audit.path, ledger_id, dump if references else None)
        return LedgerInAudit(ledger_id, explained, None if dump is None else str(dump))

    def application(self, audit_id: str) -> PlanApplication:
        return self._sending.application(self._archive.audit(audit_id))

    def apply(self, audit_id: str, plan_sha256: str, rate: float | None, max_age_hours: float) -> PlanApplication:
        if not self._deletes:
            raise DisabledError("plans are not sent while topicTwoPhaseDeletionEnabled=false; set it to true")
        tables, audit = self._opened(audit_id)
        batches = tables.deletable
        plan = applying.verified_plan(audit.summary, batches)
        applying.demand_approval(plan, plan_sha256)
        self._sending.begin(audit, batches, rate, max_age_hours)
        return self._sending.application(audit)

    def _opened(self, audit_id: str) -> tuple[AuditTables, ArchivedAudit]:
        path = self._archive.audit(audit_id).path
        summary = open_audit(path)
        return AuditTables(path, summary), ArchivedAudit(path, summary)


class PlanSending:
    """Sender of approved plans, one after the other; the rest of a plan at shutdown waits for another approval."""

    def __init__(self, store: MetadataStore, clock: Clock, threads: Executor, send: Send) -> None:
        self._store, self._clock, self._threads, self._sent = store, clock, threads, send
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._sending: set[str] = set()
        self._failures: dict[str, str] = {}

    def begin(self, audit: ArchivedAudit, batches: applying.Batches, rate: float | None, max_age_hours: float) -> None:
        """Start sending a plan unless this sidecar does already; raise the errors of `begin_application`."""
        assert audit.summary.plan is not None
        begun = begin_application(audit.summary, audit.summary.plan, self._store, self._clock, max_age_hours)
        if begun.held.progress.finished:
            return
        with self._lock:
            if begun.plan.sha256 in self._sending:
                return
            self._sending.add(begun.plan.sha256)
            self._failures.pop(begun.plan.sha256, None)
        self._threads.submit(self._send, begun, batches, Pace(self._clock, rate))

    def application(self, audit: ArchivedAudit) -> PlanApplication:
        """Return the progress of a plan; raise `TemporaryError` if it cannot be read."""
        plan = audit.summary.plan
        if plan is None:
            return PlanApplication(ApplicationState.NO_PLAN)
        stored = progress_of(self._store, plan.sha256)
        with self._lock:
            is_sending, failure = plan.sha256 in self._sending, self._failures.get(plan.sha256)
        if stored is None:
            return PlanApplication(ApplicationState.NOT_APPLIED, plan.sha256, plan.rows)
        sent = stored.progress.done_rows
        state = ApplicationState.SENDING if is_sending else ApplicationState.INCOMPLETE
        if stored.progress.finished:
            state, failure = ApplicationState.SENT, None
        return PlanApplication(state, plan.sha256, plan.rows, sent, stored.changed_ms, failure)

    def close(self) -> None:
        """Stop after the rows in flight."""
        self._stop.set()

    def _send(self, begun: BegunApplication, batches: applying.Batches, pace: Pace) -> None:
        plan = begun.plan.sha256
        try:
            sent = self._sent(begun, batches, pace, self._stop_after_row, self._stop)
            log.info("plan sent", plan=plan, sent=sent.now, sent_earlier=sent.earlier)
        except SidecarError as error:
            self._note(plan, str(error))
        except Exception:  # a defect must not leave the plan in the state "sending" forever
            self._note(plan, "a defect; the sidecar's log has the details")
            log.exception("sending a plan failed", plan=plan)
        finally:
            with self._lock:
                self._sending.discard(plan)

    def _stop_after_row(self, done: int, total: int) -> None:
        if self._stop.is_set() and done < total:
            raise TemporaryError(
                f"the sidecar ended after {done} of {format_count(total, 'row')}; approve the plan again to resume"
            )

    def _note(self, plan: str, failure: str) -> None:
        log.warning("plan not fully sent", plan=plan, error=failure)
        with self._lock:
            self._failures[plan] = failure


def _overview(audit: ArchivedAudit) -> dict[str, Any]:
    """Return the fields of an `Audit`."""
    summary, plan = audit.summary, audit.summary.plan
    conclusion = conclude(summary, str(audit.path))
    return {
        "audit_id": summary.audit_id,
        "directory": str(audit.path),
        "cluster": summary.cluster_name or summary.instance_id,
        "as_of_ms": summary.store_time_ms,
        "engine": summary.engine,
        "verdict": conclusion.verdict,
        "sentence": conclusion.sentence,
        "next_step": conclusion.next_step,
        "existing": LedgerCount.of(summary.existing),
        "referenced": LedgerCount.of(summary.referenced),
        "orphans": LedgerCount.of(orphans_of(summary)),
        "missing": summary.missing,
        "unattributed": LedgerCount.of(summary.unattributed),
        "dangers": len(summary.dangers),
        "plan": None if plan is None else DeletionPlan(plan.rows, plan.bytes, plan.unknown_size_ledgers, plan.sha256),
    }
