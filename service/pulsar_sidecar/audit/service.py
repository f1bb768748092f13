"""What the doors ask about audits that are kept in a directory, and how an approved plan is sent; no Arrow.

Invariant: an audit is found by its id, never by a path of the caller's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from pulsar_sidecar.audit.results.summaries import AuditSummary, Count


class FindingsTable(StrEnum):
    """A table of an audit, by its word in commands."""

    ORPHANS = "orphans"
    MISSING = "missing"
    UNATTRIBUTED = "unattributed"
    USAGE = "usage"


class GroupColumn(StrEnum):
    """What rows are counted by."""

    TENANT = "tenant"
    NAMESPACE = "namespace"
    TOPIC = "topic"
    KIND = "kind"
    CAUSE = "cause"
    STATUS = "status"

    @property
    def column(self) -> str:
        """The tables' own name of it."""
        return _COLUMNS.get(self.value, self.value)


_COLUMNS: Final = {"status": "standing"}
"""Tables' names of columns that have another word for users."""


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """Some rows of a table.

    Attributes:
        equal: columns with the values that rows must have there; a column that a table lacks chooses nothing of it.
        offset: how many rows to leave out at the beginning.
        largest_first: instead of by ledger id; usage always is.
        group_by: count rows by a column's values instead.
    """

    equal: Mapping[str, str] = field(default_factory=dict)
    limit: int = 20
    offset: int = 0
    largest_first: bool = False
    group_by: GroupColumn | None = None


@dataclass(frozen=True, slots=True)
class FoundRows:
    """A page of rows, and how many there are on all pages."""

    rows: Sequence[Mapping[str, Any]]
    total: int


@dataclass(frozen=True, slots=True)
class Group:
    """Rows with one value of a column: how many ledgers (of references, for missing ones) and their bytes."""

    value: str | None
    count: Count

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "value": self.value,
            "ledgers": self.count.ledgers,
            "bytes": self.count.bytes,
            "unknownSizeLedgers": self.count.unknown_size_ledgers,
        }


@dataclass(frozen=True, slots=True)
class StoredAudit:
    """An audit in the directory, with what it comes to.

    Attributes:
        directory: as a command on the sidecar's machine names it.
    """

    directory: str
    summary: AuditSummary
    verdict: str
    sentence: str
    next_step: str
    orphans: Count


@dataclass(frozen=True, slots=True)
class UnreadableAudit:
    """A directory with the summary of an audit that cannot be read."""

    directory: str
    reason: str


@dataclass(frozen=True, slots=True)
class StoredAudits:
    """A page of audits, the newest first, how many there are on all pages, and those that could not be read."""

    audits: Sequence[StoredAudit]
    total: int
    unreadable: Sequence[UnreadableAudit] = ()


class ApplicationState(StrEnum):
    """How far the application of a plan is."""

    NO_PLAN = "no-plan"
    """The audit has none, since a guard failed."""
    NOT_APPLIED = "not-applied"
    SENDING = "sending"
    """This sidecar is sending it."""
    INCOMPLETE = "incomplete"
    """Some rows are sent. Another sidecar or a command may be sending the others; approving the plan again resumes."""
    SENT = "sent"


@dataclass(frozen=True, slots=True)
class PlanApplication:
    """The application of an audit's plan, as the metadata store has it.

    Attributes:
        sent: rows from the beginning that are durably recorded with the deletion service.
        changed_ms: when that was noted, by the store's clock.
        failure: why this sidecar did not send all of it the last time.
    """

    state: ApplicationState
    plan_sha256: str | None = None
    rows: int = 0
    sent: int = 0
    changed_ms: int | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class LedgerInAudit:
    """All that an audit knows of a ledger, in sentences.

    Attributes:
        dump: the directory with the audit's dump; None if it is not kept beside the audit.
    """

    ledger_id: int
    explanation: str
    dump: str | None


class AuditReview(Protocol):
    """The calls of the doors. `NotFoundError`: there is no audit of this id. `InvalidInputError`: it is damaged."""

    def audits(self, offset: int, limit: int) -> StoredAudits:
        """The audits in the directory."""

    def audit(self, audit_id: str) -> StoredAudit:
        """One of them; its tables are not read."""

    def rows(self, audit_id: str, table: FindingsTable, wanted: RowsRequest) -> FoundRows:
        """Rows of one of its tables."""

    def groups(self, audit_id: str, table: FindingsTable, wanted: RowsRequest) -> Sequence[Group]:
        """The same rows counted by `RowsRequest.group_by`, the most bytes first."""

    def explain(self, audit_id: str, ledger_id: int, *, references: bool) -> LedgerInAudit:
        """One ledger; with ``references`` the nodes that reference it are searched in the audit's dump.

        Raises:
            ConflictError: ``references``, and the dump is not kept in the directory.
        """

    def application(self, audit_id: str) -> PlanApplication:
        """How far the plan was applied, by whatever process."""

    def apply(self, audit_id: str, plan_sha256: str, rate: float | None, max_age_hours: float) -> PlanApplication:
        """Begin to send an approved plan, or go on with it; what `applying.demand_approval` and others refuse."""
