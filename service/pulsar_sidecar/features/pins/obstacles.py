"""Decide what loading an unloaded topic would do besides trimming it: pure, from facts.

A loaded topic is subject to every periodic check of its broker, also in the seconds in which the sweep has it loaded:
deletion of inactive topics, expiry of subscriptions, expiry and eviction of messages. Invariant: a policy that cannot
be read is an obstacle.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pulsar_sidecar.features.pins.decide import Pin, pins_of
from pulsar_sidecar.features.pins.facts import TopicFacts
from pulsar_sidecar.features.pins.results import Obstacle, PinCause
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.topic_stats import REPLICATOR_PREFIX, SYSTEM_SUBSCRIPTIONS

_WAITING = frozenset({PinCause.BACKLOG, PinCause.ACKNOWLEDGEMENT_HOLES, PinCause.DELAYED_MESSAGES})


@dataclass(frozen=True, slots=True)
class LoadingPolicies:
    """Policies that brokers apply to a topic once it is loaded.

    Attributes:
        is_being_deleted: True if the deletion of the namespace, or of the partitioned topic, has begun.
        is_shadow: True if the partitioned topic's node makes it a shadow.
        is_of_this_cluster: False if its replication clusters do not include this one; brokers then delete it.
        deletes_inactive: True for ``deleteWhileInactive``.
        spares_subscriptions: True if an inactive topic with subscriptions is not deleted.
        subscription_expiry_minutes: time after which brokers delete inactive subscriptions; 0 for never.
        message_ttl_seconds: time after which brokers skip messages; 0 for never.
        evicts_backlog: True if a backlog quota skips messages (``consumer_backlog_eviction``).
    """

    is_being_deleted: bool = False
    is_shadow: bool = False
    is_of_this_cluster: bool = True
    deletes_inactive: bool = False
    spares_subscriptions: bool = True
    subscription_expiry_minutes: int = 0
    message_ttl_seconds: int = 0
    evicts_backlog: bool = False


def left_by_brokers(facts: TopicFacts) -> Pin | None:
    """Return the pin of the ledgers that nothing but the missing load holds; None if there are none."""
    return next((pin for pin in pins_of(facts) if pin.cause is PinCause.NOT_LOADED), None)


def obstacle_to(facts: TopicFacts, policies: LoadingPolicies | Unreadable) -> tuple[Obstacle, str] | None:
    """Return the first harm that loading the topic may do, with its evidence; None if it only trims the topic."""
    return next(_obstacles(facts, policies), None)


def _obstacles(facts: TopicFacts, policies: LoadingPolicies | Unreadable) -> Iterator[tuple[Obstacle, str]]:
    if isinstance(policies, Unreadable):
        yield Obstacle.UNREADABLE_POLICIES, policies.reason
        return
    if policies.is_being_deleted:
        yield Obstacle.BEING_DELETED, "its deletion, or its namespace's, has begun"
    if policies.is_shadow:
        yield Obstacle.SHADOW, "brokers would delete its source's ledgers"
    if not policies.is_of_this_cluster:
        yield Obstacle.OTHER_CLUSTERS, "its replication clusters do not include this one: brokers delete it on loading"
    subscriptions = [
        each.subscription
        for each in facts.cursors
        if each.subscription not in SYSTEM_SUBSCRIPTIONS and not each.subscription.startswith(f"{REPLICATOR_PREFIX}.")
    ]
    if policies.deletes_inactive and not (subscriptions and policies.spares_subscriptions):
        yield (
            Obstacle.INACTIVE,
            "brokers delete it with its schema once it is loaded and inactive (brokerDeleteInactiveTopicsEnabled)",
        )
    if policies.subscription_expiry_minutes > 0 and subscriptions:
        minutes = policies.subscription_expiry_minutes
        yield Obstacle.SUBSCRIPTIONS_EXPIRE, f"brokers delete subscriptions that were inactive for {minutes:,} minutes"
    if any(pin.cause in _WAITING for pin in pins_of(facts)):
        if policies.message_ttl_seconds > 0:
            yield Obstacle.MESSAGES_EXPIRE, f"brokers skip messages older than {policies.message_ttl_seconds:,} seconds"
        if policies.evicts_backlog:
            yield Obstacle.MESSAGES_EXPIRE, "a backlog quota makes brokers skip messages (consumer_backlog_eviction)"
