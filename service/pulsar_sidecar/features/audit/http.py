"""Routes of audits: their findings, one ledger in sentences, and the application of a plan."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, Protocol

from fastapi import APIRouter, Path, Query
from pydantic import Field

from pulsar_sidecar.features.audit.requests import FindingsTable, GroupColumn, RowsRequest
from pulsar_sidecar.features.audit.results.answers import (
    AuditDetails,
    Audits,
    LedgerInAudit,
    PlanApplication,
    RowGroup,
    TableRows,
    UnfinishedPlan,
)
from pulsar_sidecar.model.ids import MAX_LEDGER_ID
from pulsar_sidecar.server.guard import guarded_router
from pulsar_sidecar.server.rights import Right, takes
from pulsar_sidecar.server.schemas import Parameters, Payload, PlanHash

_PATH = "/audits/{auditId}"
_AuditId = Annotated[
    str,
    Path(
        alias="auditId",
        pattern=r"^[-._A-Za-z0-9]{1,200}$",
        description="Id of the audit.",
        examples=["20260706T120000Z-5f0c"],
    ),
]
_Table = Annotated[FindingsTable, Path(description="Table of the audit.")]
_LedgerId = Annotated[int, Path(alias="ledgerId", ge=0, le=MAX_LEDGER_ID, description="BookKeeper's ledger id.")]
_Text = Annotated[str, Field(max_length=8192)]


class AuditReview(Protocol):
    """Calls on the audits below a directory. `NotFoundError`: no audit has this id. `InvalidInputError`: it is damaged.

    An audit is found by its id, never by a path that a caller gives.
    """

    def audits(self, offset: int, limit: int) -> Audits: ...

    def audit(self, audit_id: str) -> AuditDetails: ...

    def rows(self, audit_id: str, table: FindingsTable, wanted: RowsRequest) -> TableRows: ...

    def groups(self, audit_id: str, table: FindingsTable, wanted: RowsRequest) -> Sequence[RowGroup]:
        """Count rows by `RowsRequest.group_by`, the most bytes first."""

    def explain(self, audit_id: str, ledger_id: int, *, references: bool) -> LedgerInAudit:
        """Explain one ledger; `ConflictError` if ``references`` is set, and the directory does not hold the dump."""

    def application(self, audit_id: str) -> PlanApplication: ...

    def apply(self, audit_id: str, plan_sha256: str, rate: float | None, max_age_hours: float) -> PlanApplication:
        """Start or resume sending an approved plan; `applying.demand_approval` and others raise its refusals."""


class PageParameters(Parameters):
    """Page of a list."""

    offset: int = Field(default=0, ge=0, le=1_000_000_000)
    """Number of entries to skip."""
    limit: int = Field(default=100, ge=1, le=10_000)
    """Maximum number of entries."""


class FilterParameters(Parameters):
    """Filters of rows; a filter on a column that the table lacks matches no row."""

    status: _Text | None = None
    """Only ledgers with this status, such as ``too-young``; ``condemned`` is the status of deletable ledgers."""
    kind: _Text | None = None
    """Only rows of this kind, such as ``data`` or ``cursor``."""
    cause: _Text | None = None
    """Only rows with this likely cause."""
    finding: _Text | None = None
    """Only findings of this kind in tiered storage, such as ``lost``."""
    tenant: _Text | None = None
    namespace: _Text | None = None
    """Only rows of this namespace (``tenant/namespace``)."""
    topic: _Text | None = None
    """Only rows of this topic, by its full name."""

    def equal(self) -> dict[str, str]:
        """Return the values that rows must have, by column."""
        return {by.column: value for by in GroupColumn if (value := getattr(self, by.value)) is not None}


class RowsParameters(FilterParameters, PageParameters):
    """Page of filtered rows."""

    order: Literal["ledger", "size"] = "ledger"
    """Sort by ledger id, or largest first; ``usage`` is always sorted largest first."""

    def request(self) -> RowsRequest:
        return RowsRequest(self.equal(), self.limit, self.offset, self.order == "size")


class GroupsParameters(FilterParameters):
    """Grouping of rows."""

    by: GroupColumn
    """Column to group by; a table without it has no groups."""

    def request(self) -> RowsRequest:
        return RowsRequest(self.equal(), group_by=self.by)


class ExplainParameters(Parameters):
    """Extent of the search."""

    references: bool = False
    """Search the audit's dump for nodes that reference the ledger, which reads the whole dump."""


class ApplyPayload(Payload):
    """Approval of a plan."""

    plan: PlanHash
    """Hash of the approved plan."""
    rate: float | None = Field(default=None, ge=0.1, le=1e9)
    """Maximum number of records per second. Default: no limit."""
    max_age_hours: float = Field(default=72.0, ge=0, le=1e6)
    """Maximum age of the audit, in hours."""


def plans_router(unfinished: Callable[[], Sequence[UnfinishedPlan]]) -> APIRouter:
    """Return the route of plans, which needs neither a directory of audits nor Arrow."""
    routes = guarded_router("audits", "/admin/v2")

    @routes.get("/audit-plans")
    @takes(Right.CLUSTER_STATE)
    def audit_plans() -> Sequence[UnfinishedPlan]:
        """List the audit plans that are sent to the deletion service in part, by any process.

        A command or a sidecar may be sending them now; to resume one that nothing sends, apply it again.
        """
        return unfinished()

    return routes


def router(service: AuditReview) -> APIRouter:
    routes = guarded_router("audits", "/admin/v2")

    @routes.get("/audits")
    @takes(Right.CLUSTER_STATE)
    def audits(parameters: Annotated[PageParameters, Query()]) -> Audits:
        """List the audits in the ``auditsDirectory``, newest first.

        405: the sidecar serves no audits, or lacks the package for it; the reason names the setting or package.
        """
        return service.audits(parameters.offset, parameters.limit)

    @routes.get(_PATH)
    @takes(Right.CLUSTER_STATE)
    def audit(audit_id: _AuditId) -> AuditDetails:
        """Return one audit with its verdict and its summary. 404: no such audit."""
        return service.audit(audit_id)

    @routes.get(f"{_PATH}/tables/{{table}}")
    @takes(Right.CLUSTER_STATE)
    def audit_rows(audit_id: _AuditId, table: _Table, parameters: Annotated[RowsParameters, Query()]) -> TableRows:
        """Return a page of filtered rows of one of an audit's tables.

        ``orphans``: unreferenced ledgers with owner, cause and evidence; ``missing``: references to ledgers that do not
        exist; ``unattributed``: ledgers whose owner is not known; ``usage``: ledgers and bytes of each owner and kind;
        ``offloaded``: findings in tiered storage.
        """
        return service.rows(audit_id, table, parameters.request())

    @routes.get(f"{_PATH}/tables/{{table}}/groups")
    @takes(Right.CLUSTER_STATE)
    def audit_groups(
        audit_id: _AuditId, table: _Table, parameters: Annotated[GroupsParameters, Query()]
    ) -> Sequence[RowGroup]:
        """Sum a table's ledgers and bytes by tenant, namespace, topic, kind, cause, finding or status."""
        return service.groups(audit_id, table, parameters.request())

    @routes.get(f"{_PATH}/ledgers/{{ledgerId}}")
    @takes(Right.CLUSTER_STATE)
    def explain_audited_ledger(
        audit_id: _AuditId, ledger_id: _LedgerId, parameters: Annotated[ExplainParameters, Query()]
    ) -> LedgerInAudit:
        """Explain one ledger of an audit, in sentences.

        409: ``references``, and the audit's dump is not kept in the ``auditsDirectory``.
        """
        return service.explain(audit_id, ledger_id, references=parameters.references)

    @routes.get(f"{_PATH}/application")
    @takes(Right.CLUSTER_STATE)
    def audit_application(audit_id: _AuditId) -> PlanApplication:
        """Return the progress of sending the audit's plan to the deletion service."""
        return service.application(audit_id)

    @routes.post(f"{_PATH}/application", status_code=202, response_description="The sidecar sends the plan.")
    @takes(Right.CLUSTER_CHANGE)
    def apply_audit(audit_id: _AuditId, approval: ApplyPayload) -> PlanApplication:
        """Send the ledgers of an approved plan to the deletion service; a plan that was sent in part is resumed.

        Each row is sent once, however often this is repeated; the service checks every ledger again before it deletes
        it. 400: the hash is not the plan's, or the audit is damaged. 409: a guard failed, the audit is another
        cluster's or too old, or another process sends the plan.
        """
        return service.apply(audit_id, approval.plan, approval.rate, approval.max_age_hours)

    return routes
