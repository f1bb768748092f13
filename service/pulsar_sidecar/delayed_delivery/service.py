"""The service as its doors see it: the calls a caller makes and what they answer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pulsar_sidecar.delayed_delivery.cancel.requests import Cancellation, CancelOptions, Outcome, Target
from pulsar_sidecar.delayed_delivery.cancel.select import Preview, Selection
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.positions import Position


@dataclass(frozen=True, slots=True)
class Reissued:
    """A message that was cancelled and published again.

    Attributes:
        message_id: the new one's, as Java prints it; None when none is known to be published.
        deliver_at_ms: the new one's due time, None for "now".
        outcome: what became of the old one.
    """

    message_id: str | None
    deliver_at_ms: int | None
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class CancelStatus:
    """The state of the service."""

    enabled: bool
    asserting: bool
    open_cancellations: int
    log_read: bool
    last_error: str | None


class DelayedDeliveryService(Protocol):
    """Cancelling delayed messages. Every call may be repeated.

    Topics may be partitioned; a target then names its partition, or the partition is found by its ledger.
    """

    def cancel(self, topic: TopicName, targets: Sequence[Target], options: CancelOptions) -> list[Outcome]:
        """One outcome for each target, in order.

        Raises:
            NotFoundError: there is no such topic.
            DisabledError: cancelling is switched off.
            TemporaryError: brokers could not be asked; nothing was acknowledged that is not in the log.
        """
        ...

    def cancellations(self, topic: TopicName, position: Position) -> list[Cancellation]:
        """What is known of one message, by subscription.

        Raises:
            NotFoundError: nothing is known of it.
        """
        ...

    def preview(self, topic: TopicName, selection: Selection) -> Preview:
        """What a selection would cancel; nothing is changed.

        Raises:
            InvalidInputError: the selection selects everything or nothing.
        """
        ...

    def cancel_selected(
        self, topic: TopicName, selection: Selection, confirmed_hash: str, options: CancelOptions
    ) -> Iterator[Outcome]:
        """Cancel exactly what was previewed.

        Raises:
            ConflictError: the selection finds other messages now.
        """
        ...

    def reissue(self, topic: TopicName, target: Target, deliver_at_ms: int | None, options: CancelOptions) -> Reissued:
        """Publish a message again, now (expedite) or with another due time (reschedule), and cancel the old one.

        At most one copy is ever published; asking again finds it. Where the old message is dispatched meanwhile, both
        are delivered.

        Raises:
            NotFoundError: there is no such topic.
            PermanentError: the message cannot be published again as it is.
        """
        ...

    def cancelling_status(self) -> CancelStatus:
        """How the service is."""
        ...


REPLACES_PROPERTY = "pulsar-sidecar-replaces"
"""On a message that was published again: the message id of the one it stands for."""


def linked(old: Position, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The properties that a reissued message gets beside its own."""
    return {REPLACES_PROPERTY: str(old), **(more or {})}
