"""Acknowledgement states and deduplication of watched topics."""

from collections.abc import Sequence
from functools import partial
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


_lines_of_acks, _states_of_acks = partial(lines, empty=_NO_ACK_STATE), partial(states, empty=_NO_ACK_STATE)
_lines_of_deduplication = partial(lines, empty=_NO_DEDUPLICATION)
_states_of_deduplication = partial(states, empty=_NO_DEDUPLICATION)

_ACK_STATES: Final[Sequence[Panel]] = [
    _states_of_acks(
        "Dispatch is paused",
        "Because acknowledgements do not fit into what the broker stores.",
        per_subscription(f"{_SUBSCRIPTION}_blocked_on_ack_state_persistent"),
        names={0: ("dispatches", GREEN), 1: ("paused", RED)},
    ),
    _lines_of_acks(
        "Acknowledgements that fit, used",
        "Ranges that the cursor holds, relative to the maximum that the broker stores.",
        per_subscription(f"{_SUBSCRIPTION}_ack_state_ranges", f"{_SUBSCRIPTION}_ack_state_max_ranges"),
        unit="percentunit",
    ),
    *(
        _lines_of_acks(
            f"Bytes of {whose}, used",
            f"Share of {whose} that the cursor's next write uses.",
            per_subscription(f"{_SUBSCRIPTION}_ack_state_{name}_bytes", f"{_SUBSCRIPTION}_ack_state_max_{name}_bytes"),
            unit="percentunit",
        )
        for name, whose in (("entry", "an entry"), ("node", "the cursor's node"))
    ),
    _lines_of_acks(
        "Ranges",
        "Ranges of acknowledgements that the cursor holds.",
        per_subscription(f"{_SUBSCRIPTION}_ack_state_ranges"),
    ),
    _lines_of_acks(
        "Lost if the broker died now",
        "Acknowledged entries that brokers would deliver again.",
        per_subscription(f"{_SUBSCRIPTION}_ack_state_unstored_entries"),
    ),
]

_SNAPSHOTS: Final[Sequence[Panel]] = [
    _lines_of_deduplication(
        "A load would replay for",
        "Estimated time for which no client could use the topic.",
        per_topic(f"{_DEDUPLICATION}_load_replay_seconds"),
        unit="s",
    ),
    _lines_of_deduplication(
        "Entries after the snapshot",
        "Entries that a topic load replays.",
        per_topic(f"{_DEDUPLICATION}_snapshot_lag_entries"),
    ),
    _lines_of_deduplication(
        "Age of the snapshot",
        "0 if nothing came after it.",
        per_topic(f"{_DEDUPLICATION}_snapshot_lag_seconds"),
        unit="s",
    ),
    _lines_of_deduplication(
        "Producers in the snapshot",
        "Relative to the maximum that brokers store.",
        per_topic(f"{_DEDUPLICATION}_producers", f"{_DEDUPLICATION}_max_producers"),
        unit="percentunit",
    ),
    _lines_of_deduplication(
        "Bytes retained by the deduplication cursor",
        "All bytes, and those that no other cursor retains.",
        per_topic(f"{_DEDUPLICATION}_pinned_bytes")
        | {"{{topic}}, alone": per_topic(f"{_DEDUPLICATION}_pinned_alone_bytes")["{{topic}}"]},
        unit="bytes",
    ),
    _states_of_deduplication(
        "Cursor without deduplication",
        "A cursor that was left over retains every ledger after its position.",
        per_topic(f"{_DEDUPLICATION}_cursor_left_over"),
        names={0: ("none", GREEN), 1: ("left over", RED)},
    ),
    _states_of_deduplication(
        "State could be read",
        "Whether the last check could read everything.",
        per_topic(f"{_DEDUPLICATION}_unreadable"),
        names={0: ("yes", GREEN), 1: ("no", RED)},
    ),
]
