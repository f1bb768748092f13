"""An audit's figures for Prometheus, as a file for the node exporter's textfile collector.

``pulsar_sidecar_audit_timestamp_seconds`` is what an alert compares with the present: an audit that was not made tells
nothing by itself. ``deploy/prometheus/audit.rules.yml`` has the alerts.
"""

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from pulsar_sidecar.audit.results.summaries import AuditSummary, Count

METRICS_NAME: Final = "metrics.prom"
_PREFIX: Final = "pulsar_sidecar_audit"


def metrics_text(summary: AuditSummary) -> str:
    """The file, in Prometheus' text format; every sample names the cluster."""
    registry = CollectorRegistry(auto_describe=False)
    cluster = summary.cluster_name or summary.instance_id

    def gauge(name: str, text: str, value: float | None) -> None:
        family = Gauge(f"{_PREFIX}_{name}", text, ["cluster"], registry=registry)
        if value is not None:
            family.labels(cluster).set(value)

    def gauges(name: str, text: str, label: str, values: Mapping[str, float | None]) -> None:
        family = Gauge(f"{_PREFIX}_{name}", text, ["cluster", label], registry=registry)
        for key, value in values.items():
            if value is not None:
                family.labels(cluster, key).set(value)

    unknown_text = "Ledgers whose size is not known: they are not in ledger_bytes."
    orphans_text = "Ledgers that nothing references"
    gauge("timestamp_seconds", "The audited dump's newest write, by the store's clock.", summary.store_time_ms / 1000)
    gauge("ledgers", "Ledgers that exist.", summary.existing.ledgers)
    gauge("ledger_bytes", "Bytes of the ledgers that exist, as far as known.", summary.existing.bytes)
    gauge("unknown_size_ledgers", unknown_text, summary.existing.unknown_size_ledgers)
    gauge("missing_ledger_references", "References to ledgers that do not exist.", summary.missing)
    gauge("unattributed_ledgers", "Unreferenced ledgers that nobody known claims.", summary.unattributed.ledgers)
    gauge("dangers", "Topics that may destroy other topics' ledgers.", len(summary.dangers))
    gauge("plan_ledgers", "Ledgers in the plan; 0 without a plan.", summary.plan.rows if summary.plan else 0)
    gauges("orphan_ledgers", f"{orphans_text}.", "standing", _ledgers(summary.orphans))
    sizes = {name: count.bytes for name, count in sorted(summary.orphans.items())}
    gauges("orphan_bytes", f"Bytes of {orphans_text.lower()}, as far as known.", "standing", sizes)
    gauges("orphan_ledgers_by_kind", f"{orphans_text}, by kind.", "kind", _ledgers(summary.orphans_by_kind))
    gauges("orphan_ledgers_by_cause", f"{orphans_text}, by likely cause.", "cause", _ledgers(summary.orphans_by_cause))
    passed = {guard.name: guard.passed for guard in summary.guards}
    gauges("guard_passed", "Whether a guard let ledgers be condemned.", "guard", passed)
    unseen = {part.what: part.count for part in summary.unseen}
    gauges("unseen", "Things that could not be seen.", "what", unseen)
    return generate_latest(registry).decode()


def _ledgers(counts: Mapping[str, Count]) -> dict[str, float | None]:
    return {name: count.ledgers for name, count in sorted(counts.items())}
