"""Rehearsal of a broker's death, from the results of the other features."""

from pulsar_sidecar.adapters.pulsar_rest.broker_contents import RestBrokerContents
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.bootstrap.feature import Feature, FeatureEntry
from pulsar_sidecar.bootstrap.rehearsed import deletions_under_way, lookups_of
from pulsar_sidecar.features.rehearsal.http import router
from pulsar_sidecar.features.rehearsal.workflow import Rehearsals

_TOPICS_AT_ONCE = 8


def open_feature(cluster: ClusterAccess) -> Feature:
    """Open the feature, which has no loops and no metrics, and reads on request."""
    contents = RestBrokerContents(cluster.store, cluster.owners).contents
    threads = cluster.threads(_TOPICS_AT_ONCE, "rehearsal")
    lookups, clock = lookups_of(cluster), cluster.clock
    return Feature(
        [Rehearsals(contents, lookups, lambda topics: deletions_under_way(cluster.deletion, topics), clock, threads)]
    )


ENTRY = FeatureEntry([router], open_feature)
