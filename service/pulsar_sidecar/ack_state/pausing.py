"""Whether a broker stops dispatching because a cursor's acknowledgements do not fit any more (PIP-299).

The broker itself tells nobody. It decides anew after each acknowledgement: dispatch pauses while the policy that is in
effect says so and the cursor holds more ranges than may be written down.
"""

from dataclasses import dataclass
from enum import Enum

from pulsar_sidecar.ack_state.limits import AckStateLimits, fully_persistable
from pulsar_sidecar.model.topic_stats import SubscriptionType


class TopicPolicy(Enum):
    """What a topic's own policy says, as far as brokers tell.

    To a question about a topic up to 4.0.8 answers false, whether it says false or nothing.
    """

    TRUE = "true"
    FALSE_OR_UNSET = "false or unset"


class PauseState(Enum):
    """Where a subscription stands."""

    OFF = "off"
    """No policy asks for a pause: what does not fit is forgotten when the broker goes."""
    NOT_APPLICABLE = "not applicable"
    """Enabled, but the subscription is not Shared or Key_Shared, and only these pause."""
    ARMED = "armed"
    """Enabled, and everything fits."""
    IN_FORCE = "in force"
    """Enabled, and there are too many ranges: no new messages are read; due delayed ones and redeliveries still are."""
    UNKNOWN = "unknown"
    """There are too many ranges, and it cannot be told from outside whether the topic's policy overrides the rest."""


@dataclass(frozen=True, slots=True)
class Policies:
    """``dispatcherPauseOnAckStatePersistentEnabled`` on every level; a topic's goes before its namespace's.

    ``namespace`` None means that its policies say nothing; ``broker`` is the owner's configuration.
    """

    topic: TopicPolicy
    namespace: bool | None
    broker: bool

    @property
    def enabled(self) -> bool | None:
        """What is in effect; None when it cannot be told, because a topic's false would override a true."""
        if self.topic is TopicPolicy.TRUE:
            return True
        inherited = self.broker if self.namespace is None else self.namespace
        return None if inherited else False


def pause_state(kind: SubscriptionType, ranges: int, policies: Policies, limits: AckStateLimits) -> PauseState:
    """The state after the subscription's next acknowledgement at the latest; ``ranges`` are its cursor's."""
    enabled = policies.enabled
    if enabled is False:
        return PauseState.OFF
    if not kind.dispatches_to_many:
        return PauseState.NOT_APPLICABLE
    if fully_persistable(ranges, limits):
        return PauseState.ARMED
    return PauseState.UNKNOWN if enabled is None else PauseState.IN_FORCE


def blocked(state: PauseState) -> bool | None:
    """PIP-299's ``isBlockedOnAckStatePersistent``; None when it cannot be told."""
    return None if state is PauseState.UNKNOWN else state is PauseState.IN_FORCE
