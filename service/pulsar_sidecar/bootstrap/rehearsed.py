"""Results of the other features for a rehearsal, because features do not import each other."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pulsar_sidecar.adapters.pulsar_rest.broker_trackers import RestBrokerTrackers
from pulsar_sidecar.adapters.pulsar_rest.deduplication_policies import BrokerDeduplicationPolicies
from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.features.acknowledgements.results import AckState
from pulsar_sidecar.features.acknowledgements.states import DetailOptions
from pulsar_sidecar.features.acknowledgements.workflow import AckStateService, Ports
from pulsar_sidecar.features.deduplication.inspection.policy_changes import Policies
from pulsar_sidecar.features.deduplication.policies import DeduplicationPolicy
from pulsar_sidecar.features.deduplication.replay_cost import ASSUMPTION, replay_seconds
from pulsar_sidecar.features.deduplication.stored import StoredDeduplications
from pulsar_sidecar.features.delayed_index.inspection.forecast import LOAD_ASSUMPTIONS, Forecaster, sum_of_costs
from pulsar_sidecar.features.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.features.rehearsal.ports import Indexing, Replay
from pulsar_sidecar.features.rehearsal.results import RehearsedDeletion, RehearsedSubscription
from pulsar_sidecar.model.errors import DisabledError, TemporaryError
from pulsar_sidecar.model.lookups import Absent, Unreadable, demanded
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import SubscriptionType

_BRIEF = DetailOptions(ranges=3, stretches=0)
_INDIVIDUAL = {kind.value for kind in SubscriptionType if kind.dispatches_to_many}


def lookups_of(cluster: ClusterAccess) -> "FeaturesLookups":
    """Return look-ups by services of their own: those of the features remember their calls, for metrics."""
    store, clock, rest, lengths = cluster.store, cluster.clock, cluster.rest, cluster.lengths
    ports = Ports(cluster.ack_states, cluster.cursors, cluster.ack_states, cluster.endangered_source)
    trackers = RestBrokerTrackers(rest, store)
    return FeaturesLookups(
        cluster.closing(AckStateService(ports, clock)),
        StoredDeduplications(store, cluster.cursors, lengths, cluster.cursors),
        BrokerDeduplicationPolicies(rest, store, cluster.owners),
        Forecaster(cluster.stored_indexes, lengths, lambda: trackers.configured(None), clock),
    )


@dataclass(frozen=True, slots=True)
class FeaturesLookups:
    """The rehearsal's `TopicLookups`."""

    states: AckStateService
    snapshots: StoredDeduplications
    policies: Policies
    indexes: Forecaster

    def subscriptions(self, topic: TopicName, broker: str) -> Sequence[RehearsedSubscription]:
        states = self.states.ack_states(topic, None, _BRIEF)
        moved = next((state.broker for state in states if state.broker not in (None, broker)), None)
        if moved is not None:
            raise TemporaryError(f"it has moved to {moved} meanwhile")
        return [_subscription(state) for state in states]

    def replay(self, topic: TopicName) -> Replay:
        """Read from brokers the policies only of a topic with a snapshot; a topic without one replays nothing."""
        for _, found in self.snapshots.read([topic]):
            stored = demanded(found, f"the list of ledgers of {topic}")
            snapshot = stored.snapshot
            if isinstance(snapshot, Unreadable):
                raise TemporaryError(f"the snapshot cannot be read: {snapshot.reason}")
            if isinstance(snapshot, Absent) or topic.is_system_topic:
                continue
            since = stored.since
            if since is None:
                raise TemporaryError(f"the entries after the snapshot cannot be counted: {stored.unmeasured}")
            if self.policies.of_topic(DeduplicationPolicy.ENABLED, topic).applied:
                return Replay(since.entries, since.size_bytes, replay_seconds(since), snapshot.lost)
            # The next owner deletes the cursor of a topic that is not deduplicated.
        return Replay()

    def indexing(self, topic: TopicName, subscriptions: Collection[str]) -> Indexing:
        forecast = self.indexes.of_topic(topic)
        found = [one for place in forecast.worst for one in place.subscriptions if one.subscription in subscriptions]
        if len(found) < len(subscriptions):
            raise TemporaryError("; ".join(forecast.unreadable) or f"not all subscriptions of {topic} are stored yet")
        cost = sum_of_costs(one.as_configured for one in found)
        unusable = (f"{one.subscription}: {one.unusable}" for one in found if one.unusable)
        return Indexing(cost.entries, cost.seconds, tuple(unusable) if forecast.buckets_configured else ())

    def assumptions(self) -> Sequence[str]:
        return ASSUMPTION, LOAD_ASSUMPTIONS[0]


def deletions_under_way(deletion: LedgerDeletion, topics: Collection[TopicName]) -> Sequence[RehearsedDeletion] | None:
    """Return the deletions of these topics, or of their namespaces; None where two-phase deletion is off."""
    bases, namespaces = {topic.base for topic in topics}, {topic.namespace for topic in topics}
    try:
        return [
            *(
                RehearsedDeletion(one.subject, one.operation_id, one.state.value)
                for one in deletion.topic_deletions()
                if one.topic_name is None or one.topic_name.base in bases
            ),
            *(
                RehearsedDeletion(one.namespace, one.operation_id, one.state.value)
                for one in deletion.namespace_deletions()
                if one.namespace in namespaces
            ),
        ]
    except DisabledError:
        return None


def _subscription(state: AckState) -> RehearsedSubscription:
    """Return the part of a state that matters; brokers count unacknowledged messages only of some types."""
    read = state.read_unacknowledged_entries if state.consumers else 0
    return RehearsedSubscription(
        subscription=state.subscription,
        type=state.type,
        acknowledged_again=state.after_crash.entries,
        ranges=state.after_crash.ranges,
        loadable=state.loadable,
        delayed=state.msg_delayed,
        in_flight=state.unacked_messages if state.type in _INDIVIDUAL else read,
    )
