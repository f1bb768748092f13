"""The options of an audit on the command line, which the embedded engine's and the Spark job's commands share."""

from pulsar_sidecar.features.audit.requests import HOUR_MS, AuditPolicy

PLACES = ("--dump", "d", "--listing", "l", "--output", "o")
EXCLUSIVE = ("--bookkeeper-exclusive-to-cluster",)
FOREIGN = ("--foreign-subtree", "/hbase", "--foreign-subtree", "/kafka")
EVERY_OPTION = (
    *PLACES,
    *("--previous", "p", "--min-age-hours", "1.5", "--look-window-hours", "2", "--max-share", "0.3"),
    *("--max-shrink", "0.4", "--allow-young", "--exact", *FOREIGN, *EXCLUSIVE),
    *("--offloaded", "t", "--offload-exclusive-to-cluster", "--offload-deletion-lag-hours", "-1"),
    *("--price-per-gib-month", "0.023"),
)
POLICY_OF_EVERY_OPTION = AuditPolicy(
    round(1.5 * HOUR_MS),
    2 * HOUR_MS,
    0.3,
    0.4,
    allow_young=True,
    foreign_subtrees=("/hbase", "/kafka"),
    bookkeeper_exclusive=True,
    offload_exclusive=True,
    offload_lag_ms=-HOUR_MS,
    price_per_gib_month=0.023,
)
