"""The report: one HTML page with everything in it, for whoever decides about an audit.

Invariant: it is a pure function of the summary and a few rows, loads nothing from anywhere and runs no script; whatever
came from the cluster is escaped. What could not be seen stands right below the verdict.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from operator import itemgetter
from typing import Any, Final

from pulsar_sidecar.audit.results.ages import AGE_LABELS
from pulsar_sidecar.audit.results.charts import Bar, Point, bars, columns, line
from pulsar_sidecar.audit.results.formatting import (
    format_age,
    format_bytes,
    format_count,
    format_minute,
    format_size,
    format_time,
)
from pulsar_sidecar.audit.results.report_style import STYLE
from pulsar_sidecar.audit.results.summaries import AuditSummary, Count, Look
from pulsar_sidecar.audit.results.verdicts import conclude, orphans_of

REPORT_NAME: Final = "report.html"
EXTRACT_ROWS: Final = 50
_BARS: Final = 15
_NO_TENANT: Final = "(no tenant)"

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Extract:
    """The rows that a report shows, at most `EXTRACT_ROWS` of each table.

    Attributes:
        orphans: of ``orphan_ledgers``, the longest first, unknown lengths last, then by ledger id.
        missing: of ``missing_ledgers``, by ledger id.
        unattributed: of ``unattributed_ledgers``, ordered as orphans are.
        owners: of ``ledger_usage``, the most bytes first.
    """

    orphans: Sequence[Row] = ()
    missing: Sequence[Row] = ()
    unattributed: Sequence[Row] = ()
    owners: Sequence[Row] = ()


def report_html(summary: AuditSummary, extract: Extract, place: str = "AUDIT") -> str:
    """The page; ``place`` is the audit's directory in the commands it shows."""
    title = f"Ledger audit of {summary.cluster_name or summary.instance_id}"
    sections = (
        _head(summary, title, place),
        _dangers(summary),
        _unseen(summary),
        _guards(summary),
        _orphan_plots(summary),
        _storage_plots(summary),
        _trend(summary.history),
        _tables(summary, extract),
        _made_from(summary),
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main>{''.join(sections)}</main></body></html>\n"
    )


# --- what it comes to ----------------------------------------------------------------------------------------------


def _head(summary: AuditSummary, title: str, place: str) -> str:
    conclusion = conclude(summary, place)
    plan = summary.plan
    approved = (
        f'<p>The plan to approve: <code class="hash">{escape(plan.sha256)}</code></p>' if plan and plan.rows else ""
    )
    return (
        f"<header><h1>{escape(title)}</h1>"
        f"<p class=muted>As of {format_time(summary.store_time_ms)} by the metadata store's clock · audit "
        f"{escape(summary.audit_id)}</p>"
        f'<div class="verdict {conclusion.verdict.value}"><strong>{conclusion.verdict.value.capitalize()}</strong>'
        f"<p>{escape(_sentence(conclusion.sentence))}</p>"
        f"<p>Next: {escape(conclusion.next_step)}</p>{approved}</div></header>{_figures(summary)}"
    )


def _figures(summary: AuditSummary) -> str:
    orphans = orphans_of(summary)
    cards = (
        ("exist", _ledgers(summary.existing)),
        ("referenced", _ledgers(summary.referenced)),
        ("referenced by nothing", _ledgers(orphans)),
        ("may be deleted", _ledgers(summary.plan.ledgers) if summary.plan else ("none", "")),
        ("referenced, but missing", (f"{summary.missing:,}", "references")),
        ("claimed by nobody known", _ledgers(summary.unattributed)),
    )
    return (
        "<dl class=figures>"
        + "".join(
            f"<div><dt>{name}</dt><dd>{number}</dd><dd class=muted>{size}</dd></div>" for name, (number, size) in cards
        )
        + "</dl>"
    )


def _ledgers(count: Count) -> tuple[str, str]:
    return f"{count.ledgers:,}", format_size(count)


def _dangers(summary: AuditSummary) -> str:
    if not summary.dangers:
        return ""
    rows = [(danger.topic, danger.why, danger.remedy) for danger in summary.dangers]
    return _section("Dangers", _table(("topic", "why", "what helps"), rows))


def _unseen(summary: AuditSummary) -> str:
    if not summary.unseen:
        return _section("What could not be seen", "<p>Nothing that this version knows of was left out.</p>")
    rows = [(unseen.what, f"{unseen.count:,}", unseen.consequence) for unseen in summary.unseen]
    return _section("What could not be seen", _table(("what", "count#", "and therefore"), rows))


def _guards(summary: AuditSummary) -> str:
    rows = [
        ("passed" if guard.passed else "FAILED", guard.name, guard.value, guard.limit, guard.explanation)
        for guard in sorted(summary.guards, key=lambda guard: guard.passed)
    ]
    return _section("Guards", _table(("", "guard", "found", "limit", "what it is about"), rows))


# --- plots ---------------------------------------------------------------------------------------------------------


def _orphan_plots(summary: AuditSummary) -> str:
    if not orphans_of(summary).ledgers:
        return _section("Unreferenced ledgers", "<p>There are none.</p>")
    ages = [
        Bar(label, _of(summary.orphans_by_age, label).ledgers, _said(_of(summary.orphans_by_age, label)))
        for label in AGE_LABELS
    ]
    return _section(
        "Unreferenced ledgers",
        _plots(
            _figure("By standing, in ledgers", bars("Unreferenced ledgers by standing", _by_ledgers(summary.orphans))),
            _figure("By kind, in ledgers", bars("Unreferenced ledgers by kind", _by_ledgers(summary.orphans_by_kind))),
            _figure(
                "By likely cause, in ledgers",
                bars("Unreferenced ledgers by cause", _by_ledgers(summary.orphans_by_cause)),
            ),
            _figure("By tenant, in bytes", bars("Unreferenced bytes by tenant", _by_bytes(summary.orphans_by_tenant))),
            _figure("By age, in ledgers", columns("Unreferenced ledgers by age", ages)),
        ),
    )


def _storage_plots(summary: AuditSummary) -> str:
    return _section(
        "All ledgers",
        _plots(
            _figure("Bytes by kind", bars("Bytes of all ledgers by kind", _by_bytes(summary.existing_by_kind))),
            _figure("Bytes by tenant", bars("Bytes of all ledgers by tenant", _by_bytes(summary.existing_by_tenant))),
        ),
    )


def _trend(history: Sequence[Look]) -> str:
    if len(history) < 2:
        return _section("Trend", "<p>This is the first audit that is known here: a trend takes a second one.</p>")
    plots = (
        (
            "Unreferenced ledgers",
            [(look.orphans.ledgers, format_count(look.orphans.ledgers, "ledger")) for look in history],
        ),
        ("Unreferenced bytes", [(look.orphans.known_bytes, format_size(look.orphans)) for look in history]),
        ("Bytes of all ledgers", [(look.existing.known_bytes, format_size(look.existing)) for look in history]),
        (
            "References to missing ledgers",
            [(look.missing, format_count(look.missing, "reference")) for look in history],
        ),
    )
    times = [format_minute(look.store_time_ms) for look in history]
    drawn = (
        _figure(
            title, line(title, [Point(time, value, said) for time, (value, said) in zip(times, values, strict=True)])
        )
        for title, values in plots
    )
    return _section(f"Trend over {len(history)} audits", _plots(*drawn))


def _by_ledgers(counts: Mapping[str, Count]) -> list[Bar]:
    return _bars(counts, lambda count: count.ledgers)


def _by_bytes(counts: Mapping[str, Count]) -> list[Bar]:
    return _bars(counts, lambda count: count.known_bytes)


def _bars(counts: Mapping[str, Count], length: Callable[[Count], int]) -> list[Bar]:
    ordered = sorted(counts.items(), key=lambda item: (-length(item[1]), item[0]))
    shown, others = ordered[:_BARS], [count for _, count in ordered[_BARS:]]
    if others:
        shown.append((f"{len(others):,} others", Count.sum(others)))
    return [Bar(name or _NO_TENANT, length(count), _said(count)) for name, count in shown]


def _said(count: Count) -> str:
    return f"{count.ledgers:,} · {format_size(count)}"


def _of(counts: Mapping[str, Count], label: str) -> Count:
    return counts.get(label, Count())


# --- tables --------------------------------------------------------------------------------------------------------


def _tables(summary: AuditSummary, extract: Extract) -> str:
    orphans, unattributed = orphans_of(summary).ledgers, summary.unattributed.ledgers
    return (
        _rows_section("References to ledgers that do not exist", summary.missing, extract.missing, _MISSING)
        + _rows_section("Unreferenced ledgers, the largest", orphans, extract.orphans, _ORPHANS)
        + _rows_section("Ledgers that nobody known claims", unattributed, extract.unattributed, _UNATTRIBUTED)
        + _rows_section("Who uses most", len(extract.owners), extract.owners, _OWNERS)
    )


def owner_of(row: Row) -> str:
    """Whose ledger it was, as a person would say it."""
    cursor = f", subscription {row['cursor_name']}" if row["cursor_name"] else ""
    return f"{row['topic'] or row['managed_ledger'] or 'unknown'}{cursor}"


_Columns = Mapping[str, Callable[[Row], object]]

_MISSING: Final[_Columns] = {
    "ledger#": itemgetter("ledger_id"),
    "kind": itemgetter("kind"),
    "who is affected": itemgetter("affected"),
    "referenced by": itemgetter("referenced_by"),
}
_ORPHANS: Final[_Columns] = {
    "ledger#": itemgetter("ledger_id"),
    "standing": itemgetter("standing"),
    "kind": itemgetter("kind"),
    "likely cause": itemgetter("cause"),
    "owner": owner_of,
    "size#": lambda row: format_bytes(row["length_bytes"]),
    "age#": lambda row: format_age(row["age_ms"]),
    "why": itemgetter("reason"),
}
_UNATTRIBUTED: Final[_Columns] = {
    "ledger#": itemgetter("ledger_id"),
    "state": itemgetter("state"),
    "size#": lambda row: format_bytes(row["length_bytes"]),
    "age#": lambda row: format_age(row["age_ms"]),
    "why": itemgetter("reason"),
}
_OWNERS: Final[_Columns] = {
    "owner": lambda row: row["topic"] or row["namespace"] or row["tenant"] or _NO_TENANT,
    "kind": itemgetter("kind"),
    "loaded": lambda row: {True: "yes", False: "no"}.get(row["loaded"], "unknown"),
    "ledgers#": lambda row: f"{row['ledgers']:,}",
    "size#": lambda row: format_bytes(row["bytes"]),
    "size unknown#": lambda row: f"{row['unknown_size_ledgers']:,}",
}


def _rows_section(title: str, whole: int, rows: Sequence[Row], shown: _Columns) -> str:
    if not whole:
        return ""
    part = f"<p class=muted>{len(rows):,} of {whole:,}</p>" if len(rows) < whole else ""
    cells = [[cell(row) for cell in shown.values()] for row in rows]
    return _section(title, part + _table(tuple(shown), cells))


def _made_from(summary: AuditSummary) -> str:
    inputs = [
        (role, read.source, format_time(read.store_time_ms), _zxids(read.first_zxid, read.last_zxid), read.sha256)
        for role, read in summary.inputs.items()
    ]
    policy = [(name, str(value)) for name, value in summary.policy.items()]
    about = [
        ("BookKeeper's instance id", summary.instance_id),
        ("ledgers' root path", summary.ledgers_root),
        ("references read", f"{summary.references:,}"),
        ("made by", f"pulsar-sidecar {summary.tool_version}, {summary.engine.value} engine"),
    ]
    return _section(
        "What it was made from",
        _table(("input", "source", "as of", "zxids", "SHA-256"), inputs)
        + _table(("setting", "value"), policy)
        + _table(("", ""), about),
    )


def _zxids(first: int | None, last: int | None) -> str:
    return "unknown" if first is None or last is None else f"{first:#x} to {last:#x}"


# --- pieces --------------------------------------------------------------------------------------------------------


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _plots(*figures: str) -> str:
    return f"<div class=plots>{''.join(figures)}</div>"


def _figure(caption: str, plot: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{plot}</figure>"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; a column whose head ends in ``#`` holds numbers."""
    marks = [' class="number"' if name.endswith("#") else "" for name in head]
    heads = "".join(
        f'<th scope="col"{mark}>{escape(name.rstrip("#"))}</th>' for name, mark in zip(head, marks, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{mark}>{escape(_cell(cell))}</td>" for cell, mark in zip(row, marks, strict=True))
        + "</tr>"
        for row in rows
    )
    thead = f"<thead><tr>{heads}</tr></thead>" if any(head) else ""
    return f'<div class="wide"><table>{thead}<tbody>{body}</tbody></table></div>'


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
