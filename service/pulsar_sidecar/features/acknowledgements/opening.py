"""Acknowledgement states (PIP-299)."""

from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.feature import Feature, FeatureEntry, topic_watch
from pulsar_sidecar.features.acknowledgements.http import router, stored_router
from pulsar_sidecar.features.acknowledgements.metrics import AckStateMetrics
from pulsar_sidecar.features.acknowledgements.states import DetailOptions
from pulsar_sidecar.features.acknowledgements.survey import AckStateSurveyor
from pulsar_sidecar.features.acknowledgements.workflow import AckStateService, CachedSurveys, Ports

_TOPICS_AT_ONCE = 8


def open_feature(cluster: ClusterAccess) -> Feature:
    """Open the feature; it reads the states of watched topics periodically, for the metrics."""
    settings, clock, stats = cluster.settings, cluster.clock, cluster.ack_states
    ports = Ports(stats, cluster.cursors, stats, cluster.endangered_source)
    states = cluster.closing(AckStateService(ports, clock))
    watch = topic_watch(
        cluster,
        "ack-state-watch",
        lambda topic: states.ack_states(topic, None, DetailOptions(ranges=0, stretches=0)),
        settings.ack_state_watched_topics,
        settings.ack_state_watch_interval_in_seconds,
    )
    metrics = AckStateMetrics(cluster.cluster_name, states.recent)
    threads = cluster.threads(_TOPICS_AT_ONCE, "ack-state-survey")
    surveyor = AckStateSurveyor(cluster.store, cluster.cursors, cluster.lengths, stats, stats, clock, threads.map)
    return Feature([states, CachedSurveys(surveyor, clock)], watch.start, watch.close, collectors=[metrics])


ENTRY = FeatureEntry([router, stored_router], open_feature)
