"""The Grafana dashboards: what they show and ask; written to ``dashboards/*.json`` beside this file.

``python -m deploy.grafana.dashboards`` writes them, with ``--check`` it fails when one is out of date (`make generate`,
`make check-generated`). Gauges are the same from each sidecar of a cluster, so the largest is shown; counters are each
sidecar's own, so they are added up.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import BLUE, GREEN, ORANGE, PER_SECOND, RED, Panel, board, figure, lines, states, variable

DIRECTORY: Final = Path(__file__).parent / "dashboards"

_DELETION: Final = "pulsar_ledger_deletion"
_CANCELLING: Final = "pulsar_delayed_message_cancellations"
_INDEX: Final = "pulsar_sidecar_delayed_message_index"
_DEDUPLICATION: Final = "pulsar_sidecar_deduplication"
_SUBSCRIPTION: Final = "pulsar_subscription"
_AUDIT: Final = "pulsar_sidecar_audit"

_CLUSTER: Final = variable("cluster", "Cluster", "pulsar_sidecar_info")
_OFF: Final = "two-phase deletion is off, or no sidecar is scraped"
_NO_WATCH: Final = "the watch is off, or has not yet read everything"
_NO_CANCELLING: Final = "cancelling is off, or no sidecar is scraped"
_NO_EVENT: Final = "none in this time"
_NO_AUDIT: Final = "no audit's metrics.prom is scraped"
_NO_INDEX: Final = "no topic in delayedIndexWatchedTopics has buckets"
_NO_ACK_STATE: Final = "no topic in ackStateWatchedTopics"
_NO_DEDUPLICATION: Final = "no topic in deduplicationWatchedTopics"
_WATCHED: Final = '__name__=~"pulsar_subscription_.+|pulsar_sidecar_deduplication_.+"'
_YES_OR_NO: Final = {0: ("no", GREEN), 1: ("yes", RED)}
_ALARMING: Final = {1.0: RED}


def dashboards() -> Mapping[str, Dashboard]:
    """Every dashboard by the name of its file."""
    return {
        "overview": _overview(),
        "deletion": _deletion(),
        "delayed-messages": _delayed_messages(),
        "watched-topics": _watched_topics(),
        "audits": _audits(),
    }


def _chosen(metric: str, labels: str = "") -> str:
    return f'{metric}{{cluster=~"$cluster"{labels and ", "}{labels}}}'


def _largest(metric: str, *by: str, labels: str = "") -> str:
    return f"max by ({', '.join(by or ('cluster',))}) ({_chosen(metric, labels)})"


def _rate(metric: str, *by: str, labels: str = "") -> str:
    return f"sum by ({', '.join(by or ('cluster',))}) (rate({_chosen(metric, labels)}[$__rate_interval]))"


def _increase(metric: str, *by: str) -> str:
    """In the whole time that is shown."""
    return f"sum by ({', '.join(by or ('cluster',))}) (increase({_chosen(metric)}[$__range]))"


def _quantile(part: float, histogram: str, *by: str) -> str:
    return f"histogram_quantile({part}, {_rate(f'{histogram}_bucket', 'le', *by)})"


# --- overview ------------------------------------------------------------------------------------------------------


def _overview() -> Dashboard:
    return board(
        "pulsar-sidecar-overview",
        "Pulsar sidecar: overview",
        "Whether the sidecars work, whether work waits, and whether an operator is needed.",
        [_CLUSTER],
        {
            "Needed now": [
                figure(
                    "Sidecars",
                    "Sidecars that are ready. They share the work, so one is enough; two survive a failure.",
                    {"{{cluster}}": f"sum by (cluster) ({_chosen('pulsar_sidecar_ready')})"},
                    empty="no sidecar is scraped",
                    limits={0: RED, 1: ORANGE, 2: GREEN},
                ),
                figure(
                    "Deletion is paused",
                    "An operator has paused the second phase: records wait until `ledger-deletion resume`.",
                    {"{{cluster}}": _largest(f"{_DELETION}_paused")},
                    empty=_OFF,
                    names={0: ("no", GREEN), 1: ("paused", ORANGE)},
                    more="pulsar-sidecar-deletion",
                ),
                figure(
                    "Dead letters",
                    "Records that were given up and not sent again: their ledgers stay.",
                    {"{{cluster}}": _largest(f"{_DELETION}_dead_letters")},
                    empty=_OFF,
                    limits=_ALARMING,
                    more="pulsar-sidecar-deletion",
                ),
                figure(
                    "Stuck topic deletions",
                    "Topic deletions that do not continue by themselves.",
                    {"{{cluster}}": _largest(f"{_DELETION}_topic_deletions_stuck")},
                    empty=_OFF,
                    limits=_ALARMING,
                    more="pulsar-sidecar-deletion",
                ),
                figure(
                    "The watch has braked",
                    "So many references vanished at once that the sidecar appends nothing until an operator resumes.",
                    {"{{cluster}}": _largest(f"{_DELETION}_watch_braked")},
                    empty=_NO_WATCH,
                    names=_YES_OR_NO,
                    more="pulsar-sidecar-deletion",
                ),
                figure(
                    "Last audit",
                    "Time since the state that the last audit saw.",
                    {"{{cluster}}": f"time() - {_largest(f'{_AUDIT}_timestamp_seconds')}"},
                    empty=_NO_AUDIT,
                    unit="s",
                    limits={86_400: ORANGE, 172_800: RED},
                    more="pulsar-sidecar-audits",
                ),
            ],
            "Work": [
                lines(
                    "Records that wait",
                    "Ledgers whose deletion is recorded and not finished.",
                    {"{{cluster}}": _largest(f"{_DELETION}_inflight")},
                    empty=_OFF,
                ),
                lines(
                    "Ledgers deleted",
                    "By all sidecars of a cluster.",
                    {"{{cluster}}": _rate(f"{_DELETION}_deleted_total")},
                    empty=_OFF,
                    unit=PER_SECOND,
                ),
                lines(
                    "Leaked ledgers",
                    "Ledgers that nothing references and that no broker deleted, as the watch sees them.",
                    {"{{cluster}}, {{state}}": _largest(f"{_DELETION}_watch_candidates", "cluster", "state")},
                    empty=_NO_WATCH,
                ),
                lines(
                    "Open cancellations",
                    "Delayed messages that are cancelled and whose time has not come.",
                    {"{{cluster}}": _largest(f"{_CANCELLING}_open")},
                    empty=_NO_CANCELLING,
                ),
            ],
            "Processes": [
                lines(
                    "Resident memory",
                    "Of each sidecar.",
                    {"{{instance}}": _of_sidecars("process_resident_memory_bytes")},
                    empty="no sidecar is scraped",
                    unit="bytes",
                ),
                lines(
                    "Processor time",
                    "Seconds of one processor in a second, by each sidecar.",
                    {"{{instance}}": _of_sidecars("rate(process_cpu_seconds_total[$__rate_interval])")},
                    empty="no sidecar is scraped",
                    unit="percentunit",
                ),
            ],
        },
    )


def _of_sidecars(expression: str) -> str:
    """Metrics of a process do not name the cluster; whoever is a sidecar has `pulsar_sidecar_info` beside them."""
    return f"{expression} and on (job, instance) {_chosen('pulsar_sidecar_info')}"


# --- deletion ------------------------------------------------------------------------------------------------------


def _deletion() -> Dashboard:
    return board(
        "pulsar-sidecar-deletion",
        "Pulsar sidecar: ledger deletion",
        "Two-phase deletion (PIP-186) and the watch for leaked ledgers.",
        [_CLUSTER],
        {"Two phases": _TWO_PHASES, "How fast": _PACE, "The watch": _WATCH},
    )


_TWO_PHASES: Final[Sequence[Panel]] = [
    figure(
        "Records that wait",
        "Backlog over all partitions and the retry topic.",
        _largest(f"{_DELETION}_inflight"),
        empty=_OFF,
    ),
    figure(
        "Oldest of them",
        "Age of the oldest record that waits.",
        _largest(f"{_DELETION}_oldest_pending_age_seconds"),
        empty="no record waits",
        unit="s",
        limits={3_600: ORANGE, 86_400: RED},
    ),
    figure(
        "Their bytes",
        "Estimated from the mean length of ledgers deleted lately.",
        _largest(f"{_DELETION}_waiting_bytes"),
        empty="no ledger was deleted yet, so no mean length is known",
        unit="bytes",
    ),
    figure(
        "Dead letters",
        "Records that were given up and not sent again: their ledgers stay.",
        _largest(f"{_DELETION}_dead_letters"),
        empty=_OFF,
        limits=_ALARMING,
    ),
    figure(
        "Topic deletions",
        "Under way.",
        _largest(f"{_DELETION}_topic_deletions_running"),
        empty=_OFF,
    ),
    figure(
        "Stuck topic deletions",
        "That do not continue by themselves.",
        _largest(f"{_DELETION}_topic_deletions_stuck"),
        empty=_OFF,
        limits=_ALARMING,
    ),
    figure(
        "Oldest topic deletion",
        "Time since its request.",
        _largest(f"{_DELETION}_topic_deletions_oldest_age_seconds"),
        empty="none is under way",
        unit="s",
        limits={3_600: ORANGE, 86_400: RED},
    ),
    figure(
        "Namespace deletions",
        "Under way.",
        _largest(f"{_DELETION}_namespace_deletions_running"),
        empty=_OFF,
    ),
    lines(
        "First phase: records sent",
        "By what the ledgers belong to.",
        {"{{component}}, {{ledger_type}}": _rate(f"{_DELETION}_sent_total", "component", "ledger_type")},
        empty=_OFF,
        unit=PER_SECOND,
        stacked=True,
    ),
    lines(
        "Second phase: ledgers deleted",
        "By what the ledgers belonged to.",
        {"{{component}}, {{ledger_type}}": _rate(f"{_DELETION}_deleted_total", "component", "ledger_type")},
        empty=_OFF,
        unit=PER_SECOND,
        stacked=True,
    ),
    lines(
        "Decisions",
        "What the sidecar decided about records, and why.",
        {"{{decision}}, {{reason}}": _rate(f"{_DELETION}_decisions_total", "decision", "reason")},
        empty=_NO_EVENT,
        unit=PER_SECOND,
        stacked=True,
    ),
    lines(
        "Refused or unconfirmed",
        "Deletions that a store refused or did not confirm; the sidecar tries them again later.",
        {"{{component}}, {{ledger_type}}": _rate(f"{_DELETION}_delete_failed_total", "component", "ledger_type")},
        empty=_OFF,
        unit=PER_SECOND,
    ),
    lines(
        "Messages",
        "Received from the pending-deletion topic and its retry topic, and acknowledged.",
        {
            "received": f"sum({_rate(f'{_DELETION}_received_total')})",
            "acknowledged": f"sum({_rate(f'{_DELETION}_acknowledged_total')})",
        },
        empty=_OFF,
        unit=PER_SECOND,
    ),
    lines(
        "Time of a batch",
        "From receiving a batch to acknowledging it.",
        {
            "half take at most": _quantile(0.5, f"{_DELETION}_batch_seconds"),
            "99 of 100": _quantile(0.99, f"{_DELETION}_batch_seconds"),
        },
        empty=_NO_EVENT,
        unit="s",
    ),
    lines(
        "Given up",
        "Records that went to the dead-letter topic after the last try.",
        _rate(f"{_DELETION}_max_retry_reached_total"),
        empty=_OFF,
        unit=PER_SECOND,
    ),
    lines(
        "Bytes freed",
        "Length of the ledgers deleted, before replication.",
        _rate(f"{_DELETION}_deleted_bytes_total", "ledger_type"),
        empty=_OFF,
        unit="binBps",
    ),
]

_PACE: Final[Sequence[Panel]] = [
    states(
        "Paused",
        "Whether an operator has paused the second phase.",
        _largest(f"{_DELETION}_paused"),
        empty=_OFF,
        names={0: ("runs", GREEN), 1: ("paused", ORANGE)},
    ),
    lines(
        "Limit set by an operator",
        "Deletions a second.",
        _largest(f"{_DELETION}_rate_limit_per_second"),
        empty="no limit is set",
        unit=PER_SECOND,
    ),
    lines(
        "Deletions in flight at a time",
        "The limit that the sidecar sets itself, so that the metadata store stays quick.",
        {"{{instance}}": _chosen(f"{_DELETION}_in_flight_limit")},
        empty="the adaptive limit is off",
    ),
    lines(
        "Metadata store, 99th percentile",
        "Of the sidecar's probes, while it is idle and while it deletes.",
        {
            "idle, {{instance}}": _chosen(f"{_DELETION}_metadata_store_idle_p99_seconds"),
            "deleting, {{instance}}": _chosen(f"{_DELETION}_metadata_store_working_p99_seconds"),
        },
        empty="the adaptive limit is off, or nothing was deleted yet",
        unit="s",
    ),
]

_WATCH: Final[Sequence[Panel]] = [
    figure(
        "Ledgers",
        "Ledgers that exist.",
        _largest(f"{_DELETION}_watch_ledgers"),
        empty=_NO_WATCH,
    ),
    figure(
        "References",
        "References to ledgers in nodes.",
        _largest(f"{_DELETION}_watch_references"),
        empty=_NO_WATCH,
    ),
    figure(
        "Never linked",
        "Ledgers that no node was ever seen to reference.",
        _largest(f"{_DELETION}_watch_unlinked_ledgers"),
        empty=_NO_WATCH,
    ),
    figure(
        "Unreadable nodes",
        "Nodes that could not be read or understood; while there is one, ledgers that it may name are kept.",
        _largest(f"{_DELETION}_watch_unreadable_nodes"),
        empty=_NO_WATCH,
        limits=_ALARMING,
    ),
    figure(
        "Behind",
        "Delay between a change and the watch's reading of it.",
        _largest(f"{_DELETION}_watch_lag_seconds"),
        empty=_NO_WATCH,
        unit="s",
        limits={10: ORANGE, 60: RED},
    ),
    figure(
        "Last whole reading",
        "Time since its end.",
        f"time() - {_largest(f'{_DELETION}_watch_walk_timestamp_seconds')}",
        empty=_NO_WATCH,
        unit="s",
    ),
    states(
        "State",
        "One sidecar of a cluster watches; the others stand by.",
        {"{{instance}} {{state}}": f"{_chosen(f'{_DELETION}_watch_state')} == 1"},
        empty=_OFF,
        names={1: ("in this state", GREEN)},
    ),
    lines(
        "Unreferenced ledgers",
        "By state: settling (a broker may still delete it), kept, leaked, appended to the pending-deletion topic.",
        {"{{state}}": _largest(f"{_DELETION}_watch_candidates", "state")},
        empty=_NO_WATCH,
        stacked=True,
    ),
    lines(
        "Ledgers leaked",
        "By what they lost their last reference; since the sidecar that watches began to.",
        {"{{cause}}": _largest(f"{_DELETION}_watch_leaks_total", "cause")},
        empty=_NO_WATCH,
        stacked=True,
    ),
    lines(
        "Ledgers appended",
        "Leaked ledgers handed to the second phase since the sidecar that watches began to.",
        _largest(f"{_DELETION}_watch_appended_total"),
        empty=_NO_WATCH,
    ),
    lines(
        "Vanished references and the brake",
        "References that vanished within 10 minutes while their ledgers stayed. Above the limit the brake holds.",
        {
            "vanished": _largest(f"{_DELETION}_watch_vanished_references"),
            "limit": _largest(f"{_DELETION}_watch_brake_limit"),
        },
        empty=_NO_WATCH,
    ),
    lines(
        "Duration of a whole reading",
        "Of all nodes with references.",
        _largest(f"{_DELETION}_watch_walk_seconds"),
        empty=_NO_WATCH,
        unit="s",
    ),
]


# --- delayed messages ----------------------------------------------------------------------------------------------


def _delayed_messages() -> Dashboard:
    return board(
        "pulsar-sidecar-delayed-messages",
        "Pulsar sidecar: delayed messages",
        "Cancelling delayed messages (PIP-423), and the delayed indexes of watched topics (PIP-195).",
        [_CLUSTER, variable("topic", "Topic", f"{_INDEX}_bucket_total", of='cluster=~"$cluster"')],
        {"Cancelling": _CANCELLATIONS, "Delayed indexes of watched topics": _INDEXES},
    )


def _of_topic(metric: str, labels: str = "") -> str:
    return _chosen(metric, f'topic=~"$topic"{labels and ", "}{labels}')


def _per_topic(metric: str, of: str = "") -> str:
    """One value for each topic, since all sidecars look at the watched ones; ``of`` is what it is a part of."""
    return f"max by (topic) ({_part(metric, of)})"


def _per_subscription(metric: str, of: str = "") -> str:
    return f"max by (topic, subscription) ({_part(metric, of)})"


def _part(metric: str, of: str) -> str:
    return f"{_of_topic(metric)} / {_of_topic(of)}" if of else _of_topic(metric)


def _rate_of_loads(what: str) -> str:
    loads = _of_topic(f"{_INDEX}_bucket_op_latency_ms_{what}")
    return f"sum by (topic, subscription) (rate({loads}[$__rate_interval]))"


_CANCELLATIONS: Final[Sequence[Panel]] = [
    figure(
        "Open",
        "Cancellations in the log that have not ended.",
        _largest(f"{_CANCELLING}_open"),
        empty=_NO_CANCELLING,
    ),
    figure(
        "Requested",
        "In the time shown.",
        _increase(f"{_CANCELLING}_requested_total"),
        empty=_NO_CANCELLING,
    ),
    figure(
        "Refused or failed",
        "In the time shown.",
        _increase(f"{_CANCELLING}_refused_total"),
        empty=_NO_EVENT,
        limits={1: ORANGE},
    ),
    figure(
        "Acknowledged again",
        "Acknowledgements that a cursor had lost, in the time shown.",
        _increase(f"{_CANCELLING}_reasserted_total"),
        empty=_NO_CANCELLING,
    ),
    figure(
        "Reconciling",
        "Sidecars that repeat acknowledgements which a cursor has lost: one of a cluster.",
        f"sum by (cluster) ({_chosen(f'{_CANCELLING}_leading')})",
        empty=_NO_CANCELLING,
        limits={0: RED, 1: GREEN, 2: RED},
    ),
    lines(
        "Requests",
        "Messages whose cancellation was requested.",
        _rate(f"{_CANCELLING}_requested_total"),
        empty=_NO_CANCELLING,
        unit=PER_SECOND,
    ),
    lines(
        "Status reached",
        "Cancellations by the status that they reached. After `persisted` a crash of the broker loses none.",
        {"{{proof}}": _rate(f"{_CANCELLING}_seconds_count", "proof")},
        empty=_NO_EVENT,
        unit=PER_SECOND,
    ),
    lines(
        "Readings that failed",
        "Of a subscription: its cancellations were not reconciled then.",
        _rate(f"{_CANCELLING}_reconcile_failed_total"),
        empty=_NO_CANCELLING,
        unit=PER_SECOND,
    ),
    lines(
        "Time until a status, 99th percentile",
        "From the request.",
        {"{{proof}}": _quantile(0.99, f"{_CANCELLING}_seconds", "proof")},
        empty=_NO_EVENT,
        unit="s",
    ),
    lines(
        "Refused or failed, by cause",
        "`dispatched`: a consumer may have had the message before.",
        {"{{cause}}": _rate(f"{_CANCELLING}_refused_total", "cause")},
        empty=_NO_EVENT,
        unit=PER_SECOND,
    ),
]

_INDEXES: Final[Sequence[Panel]] = [
    states(
        "The next load recovers the buckets",
        "Whether a broker that loads the topic goes on with its buckets, or reads the whole backlog.",
        {"{{topic}} {{subscription}}": _per_subscription(f"{_INDEX}_next_load_on_buckets")},
        empty=_NO_INDEX,
        names={0: ("reads the backlog", RED), 1: ("recovers", GREEN)},
    ),
    lines(
        "Buckets",
        "That are stored.",
        {"{{topic}} {{subscription}}": _per_subscription(f"{_INDEX}_bucket_total")},
        empty=_NO_INDEX,
    ),
    lines(
        "Bytes of buckets",
        "That a load reads.",
        {"{{topic}} {{subscription}}": _per_subscription(f"{_INDEX}_bucket_snapshot_size_bytes")},
        empty=_NO_INDEX,
        unit="bytes",
    ),
    lines(
        "Indexes in memory",
        "That a broker would load into memory with the topic.",
        {"{{topic}} {{subscription}}": _per_subscription(f"{_INDEX}_loaded")},
        empty=_NO_INDEX,
    ),
    lines(
        "Unreadable buckets",
        "Whose metadata could not be read.",
        {"{{topic}} {{subscription}}": _per_subscription(f"{_INDEX}_bucket_unreadable")},
        empty=_NO_INDEX,
    ),
    lines(
        "Operations on buckets",
        "The sidecar's own loads, and changes by brokers between two of them.",
        {
            "{{type}}, {{state}}": "sum by (type, state) (rate("
            + _of_topic(f"{_INDEX}_bucket_op_count", 'state!="all"')
            + "[$__rate_interval]))"
        },
        empty=_NO_INDEX,
        unit=PER_SECOND,
    ),
    lines(
        "Time of the sidecar's loads",
        "Mean, for all buckets of a subscription.",
        {"{{topic}} {{subscription}}": _rate_of_loads("sum") + " / " + _rate_of_loads("count")},
        empty=_NO_INDEX,
        unit="ms",
    ),
]


# --- watched topics ------------------------------------------------------------------------------------------------


def _watched_topics() -> Dashboard:
    return board(
        "pulsar-sidecar-watched-topics",
        "Pulsar sidecar: watched topics",
        "Acknowledgement states (PIP-299) and deduplication (PIP-6) of the topics that are watched.",
        [_CLUSTER, variable("topic", "Topic", "", of=f'{_WATCHED}, cluster=~"$cluster"')],
        {"Acknowledgement states": _ACK_STATES, "Deduplication": _SNAPSHOTS},
    )


_ACK_STATES: Final[Sequence[Panel]] = [
    states(
        "Dispatch is paused",
        "Because acknowledgements do not fit into what the broker stores.",
        {"{{topic}} {{subscription}}": _per_subscription(f"{_SUBSCRIPTION}_blocked_on_ack_state_persistent")},
        empty=_NO_ACK_STATE,
        names={0: ("dispatches", GREEN), 1: ("paused", RED)},
    ),
    lines(
        "Acknowledgements that fit, used",
        "Ranges that the cursor holds, of those that the broker stores at most.",
        {
            "{{topic}} {{subscription}}": _per_subscription(
                f"{_SUBSCRIPTION}_ack_state_ranges", f"{_SUBSCRIPTION}_ack_state_max_ranges"
            )
        },
        empty=_NO_ACK_STATE,
        unit="percentunit",
    ),
    lines(
        "Ranges",
        "Of acknowledgements that the cursor holds.",
        {"{{topic}} {{subscription}}": _per_subscription(f"{_SUBSCRIPTION}_ack_state_ranges")},
        empty=_NO_ACK_STATE,
    ),
    lines(
        "Lost if the broker died now",
        "Acknowledged entries that brokers would deliver again.",
        {"{{topic}} {{subscription}}": _per_subscription(f"{_SUBSCRIPTION}_ack_state_unstored_entries")},
        empty=_NO_ACK_STATE,
    ),
]

_SNAPSHOTS: Final[Sequence[Panel]] = [
    lines(
        "A load would replay for",
        "Estimated time for which no client could use the topic.",
        {"{{topic}}": _per_topic(f"{_DEDUPLICATION}_load_replay_seconds")},
        empty=_NO_DEDUPLICATION,
        unit="s",
    ),
    lines(
        "Entries after the snapshot",
        "Which a load of the topic replays.",
        {"{{topic}}": _per_topic(f"{_DEDUPLICATION}_snapshot_lag_entries")},
        empty=_NO_DEDUPLICATION,
    ),
    lines(
        "Age of the snapshot",
        "0 if nothing came after it.",
        {"{{topic}}": _per_topic(f"{_DEDUPLICATION}_snapshot_lag_seconds")},
        empty=_NO_DEDUPLICATION,
        unit="s",
    ),
    lines(
        "Producers in the snapshot",
        "Of as many as brokers store.",
        {"{{topic}}": _per_topic(f"{_DEDUPLICATION}_producers", f"{_DEDUPLICATION}_max_producers")},
        empty=_NO_DEDUPLICATION,
        unit="percentunit",
    ),
    lines(
        "Bytes retained by the deduplication cursor",
        "All of them, and those that no other cursor retains.",
        {
            "{{topic}}": _per_topic(f"{_DEDUPLICATION}_pinned_bytes"),
            "{{topic}}, alone": _per_topic(f"{_DEDUPLICATION}_pinned_alone_bytes"),
        },
        empty=_NO_DEDUPLICATION,
        unit="bytes",
    ),
    states(
        "Cursor without deduplication",
        "A cursor that was left over retains every ledger after its position.",
        {"{{topic}}": _per_topic(f"{_DEDUPLICATION}_cursor_left_over")},
        empty=_NO_DEDUPLICATION,
        names={0: ("none", GREEN), 1: ("left over", RED)},
    ),
    states(
        "State could be read",
        "Whether the last look could read everything.",
        {"{{topic}}": _per_topic(f"{_DEDUPLICATION}_unreadable")},
        empty=_NO_DEDUPLICATION,
        names={0: ("yes", GREEN), 1: ("no", RED)},
    ),
]


# --- audits --------------------------------------------------------------------------------------------------------


def _audits() -> Dashboard:
    return board(
        "pulsar-sidecar-audits",
        "Pulsar sidecar: audits",
        "What the last audit of each cluster found, from its metrics.prom.",
        [variable("cluster", "Cluster", f"{_AUDIT}_timestamp_seconds")],
        {"Findings": _FINDINGS, "Unreferenced ledgers": _ORPHANS, "What may be trusted": _TRUST},
    )


def _found(name: str, *by: str) -> str:
    return _largest(f"{_AUDIT}_{name}", "cluster", *by)


_FINDINGS: Final[Sequence[Panel]] = [
    figure(
        "Last audit",
        "Time since the state that it saw.",
        {"{{cluster}}": f"time() - {_found('timestamp_seconds')}"},
        empty=_NO_AUDIT,
        unit="s",
        limits={86_400: ORANGE, 172_800: RED},
    ),
    figure(
        "Missing",
        "References to ledgers that do not exist: data is lost or unreadable.",
        {"{{cluster}}": _found("missing_ledger_references")},
        empty=_NO_AUDIT,
        limits=_ALARMING,
    ),
    figure(
        "Waiting for approval",
        "Ledgers in the plan. `audit apply` hands them to the sidecar.",
        {"{{cluster}}": _found("plan_ledgers")},
        empty=_NO_AUDIT,
        limits={1: BLUE},
    ),
    figure(
        "Unattributed",
        "Unreferenced ledgers whose owner is not known; no plan has them.",
        {"{{cluster}}": _found("unattributed_ledgers")},
        empty=_NO_AUDIT,
        limits={1: ORANGE},
    ),
    figure(
        "Dangerous topics",
        "Topics whose own clean-up may delete other topics' ledgers.",
        {"{{cluster}}": _found("dangers")},
        empty=_NO_AUDIT,
        limits=_ALARMING,
    ),
    figure(
        "Ledgers",
        "That exist.",
        {"{{cluster}}": _found("ledgers")},
        empty=_NO_AUDIT,
    ),
    lines(
        "Bytes of all ledgers",
        "Without ledgers of unknown size.",
        {"{{cluster}}": _found("ledger_bytes")},
        empty=_NO_AUDIT,
        unit="bytes",
    ),
    lines(
        "Ledgers of unknown size",
        "Mostly those that are open.",
        {"{{cluster}}": _found("unknown_size_ledgers")},
        empty=_NO_AUDIT,
    ),
]

_ORPHANS: Final[Sequence[Panel]] = [
    lines(
        "By status",
        "Deletable ones are in the plan; the others are too young, protected, or were seen by one audit only.",
        {"{{cluster}}, {{standing}}": _found("orphan_ledgers", "standing")},
        empty="no audit found an unreferenced ledger",
        stacked=True,
    ),
    lines(
        "Their bytes",
        "By status, without ledgers of unknown size.",
        {"{{cluster}}, {{standing}}": _found("orphan_bytes", "standing")},
        empty="no audit found an unreferenced ledger",
        unit="bytes",
        stacked=True,
    ),
    lines(
        "By kind",
        "What they belonged to.",
        {"{{cluster}}, {{kind}}": _found("orphan_ledgers_by_kind", "kind")},
        empty="no audit found an unreferenced ledger",
        stacked=True,
    ),
    lines(
        "By likely cause",
        "By what they lost their last reference.",
        {"{{cluster}}, {{cause}}": _found("orphan_ledgers_by_cause", "cause")},
        empty="no audit found an unreferenced ledger",
        stacked=True,
    ),
]

_TRUST: Final[Sequence[Panel]] = [
    states(
        "Guards",
        "A plan of an audit with a failed guard cannot be applied.",
        {"{{cluster}}, {{guard}}": _found("guard_passed", "guard")},
        empty=_NO_AUDIT,
        names={0: ("failed", RED), 1: ("passed", GREEN)},
    ),
    lines(
        "Inputs that could not be read",
        "By what they are.",
        {"{{cluster}}, {{what}}": _found("unseen", "what")},
        empty="everything could be read",
    ),
    lines(
        "Nodes that point to nothing",
        "By kind; the report of the audit lists them with the command that helps.",
        {"{{cluster}}, {{kind}}": _found("leftover_nodes", "kind")},
        empty="the audit did not look for them, or found none",
    ),
]


# --- writing -------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Write or check; 1 when a file is out of date."""
    written = {path.name: path.read_text(encoding="utf-8") for path in DIRECTORY.glob("*.json")}
    made = {
        f"{name}.json": json.dumps(each, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
        for name, each in dashboards().items()
    }
    stale = sorted(name for name in written.keys() | made.keys() if written.get(name) != made.get(name))
    if arguments == ["--check"]:
        if stale:
            sys.stderr.write(f"out of date in {DIRECTORY}: {', '.join(stale)}; run: make generate\n")
        return 1 if stale else 0
    for name in stale:
        if name in made:
            (DIRECTORY / name).write_text(made[name], encoding="utf-8")
        else:
            (DIRECTORY / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
