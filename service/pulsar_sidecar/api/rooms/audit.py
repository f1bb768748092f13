"""The routes and the JSON of audits: what they found, one ledger in sentences, and the application of a plan.

Times are milliseconds on the metadata store's clock. Rows are those of the audit's tables, with their columns' names.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Path, Query
from pydantic import Field

from pulsar_sidecar.api.guard import guarded_router
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.api.schemas import Answer, Parameters, Payload, PlanHash
from pulsar_sidecar.audit.plan_progress import StoredProgress
from pulsar_sidecar.audit.results.summaries import Count, HistoryEntry
from pulsar_sidecar.audit.service import (
    ApplicationState,
    AuditReview,
    FindingsTable,
    GroupColumn,
    RowsRequest,
    StoredAudit,
)
from pulsar_sidecar.model.ids import MAX_LEDGER_ID

_PATH = "/audits/{auditId}"
_AuditId = Annotated[
    str,
    Path(
        alias="auditId",
        pattern=r"^[-._A-Za-z0-9]{1,200}$",
        description="The id of the audit.",
        examples=["20260706T120000Z-5f0c"],
    ),
]
_Table = Annotated[FindingsTable, Path(description="``orphans``, ``missing``, ``unattributed`` or ``usage``.")]
_LedgerId = Annotated[int, Path(alias="ledgerId", ge=0, le=MAX_LEDGER_ID, description="BookKeeper's ledger id.")]
_Text = Annotated[str, Field(max_length=8192)]


class PageParameters(Parameters):
    """Which part of a list."""

    offset: int = Field(default=0, ge=0, le=1_000_000_000)
    """How many to leave out at the beginning."""
    limit: int = Field(default=100, ge=1, le=10_000)
    """Maximum number in the answer."""


class FilterParameters(Parameters):
    """Which rows; a filter on a column that the table lacks chooses none."""

    status: _Text | None = None
    """Only ledgers with this status, such as ``too-young``; ``condemned`` is the status of deletable ledgers."""
    kind: _Text | None = None
    """Only rows of this kind, such as ``data`` or ``cursor``."""
    cause: _Text | None = None
    """Only rows with this likely cause."""
    tenant: _Text | None = None
    namespace: _Text | None = None
    """Only rows of this namespace (``tenant/namespace``)."""
    topic: _Text | None = None
    """Only rows of this topic, by its full name."""

    def equal(self) -> dict[str, str]:
        """The columns with the values that rows must have."""
        return {by.column: value for by in GroupColumn if (value := getattr(self, by.value)) is not None}


class RowsParameters(FilterParameters, PageParameters):
    """Which rows, and in which order."""

    order: Literal["ledger", "size"] = "ledger"
    """By ledger id, or the largest first; ``usage`` always has the largest first."""

    def request(self) -> RowsRequest:
        return RowsRequest(self.equal(), self.limit, self.offset, self.order == "size")


class GroupsParameters(FilterParameters):
    """What rows are counted by."""

    by: GroupColumn
    """A table without this column has no groups."""

    def request(self) -> RowsRequest:
        return RowsRequest(self.equal(), group_by=self.by)


class ExplainParameters(Parameters):
    """How far to search."""

    references: bool = False
    """Search the audit's dump for nodes that reference the ledger; that reads all of the dump."""


class ApplyPayload(Payload):
    """The approval of a plan."""

    plan: PlanHash
    """Hash of the approved plan."""
    rate: float | None = Field(default=None, ge=0.1, le=1e9)
    """Maximum number of records a second. Default: no limit."""
    max_age_hours: float = Field(default=72.0, ge=0, le=1e6)
    """Maximum age of the audit, in hours."""


class CountAnswer(Answer):
    """Ledgers, and the bytes of those whose size is known."""

    ledgers: int
    bytes: int | None
    """Null if there are ledgers and the size of none is known."""
    unknown_size_ledgers: int


class DeletionPlanAnswer(CountAnswer):
    """The deletable ledgers, and the hash that approves them."""

    sha256: str


class HistoryAnswer(Answer):
    """One audit as a later one remembers it."""

    audit_id: str
    store_time_ms: int
    existing: CountAnswer
    orphans: CountAnswer
    condemned: CountAnswer
    missing: int
    unattributed: int


class AuditAnswer(Answer):
    """One audit in short."""

    audit_id: str
    directory: str
    """On the sidecar's machine; commands about the audit take it."""
    cluster: str
    """The name of the Pulsar cluster, or BookKeeper's instance id."""
    as_of_ms: int
    engine: str
    verdict: str
    """``clean``, ``plan``, ``findings`` or ``stopped``."""
    sentence: str
    next_step: str
    existing: CountAnswer
    referenced: CountAnswer
    orphans: CountAnswer
    missing: int
    """References to ledgers that do not exist."""
    unattributed: CountAnswer
    dangers: int
    plan: DeletionPlanAnswer | None
    """Null if a guard failed."""

    @classmethod
    def of(cls, audit: StoredAudit, **more: Any) -> Self:
        """The answer; ``more`` are the fields of an answer that has more."""
        summary, plan = audit.summary, audit.summary.plan
        return cls(
            audit_id=summary.audit_id,
            directory=audit.directory,
            cluster=summary.cluster_name or summary.instance_id,
            as_of_ms=summary.store_time_ms,
            engine=summary.engine.value,
            verdict=audit.verdict,
            sentence=audit.sentence,
            next_step=audit.next_step,
            existing=_count(summary.existing),
            referenced=_count(summary.referenced),
            orphans=_count(audit.orphans),
            missing=summary.missing,
            unattributed=_count(summary.unattributed),
            dangers=len(summary.dangers),
            plan=None if plan is None else DeletionPlanAnswer(**_count(plan.ledgers).model_dump(), sha256=plan.sha256),
            **more,
        )


class UnreadableAuditAnswer(Answer):
    """A directory with an audit that cannot be read."""

    directory: str
    reason: str


class AuditsAnswer(Answer):
    """Some audits, and how many there are."""

    total: int
    audits: list[AuditAnswer]
    """The newest first."""
    unreadable: list[UnreadableAuditAnswer]
    """Audits in the directory that cannot be read, on no page."""


class WholeAuditAnswer(AuditAnswer):
    """One audit with all that is not a row of a table."""

    history: list[HistoryAnswer]
    """Earlier audits, oldest first, and this one at the end."""
    summary: dict[str, Any]
    """The audit's ``summary.json``: counts by status, kind, cause, tenant and age, guards, dangers, what could not be
    checked, nodes that point to nothing, inputs and policy."""


class RowsAnswer(Answer):
    """Some rows of a table, and how many there are."""

    total: int
    rows: list[dict[str, Any]]


class GroupAnswer(CountAnswer):
    """Rows with one value of the column; of missing ledgers the references are counted."""

    value: str | None


class LedgerInAuditAnswer(Answer):
    """All that an audit knows of a ledger."""

    ledger_id: int
    explanation: str
    """In sentences, one a line."""
    dump: str | None
    """The directory with the audit's dump; null if it is not kept in the ``auditsDirectory``."""


class PlanApplicationAnswer(Answer):
    """How far a plan was applied, by this sidecar or by another process."""

    state: ApplicationState
    """``no-plan``, ``not-applied``, ``sending`` (by this sidecar), ``incomplete`` (approving it again resumes) or
    ``sent``."""
    plan_sha256: str | None
    rows: int
    """Ledgers in the plan."""
    sent: int
    """How many of them the deletion service has recorded; it checks each one before it deletes it."""
    changed_ms: int | None
    """When that was noted."""
    failure: str | None
    """Why this sidecar did not send all of it the last time."""


class UnfinishedPlanAnswer(Answer):
    """A plan that was sent in part."""

    plan_sha256: str
    audit_id: str
    rows: int
    """Ledgers in the plan."""
    sent: int
    """How many of them the deletion service has recorded."""
    changed_ms: int
    """When that was noted."""


def plans_router(unfinished: Callable[[], Mapping[str, StoredProgress]]) -> APIRouter:
    """The route of plans, which needs neither a directory of audits nor Arrow."""
    routes = guarded_router("audits", "/admin/v2")

    @routes.get("/audit-plans")
    @takes(Right.CLUSTER_STATE)
    def audit_plans() -> list[UnfinishedPlanAnswer]:
        """Plans of audits of which ledgers are still to be sent to the deletion service, whichever process sends them.

        A command or a sidecar may be sending them now; to resume one that nothing sends, apply it again.
        """
        return [
            UnfinishedPlanAnswer(
                plan_sha256=sha256,
                audit_id=stored.progress.audit_id,
                rows=stored.progress.rows,
                sent=stored.progress.done_rows,
                changed_ms=stored.changed_ms,
            )
            for sha256, stored in unfinished().items()
        ]

    return routes


def router(service: AuditReview) -> APIRouter:
    routes = guarded_router("audits", "/admin/v2")
    _add_audits(routes, service)
    _add_findings(routes, service)
    _add_application(routes, service)
    return routes


def _add_audits(routes: APIRouter, service: AuditReview) -> None:
    @routes.get("/audits")
    @takes(Right.CLUSTER_STATE)
    def audits(parameters: Annotated[PageParameters, Query()]) -> AuditsAnswer:
        """The audits in the ``auditsDirectory``, the newest first.

        405: the sidecar serves no audits, or lacks what reads them; the reason names the setting or the package.
        """
        found = service.audits(parameters.offset, parameters.limit)
        return AuditsAnswer(
            total=found.total,
            audits=[AuditAnswer.of(audit) for audit in found.audits],
            unreadable=[UnreadableAuditAnswer.model_validate(each) for each in found.unreadable],
        )

    @routes.get(_PATH)
    @takes(Right.CLUSTER_STATE)
    def audit(audit_id: _AuditId) -> WholeAuditAnswer:
        """One audit: its verdict, and its whole summary. 404: there is no such audit."""
        found = service.audit(audit_id)
        history = [_history(entry) for entry in found.summary.history]
        document = found.summary.document()
        document.pop("files")
        return WholeAuditAnswer.of(found, history=history, summary=document)


def _add_findings(routes: APIRouter, service: AuditReview) -> None:
    @routes.get(f"{_PATH}/tables/{{table}}")
    @takes(Right.CLUSTER_STATE)
    def audit_rows(audit_id: _AuditId, table: _Table, parameters: Annotated[RowsParameters, Query()]) -> RowsAnswer:
        """Rows of one of an audit's tables, filtered and page by page.

        ``orphans``: unreferenced ledgers with owner, cause and evidence; ``missing``: references to ledgers that do not
        exist; ``unattributed``: ledgers whose owner is not known; ``usage``: ledgers and bytes of each owner and kind.
        """
        found = service.rows(audit_id, table, parameters.request())
        return RowsAnswer(total=found.total, rows=[dict(row) for row in found.rows])

    @routes.get(f"{_PATH}/tables/{{table}}/groups")
    @takes(Right.CLUSTER_STATE)
    def audit_groups(
        audit_id: _AuditId, table: _Table, parameters: Annotated[GroupsParameters, Query()]
    ) -> list[GroupAnswer]:
        """The rows of a table counted by tenant, namespace, topic, kind, cause or status, the most bytes first."""
        groups = service.groups(audit_id, table, parameters.request())
        return [GroupAnswer(value=group.value, **_count(group.count).model_dump()) for group in groups]

    @routes.get(f"{_PATH}/ledgers/{{ledgerId}}")
    @takes(Right.CLUSTER_STATE)
    def explain_audited_ledger(
        audit_id: _AuditId, ledger_id: _LedgerId, parameters: Annotated[ExplainParameters, Query()]
    ) -> LedgerInAuditAnswer:
        """What an audit knows of one ledger, in sentences.

        409: ``references``, and the audit's dump is not kept in the ``auditsDirectory``.
        """
        explained = service.explain(audit_id, ledger_id, references=parameters.references)
        return LedgerInAuditAnswer.model_validate(explained)


def _add_application(routes: APIRouter, service: AuditReview) -> None:
    @routes.get(f"{_PATH}/application")
    @takes(Right.CLUSTER_STATE)
    def audit_application(audit_id: _AuditId) -> PlanApplicationAnswer:
        """How far the audit's plan was sent to the deletion service."""
        return PlanApplicationAnswer.model_validate(service.application(audit_id))

    @routes.post(f"{_PATH}/application", status_code=202, response_description="The sidecar sends it.")
    @takes(Right.CLUSTER_CHANGE)
    def apply_audit(audit_id: _AuditId, approval: ApplyPayload) -> PlanApplicationAnswer:
        """Send the ledgers of an approved plan to the deletion service; a plan that was sent in part is resumed.

        Each row is sent once, however often this is repeated; the service checks every ledger again before it deletes
        it. 400: the hash is not the plan's, or the audit is damaged. 409: a guard failed, the audit is another
        cluster's or too old, or another process sends the plan.
        """
        found = service.apply(audit_id, approval.plan, approval.rate, approval.max_age_hours)
        return PlanApplicationAnswer.model_validate(found)


def _count(count: Count) -> CountAnswer:
    return CountAnswer.model_validate(count)


def _history(entry: HistoryEntry) -> HistoryAnswer:
    return HistoryAnswer.model_validate(entry)
