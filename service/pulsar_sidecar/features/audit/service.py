"""Calls that server and dashboard make on the audits of a directory, and the sending of an approved plan; no Arrow.

Invariant: an audit is found by its id, never by a path that a caller gives.
"""

from collections.abc import Sequence
from typing import Protocol

from pulsar_sidecar.features.audit.requests import FindingsTable, RowsRequest
from pulsar_sidecar.features.audit.results.answers import (
    AuditDetails,
    Audits,
    LedgerInAudit,
    PlanApplication,
    RowGroup,
    TableRows,
)


class AuditReview(Protocol):
    """Calls of server and dashboard. `NotFoundError`: no audit has this id. `InvalidInputError`: it is damaged."""

    def audits(self, offset: int, limit: int) -> Audits:
        """Return the audits in the directory."""

    def audit(self, audit_id: str) -> AuditDetails:
        """Return one audit, without reading its tables."""

    def rows(self, audit_id: str, table: FindingsTable, wanted: RowsRequest) -> TableRows:
        """Return rows of one of its tables."""

    def groups(self, audit_id: str, table: FindingsTable, wanted: RowsRequest) -> Sequence[RowGroup]:
        """Count rows by `RowsRequest.group_by`, the most bytes first."""

    def explain(self, audit_id: str, ledger_id: int, *, references: bool) -> LedgerInAudit:
        """Explain one ledger; with ``references``, search the audit's dump for the nodes that reference it.

        Raises:
            ConflictError: ``references`` is set, and the directory does not hold the dump.
        """

    def application(self, audit_id: str) -> PlanApplication:
        """Return the progress of the plan's application, by whatever process."""

    def apply(self, audit_id: str, plan_sha256: str, rate: float | None, max_age_hours: float) -> PlanApplication:
        """Start or resume sending an approved plan; `applying.demand_approval` and others raise its refusals."""
