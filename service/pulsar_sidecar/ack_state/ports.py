"""What reading acknowledgement states needs from the world, as small protocols that fakes and adapters satisfy alike.

Every method raises `TemporaryError` when the other side could not be asked. No method creates a topic or a
subscription; asking about a topic loads it on its broker.
"""

from collections.abc import Mapping
from typing import Protocol

from pulsar_sidecar.ack_state.limits import AckStateLimits, PauseSettings
from pulsar_sidecar.ack_state.stored import StoredCursor
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import Cursor, TopicInternalStats, TopicStats


class SubscriptionStats(Protocol):
    """What brokers report about a topic's subscriptions."""

    def partitions(self, topic: TopicName) -> int | None:
        """How many partitions the topic has, 0 for an unpartitioned one; None when a broker knows no such topic."""

    def stats(self, topic: TopicName) -> TopicStats:
        """The topic's subscriptions; `NotFoundError` when there is no such topic."""

    def internal_stats(self, topic: TopicName) -> TopicInternalStats:
        """The topic's ledgers and cursors; `NotFoundError` when there is no such topic."""

    def limits(self, broker: str | None) -> AckStateLimits:
        """That broker's limits (``host:port`` of its web service; None: any broker's); may be some seconds old."""


class StoredCursors(Protocol):
    """The stored state of cursors."""

    def stored(
        self,
        topic: TopicName,
        subscription: str,
        lengths: Mapping[LedgerId, int],
        cursor: Cursor,
    ) -> StoredCursor | None:
        """What a broker would recover; None for a subscription that has no cursor in the store (a reader's).

        Args:
            topic: a partition, or a topic without partitions.
            subscription: its name.
            lengths: the entries of each of the topic's ledgers.
            cursor: as its broker holds it.

        Raises:
            TemporaryError: the cursor's ledger is another one by now; look at the broker again.
        """


class PausePolicies(Protocol):
    """``dispatcherPauseOnAckStatePersistentEnabled`` on each level that has it."""

    def policies(self, topic: TopicName, broker: str | None) -> PauseSettings:
        """What is set for the topic, for its namespace and in its owning broker's configuration.

        Raises:
            NotFoundError: there is no such topic, or no such namespace.
        """

    def of_namespace(self, namespace: str) -> bool | None:
        """The namespace's policy, None if it has none.

        Raises:
            NotFoundError: there is no such namespace.
        """

    def enable_for_namespace(self, namespace: str) -> None:
        """Set it to true."""

    def remove_from_namespace(self, namespace: str) -> bool | None:
        """Remove the namespace's policy; the policy afterwards, which is None if that worked."""

    def enable_for_topic(self, topic: TopicName) -> None:
        """Set it to true on the topic itself."""

    def remove_from_topic(self, topic: TopicName) -> None:
        """Have the broker remove it; brokers up to 4.0.8 store false instead."""
