"""Acknowledgement states and deduplication of watched topics."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.panels import GREEN, RED, Panel, board, lines, states, variable
from deploy.grafana.queries import CLUSTER, per_subscription, per_topic

_DEDUPLICATION: Final = "pulsar_sidecar_deduplication"
_SUBSCRIPTION: Final = "pulsar_subscription"
_NO_ACK_STATE: Final = "no topic in ackStateWatchedTopics"
_NO_DEDUPLICATION: Final = "no topic in deduplicationWatchedTopics"
_WATCHED: Final = '__name__=~"pulsar_subscription_.+|pulsar_sidecar_deduplication_.+"'


def watched_topics() -> Dashboard:
    return board(
        "pulsar-sidecar-watched-topics",
        "Pulsar sidecar: watched topics",
        "Acknowledgement states (PIP-299) and deduplication (PIP-6) of the topics that are watched.",
        [CLUSTER, variable("topic", "Topic", "", of=f'{_WATCHED}, cluster=~"$cluster"')],
        {"Acknowledgement states": _ACK_STATES, "Deduplication": _SNAPSHOTS},
    )


_ACK_STATES: Final[Sequence[Panel]] = [
    states(
        "Dispatch is paused",
        "Because acknowledgements do not fit into what the broker stores.",
        {"{{topic}} {{subscription}}": per_subscription(f"{_SUBSCRIPTION}_blocked_on_ack_state_persistent")},
        empty=_NO_ACK_STATE,
        names={0: ("dispatches", GREEN), 1: ("paused", RED)},
    ),
    lines(
        "Acknowledgements that fit, used",
        "Ranges that the cursor holds, of those that the broker stores at most.",
        {
            "{{topic}} {{subscription}}": per_subscription(
                f"{_SUBSCRIPTION}_ack_state_ranges", f"{_SUBSCRIPTION}_ack_state_max_ranges"
            )
        },
        empty=_NO_ACK_STATE,
        unit="percentunit",
    ),
    *(
        lines(
            f"Bytes of {whose}, used",
            f"What the cursor's next write takes of what {whose} may have.",
            {
                "{{topic}} {{subscription}}": per_subscription(
                    f"{_SUBSCRIPTION}_ack_state_{name}_bytes", f"{_SUBSCRIPTION}_ack_state_max_{name}_bytes"
                )
            },
            empty=_NO_ACK_STATE,
            unit="percentunit",
        )
        for name, whose in (("entry", "an entry"), ("node", "the cursor's node"))
    ),
    lines(
        "Ranges",
        "Of acknowledgements that the cursor holds.",
        {"{{topic}} {{subscription}}": per_subscription(f"{_SUBSCRIPTION}_ack_state_ranges")},
        empty=_NO_ACK_STATE,
    ),
    lines(
        "Lost if the broker died now",
        "Acknowledged entries that brokers would deliver again.",
        {"{{topic}} {{subscription}}": per_subscription(f"{_SUBSCRIPTION}_ack_state_unstored_entries")},
        empty=_NO_ACK_STATE,
    ),
]

_SNAPSHOTS: Final[Sequence[Panel]] = [
    lines(
        "A load would replay for",
        "Estimated time for which no client could use the topic.",
        {"{{topic}}": per_topic(f"{_DEDUPLICATION}_load_replay_seconds")},
        empty=_NO_DEDUPLICATION,
        unit="s",
    ),
    lines(
        "Entries after the snapshot",
        "Which a topic load replays.",
        {"{{topic}}": per_topic(f"{_DEDUPLICATION}_snapshot_lag_entries")},
        empty=_NO_DEDUPLICATION,
    ),
    lines(
        "Age of the snapshot",
        "0 if nothing came after it.",
        {"{{topic}}": per_topic(f"{_DEDUPLICATION}_snapshot_lag_seconds")},
        empty=_NO_DEDUPLICATION,
        unit="s",
    ),
    lines(
        "Producers in the snapshot",
        "Of as many as brokers store.",
        {"{{topic}}": per_topic(f"{_DEDUPLICATION}_producers", f"{_DEDUPLICATION}_max_producers")},
        empty=_NO_DEDUPLICATION,
        unit="percentunit",
    ),
    lines(
        "Bytes retained by the deduplication cursor",
        "All of them, and those that no other cursor retains.",
        {
            "{{topic}}": per_topic(f"{_DEDUPLICATION}_pinned_bytes"),
            "{{topic}}, alone": per_topic(f"{_DEDUPLICATION}_pinned_alone_bytes"),
        },
        empty=_NO_DEDUPLICATION,
        unit="bytes",
    ),
    states(
        "Cursor without deduplication",
        "A cursor that was left over retains every ledger after its position.",
        {"{{topic}}": per_topic(f"{_DEDUPLICATION}_cursor_left_over")},
        empty=_NO_DEDUPLICATION,
        names={0: ("none", GREEN), 1: ("left over", RED)},
    ),
    states(
        "State could be read",
        "Whether the last check could read everything.",
        {"{{topic}}": per_topic(f"{_DEDUPLICATION}_unreadable")},
        empty=_NO_DEDUPLICATION,
        names={0: ("yes", GREEN), 1: ("no", RED)},
    ),
]
