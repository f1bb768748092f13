"""``audit show``: an audit at a glance, and rows of its tables; ``audit explain``: one ledger, in sentences.

The texts are ``templates/show.txt.j2`` and ``templates/explain.txt.j2``.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from textwrap import indent
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.analysis.audit_pages import AGE_LABELS, owner_of
from pulsar_sidecar.analysis.formatting import Row, format_age, format_bytes, format_columns
from pulsar_sidecar.audit.engine.usage import counts_of_rows, counts_of_usage
from pulsar_sidecar.audit.results.formatting import format_size
from pulsar_sidecar.audit.results.report import LARGEST_FIRST, ORDER, first_rows, largest, templates
from pulsar_sidecar.audit.results.summaries import AuditSummary, Count
from pulsar_sidecar.audit.results.tables import Table
from pulsar_sidecar.audit.results.verdicts import conclude, orphans_of
from pulsar_sidecar.audit.service import FoundRows, Group, RowsRequest

TABLES: Final = {
    "orphans": Table.ORPHAN_LEDGERS,
    "missing": Table.MISSING_LEDGERS,
    "unattributed": Table.UNATTRIBUTED_LEDGERS,
    "usage": Table.LEDGER_USAGE,
}
_TITLES: Final = {
    "orphans": "Unreferenced ledgers",
    "missing": "References to ledgers that do not exist",
    "unattributed": "Ledgers whose owner is not known",
    "usage": "Who uses how much",
}
_TENANTS: Final = 10
_NONE: Final = "(none)"


def chosen_rows(name: str, table: pa.Table, wanted: RowsRequest) -> FoundRows:
    """A page of a table's rows."""
    chosen = _chosen(table, wanted.equal)
    order = LARGEST_FIRST if wanted.largest_first else ORDER
    return FoundRows(first_rows(chosen, order[name], wanted.limit, wanted.offset), chosen.num_rows)


def counted_rows(table: pa.Table, wanted: RowsRequest) -> list[Group]:
    """The rows of all pages counted by `RowsRequest.group_by`, the most bytes first; none without that column.

    Of missing ledgers the references are counted, with the bytes that they name.
    """
    assert wanted.group_by is not None
    column = wanted.group_by.column
    if column not in table.schema.names:
        return []
    chosen = _chosen(table, wanted.equal)
    if "size_bytes" in chosen.schema.names:
        chosen = chosen.append_column("length_bytes", chosen.column("size_bytes"))
    counts = (counts_of_usage if "ledgers" in chosen.schema.names else counts_of_rows)(chosen, column)
    ordered = sorted(counts.items(), key=lambda item: (-item[1].known_bytes, -item[1].ledgers, item[0]))
    return [Group(value or None, count) for value, count in ordered]


def _chosen(table: pa.Table, equal: Mapping[str, str]) -> pa.Table:
    for column, value in equal.items():
        if column not in table.schema.names:
            return table.slice(0, 0)
        table = table.filter(pc.equal(table.column(column), value))
    return table


def overview(summary: AuditSummary, place: str) -> str:
    """The audit at a glance."""
    totals = {
        "exist": summary.existing,
        "are referenced": summary.referenced,
        "are unreferenced": orphans_of(summary),
        "  of them deletable": summary.plan.ledgers if summary.plan else Count(),
        "have no known owner": summary.unattributed,
    }
    ages = {label: summary.orphans_by_age[label] for label in AGE_LABELS if label in summary.orphans_by_age}
    return _text(
        "show.txt.j2",
        summary=summary,
        conclusion=conclude(summary, place),
        totals=totals,
        by_standing=_filled(summary.orphans),
        by_kind=_filled(summary.orphans_by_kind),
        by_cause=_filled(summary.orphans_by_cause),
        by_tenant=largest(_filled(summary.orphans_by_tenant), _TENANTS, lambda count: count.known_bytes),
        by_age=_filled(ages),
    )


def rows_text(name: str, found: FoundRows) -> str:
    """Rows of a table as a text table."""
    title = f"{_TITLES[name]}: {len(found.rows):,} of {found.total:,}"
    cells = [{head: str(cell(row)) for head, cell in _CELLS[name].items()} for row in found.rows]
    return f"{title}\n{indent(format_columns(cells), '  ')}" if cells else title


def groups_text(name: str, column: str, groups: Sequence[Group]) -> str:
    """Groups of rows as a text table."""
    title = f"{_TITLES[name]} by {column}: {len(groups):,}"
    unit = "references" if name == "missing" else "ledgers"
    cells = [
        {column: group.value or _NONE, unit: f"{group.count.ledgers:,}", "size": format_size(group.count)}
        for group in groups
    ]
    return f"{title}\n{indent(format_columns(cells), '  ')}" if cells else title


def explain(
    summary: AuditSummary,
    ledger_id: int,
    *,
    orphan: Row | None = None,
    unattributed: Row | None = None,
    missing: Sequence[Row] = (),
    references: Sequence[str] | None = None,
) -> str:
    """All that is known of one ledger, one thought a line: its rows of the tables.

    ``references`` are paths of the nodes that reference it in a dump; None if no dump was looked at.
    """
    rows = {"orphan": orphan, "unattributed": unattributed, "missing": missing}
    return _text("explain.txt.j2", summary=summary, ledger_id=ledger_id, references=references, **rows)


def _text(template: str, **values: object) -> str:
    return templates().get_template(template).render(values).rstrip()


def _filled(counts: Mapping[str, Count]) -> dict[str, Count]:
    return {name or _NONE: count for name, count in counts.items() if count.ledgers}


_LEDGER: Final[Mapping[str, Callable[[Row], object]]] = {"ledger": itemgetter("ledger_id")}
_CELLS: Final[Mapping[str, Mapping[str, Callable[[Row], object]]]] = {
    "orphans": {
        **_LEDGER,
        "standing": itemgetter("standing"),
        "kind": itemgetter("kind"),
        "cause": itemgetter("cause"),
        "size": lambda row: format_bytes(row["length_bytes"]),
        "age": lambda row: format_age(row["age_ms"]),
        "owner": owner_of,
    },
    "missing": {**_LEDGER, "kind": itemgetter("kind"), "affected": itemgetter("affected")},
    "unattributed": {
        **_LEDGER,
        "state": lambda row: row["state"] or "unknown",
        "size": lambda row: format_bytes(row["length_bytes"]),
        "age": lambda row: format_age(row["age_ms"]),
        "reason": itemgetter("reason"),
    },
    "usage": {
        "kind": itemgetter("kind"),
        "ledgers": lambda row: f"{row['ledgers']:,}",
        "size": lambda row: format_bytes(row["bytes"]),
        "size unknown": lambda row: f"{row['unknown_size_ledgers']:,}",
        "loaded": lambda row: {True: "yes", False: "no"}.get(row["loaded"], "unknown"),
        "owner": lambda row: row["topic"] or row["namespace"] or row["tenant"] or _NONE,
    },
}
