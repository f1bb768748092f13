"""``audit show``: an audit at a glance, and rows of its tables; ``audit explain``: one ledger, in sentences."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.results.formatting import (
    AGE_LABELS,
    Row,
    conclude,
    format_age,
    format_bytes,
    format_count,
    format_owner,
    format_time,
    orphans_of,
)
from pulsar_sidecar.audit.results.summaries import AuditSummary, Count
from pulsar_sidecar.audit.results.tables import OrphanCause, OrphanStatus, Table

TABLES: Final = {
    "orphans": Table.ORPHAN_LEDGERS,
    "missing": Table.MISSING_LEDGERS,
    "unattributed": Table.UNATTRIBUTED_LEDGERS,
    "usage": Table.LEDGER_USAGE,
}
_TITLES: Final = {
    "orphans": "Unreferenced ledgers",
    "missing": "References to ledgers that do not exist",
    "unattributed": "Ledgers that nobody known claims",
    "usage": "Who uses how much",
}
_ORDER: Final[Mapping[str, list[tuple[str, str]]]] = {
    "orphans": [("ledger_id", "ascending")],
    "missing": [("ledger_id", "ascending"), ("referenced_by", "ascending")],
    "unattributed": [("ledger_id", "ascending")],
    "usage": [("bytes", "descending"), ("topic", "ascending"), ("kind", "ascending")],
}
_TENANTS: Final = 10
_NONE: Final = "(none)"

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


def chosen_rows(name: str, table: pa.Table, equal: Mapping[str, str], limit: int) -> tuple[list[Row], int]:
    """The first rows of a table that have these values, and how many there are in all.

    A column that a table does not have chooses nothing of it.
    """
    for column, value in equal.items():
        if column not in table.schema.names:
            table = table.slice(0, 0)
            break
        table = table.filter(pc.equal(table.column(column), value))
    names = [column for column in table.schema.names if column != "metadata"]
    rows = table.select(names).sort_by(_ORDER[name]).slice(0, limit).to_pylist()
    return list(rows), table.num_rows


def overview(summary: AuditSummary, place: str) -> str:
    """The audit at a glance."""
    conclusion = conclude(summary, place)
    parts = [
        f"Audit {summary.audit_id} of {summary.cluster_name or summary.instance_id}, as of "
        f"{format_time(summary.store_time_ms)} ({summary.engine.value} engine)",
        f"{conclusion.verdict.value.upper()}: {conclusion.sentence}.\nNext: {conclusion.next_step}",
        _totals(summary),
        _counts("Unreferenced, by standing", summary.orphans),
        _counts("Unreferenced, by kind", summary.orphans_by_kind),
        _counts("Unreferenced, by likely cause", summary.orphans_by_cause),
        _counts("Unreferenced, by tenant", summary.orphans_by_tenant),
        _counts("Unreferenced, by age", _in_order(summary.orphans_by_age)),
        _guards(summary),
        _unseen(summary),
        _dangers(summary),
    ]
    return "\n\n".join(part for part in parts if part)


def rows_text(name: str, rows: Sequence[Row], whole: int) -> str:
    """Rows of a table as a text table."""
    title = f"{_TITLES[name]}: {len(rows):,} of {whole:,}"
    cells = [{head: cell(row) for head, cell in _CELLS[name].items()} for row in rows]
    return f"{title}\n{_columns(cells)}" if cells else title


def _totals(summary: AuditSummary) -> str:
    plan = summary.plan.ledgers if summary.plan else Count()
    lines = {
        "exist": summary.existing,
        "are referenced": summary.referenced,
        "are referenced by nothing": orphans_of(summary),
        "  of them condemned": plan,
        "are claimed by nobody known": summary.unattributed,
    }
    missing = f"\n  {'references to missing ledgers':30} {summary.missing:>12,}" if summary.missing else ""
    return _count_lines("Ledgers that", lines) + missing


def _counts(title: str, counts: Mapping[str, Count]) -> str:
    filled = {name or _NONE: count for name, count in counts.items() if count.ledgers}
    if title.endswith("tenant"):
        filled = dict(sorted(filled.items(), key=lambda item: (-item[1].known_bytes, item[0])))
        others = list(filled.values())[_TENANTS:]
        filled = dict(list(filled.items())[:_TENANTS])
        if others:
            filled[f"{len(others):,} others"] = Count.sum(others)
    return _count_lines(title, filled) if filled else ""


def _count_lines(title: str, counts: Mapping[str, Count]) -> str:
    lines = [
        f"  {name:30} {count.ledgers:>12,} {format_bytes(count.bytes):>12} {count.unknown_size_ledgers:>14,}"
        for name, count in counts.items()
    ]
    return "\n".join([f"{title:32} {'ledgers':>12} {'bytes':>12} {'size unknown':>14}", *lines])


def _in_order(counts: Mapping[str, Count]) -> dict[str, Count]:
    return {label: counts[label] for label in AGE_LABELS if label in counts}


def _guards(summary: AuditSummary) -> str:
    lines = [
        f"  {'passed' if guard.passed else 'FAILED'}  {guard.name}: {guard.value} (limit {guard.limit}); "
        f"{guard.explanation}"
        for guard in summary.guards
    ]
    return "\n".join(["Guards", *lines]) if lines else ""


def _unseen(summary: AuditSummary) -> str:
    lines = [f"  {unseen.what}: {unseen.count:,}; {unseen.consequence}" for unseen in summary.unseen]
    return "\n".join(["What could not be seen", *lines]) if lines else ""


def _dangers(summary: AuditSummary) -> str:
    lines = [f"  {danger.topic}: {danger.why}; {danger.remedy}" for danger in summary.dangers]
    return "\n".join(["Dangers", *lines]) if lines else ""


_Columns = Mapping[str, Callable[[Row], object]]


_ORPHANS: Final[_Columns] = {
    "ledger": itemgetter("ledger_id"),
    "standing": itemgetter("standing"),
    "kind": itemgetter("kind"),
    "cause": itemgetter("cause"),
    "size": lambda row: format_bytes(row["length_bytes"]),
    "age": lambda row: format_age(row["age_ms"]),
    "owner": format_owner,
}
_MISSING: Final[_Columns] = {
    "ledger": itemgetter("ledger_id"),
    "kind": itemgetter("kind"),
    "affected": itemgetter("affected"),
}
_UNATTRIBUTED: Final[_Columns] = {
    "ledger": itemgetter("ledger_id"),
    "state": lambda row: row["state"] or "unknown",
    "size": lambda row: format_bytes(row["length_bytes"]),
    "age": lambda row: format_age(row["age_ms"]),
    "reason": itemgetter("reason"),
}
_USAGE: Final[_Columns] = {
    "kind": itemgetter("kind"),
    "ledgers": lambda row: f"{row['ledgers']:,}",
    "size": lambda row: format_bytes(row["bytes"]),
    "size unknown": lambda row: f"{row['unknown_size_ledgers']:,}",
    "loaded": lambda row: {True: "yes", False: "no"}.get(row["loaded"], "unknown"),
    "owner": lambda row: row["topic"] or row["namespace"] or row["tenant"] or _NONE,
}
_CELLS: Final = {"orphans": _ORPHANS, "missing": _MISSING, "unattributed": _UNATTRIBUTED, "usage": _USAGE}


def _columns(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(rows[0])
    widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in names}
    lines = [{name: name for name in names}, *rows]
    return "\n".join("  " + "  ".join(f"{line[name]!s:{widths[name]}}" for name in names).rstrip() for line in lines)


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
