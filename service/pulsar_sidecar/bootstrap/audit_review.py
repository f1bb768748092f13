"""The composition root of what follows an audit: looking at it, explaining it, applying it, tidying up.

Like `bootstrap.app` it names concrete adapters and closes what it opened. Nothing here starts a service.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from pulsar_sidecar.adapters.metadata.addressing import parse_credential
from pulsar_sidecar.adapters.metadata.store_clock import StoreTime
from pulsar_sidecar.adapters.metadata.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.adapters.parquet.archive import archived_below, remove
from pulsar_sidecar.adapters.parquet.audits import AuditTables, open_audit
from pulsar_sidecar.adapters.parquet.manifest_files import open_tables
from pulsar_sidecar.adapters.parquet.reading import node_batches, read_table
from pulsar_sidecar.adapters.pulsar.client.clients import open_client
from pulsar_sidecar.adapters.pulsar.credentials import TlsOptions, parse_credentials
from pulsar_sidecar.adapters.pulsar.topics.pending_deletions import PendingDeletionSender, open_plan_publisher
from pulsar_sidecar.audit.applying import (
    Application,
    HeldProgress,
    Tell,
    begin,
    demand_approval,
    demand_target,
    verified_plan,
)
from pulsar_sidecar.audit.engine.decoding import referring_paths
from pulsar_sidecar.audit.pruning import reasons_to_keep
from pulsar_sidecar.audit.requests import (
    Applied,
    ApplyRequest,
    ExplainRequest,
    Pruned,
    PruneRequest,
    ReportRequest,
    Shown,
    ShowRequest,
)
from pulsar_sidecar.audit.results.formatting import conclude
from pulsar_sidecar.audit.results.guards import exit_code
from pulsar_sidecar.audit.results.plans import PLAN_COLUMNS
from pulsar_sidecar.audit.results.report import REPORT_NAME, extract_of, report_html
from pulsar_sidecar.audit.results.show import TABLES, chosen_rows, explain, overview, rows_text
from pulsar_sidecar.audit.results.summaries import AuditSummary, Plan
from pulsar_sidecar.audit.results.tables import Subtree, Table
from pulsar_sidecar.audit.sources.manifests import Kind
from pulsar_sidecar.ledger_deletion.control import INSTANCES
from pulsar_sidecar.ledger_deletion.ports import Publisher
from pulsar_sidecar.ledger_ownership.paths import instance_id_of, instance_id_path
from pulsar_sidecar.model.clocks import Clock, Pace, SystemClock
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_ALL_AT_ONCE = 4096
_NODE_SUBTREES = (Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS)


def show_audit(request: ShowRequest) -> Shown:
    """An audit at a glance, and rows of its tables.

    Raises:
        InvalidInputError: it is no audit, or damaged.
    """
    summary = open_audit(request.audit)
    tables = AuditTables(request.audit, summary)
    conclusion = conclude(summary, str(request.audit))
    texts = [] if request.tables else [overview(summary, str(request.audit))]
    document = {
        "verdict": conclusion.verdict.value,
        "sentence": conclusion.sentence,
        "nextStep": conclusion.next_step,
        "summary": summary.document(),
    }
    for name in request.tables:
        rows, whole = chosen_rows(name, tables.table(TABLES[name]), request.equal, request.limit)
        texts.append(rows_text(name, rows, whole))
        document[name] = {"rows": rows, "all": whole}
    return Shown("\n\n".join(texts), document, exit_code(summary))


def explain_ledger(request: ExplainRequest) -> str:
    """Everything that an audit knows of one ledger.

    Raises:
        InvalidInputError: no audit, or the dump is none.
    """
    summary = open_audit(request.audit)
    tables = AuditTables(request.audit, summary)
    this = {"ledger_id": request.ledger_id}
    orphans, unattributed, missing = (
        tables.table(table, this).to_pylist()
        for table in (Table.ORPHAN_LEDGERS, Table.UNATTRIBUTED_LEDGERS, Table.MISSING_LEDGERS)
    )
    return explain(
        summary,
        request.ledger_id,
        orphan=orphans[0] if orphans else None,
        unattributed=unattributed[0] if unattributed else None,
        missing=missing,
        references=None if request.dump is None else _references(request.dump, request.ledger_id),
    )


def report_audit(request: ReportRequest) -> Path:
    """Write the report of an audit anew.

    Raises:
        InvalidInputError: no audit.
        TemporaryError: it cannot be written.
    """
    summary = open_audit(request.audit)
    tables = AuditTables(request.audit, summary)
    extract = extract_of(
        *(
            tables.table(table)
            for table in (
                Table.ORPHAN_LEDGERS,
                Table.MISSING_LEDGERS,
                Table.UNATTRIBUTED_LEDGERS,
                Table.LEDGER_USAGE,
            )
        )
    )
    path = request.output or request.audit / REPORT_NAME
    try:
        path.write_text(report_html(summary, extract, str(request.audit)), encoding="utf-8")
    except OSError as error:
        raise TemporaryError(f"{path} cannot be written ({error.strerror})") from error
    return path


def prune_archive(request: PruneRequest) -> Pruned:
    """Remove old audits, dumps and listings, or say which ones would be.

    Raises:
        InvalidInputError: there is no such directory.
        TemporaryError: one could not be removed.
    """
    if request.keep < 1 or request.older_than_days < 0:
        raise InvalidInputError("--keep is at least 1, --older-than-days at least 0")
    archived = archived_below(request.directory)
    older_than_ms = int(request.older_than_days * _DAY_MS)
    reasons = reasons_to_keep(archived, request.keep, older_than_ms, SystemClock().now_ms())
    going = [each for each in archived if reasons[each.path] is None]
    if request.execute:
        for each in going:
            remove(each)
    kept = {path: reason for path, reason in reasons.items() if reason is not None}
    return Pruned(tuple(each.path for each in going), kept, request.execute)


def apply_audit(request: ApplyRequest, tell: Tell) -> Applied:
    """Hand the condemned ledgers to the deletion service, or only look at the plan.

    Raises:
        InvalidInputError: no audit, a damaged one, or the plan is not the approved one; nothing was sent.
        ConflictError: the audit cannot be applied, or another process applies it.
        TemporaryError: not everything was sent; the same call goes on.
    """
    summary = open_audit(request.audit)
    tables = AuditTables(request.audit, summary)
    plan = verified_plan(summary, lambda: tables.deletable(PLAN_COLUMNS))
    planned = Applied(
        audit_id=summary.audit_id,
        plan_sha256=plan.sha256,
        rows=plan.rows,
        bytes=plan.bytes,
        unknown_size_ledgers=plan.unknown_size_ledgers,
        executed=False,
    )
    if not request.execute:
        return planned
    demand_approval(plan, request.plan_sha256)
    with ExitStack() as stack:
        return _sent(request, summary, plan, planned, tables, tell, stack)


def _sent(
    request: ApplyRequest,
    summary: AuditSummary,
    plan: Plan,
    planned: Applied,
    tables: AuditTables,
    tell: Tell,
    stack: ExitStack,
) -> Applied:
    clock = SystemClock()
    if request.broker_service_url is None:
        raise InvalidInputError("--execute needs --broker-service-url pulsar://HOST:PORT, or client.conf's")
    store = stack.enter_context(_store(request))
    instance_id = instance_id_of(store.read(instance_id_path(summary.ledgers_root)), summary.ledgers_root)
    demand_target(summary, instance_id, store.now_ms(), int(request.max_age_hours * _HOUR_MS))
    executed = replace(planned, executed=True, warnings=_warnings(store))
    held = begin(store, plan.sha256, summary.audit_id, plan.rows, clock.now_ms())
    if held.progress.finished:
        return replace(executed, sent_earlier=plan.rows)
    publisher = stack.enter_context(
        _publisher(request, request.broker_service_url, plan, held, StoreTime(store, clock))
    )
    pace = Pace(clock, request.rate)
    sender = PendingDeletionSender(publisher, clock, instance_id, f"audit {summary.audit_id}")
    application = Application(store, sender, clock, pace.after, pace.at_once(_ALL_AT_ONCE), tell)
    sent = application.send(plan, held, lambda: tables.deletable(PLAN_COLUMNS))
    return replace(executed, sent=sent.now, sent_earlier=sent.earlier)


def _warnings(store: MetadataStore) -> tuple[str, ...]:
    if store.children(INSTANCES):
        return ()
    return ("no sidecar is running on this cluster: the records wait until one with topicTwoPhaseDeletionEnabled is",)


@contextmanager
def _store(request: ApplyRequest) -> Iterator[MetadataStore]:
    if request.metadata_store_url is None:
        raise InvalidInputError("--execute needs --metadata-store-url zk:HOST:PORT, as in broker.conf")
    credential = parse_credential(request.metadata_store_auth)
    with ZooKeeperMetadataStore(request.metadata_store_url, SystemClock(), credential=credential) as store:
        yield store


@contextmanager
def _publisher(request: ApplyRequest, url: str, plan: Plan, held: HeldProgress, clock: Clock) -> Iterator[Publisher]:
    tls = TlsOptions(
        trust_certs_file=request.tls_trust_certs_file,
        allow_insecure_connection=request.tls_allow_insecure,
        hostname_verification=request.tls_verify_hostname,
    )
    credentials = parse_credentials(request.auth_plugin, request.auth_params)
    with closing(open_client(url, credentials, tls)) as client:
        publisher = open_plan_publisher(client, plan.sha256, clock, held.since_ms(), first_use=held.first_use)
        with closing(publisher):
            yield publisher


def _references(dump: Path, ledger_id: int) -> list[str]:
    open_tables(dump, Kind.DUMP)
    nodes = (batch for subtree in _NODE_SUBTREES for batch in node_batches(dump, subtree))
    cursors, segments = (read_table(dump, table).to_pylist() for table in (Table.CURSOR_LEDGERS, Table.LOG_SEGMENTS))
    return referring_paths(ledger_id, nodes, cursors, segments)
