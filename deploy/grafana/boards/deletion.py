"""Two-phase deletion, and the watch for leaked ledgers."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import GREEN, ORANGE, PER_SECOND, RED, Panel, board, figure, lines, states
from deploy.grafana.queries import ALARMING, CLUSTER, DELETION, NO_EVENT, NO_WATCH, OFF, chosen, largest, quantile, rate


def deletion() -> Dashboard:
    return board(
        "pulsar-sidecar-deletion",
        "Pulsar sidecar: ledger deletion",
        "Two-phase deletion (PIP-186) and the watch for leaked ledgers.",
        [CLUSTER],
        {"Two phases": _TWO_PHASES, "Speed": _PACE, "The watch": _WATCH},
    )


_figure_of_deletion, _lines_of_deletion = partial(figure, empty=OFF), partial(lines, empty=OFF)
_states_of_deletion = partial(states, empty=OFF)
_figure_of_watch, _lines_of_watch = partial(figure, empty=NO_WATCH), partial(lines, empty=NO_WATCH)

_TWO_PHASES: Final[Sequence[Panel]] = [
    _figure_of_deletion(
        "Pending records", "Backlog over all partitions and the retry topic.", largest(f"{DELETION}_inflight")
    ),
    figure(
        "Oldest pending record",
        "Age of the oldest pending record.",
        largest(f"{DELETION}_oldest_pending_age_seconds"),
        empty="no record waits",
        unit="s",
        limits={3_600: ORANGE, 86_400: RED},
    ),
    figure(
        "Pending bytes",
        "Estimated from the mean length of ledgers deleted lately.",
        largest(f"{DELETION}_waiting_bytes"),
        empty="no ledger was deleted yet, so no mean length is known",
        unit="bytes",
    ),
    _figure_of_deletion(
        "Dead letters",
        "Records that were given up and not redriven; their ledgers stay.",
        largest(f"{DELETION}_dead_letters"),
        limits=ALARMING,
    ),
    _figure_of_deletion("Topic deletions", "In progress.", largest(f"{DELETION}_topic_deletions_running")),
    _figure_of_deletion(
        "Stuck topic deletions",
        "Deletions that do not continue by themselves.",
        largest(f"{DELETION}_topic_deletions_stuck"),
        limits=ALARMING,
    ),
    figure(
        "Oldest topic deletion",
        "Time since its request.",
        largest(f"{DELETION}_topic_deletions_oldest_age_seconds"),
        empty="none is in progress",
        unit="s",
        limits={3_600: ORANGE, 86_400: RED},
    ),
    _figure_of_deletion("Namespace deletions", "In progress.", largest(f"{DELETION}_namespace_deletions_running")),
    _lines_of_deletion(
        "First phase: records sent",
        "By what the ledgers belong to.",
        {"{{component}}, {{ledger_type}}": rate(f"{DELETION}_sent_total", "component", "ledger_type")},
        unit=PER_SECOND,
        stacked=True,
    ),
    _lines_of_deletion(
        "Second phase: ledgers deleted",
        "By what the ledgers belonged to.",
        {"{{component}}, {{ledger_type}}": rate(f"{DELETION}_deleted_total", "component", "ledger_type")},
        unit=PER_SECOND,
        stacked=True,
    ),
    lines(
        "Decisions",
        "What the sidecar decided about records, and why.",
        {"{{decision}}, {{reason}}": rate(f"{DELETION}_decisions_total", "decision", "reason")},
        empty=NO_EVENT,
        unit=PER_SECOND,
        stacked=True,
    ),
    _lines_of_deletion(
        "Refused or unconfirmed",
        "Deletions that a store refused or did not confirm; the sidecar retries them later.",
        {"{{component}}, {{ledger_type}}": rate(f"{DELETION}_delete_failed_total", "component", "ledger_type")},
        unit=PER_SECOND,
    ),
    _lines_of_deletion(
        "Messages",
        "Received from the pending-deletion topic and its retry topic, and acknowledged.",
        {
            "received": f"sum({rate(f'{DELETION}_received_total')})",
            "acknowledged": f"sum({rate(f'{DELETION}_acknowledged_total')})",
        },
        unit=PER_SECOND,
    ),
    lines(
        "Time of a batch",
        "From receiving a batch to acknowledging it.",
        {
            "median": quantile(0.5, f"{DELETION}_batch_seconds"),
            "99th percentile": quantile(0.99, f"{DELETION}_batch_seconds"),
        },
        empty=NO_EVENT,
        unit="s",
    ),
    _lines_of_deletion(
        "Given up",
        "Records that went to the dead-letter topic after the last try.",
        rate(f"{DELETION}_max_retry_reached_total"),
        unit=PER_SECOND,
    ),
    _lines_of_deletion(
        "Bytes freed",
        "Length of the ledgers deleted, before replication.",
        rate(f"{DELETION}_deleted_bytes_total", "ledger_type"),
        unit="binBps",
    ),
]

_PACE: Final[Sequence[Panel]] = [
    _states_of_deletion(
        "Paused",
        "Whether an operator has paused the second phase.",
        largest(f"{DELETION}_paused"),
        names={0: ("runs", GREEN), 1: ("paused", ORANGE)},
    ),
    lines(
        "Limit set by an operator",
        "Deletions per second.",
        largest(f"{DELETION}_rate_limit_per_second"),
        empty="no limit is set",
        unit=PER_SECOND,
    ),
    lines(
        "Deletions in flight at a time",
        "The limit that the sidecar sets itself, to keep the metadata store responsive.",
        {"{{instance}}": chosen(f"{DELETION}_in_flight_limit")},
        empty="the adaptive limit is off",
    ),
    lines(
        "Metadata store, 99th percentile",
        "Latency of the sidecar's probes, while it is idle and while it deletes.",
        {
            "idle, {{instance}}": chosen(f"{DELETION}_metadata_store_idle_p99_seconds"),
            "deleting, {{instance}}": chosen(f"{DELETION}_metadata_store_working_p99_seconds"),
        },
        empty="the adaptive limit is off, or nothing was deleted yet",
        unit="s",
    ),
]

_WATCH: Final[Sequence[Panel]] = [
    _figure_of_watch("Ledgers", "Ledgers that exist.", largest(f"{DELETION}_watch_ledgers")),
    _figure_of_watch("References", "References to ledgers in nodes.", largest(f"{DELETION}_watch_references")),
    _figure_of_watch(
        "Never linked",
        "Ledgers that no node was ever seen to reference.",
        largest(f"{DELETION}_watch_unlinked_ledgers"),
    ),
    _figure_of_watch(
        "Copies not sought",
        "Copies in tiered storage that lists no longer name, in places that offloadAllowedLocations does not list.",
        largest(f"{DELETION}_watch_unsought_copies"),
    ),
    _figure_of_watch(
        "Unreadable nodes",
        "Nodes that could not be read or understood; while there is one, ledgers that it may name are kept.",
        largest(f"{DELETION}_watch_unreadable_nodes"),
        limits=ALARMING,
    ),
    _figure_of_watch(
        "Behind",
        "Delay between a change and the watch's reading of it.",
        largest(f"{DELETION}_watch_lag_seconds"),
        unit="s",
        limits={10: ORANGE, 60: RED},
    ),
    _figure_of_watch(
        "Last whole reading",
        "Time since its end.",
        f"time() - {largest(f'{DELETION}_watch_walk_timestamp_seconds')}",
        unit="s",
    ),
    _states_of_deletion(
        "State",
        "One sidecar of a cluster watches; the others stand by.",
        {"{{instance}} {{state}}": f"{chosen(f'{DELETION}_watch_state')} == 1"},
        names={1: ("in this state", GREEN)},
    ),
    _lines_of_watch(
        "Unreferenced ledgers",
        "By state: settling (a broker may still delete it), kept, leaked, appended to the pending-deletion topic.",
        {"{{state}}": largest(f"{DELETION}_watch_candidates", "state")},
        stacked=True,
    ),
    _lines_of_watch(
        "Ledgers leaked",
        "By what they lost their last reference; since the watching sidecar took over.",
        {"{{cause}}": largest(f"{DELETION}_watch_leaks_total", "cause")},
        stacked=True,
    ),
    _lines_of_watch(
        "Ledgers appended",
        "Leaked ledgers handed to the second phase since the watching sidecar took over.",
        largest(f"{DELETION}_watch_appended_total"),
    ),
    _lines_of_watch(
        "Vanished references and the brake",
        "References that vanished within 10 minutes while their ledgers stayed. Above the limit the brake engages.",
        {
            "vanished": largest(f"{DELETION}_watch_vanished_references"),
            "limit": largest(f"{DELETION}_watch_brake_limit"),
        },
    ),
    _lines_of_watch(
        "Duration of a whole reading",
        "Of all nodes with references.",
        largest(f"{DELETION}_watch_walk_seconds"),
        unit="s",
    ),
]
