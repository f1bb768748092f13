"""Cancelling, and the delayed indexes of watched topics."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import GREEN, ORANGE, PER_SECOND, RED, Panel, board, figure, lines, states, variable
from deploy.grafana.queries import (
    CANCELLING,
    CLUSTER,
    NO_CANCELLING,
    NO_EVENT,
    chosen,
    increase,
    largest,
    of_topic,
    per_subscription,
    quantile,
    rate,
)

_INDEX: Final = "pulsar_sidecar_delayed_message_index"
_NO_INDEX: Final = "no topic in delayedIndexWatchedTopics has buckets"


def delayed_messages() -> Dashboard:
    return board(
        "pulsar-sidecar-delayed-messages",
        "Pulsar sidecar: delayed messages",
        "Cancelling delayed messages (PIP-423), and the delayed indexes of watched topics (PIP-195).",
        [CLUSTER, variable("topic", "Topic", f"{_INDEX}_bucket_total", of='cluster=~"$cluster"')],
        {"Cancelling": _CANCELLATIONS, "Delayed indexes of watched topics": _INDEXES},
    )


def _rate_of_loads(what: str) -> str:
    loads = of_topic(f"{_INDEX}_bucket_op_latency_ms_{what}")
    return f"sum by (topic, subscription) (rate({loads}[$__rate_interval]))"


_figure_of_cancelling, _lines_of_cancelling = partial(figure, empty=NO_CANCELLING), partial(lines, empty=NO_CANCELLING)
_lines_of_indexes, _states_of_indexes = partial(lines, empty=_NO_INDEX), partial(states, empty=_NO_INDEX)

_CANCELLATIONS: Final[Sequence[Panel]] = [
    _figure_of_cancelling("Open", "Cancellations in the log that have not ended.", largest(f"{CANCELLING}_open")),
    _figure_of_cancelling("Requested", "In the selected time range.", increase(f"{CANCELLING}_requested_total")),
    figure(
        "Refused or failed",
        "In the selected time range.",
        increase(f"{CANCELLING}_refused_total"),
        empty=NO_EVENT,
        limits={1: ORANGE},
    ),
    _figure_of_cancelling(
        "Acknowledged again",
        "Acknowledgements that a cursor had lost, in the selected time range.",
        increase(f"{CANCELLING}_reasserted_total"),
    ),
    _figure_of_cancelling(
        "Reconciling",
        "Sidecars that repeat acknowledgements which a cursor has lost: one per cluster.",
        f"sum by (cluster) ({chosen(f'{CANCELLING}_leading')})",
        limits={0: RED, 1: GREEN, 2: RED},
    ),
    _lines_of_cancelling(
        "Requests", "Messages whose cancellation was requested.", rate(f"{CANCELLING}_requested_total"), unit=PER_SECOND
    ),
    lines(
        "Status reached",
        "Cancellations by the status that they reached. After `persisted` a crash of the broker loses none.",
        {"{{proof}}": rate(f"{CANCELLING}_seconds_count", "proof")},
        empty=NO_EVENT,
        unit=PER_SECOND,
    ),
    _lines_of_cancelling(
        "Readings that failed",
        "Readings of a subscription; its cancellations were not reconciled then.",
        rate(f"{CANCELLING}_reconcile_failed_total"),
        unit=PER_SECOND,
    ),
    lines(
        "Time until a status, 99th percentile",
        "From the request.",
        {"{{proof}}": quantile(0.99, f"{CANCELLING}_seconds", "proof")},
        empty=NO_EVENT,
        unit="s",
    ),
    lines(
        "Refused or failed, by cause",
        "`dispatched`: a consumer may have had the message before.",
        {"{{cause}}": rate(f"{CANCELLING}_refused_total", "cause")},
        empty=NO_EVENT,
        unit=PER_SECOND,
    ),
]

_INDEXES: Final[Sequence[Panel]] = [
    _states_of_indexes(
        "The next load recovers the buckets",
        "Whether a broker that loads the topic continues with its buckets, or reads the whole backlog.",
        per_subscription(f"{_INDEX}_next_load_on_buckets"),
        names={0: ("reads the backlog", RED), 1: ("recovers", GREEN)},
    ),
    _lines_of_indexes("Buckets", "Stored buckets.", per_subscription(f"{_INDEX}_bucket_total")),
    _lines_of_indexes(
        "Bytes of buckets",
        "Bytes that a topic load reads.",
        per_subscription(f"{_INDEX}_bucket_snapshot_size_bytes"),
        unit="bytes",
    ),
    _lines_of_indexes(
        "Indexes in memory",
        "Indexes that a broker would load into memory with the topic.",
        per_subscription(f"{_INDEX}_loaded"),
    ),
    _lines_of_indexes(
        "Unreadable buckets",
        "Buckets whose metadata could not be read.",
        per_subscription(f"{_INDEX}_bucket_unreadable"),
    ),
    _lines_of_indexes(
        "Operations on buckets",
        "The sidecar's own loads, and changes by brokers between two of them.",
        {
            "{{type}}, {{state}}": "sum by (type, state) (rate("
            + of_topic(f"{_INDEX}_bucket_op_count", 'state!="all"')
            + "[$__rate_interval]))"
        },
        unit=PER_SECOND,
    ),
    _lines_of_indexes(
        "Time of the sidecar's loads",
        "Mean time for all buckets of a subscription.",
        {"{{topic}} {{subscription}}": _rate_of_loads("sum") + " / " + _rate_of_loads("count")},
        unit="ms",
    ),
]
