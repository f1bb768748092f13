"""Metrics of acknowledgement states (PIP-299)."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pulsar_sidecar.features.acknowledgements.results import AckState

_GAUGES: dict[str, tuple[str, Callable[[AckState], float | None]]] = {
    "blocked_on_ack_state_persistent": (
        "1 while dispatch is paused because acknowledgements do not fit; absent if unknown.",
        lambda state: state.blocked_on_ack_state_persistent,
    ),
    "ack_state_ranges": (
        "Ranges of acknowledgements that the cursor holds.",
        lambda state: state.non_contiguous_deleted_messages_ranges,
    ),
    "ack_state_max_ranges": (
        "Maximum number of ranges that the broker stores.",
        lambda state: state.max_unacked_ranges_to_persist,
    ),
    "ack_state_entry_bytes": (
        "Bytes of the cursor's next entry, with properties and batches acknowledged in part.",
        lambda state: state.entry_bytes,
    ),
    "ack_state_max_entry_bytes": (
        "Maximum bytes of an entry of the cursor's ledger (maxMessageSize).",
        lambda state: state.max_entry_bytes,
    ),
    "ack_state_node_bytes": ("Bytes of the cursor's node, if it held everything.", lambda state: state.node_bytes),
    "ack_state_max_node_bytes": (
        "Maximum bytes of the cursor's node (juteMaxBufferBytes).",
        lambda state: state.max_node_bytes,
    ),
    "ack_state_unstored_entries": (
        "Acknowledged entries that brokers would deliver again if the owning broker died now.",
        lambda state: state.after_crash.entries,
    ),
}


class AckStateMetrics(Collector):
    """Subscriptions that are watched or were requested lately; others disappear."""

    def __init__(self, cluster: str, read: Callable[[], Sequence[AckState]]) -> None:
        """``read`` returns the known states from memory, and bounds their number."""
        self._cluster = cluster
        self._read = read

    def collect(self) -> Iterator[Metric]:
        states = self._read()
        for name, (text, value_of) in _GAUGES.items():
            family = GaugeMetricFamily(f"pulsar_subscription_{name}", text, labels=("cluster", "topic", "subscription"))
            for state in states:
                if (value := value_of(state)) is not None:
                    family.add_metric([self._cluster, state.topic, state.subscription], float(value))
            yield family
