"""``audit explain``: everything that an audit knows of one ledger, in sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pulsar_sidecar.audit.results.formatting import (
    Row,
    format_age,
    format_bytes,
    format_count,
    format_owner,
    format_time,
)
from pulsar_sidecar.audit.results.summaries import AuditSummary
from pulsar_sidecar.audit.results.tables import OrphanCause, OrphanStatus

_CAUSES: Final = {
    OrphanCause.SCHEMA_RACE: "two producers registered a schema at the same time, and only one version was linked",
    OrphanCause.HALF_DELETED_TOPIC: "its topic was deleted, and the broker died or failed before it deleted the ledger",
    OrphanCause.HALF_DELETED_CURSOR: "its subscription was deleted, and the broker died or failed before the ledger",
    OrphanCause.FAILED_CURSOR_SWITCH: "the cursor went over to another ledger, and this one was left behind",
    OrphanCause.LOST_BUCKET_POINTER: "a delayed-index bucket was written, and the cursor's pointer to it was lost",
    OrphanCause.FAILED_COMPACTION: "a compaction wrote it and did not finish, or its successor did not delete it",
    OrphanCause.INTERRUPTED_TRIM: "it was trimmed from its topic's list, and the broker failed before it deleted it",
    OrphanCause.FAILED_ROLLOVER: "a broker created it to roll over, and died before it was linked",
    OrphanCause.OFFLOADED_COPY: "tiered storage has replaced it, and a broker died before it had deleted this copy",
    OrphanCause.HAND_EDIT: "somebody took it out of the list by hand",
    OrphanCause.UNKNOWN: "unknown",
}
_WHAT_IT_TAKES: Final = {
    OrphanStatus.DELETABLE: "Nothing more: it is in the plan, and `audit apply` hands it to the deletion service, "
    "which proves it again.",
    OrphanStatus.TOO_YOUNG: "It must grow older than the age floor, and still be referenced by nothing.",
    OrphanStatus.FIRST_LOOK: "A later dump, after the window, must find it unreferenced and unchanged: audit that "
    "dump with --previous.",
    OrphanStatus.CHANGED: "Its metadata must stay as it is until a later dump, after the window, finds it "
    "unreferenced again.",
    OrphanStatus.UNPROVEN: "What could not be read must become readable: see what could not be seen in `audit show`.",
    OrphanStatus.WITHHELD: "The guard that said no must pass: see the guards in `audit show`.",
}


@dataclass(frozen=True, slots=True)
class Known:
    """The rows about one ledger.

    Attributes:
        orphan: its row of ``orphan_ledgers``.
        unattributed: its row of ``unattributed_ledgers``.
        missing: its rows of ``missing_ledgers``.
        references: paths of the nodes that reference it in a dump; None if no dump was looked at.
    """

    orphan: Row | None = None
    unattributed: Row | None = None
    missing: Sequence[Row] = ()
    references: Sequence[str] | None = None


def explain(summary: AuditSummary, ledger_id: int, known: Known) -> str:
    """All that is known, one thought a line."""
    lines = [f"Ledger {ledger_id} in audit {summary.audit_id}, as of {format_time(summary.store_time_ms)}:"]
    if known.orphan is not None:
        lines += _of_orphan(known.orphan, summary)
    elif known.unattributed is not None:
        lines += _of_unattributed(known.unattributed)
    elif known.missing:
        lines += _of_missing(known.missing)
    else:
        lines += _of_others(known.references)
    if known.references and (known.orphan or known.unattributed):
        lines.append(
            f"But the dump that was looked at now references it: {', '.join(known.references)}. "
            "If it is the audit's own dump, report this as a defect."
        )
    return "\n".join(lines)


def _of_orphan(row: Row, summary: AuditSummary) -> list[str]:
    standing, cause = OrphanStatus(row["standing"]), OrphanCause(row["cause"])
    in_plan = f", row {row['row']} of the plan" if row["row"] is not None else ""
    return [
        "It exists, and nothing in the dump references it.",
        f"Claim: its metadata says that it is a {row['kind']} ledger of {format_owner(row)}.",
        *_facts(row),
        f"Likely cause: {cause.value}: {_CAUSES[cause]}.",
        "Evidence:",
        *(f"  - {evidence}" for evidence in row["evidence"]),
        f"Standing: {standing.value}{in_plan}: {row['reason']}.",
        f"What it takes to be condemned: {_WHAT_IT_TAKES[standing]}",
        *([] if summary.plan else ["This audit has no plan: a guard said no, so nothing of it can be applied."]),
    ]


def _of_unattributed(row: Row) -> list[str]:
    return [
        "It exists, nothing in the dump references it, and nobody known claims it.",
        *_facts(row),
        f"Why it is never deleted: {row['reason']}.",
        "Find out who made it (another system on the same bookies?); the audit will never condemn it.",
    ]


def _of_missing(rows: Sequence[Row]) -> list[str]:
    lines = [
        f"It does not exist, and {format_count(len(rows), 'node')} in the dump reference{'s' * (len(rows) == 1)} it."
    ]
    for row in rows:
        sizes = "" if row["entries"] is None else f" ({row['entries']:,} entries, {format_bytes(row['size_bytes'])})"
        lines += [f"  - {row['referenced_by']} as a {row['kind']} ledger{sizes}", f"    {row['affected']}"]
    return [
        *lines,
        "Nothing can be deleted here; find out whether the data can be brought back, or mend the reference.",
    ]


def _of_others(references: Sequence[str] | None) -> list[str]:
    nothing = "It is not among the audit's findings"
    if references is None:
        return [
            f"{nothing}: it was referenced, or it did not exist (yet, or any more).",
            "To see by what it is referenced, name the dump: --dump DIR.",
        ]
    if references:
        return [f"{nothing}, since it is referenced. Nodes that reference it:", *(f"  - {path}" for path in references)]
    return [f"{nothing}, and nothing in that dump references it: it did not exist when the ledgers were listed."]


def _facts(row: Row) -> list[str]:
    return [
        f"State {row['state'] or 'unknown'}, {format_bytes(row['length_bytes'])}, "
        f"created {format_time(row['ctime_ms'])}, {format_age(row['age_ms'])} old, "
        f"metadata version {'unknown' if row['version'] is None else row['version']}."
    ]
