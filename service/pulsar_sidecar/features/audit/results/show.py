"""Texts of ``audit show``, an audit at a glance or rows of its tables, and of ``audit explain``, one ledger.

The templates are ``templates/show.txt.j2`` and ``templates/explain.txt.j2``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from textwrap import indent
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.engine.usage import counts_of_rows, counts_of_usage
from pulsar_sidecar.features.audit.requests import RowsRequest
from pulsar_sidecar.features.audit.results.answers import RowGroup, TableRows
from pulsar_sidecar.features.audit.results.report import LARGEST_FIRST, ORDER, first_rows, templates
from pulsar_sidecar.features.audit.results.summaries import AuditSummary, Count, OffloadSummary
from pulsar_sidecar.features.audit.results.tables import OffloadFinding, OrphanStatus, Table
from pulsar_sidecar.features.audit.results.verdicts import conclude, orphans_of
from pulsar_sidecar.reports.audit_pages import AGE_LABELS, largest, owner_of, size_of
from pulsar_sidecar.reports.formatting import Row, format_age, format_bytes, format_columns

TABLES: Final = {
    "orphans": Table.ORPHAN_LEDGERS,
    "missing": Table.MISSING_LEDGERS,
    "unattributed": Table.UNATTRIBUTED_LEDGERS,
    "usage": Table.LEDGER_USAGE,
    "offloaded": Table.OFFLOADED_LEDGERS,
}
_TITLES: Final = {
    "orphans": "Unreferenced ledgers",
    "missing": "References to ledgers that do not exist",
    "unattributed": "Ledgers whose owner is not known",
    "usage": "Who uses how much",
    "offloaded": "Findings in tiered storage",
}
_COUNTED: Final = ("ledgers", "bytes", "length_bytes", "size_bytes", "unknown_size_ledgers")
_TENANTS: Final = 10
_NONE: Final = "(none)"


def chosen_rows(name: str, table: pa.Table, wanted: RowsRequest) -> TableRows:
    chosen = _chosen(table, wanted.equal)
    order = LARGEST_FIRST if wanted.largest_first else ORDER
    return TableRows(chosen.num_rows, tuple(first_rows(chosen, order[name], wanted.limit, wanted.offset)))


def counted_rows(table: pa.Table, wanted: RowsRequest) -> list[RowGroup]:
    """Count the rows of all pages by `RowsRequest.group_by`, the most bytes first; empty without that column.

    Of missing ledgers, count the references, with the bytes that they name.
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
    return [RowGroup(count.ledgers, count.bytes, count.unknown_size_ledgers, value or None) for value, count in ordered]


def counted_columns(names: Sequence[str], wanted: RowsRequest) -> list[str]:
    """Return those of a table's columns that `counted_rows` reads."""
    assert wanted.group_by is not None
    return [name for name in names if name in {*_COUNTED, *wanted.equal, wanted.group_by.column}]


def _chosen(table: pa.Table, equal: Mapping[str, str]) -> pa.Table:
    for column, value in equal.items():
        if column not in table.schema.names:
            return table.slice(0, 0)
        table = table.filter(pc.equal(table.column(column), value))
    return table


def overview(summary: AuditSummary, place: str) -> str:
    totals = {
        "exist": summary.existing,
        "are referenced": summary.referenced,
        "are unreferenced": orphans_of(summary),
        "  of them deletable": summary.orphans.get(OrphanStatus.DELETABLE.value, Count()) if summary.plan else Count(),
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
        by_tenant=largest(_filled(summary.orphans_by_tenant), _TENANTS, "bytes"),
        by_age=_filled(ages),
        offloaded={
            f"{finding}{f', {status}' if status else ''}": count
            for finding, status, count in _offloaded(summary.offload)
        },
        uses=_filled(summary.offload.uses),
    )


def rows_text(name: str, found: TableRows) -> str:
    title = f"{_TITLES[name]}: {len(found.rows):,} of {found.total:,}"
    cells = [{head: str(cell(row)) for head, cell in _CELLS[name].items()} for row in found.rows]
    return f"{title}\n{indent(format_columns(cells), '  ')}" if cells else title


def groups_text(name: str, column: str, groups: Sequence[RowGroup]) -> str:
    title = f"{_TITLES[name]} by {column}: {len(groups):,}"
    unit = "references" if name == "missing" else "ledgers"
    cells = [{column: group.value or _NONE, unit: f"{group.ledgers:,}", "size": size_of(group)} for group in groups]
    return f"{title}\n{indent(format_columns(cells), '  ')}" if cells else title


def explain(
    summary: AuditSummary,
    ledger_id: int,
    *,
    orphan: Row | None = None,
    unattributed: Row | None = None,
    missing: Sequence[Row] = (),
    offloaded: Sequence[Row] = (),
    references: Sequence[str] | None = None,
) -> str:
    """Describe all that is known of one ledger, one fact a line, from its rows of the tables.

    ``references`` are paths of the nodes that reference it in a dump; None if no dump was searched.
    """
    rows = {"orphan": orphan, "unattributed": unattributed, "missing": missing, "offloaded": offloaded}
    return _text("explain.txt.j2", summary=summary, ledger_id=ledger_id, references=references, **rows)


def _text(template: str, **values: object) -> str:
    return templates().get_template(template).render(values).rstrip()


def _offloaded(offload: OffloadSummary) -> Iterator[tuple[str, str, Count]]:
    for finding, count in offload.findings.items():
        if finding == OffloadFinding.UNREFERENCED:
            yield from ((finding, status, each) for status, each in offload.standings.items())
        else:
            yield finding, "", count


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
    "offloaded": {
        **_LEDGER,
        "finding": itemgetter("finding"),
        "standing": lambda row: row["standing"] or "",
        "objects": itemgetter("objects"),
        "size": lambda row: format_bytes(row["length_bytes"]),
        "age": lambda row: format_age(row["age_ms"]),
        "owner": lambda row: row["topic"] or row["managed_ledger"] or _NONE,
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
