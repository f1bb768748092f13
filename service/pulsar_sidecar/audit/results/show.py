"""``audit show``: an audit at a glance, and rows of its tables."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.results.formatting import AGE_LABELS, Row, format_age, format_bytes, format_owner, format_time
from pulsar_sidecar.audit.results.summaries import AuditSummary, Count
from pulsar_sidecar.audit.results.tables import Table
from pulsar_sidecar.audit.results.verdicts import conclude, orphans_of

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
