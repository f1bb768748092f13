"""Ports of acknowledgement states, as small protocols that fakes and adapters satisfy alike.

Every method raises `TemporaryError` when the other side could not be queried. No method creates a topic or a
subscription; a query about a topic loads it on its broker.
"""

from collections.abc import Mapping
from typing import Protocol

from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits, PauseSettings
from pulsar_sidecar.features.acknowledgements.stored import StoredCursor
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import Cursor, TopicInternalStats, TopicStats


class SubscriptionStats(Protocol):
    """Statistics of brokers on a topic's subscriptions."""

    def partitions(self, topic: TopicName) -> int | None:
        """Return the number of partitions, 0 for an unpartitioned topic; None if the topic does not exist."""

    def stats(self, topic: TopicName) -> TopicStats:
        """Return the topic's subscriptions; `NotFoundError` if there is no such topic."""

    def internal_stats(self, topic: TopicName) -> TopicInternalStats:
        """Return the topic's ledgers and cursors; `NotFoundError` if there is no such topic."""

    def limits(self, broker: str | None) -> AckStateLimits:
        """Return a broker's limits (``host:port`` of its web service; None: any broker's); may be some seconds old."""


class StoredCursors(Protocol):
    """Stored state of cursors."""

    def stored(
        self,
        topic: TopicName,
        subscription: str,
        lengths: Mapping[LedgerId, int],
        cursor: Cursor,
    ) -> StoredCursor | None:
        """Return the state that a broker would recover; None for a subscription without a stored cursor (a reader's).

        Raises:
            TemporaryError: the cursor has moved to another ledger; query the broker again.
        """


class PausePolicies(Protocol):
    """Values of ``dispatcherPauseOnAckStatePersistentEnabled`` on each level that has it."""

    def policies(self, topic: TopicName, broker: str | None) -> PauseSettings:
        """Return the values of the topic, of its namespace, and of its owning broker's configuration.

        Raises:
            NotFoundError: there is no such topic, or no such namespace.
        """

    def of_namespace(self, namespace: str) -> bool | None:
        """Return the namespace's policy, None if it has none.

        Raises:
            NotFoundError: there is no such namespace.
        """

    def enable_for_namespace(self, namespace: str) -> None:
        """Set the namespace's policy to true."""

    def remove_from_namespace(self, namespace: str) -> bool | None:
        """Remove the namespace's policy, and return the policy afterwards, which is None if that worked."""

    def enable_for_topic(self, topic: TopicName) -> None:
        """Set the topic's own policy to true."""

    def remove_from_topic(self, topic: TopicName) -> None:
        """Let the broker remove the topic's own policy; brokers up to 4.0.8 store false instead."""
