"""The room as its doors see it: the calls an operator makes and what they answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pulsar_sidecar.ack_state.judging import AckState, Wishes
from pulsar_sidecar.ack_state.pausing import Policies
from pulsar_sidecar.model.names import TopicName


@dataclass(frozen=True, slots=True)
class PauseRemoval:
    """What became of removing a policy.

    Attributes:
        removed: whether nothing is set on that level now.
        in_effect: whether dispatch pauses now where this level decides; None when it cannot be told.
        remark: what the caller should know.
    """

    removed: bool
    in_effect: bool | None
    remark: str | None = None


class AckStateService(Protocol):
    """Acknowledgement states (PIP-299)."""

    def ack_states(self, topic: TopicName, subscription: str | None, wishes: Wishes) -> Sequence[AckState]:
        """The states of one subscription, or of all: one for each partition.

        Raises:
            NotFoundError: there is no such topic, or no such subscription.
            TemporaryError: it could not be read.
        """
        ...

    def topic_pause(self, topic: TopicName) -> Policies:
        """What is set for a topic on each level."""
        ...

    def enable_topic_pause(self, topic: TopicName) -> None:
        """Have brokers pause dispatch of the topic's subscriptions when their state no longer fits."""
        ...

    def remove_topic_pause(self, topic: TopicName, *, force: bool) -> PauseRemoval:
        """Take the topic's own policy away.

        Raises:
            ConflictError: the broker would store false, and so switch off what namespace or broker say; not with
                ``force``.
        """
        ...

    def namespace_pause(self, namespace: str) -> bool | None:
        """What the namespace's policies say, None for nothing."""
        ...

    def enable_namespace_pause(self, namespace: str) -> None:
        """The same for a namespace's topics, as far as they do not say otherwise."""
        ...

    def remove_namespace_pause(self, namespace: str) -> PauseRemoval:
        """Make the namespace say nothing again."""
        ...
