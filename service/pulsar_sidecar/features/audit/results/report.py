"""Report beside an audit's tables, one HTML page that contains everything, and metrics.

Invariant: the page is a pure function of the summary and a few rows, loads nothing and runs no script; every value from
the cluster is escaped. Unverified facts are right below the verdict. The page is ``templates/report.html.j2``; it
shares `reports.audit_pages` with the dashboard.

The metrics are a file for the node exporter's textfile collector. An alert compares
``pulsar_sidecar_audit_timestamp_seconds`` with the present: an audit that did not run reports nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from jinja2 import Environment
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from pulsar_sidecar.features.audit.results.summaries import AuditSummary, Count
from pulsar_sidecar.features.audit.results.verdicts import conclude, orphans_of
from pulsar_sidecar.reports.audit_pages import NO_TENANT, with_audits
from pulsar_sidecar.reports.formatting import Row
from pulsar_sidecar.reports.pages import page_environment

REPORT_ROWS: Final = 50
"""Rows of each of the report's tables."""
REPORT_LEDGERS: Final = 2_000
"""Unreferenced ledgers, and owners, that the report shows individually: a file of at most 2 MB."""
ORDER: Final = {
    "orphans": [("ledger_id", "ascending")],
    "missing": [("ledger_id", "ascending"), ("referenced_by", "ascending")],
    "unattributed": [("ledger_id", "ascending")],
    "usage": [("bytes", "descending"), ("topic", "ascending"), ("kind", "ascending")],
    "offloaded": [("ledger_id", "ascending"), ("attempt", "ascending")],
}
"""Order in which rows of each table are shown."""
_LONGEST: Final = [("length_bytes", "descending"), ("ledger_id", "ascending")]
LARGEST_FIRST: Final = {
    **ORDER,
    "orphans": _LONGEST,
    "unattributed": _LONGEST,
    "missing": [("size_bytes", "descending"), ("ledger_id", "ascending"), ("referenced_by", "ascending")],
    "offloaded": [*_LONGEST, ("attempt", "ascending")],
}
"""Order by size, unknown sizes last."""
METRICS_NAME: Final = "metrics.prom"
_LEVELS: Final = ("tenant", "namespace", "topic")
_PREFIX: Final = "pulsar_sidecar_audit"


@dataclass(frozen=True, slots=True)
class ReportRows:
    """Rows that a report shows, at most `REPORT_ROWS` of each table, or `REPORT_LEDGERS` of orphans and owners.

    Missing ledgers come by ledger id, all others in the order of `LARGEST_FIRST`, unknown sizes last.
    """

    orphans: Sequence[Row] = ()
    missing: Sequence[Row] = ()
    unattributed: Sequence[Row] = ()
    owners: Sequence[Row] = ()
    offloaded: Sequence[Row] = ()


def report_rows_of(
    orphans: pa.Table, missing: pa.Table, unattributed: pa.Table, usage: pa.Table, offloaded: pa.Table
) -> ReportRows:
    return ReportRows(
        orphans=first_rows(orphans, LARGEST_FIRST["orphans"], REPORT_LEDGERS),
        missing=first_rows(missing, ORDER["missing"]),
        unattributed=first_rows(unattributed, LARGEST_FIRST["unattributed"]),
        owners=first_rows(usage, ORDER["usage"], REPORT_LEDGERS),
        offloaded=first_rows(offloaded, LARGEST_FIRST["offloaded"]),
    )


def with_first_rows(table: pa.Table, more: pa.RecordBatch, order: list[tuple[str, str]], limit: int) -> pa.Table:
    """Return the first rows, in some order, of a table and of more rows."""
    every = pa.concat_tables([table, pa.Table.from_batches([more])])
    return every.take(pc.sort_indices(every, sort_keys=order).slice(0, limit))


def first_rows(table: pa.Table, order: list[tuple[str, str]], limit: int = REPORT_ROWS, offset: int = 0) -> list[Row]:
    """Return some rows in some order, with the columns that are shown; only these rows are copied."""
    wanted = pc.sort_indices(table, sort_keys=order).slice(offset, limit)
    return list(table.select(shown_columns(table.schema)).take(wanted).to_pylist())


def shown_columns(schema: pa.Schema) -> list[str]:
    """Return all columns but the metadata's bytes, the only long column, which no report shows."""
    return [name for name in schema.names if name != "metadata"]


def report_html(summary: AuditSummary, extract: ReportRows, place: str = "AUDIT") -> str:
    """Return the page; ``place`` is the audit's directory in the commands it shows."""
    page = templates().get_template("report.html.j2")
    return page.render(
        summary=summary,
        extract=extract,
        conclusion=conclude(summary, place),
        orphans=orphans_of(summary),
        owners=owners_of(extract.orphans, extract.owners),
        shown_rows=REPORT_ROWS,
    )


@dataclass(slots=True)
class OwnerBranch:
    """Owner with its counts, and the owners below it; every row of the extract is below exactly one owner.

    Attributes:
        used: referenced ledgers, of the largest owners; ``unreferenced``: its unreferenced ledgers.
        below: owners of the next level, the most unreferenced bytes first.
        rows: rows of the branch itself, which only topics and owners without a next level have.
    """

    name: str
    used: Count
    unreferenced: Count
    is_topic: bool = False
    below: list["OwnerBranch"] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


def owners_of(orphans: Sequence[Row], usage: Sequence[Row], level: int = 0) -> list[OwnerBranch]:
    """Return the owners of these rows of ``orphan_ledgers`` and ``ledger_usage``, from tenants down to topics."""
    found, used = _by(orphans, _LEVELS[level]), _by(usage, _LEVELS[level])
    names = dict.fromkeys((*found, *used))
    branches = [_branch(name, found.get(name, []), used.get(name, []), level) for name in names]
    return sorted(branches, key=lambda each: (-each.unreferenced.known_bytes, -each.used.known_bytes))


def _by(rows: Sequence[Row], column: str) -> dict[str | None, list[Row]]:
    groups: dict[str | None, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def _branch(name: str | None, found: list[Row], used: list[Row], level: int) -> OwnerBranch:
    branch = OwnerBranch(
        name or (NO_TENANT if level == 0 else f"(no {_LEVELS[level]})"),
        Count.sum(Count(row["ledgers"], row["bytes"], row["unknown_size_ledgers"]) for row in used),
        Count.sum(Count(1, row["length_bytes"], int(row["length_bytes"] is None)) for row in found),
    )
    if name is None or level + 1 == len(_LEVELS):
        branch.rows, branch.is_topic = found, name is not None
    else:
        branch.below = owners_of(found, used, level + 1)
    return branch


@cache
def templates() -> Environment:
    return with_audits(page_environment("pulsar_sidecar.features.audit.results"))


def metrics_text(summary: AuditSummary) -> str:
    return generate_latest(metrics_registry(summary)).decode()


def metrics_registry(summary: AuditSummary) -> CollectorRegistry:
    """Return the metrics; every sample names the cluster."""
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
    gauge("offload_findings", "Findings in tiered storage.", _ledgers(summary.offload.findings), "finding")
    uses = {name: count.bytes for name, count in sorted(summary.offload.uses.items())}
    gauge("offload_bytes", "Bytes in tiered storage, or that should be only there, by use.", uses, "use")
    passed = {guard.name: guard.passed for guard in summary.guards}
    gauge("guard_passed", "1 if the guard passed, else 0.", passed, "guard")
    unseen = {part.what: part.count for part in summary.unseen}
    gauge("unseen", "Inputs that could not be read.", unseen, "what")
    return registry


def _ledgers(counts: Mapping[str, Count]) -> dict[str, float | None]:
    return {name: count.ledgers for name, count in sorted(counts.items())}
