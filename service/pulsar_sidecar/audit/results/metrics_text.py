"""An audit's figures for Prometheus, as a file for the node exporter's textfile collector.

``pulsar_sidecar_audit_timestamp_seconds`` is what an alert compares with the present: an audit that was not made tells
nothing by itself. ``deploy/prometheus/audit.rules.yml`` has the alerts.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pulsar_sidecar.audit.results.summaries import AuditSummary, Count

METRICS_NAME: Final = "metrics.prom"
_PREFIX: Final = "pulsar_sidecar_audit"


def metrics_text(summary: AuditSummary) -> str:
    """The file, in Prometheus' text format; every sample names the cluster."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(summary))
    return generate_latest(registry).decode()


class _Figures(Collector):
    def __init__(self, summary: AuditSummary) -> None:
        self._summary = summary
        self._cluster = summary.cluster_name or summary.instance_id

    def collect(self) -> Iterator[GaugeMetricFamily]:
        summary = self._summary
        for name, text, value in (
            (
                "timestamp_seconds",
                "The audited dump's newest write, by the store's clock.",
                summary.store_time_ms / 1000,
            ),
            ("ledgers", "Ledgers that exist.", summary.existing.ledgers),
            ("ledger_bytes", "Bytes of the ledgers that exist, as far as known.", summary.existing.bytes),
            (
                "unknown_size_ledgers",
                "Ledgers whose size is not known: they are not in ledger_bytes.",
                summary.existing.unknown_size_ledgers,
            ),
            ("missing_ledger_references", "References to ledgers that do not exist.", summary.missing),
            ("unattributed_ledgers", "Unreferenced ledgers that nobody known claims.", summary.unattributed.ledgers),
            ("dangers", "Topics that may destroy other topics' ledgers.", len(summary.dangers)),
            ("plan_ledgers", "Ledgers in the plan; 0 without a plan.", summary.plan.rows if summary.plan else 0),
        ):
            yield self._family(name, text, None, () if value is None else (("", value),))
        yield from self._orphans()
        passed = ((guard.name, float(guard.passed)) for guard in summary.guards)
        yield self._family("guard_passed", "Whether a guard let ledgers be condemned.", "guard", passed)
        unseen = ((part.what, part.count) for part in summary.unseen)
        yield self._family("unseen", "Things that could not be seen.", "what", unseen)

    def _orphans(self) -> Iterator[GaugeMetricFamily]:
        text = "Ledgers that nothing references"
        standings = self._summary.orphans
        yield self._family("orphan_ledgers", f"{text}.", "standing", _ledgers(standings))
        sizes = ((name, count.bytes) for name, count in sorted(standings.items()) if count.bytes is not None)
        yield self._family("orphan_bytes", f"Bytes of {text.lower()}, as far as known.", "standing", sizes)
        yield self._family(
            "orphan_ledgers_by_kind", f"{text}, by kind.", "kind", _ledgers(self._summary.orphans_by_kind)
        )
        causes = _ledgers(self._summary.orphans_by_cause)
        yield self._family("orphan_ledgers_by_cause", f"{text}, by likely cause.", "cause", causes)

    def _family(
        self, name: str, text: str, label: str | None, samples: Iterable[tuple[str, float]]
    ) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=["cluster", *([label] if label else [])])
        for value_of_label, value in samples:
            family.add_metric([self._cluster, *([value_of_label] if label else [])], value)
        return family


def _ledgers(counts: Mapping[str, Count]) -> list[tuple[str, float]]:
    return [(name, count.ledgers) for name, count in sorted(counts.items())]
