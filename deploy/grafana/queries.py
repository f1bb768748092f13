"""PromQL queries of all dashboards.

Gauges are the same from each sidecar of a cluster, so the largest is shown; counters are each sidecar's own, so they
are added up.
"""

from typing import Final

from deploy.grafana.panels import RED, variable

DELETION: Final = "pulsar_ledger_deletion"
CANCELLING: Final = "pulsar_delayed_message_cancellations"
AUDIT: Final = "pulsar_sidecar_audit"
CLUSTER: Final = variable("cluster", "Cluster", "pulsar_sidecar_info")
OFF: Final = "two-phase deletion is off, or no sidecar is scraped"
NO_WATCH: Final = "the watch is off, or has not yet read everything"
NO_CANCELLING: Final = "cancelling is off, or no sidecar is scraped"
NO_EVENT: Final = "none in this time"
NO_AUDIT: Final = "no audit's metrics.prom is scraped"
ALARMING: Final = {1.0: RED}


def chosen(metric: str, labels: str = "") -> str:
    return f'{metric}{{cluster=~"$cluster"{labels and ", "}{labels}}}'


def largest(metric: str, *by: str, labels: str = "") -> str:
    return f"max by ({', '.join(by or ('cluster',))}) ({chosen(metric, labels)})"


def rate(metric: str, *by: str, labels: str = "") -> str:
    return f"sum by ({', '.join(by or ('cluster',))}) (rate({chosen(metric, labels)}[$__rate_interval]))"


def increase(metric: str, *by: str) -> str:
    """Return the increase over the selected time range."""
    return f"sum by ({', '.join(by or ('cluster',))}) (increase({chosen(metric)}[$__range]))"


def quantile(part: float, histogram: str, *by: str) -> str:
    return f"histogram_quantile({part}, {rate(f'{histogram}_bucket', 'le', *by)})"


def of_topic(metric: str, labels: str = "") -> str:
    return chosen(metric, f'topic=~"$topic"{labels and ", "}{labels}')


def per_topic(metric: str, of: str = "") -> dict[str, str]:
    """One line per topic, since all sidecars watch the same ones; ``of`` is the whole of which it is a part."""
    return {"{{topic}}": f"max by (topic) ({_part(metric, of)})"}


def per_subscription(metric: str, of: str = "") -> dict[str, str]:
    return {"{{topic}} {{subscription}}": f"max by (topic, subscription) ({_part(metric, of)})"}


def _part(metric: str, of: str) -> str:
    return f"{of_topic(metric)} / {of_topic(of)}" if of else of_topic(metric)
