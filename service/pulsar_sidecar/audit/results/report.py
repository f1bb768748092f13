"""What is written beside an audit's tables: the report, one HTML page with everything in it, and metrics.

Invariant: the page is a pure function of the summary and a few rows, loads nothing from anywhere and runs no script;
whatever came from the cluster is escaped. What could not be checked is right below the verdict. The page is
``templates/report.html.j2``.

The metrics are a file for the node exporter's textfile collector. ``pulsar_sidecar_audit_timestamp_seconds`` is what an
alert compares with the present: an audit that did not run reports nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

import pyarrow as pa
from jinja2 import Environment
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from pulsar_sidecar.analysis.formatting import Row, format_count, format_minute
from pulsar_sidecar.analysis.pages import PlotItem, page_environment
from pulsar_sidecar.audit.results import formatting
from pulsar_sidecar.audit.results.formatting import AGE_LABELS, format_size
from pulsar_sidecar.audit.results.summaries import AuditSummary, Count, HistoryEntry
from pulsar_sidecar.audit.results.verdicts import conclude, orphans_of

REPORT_ROWS: Final = 50
ORDER: Final = {
    "orphans": [("ledger_id", "ascending")],
    "missing": [("ledger_id", "ascending"), ("referenced_by", "ascending")],
    "unattributed": [("ledger_id", "ascending")],
    "usage": [("bytes", "descending"), ("topic", "ascending"), ("kind", "ascending")],
}
"""In which order rows of each table are shown."""
_LONGEST: Final = [("length_bytes", "descending"), ("ledger_id", "ascending")]
LARGEST_FIRST: Final = {
    **ORDER,
    "orphans": _LONGEST,
    "unattributed": _LONGEST,
    "missing": [("size_bytes", "descending"), ("ledger_id", "ascending"), ("referenced_by", "ascending")],
}
"""The same by size, unknown sizes last."""
_BARS: Final = 15

METRICS_NAME: Final = "metrics.prom"
_PREFIX: Final = "pulsar_sidecar_audit"


@dataclass(frozen=True, slots=True)
class ReportRows:
    """The rows that a report shows, at most `REPORT_ROWS` of each table.

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


def report_rows_of(orphans: pa.Table, missing: pa.Table, unattributed: pa.Table, usage: pa.Table) -> ReportRows:
    """The rows that `ReportRows` describes, from whole tables."""
    return ReportRows(
        orphans=first_rows(orphans, LARGEST_FIRST["orphans"]),
        missing=first_rows(missing, ORDER["missing"]),
        unattributed=first_rows(unattributed, LARGEST_FIRST["unattributed"]),
        owners=first_rows(usage, ORDER["usage"]),
    )


def first_rows(table: pa.Table, order: list[tuple[str, str]], limit: int = REPORT_ROWS, offset: int = 0) -> list[Row]:
    """Some rows in some order, without the metadata's bytes: the only long column, which no report shows."""
    names = [name for name in table.schema.names if name != "metadata"]
    return list(table.select(names).sort_by(order).slice(offset, limit).to_pylist())


def report_html(summary: AuditSummary, extract: ReportRows, place: str = "AUDIT") -> str:
    """The page; ``place`` is the audit's directory in the commands it shows."""
    page = templates().get_template("report.html.j2")
    return page.render(
        summary=summary,
        extract=extract,
        conclusion=conclude(summary, place),
        orphans=orphans_of(summary),
        by_ledgers=lambda counts: _bars(counts, lambda count: count.ledgers),
        by_bytes=lambda counts: _bars(counts, lambda count: count.known_bytes),
        by_age=lambda counts: [
            _bar(label, counts.get(label, Count()).ledgers, counts.get(label, Count())) for label in AGE_LABELS
        ],
        trends=_trends,
    )


@cache
def templates() -> Environment:
    environment = page_environment("pulsar_sidecar.audit.results")
    environment.filters |= {"owner": formatting.format_owner, "size": format_size}
    return environment


def largest(counts: Mapping[str, Count], most: int, length: Callable[[Count], int]) -> dict[str, Count]:
    """The largest of some counts, so many at most, and one for all others."""
    ordered = sorted(counts.items(), key=lambda item: (-length(item[1]), item[0]))
    others = [count for _, count in ordered[most:]]
    return dict(ordered[:most]) | ({f"{len(others):,} others": Count.sum(others)} if others else {})


def _bars(counts: Mapping[str, Count], length: Callable[[Count], int]) -> list[PlotItem]:
    shown = largest(counts, _BARS, length)
    return [_bar(name or "(no tenant)", length(count), count) for name, count in shown.items()]


def _bar(label: str, length: int, count: Count) -> PlotItem:
    return PlotItem(label, length, f"{count.ledgers:,} · {format_size(count)}")


def _trends(history: Sequence[HistoryEntry]) -> list[tuple[str, list[PlotItem]]]:
    figures: dict[str, Callable[[HistoryEntry], tuple[int, str]]] = {
        "Unreferenced ledgers": lambda entry: (entry.orphans.ledgers, format_count(entry.orphans.ledgers, "ledger")),
        "Unreferenced bytes": lambda entry: (entry.orphans.known_bytes, format_size(entry.orphans)),
        "Bytes of all ledgers": lambda entry: (entry.existing.known_bytes, format_size(entry.existing)),
        "References to missing ledgers": lambda entry: (entry.missing, format_count(entry.missing, "reference")),
    }
    return [
        (caption, [PlotItem(format_minute(entry.store_time_ms), *figure(entry)) for entry in history])
        for caption, figure in figures.items()
    ]


def metrics_text(summary: AuditSummary) -> str:
    """The file, in Prometheus' text format."""
    return generate_latest(metrics_registry(summary)).decode()


def metrics_registry(summary: AuditSummary) -> CollectorRegistry:
    """The metrics; every sample names the cluster."""
    registry = CollectorRegistry(auto_describe=False)
    cluster = summary.cluster_name or summary.instance_id

    def gauge(name: str, text: str, value: float | Mapping[str, float | None] | None, label: str = "") -> None:
        labels = [label] if label else []
        family = Gauge(f"{_PREFIX}_{name}", text, ["cluster", *labels], registry=registry)
        for key, each in value.items() if isinstance(value, Mapping) else [("", value)]:
            if each is not None:
                family.labels(cluster, *([key] if label else [])).set(each)

    unknown_text = "Ledgers of unknown size; ledger_bytes does not include them."
    orphans_text = "Unreferenced ledgers"
    gauge("timestamp_seconds", "The audited dump's newest write, by the store's clock.", summary.store_time_ms / 1000)
    gauge("ledgers", "Ledgers that exist.", summary.existing.ledgers)
    gauge("ledger_bytes", "Bytes of the ledgers that exist and whose size is known.", summary.existing.bytes)
    gauge("unknown_size_ledgers", unknown_text, summary.existing.unknown_size_ledgers)
    gauge("missing_ledger_references", "References to ledgers that do not exist.", summary.missing)
    gauge("unattributed_ledgers", "Unreferenced ledgers whose owner is not known.", summary.unattributed.ledgers)
    gauge("dangers", "Topics that may delete other topics' ledgers.", len(summary.dangers))
    gauge("leftover_nodes", "Nodes that point to nothing.", dict(summary.leftover_nodes.counts), "kind")
    gauge("plan_ledgers", "Ledgers in the plan; 0 without a plan.", summary.plan.rows if summary.plan else 0)
    gauge("orphan_ledgers", f"{orphans_text}.", _ledgers(summary.orphans), "standing")
    sizes = {name: count.bytes for name, count in sorted(summary.orphans.items())}
    gauge("orphan_bytes", "Bytes of the unreferenced ledgers whose size is known.", sizes, "standing")
    gauge("orphan_ledgers_by_kind", f"{orphans_text}, by kind.", _ledgers(summary.orphans_by_kind), "kind")
    gauge("orphan_ledgers_by_cause", f"{orphans_text}, by likely cause.", _ledgers(summary.orphans_by_cause), "cause")
    passed = {guard.name: guard.passed for guard in summary.guards}
    gauge("guard_passed", "1 if the guard passed, else 0.", passed, "guard")
    unseen = {part.what: part.count for part in summary.unseen}
    gauge("unseen", "Inputs that could not be read.", unseen, "what")
    return registry


def _ledgers(counts: Mapping[str, Count]) -> dict[str, float | None]:
    return {name: count.ledgers for name, count in sorted(counts.items())}
