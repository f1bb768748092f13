"""The composition root of the work after an audit: show, explain, apply and prune.

Like `bootstrap.app` it names concrete adapters and closes what it opens. Nothing here starts a service.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from prometheus_client import push_to_gateway

from pulsar_sidecar.adapters.metadata_access import StoreTime
from pulsar_sidecar.adapters.metadata_stores import open_store
from pulsar_sidecar.adapters.parquet.directories import archived_below, open_audit, open_tables, read_summary, remove
from pulsar_sidecar.adapters.parquet.inputs import AuditTables, node_batches, read_table
from pulsar_sidecar.adapters.pulsar_client.clients import opened_client
from pulsar_sidecar.adapters.pulsar_topics.pending_deletions import PendingDeletionSender, open_plan_publisher
from pulsar_sidecar.bootstrap.store_access import command_session
from pulsar_sidecar.features.audit import applying
from pulsar_sidecar.features.audit.engine.decoding import referring_paths
from pulsar_sidecar.features.audit.plan_progress import StoredProgress, begin
from pulsar_sidecar.features.audit.pruning import reasons_to_keep
from pulsar_sidecar.features.audit.requests import (
    HOUR_MS,
    AppliedPlan,
    ApplyRequest,
    AuditView,
    FindingsTable,
    PruneResult,
    RowsRequest,
    pushgateway_group,
)
from pulsar_sidecar.features.audit.results.guards import exit_code
from pulsar_sidecar.features.audit.results.report import metrics_registry, report_html, report_rows_of
from pulsar_sidecar.features.audit.results.show import (
    TABLES,
    chosen_rows,
    counted_rows,
    explain,
    groups_text,
    overview,
    rows_text,
)
from pulsar_sidecar.features.audit.results.summaries import AuditSummary, PlanSummary
from pulsar_sidecar.features.audit.results.tables import Subtree, Table
from pulsar_sidecar.features.audit.results.verdicts import conclude
from pulsar_sidecar.features.audit.sources.manifests import InputKind
from pulsar_sidecar.features.ledger_deletion.control import INSTANCES
from pulsar_sidecar.identity.credentials import identity_of
from pulsar_sidecar.model.clocks import Clock, Pace, StopSignal, SystemClock
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.metadata_stores import WHERE_TO_FIND_IT
from pulsar_sidecar.model.progress import ReportCount
from pulsar_sidecar.ownership.paths import read_instance_id
from pulsar_sidecar.reports.pages import REPORT_NAME
from pulsar_sidecar.server.answers import as_json

_DAY_MS = 24 * HOUR_MS
_ALL_AT_ONCE = 4096
_PUSH_SECONDS = 60
_NO_SIDECAR = (
    "no sidecar runs on this cluster: the records wait until one with topicTwoPhaseDeletionEnabled=true starts"
)
_FIRST_ROWS = RowsRequest()
_NODE_SUBTREES = (Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS)


def show_audit(audit: Path, tables: Sequence[FindingsTable] = (), wanted: RowsRequest = _FIRST_ROWS) -> AuditView:
    """Return an audit at a glance, or rows of some of its tables."""
    summary = open_audit(audit)
    of_audit = AuditTables(audit, summary)
    conclusion = conclude(summary, str(audit))
    texts = [] if tables else [overview(summary, str(audit))]
    document: dict[str, object] = {
        "verdict": conclusion.verdict.value,
        "sentence": conclusion.sentence,
        "nextStep": conclusion.next_step,
        "summary": summary.document(),
    }
    for name in tables:
        table = of_audit.shown(TABLES[name])
        if wanted.group_by is None:
            found = chosen_rows(name, table, wanted)
            texts.append(rows_text(name, found))
            document[name] = {"rows": found.rows, "all": found.total}
        else:
            groups = counted_rows(table, wanted)
            texts.append(groups_text(name, wanted.group_by, groups))
            document[name] = {"groups": [as_json(each) for each in groups]}
    return AuditView("\n\n".join(texts), document, exit_code(summary))


def explain_ledger(audit: Path, ledger_id: int, dump: Path | None = None) -> str:
    """Return an audit's findings on one ledger, and the references to it in a dump."""
    summary = open_audit(audit)
    tables = AuditTables(audit, summary)
    orphans, unattributed, missing, offloaded = (
        tables.shown(table, {"ledger_id": ledger_id}).to_pylist()
        for table in (
            Table.ORPHAN_LEDGERS,
            Table.UNATTRIBUTED_LEDGERS,
            Table.MISSING_LEDGERS,
            Table.OFFLOADED_LEDGERS,
        )
    )
    return explain(
        summary,
        ledger_id,
        orphan=orphans[0] if orphans else None,
        unattributed=unattributed[0] if unattributed else None,
        missing=missing,
        offloaded=offloaded,
        references=None if dump is None else _references(dump, ledger_id),
    )


def report_audit(audit: Path, output: Path | None = None) -> Path:
    """Write an audit's report again, to ``output`` or into the audit itself.

    Raises:
        TemporaryError: the report cannot be written.
    """
    summary = open_audit(audit)
    tables = AuditTables(audit, summary)
    extract = report_rows_of(*(tables.shown(table) for table in TABLES.values()))
    path = output or audit / REPORT_NAME
    try:
        path.write_text(report_html(summary, extract, str(audit)), encoding="utf-8")
    except OSError as error:
        raise TemporaryError(f"{path} cannot be written ({error.strerror})") from error
    return path


def push_audit(audit: Path, url: str) -> None:
    """Replace the metrics of a Pushgateway's group with those of an audit.

    Raises:
        InvalidInputError: no audit, or the URL does not name a group.
        TemporaryError: the Pushgateway did not accept them.
    """
    gateway, job, labels = pushgateway_group(url)
    registry = metrics_registry(read_summary(audit))
    try:
        push_to_gateway(gateway, job, registry, labels, timeout=_PUSH_SECONDS)
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()  # a refusal is a response too, with its connection
        raise TemporaryError(f"the metrics were not pushed to {url} ({error}); repeat the command") from error


def prune_archive(directory: Path, keep: int = 5, older_than_days: float = 30.0, execute: bool = False) -> PruneResult:
    """Remove old audits, dumps and listings, or only report them.

    Raises:
        InvalidInputError: ``keep`` is less than 1, or ``older_than_days`` is negative.
    """
    if keep < 1 or older_than_days < 0:
        raise InvalidInputError("--keep must be at least 1, and --older-than-days must not be negative")
    archived = archived_below(directory)
    reasons = reasons_to_keep(archived, keep, int(older_than_days * _DAY_MS), SystemClock().now_ms())
    going = [each for each in archived if reasons[each.path] is None]
    if execute:
        for each in going:
            remove(each)
    kept = {path: reason for path, reason in reasons.items() if reason is not None}
    return PruneResult(tuple(each.path for each in going), kept, execute)


def apply_audit(request: ApplyRequest, report: ReportCount) -> AppliedPlan:
    """Send a plan's deletable ledgers to the deletion service, or only verify the plan.

    Raises:
        InvalidInputError: no audit, a damaged one, or the plan is not the approved one; nothing was sent.
        ConflictError: the audit cannot be applied, or another process applies it.
        TemporaryError: not everything was sent; the same call resumes.
    """
    summary = open_audit(request.audit)
    batches = AuditTables(request.audit, summary).deletable
    plan = applying.verified_plan(summary, batches)
    planned = AppliedPlan(
        audit_id=summary.audit_id,
        plan_sha256=plan.sha256,
        rows=plan.rows,
        bytes=plan.bytes,
        unknown_size_ledgers=plan.unknown_size_ledgers,
        executed=False,
    )
    if not request.execute:
        return planned
    applying.demand_approval(plan, request.plan_sha256)
    if request.broker_service_url is None:
        raise InvalidInputError("--execute needs --broker-service-url pulsar://HOST:PORT, or client.conf's")
    if request.metadata_store_url is None:
        raise InvalidInputError(f"--execute needs --metadata-store-url zk:HOST:PORT; {WHERE_TO_FIND_IT}")
    clock = SystemClock()
    options = command_session(request.metadata_store_auth)
    credentials, tls = identity_of(request.client)
    with open_store(request.metadata_store_url, clock, options) as store:
        begun = begin_application(summary, plan, store, clock, request.max_age_hours)
        executed = replace(planned, executed=True, warnings=() if store.children(INSTANCES) else (_NO_SIDECAR,))
        if begun.held.progress.finished:
            return replace(executed, sent_earlier=plan.rows)
        brokers = partial(opened_client, request.broker_service_url, credentials, tls)
        sent = send_application(store, brokers, clock, begun, batches, Pace(clock, request.rate), report)
    return replace(executed, sent=sent.now, sent_earlier=sent.earlier)


@dataclass(frozen=True, slots=True)
class BegunApplication:
    """An approved plan of this cluster, of which ``held.progress`` is already sent."""

    summary: AuditSummary
    plan: PlanSummary
    held: StoredProgress


def begin_application(
    summary: AuditSummary, plan: PlanSummary, store: MetadataStore, clock: Clock, max_age_hours: float
) -> BegunApplication:
    """Record the start of an approved plan; raise the errors of `applying.demand_target` and `plan_progress.begin`."""
    instance_id = read_instance_id(store, summary.ledgers_root)
    applying.demand_target(summary, instance_id, store.now_ms(), int(max_age_hours * HOUR_MS))
    held = begin(store, plan.sha256, summary.audit_id, plan.rows, clock.now_ms())
    return BegunApplication(summary, plan, held)


def send_application(
    store: MetadataStore,
    open_brokers: Callable[[], AbstractContextManager[Any]],
    clock: Clock,
    begun: BegunApplication,
    batches: applying.Batches,
    pace: Pace,
    report: ReportCount,
    stop: StopSignal | None = None,
) -> applying.SentRows:
    """Send the rest of a plan; raise the errors of `applying.send_plan`.

    ``stop`` interrupts waits for the rate; ``report`` may raise to end the rest.
    """
    plan, held = begun.plan, begun.held
    brokers_clock, since_ms = StoreTime(store, clock), held.since_ms()
    with (
        open_brokers() as client,
        closing(
            open_plan_publisher(client, plan.sha256, brokers_clock, since_ms, first_use=held.first_use)
        ) as publisher,
    ):
        summary = begun.summary
        sender = PendingDeletionSender(
            publisher,
            clock,
            summary.instance_id,
            f"audit {summary.audit_id}",
            times_known=summary.inputs["dump"].keeps_times,
        )
        at_once = pace.batch_size(_ALL_AT_ONCE)
        keep_pace = partial(pace.wait_after, stop=stop)
        return applying.send_plan(plan, held, batches, store, sender.send, clock, keep_pace, at_once, report)


def _references(dump: Path, ledger_id: int) -> list[str]:
    open_tables(dump, InputKind.DUMP)
    nodes = (batch for subtree in _NODE_SUBTREES for batch in node_batches(dump, subtree))
    cursors, segments = (read_table(dump, table).to_pylist() for table in (Table.CURSOR_LEDGERS, Table.LOG_SEGMENTS))
    return referring_paths(ledger_id, nodes, cursors, segments)
