"""Responses of the REST API about audits in the ``auditsDirectory``; no Arrow.

Times are milliseconds on the metadata store's clock. Rows are those of the audit's tables, by their columns' names.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from pulsar_sidecar.features.audit.results.summaries import Count, HistoryEntry
from pulsar_sidecar.model.results import result
from pulsar_sidecar.reports.documents import Engine


class AuditVerdict(StrEnum):
    """Conclusion of an audit."""

    CLEAN = "clean"
    """Everything that exists is referenced, and everything that is referenced exists."""
    PLAN = "plan"
    """Some ledgers may be deleted."""
    FINDINGS = "findings"
    """There are findings, and nothing to delete (yet)."""
    STOPPED = "stopped"
    """A guard failed: the inputs are wrong, or the plan would be too large."""


class ApplicationState(StrEnum):
    """Progress of sending a plan to the deletion service."""

    NO_PLAN = "no-plan"
    """The audit has no plan, because a guard failed."""
    NOT_APPLIED = "not-applied"
    """The plan was never approved."""
    SENDING = "sending"
    """This sidecar is sending the plan."""
    INCOMPLETE = "incomplete"
    """Some rows are sent. Another sidecar or a command may be sending the others; approving the plan again resumes."""
    SENT = "sent"
    """All rows are sent."""


@result
class LedgerCount:
    """Number and size of ledgers."""

    ledgers: int
    bytes: int | None
    """Bytes of the ledgers whose size is known; null if there are ledgers and the size of none is known."""
    unknown_size_ledgers: int

    @classmethod
    def of(cls, count: Count) -> "LedgerCount":
        return LedgerCount(count.ledgers, count.bytes, count.unknown_size_ledgers)


@result
class DeletionPlan(LedgerCount):
    """Deletable ledgers, and the hash that approves them."""

    sha256: str


@result
class RowGroup(LedgerCount):
    """Rows with one value of a column; of missing ledgers, the references are counted."""

    value: str | None


@result
class PastAudit:
    """Audit in the history of later ones."""

    audit_id: str
    store_time_ms: int
    existing: LedgerCount
    orphans: LedgerCount
    condemned: LedgerCount
    missing: int
    unattributed: int

    @classmethod
    def of(cls, entry: HistoryEntry) -> Self:
        existing, orphans, condemned = map(LedgerCount.of, (entry.existing, entry.orphans, entry.condemned))
        return cls(entry.audit_id, entry.store_time_ms, existing, orphans, condemned, entry.missing, entry.unattributed)


@result
class Audit:
    """Overview of one audit."""

    audit_id: str
    directory: str
    """Directory on the sidecar's machine, for commands about the audit."""
    cluster: str
    """Name of the Pulsar cluster, or BookKeeper's instance id."""
    as_of_ms: int
    """Time of the newest write in the audit's dump."""
    engine: Engine
    verdict: AuditVerdict
    sentence: str
    """Reason for the verdict."""
    next_step: str
    existing: LedgerCount
    referenced: LedgerCount
    orphans: LedgerCount
    """Unreferenced ledgers."""
    missing: int
    """References to ledgers that do not exist."""
    unattributed: LedgerCount
    """Unreferenced ledgers whose owner is not known."""
    dangers: int
    """Topics that may destroy other topics' ledgers."""
    plan: DeletionPlan | None
    """Null if a guard failed."""


@result
class AuditDetails(Audit):
    """One audit with all that is not a row of a table: the fields of `Audit`, its history and its summary."""

    history: tuple[PastAudit, ...]
    """Earlier audits, oldest first, and this one at the end."""
    summary: Mapping[str, object]
    """The audit's ``summary.json`` without its files: counts by status, kind, cause, tenant and age, guards, dangers,
    limitations, nodes that point to nothing, inputs and policy."""


@result
class UnreadableAudit:
    """Directory with an audit that cannot be read."""

    directory: str
    reason: str


@result
class Audits:
    """Page of audits."""

    total: int
    """Number of audits on all pages."""
    audits: tuple[Audit, ...]
    """Audits, newest first."""
    unreadable: tuple[UnreadableAudit, ...]
    """Audits in the directory that cannot be read; they are on no page."""


@result
class TableRows:
    """Page of a table's rows."""

    total: int
    """Number of rows on all pages."""
    rows: tuple[Mapping[str, object], ...]


@result
class LedgerInAudit:
    """An audit's facts about a ledger."""

    ledger_id: int
    explanation: str
    """Sentences, one per line."""
    dump: str | None
    """Directory with the audit's dump; null if it is not in the ``auditsDirectory``."""


@result
class PlanApplication:
    """Progress of a plan's application, by this sidecar or by another process."""

    state: ApplicationState
    """``sending``: by this sidecar; ``incomplete``: approving the plan again resumes."""
    plan_sha256: str | None = None
    rows: int = 0
    """Ledgers in the plan."""
    sent: int = 0
    """Ledgers that the deletion service has recorded; it checks each one before it deletes it."""
    changed_ms: int | None = None
    """Time of the last recorded ledger."""
    failure: str | None = None
    """Reason why this sidecar did not send all of it the last time."""


@result
class UnfinishedPlan:
    """A plan that was sent in part."""

    plan_sha256: str
    audit_id: str
    rows: int
    """Ledgers in the plan."""
    sent: int
    """Ledgers that the deletion service has recorded."""
    changed_ms: int
    """Time of the last recorded ledger."""
