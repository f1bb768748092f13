"""Is anything wrong, and where?"""

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import GREEN, ORANGE, PER_SECOND, RED, board, figure, lines
from deploy.grafana.queries import (
    ALARMING,
    AUDIT,
    CANCELLING,
    CLUSTER,
    DELETION,
    NO_AUDIT,
    NO_CANCELLING,
    NO_WATCH,
    OFF,
    chosen,
    largest,
    rate,
)

_YES_OR_NO: Final = {0: ("no", GREEN), 1: ("yes", RED)}


def overview() -> Dashboard:
    return board(
        "pulsar-sidecar-overview",
        "Pulsar sidecar: overview",
        "Whether the sidecars work, whether work waits, and whether an operator is needed.",
        [CLUSTER],
        {
            "Needed now": [
                figure(
                    "Sidecars",
                    "Sidecars that are ready. They share the work, so one is enough; two survive a failure.",
                    {"{{cluster}}": f"sum by (cluster) ({chosen('pulsar_sidecar_ready')})"},
                    empty="no sidecar is scraped",
                    limits={0: RED, 1: ORANGE, 2: GREEN},
                ),
                figure(
                    "Deletion is paused",
                    "An operator has paused the second phase: records wait until `ledger-deletion resume`.",
                    {"{{cluster}}": largest(f"{DELETION}_paused")},
                    empty=OFF,
                    names={0: ("no", GREEN), 1: ("paused", ORANGE)},
                    more="pulsar-sidecar-deletion",
                ),
                figure(
                    "Dead letters",
                    "Records that were given up and not redriven; their ledgers stay.",
                    {"{{cluster}}": largest(f"{DELETION}_dead_letters")},
                    empty=OFF,
                    limits=ALARMING,
                    more="pulsar-sidecar-deletion",
                ),
                figure(
                    "Stuck topic deletions",
                    "Topic deletions that do not continue by themselves.",
                    {"{{cluster}}": largest(f"{DELETION}_topic_deletions_stuck")},
                    empty=OFF,
                    limits=ALARMING,
                    more="pulsar-sidecar-deletion",
                ),
                figure(
                    "Watch brake engaged",
                    "So many references vanished at once that the sidecar appends nothing until an operator resumes.",
                    {"{{cluster}}": largest(f"{DELETION}_watch_braked")},
                    empty=NO_WATCH,
                    names=_YES_OR_NO,
                    more="pulsar-sidecar-deletion",
                ),
                figure(
                    "Last audit",
                    "Time since the state that the last audit saw.",
                    {"{{cluster}}": f"time() - {largest(f'{AUDIT}_timestamp_seconds')}"},
                    empty=NO_AUDIT,
                    unit="s",
                    limits={86_400: ORANGE, 172_800: RED},
                    more="pulsar-sidecar-audits",
                ),
            ],
            "Work": [
                lines(
                    "Pending records",
                    "Ledgers whose deletion is recorded and not finished.",
                    {"{{cluster}}": largest(f"{DELETION}_inflight")},
                    empty=OFF,
                ),
                lines(
                    "Ledgers deleted",
                    "By all sidecars of a cluster.",
                    {"{{cluster}}": rate(f"{DELETION}_deleted_total")},
                    empty=OFF,
                    unit=PER_SECOND,
                ),
                lines(
                    "Leaked ledgers",
                    "Ledgers that nothing references and that no broker deleted, as the watch sees them.",
                    {"{{cluster}}, {{state}}": largest(f"{DELETION}_watch_candidates", "cluster", "state")},
                    empty=NO_WATCH,
                ),
                lines(
                    "Open cancellations",
                    "Cancelled delayed messages that are not yet due.",
                    {"{{cluster}}": largest(f"{CANCELLING}_open")},
                    empty=NO_CANCELLING,
                ),
            ],
            "Processes": [
                lines(
                    "Resident memory",
                    "Resident memory of each sidecar.",
                    {"{{instance}}": _of_sidecars("process_resident_memory_bytes")},
                    empty="no sidecar is scraped",
                    unit="bytes",
                ),
                lines(
                    "Processor time",
                    "Processor seconds per second, by sidecar.",
                    {"{{instance}}": _of_sidecars("rate(process_cpu_seconds_total[$__rate_interval])")},
                    empty="no sidecar is scraped",
                    unit="percentunit",
                ),
            ],
        },
    )


def _of_sidecars(expression: str) -> str:
    """Metrics of a process do not name the cluster; every sidecar has `pulsar_sidecar_info` beside them."""
    return f"{expression} and on (job, instance) {chosen('pulsar_sidecar_info')}"
