"""Acknowledgement states (PIP-299)."""

from pulsar_sidecar.ack_state.metrics import AckStateMetrics
from pulsar_sidecar.ack_state.states import DetailOptions
from pulsar_sidecar.ack_state.survey import AckStateSurveyor
from pulsar_sidecar.ack_state.workflow import AckStateService, Ports, RememberedSurveys
from pulsar_sidecar.api.rooms.ack_state import router
from pulsar_sidecar.api.rooms.stored_ack_states import stored_router
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.room import Room, RoomEntry, topic_watch

_TOPICS_AT_ONCE = 8


def open_ack_state(cluster: ClusterAccess) -> Room:
    """The states of watched topics are read again and again, for the metrics."""
    settings = cluster.settings
    ports = Ports(cluster.ack_states, cluster.cursors, cluster.ack_states, cluster.shadows.endangered_source)
    states = cluster.closing(AckStateService(ports, cluster.clock))
    watch = topic_watch(
        cluster,
        "ack-state-watch",
        lambda topic: states.ack_states(topic, None, DetailOptions(ranges=0, histogram_bins=0)),
        settings.ack_state_watched_topics,
        settings.ack_state_watch_interval_in_seconds,
    )
    metrics = AckStateMetrics(cluster.cluster_name, states.recent)
    threads = cluster.threads(_TOPICS_AT_ONCE, "ack-state-survey")
    surveyor = AckStateSurveyor(
        cluster.store, cluster.cursors, cluster.lengths, cluster.ack_states, cluster.clock, threads.map
    )
    return Room([states, RememberedSurveys(surveyor, cluster.clock)], watch.start, watch.close, collectors=[metrics])


ENTRY = RoomEntry([router, stored_router], open_ack_state)
