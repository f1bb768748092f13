"""Cluster settings that would stop retries or lose records, put right for our own topics as far as brokers let us.

Retries wait on the retry topic by delayed delivery, which brokers may have switched off or limited to short delays; a
policy of that topic outranks both. And subscriptions may expire, with everything that waits in them while no sidecar
runs; there is no policy of a topic for that, only the namespace's, which is set where nobody has set it.

Invariant: nothing here fails; what cannot be put right is told, and the service goes on without it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.topics.confirmed_steps import ConfirmedSteps
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.names import TopicName

_DELAYS: Final = "delayedDelivery"
_ANY_DELAY: Final = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}
_EXPIRATION: Final = "subscriptionExpirationTime"
_NEVER: Final = 0


@dataclass(slots=True)
class RetryConditions:
    """What the brokers do to retries and to subscriptions.

    Attributes:
        most_delay_ms: brokers refuse messages with a longer delay; None for any delay, 0 where nothing is delayed.
        warnings: what could not be put right, and which setting does it.
    """

    most_delay_ms: int | None = None
    warnings: list[str] = field(default_factory=list)

    def put_right(self, admin: BrokerTopicAdmin, steps: ConfirmedSteps, retry: TopicName) -> None:
        """Set what can be set, and look at what holds then."""
        self.warnings = []
        self._try(lambda: steps.run(lambda: _allow_delays(admin, retry)), "delays of retries")
        self._try(lambda: self._look_at_delays(admin, retry), "delays of retries")
        self._try(lambda: self._keep_subscriptions(admin, retry), "expiry of subscriptions")

    def _try(self, step: Callable[[], None], what: str) -> None:
        try:
            step()
        except SidecarError as error:
            self.warnings.append(f"{what}: {error}")

    def _look_at_delays(self, admin: BrokerTopicAdmin, retry: TopicName) -> None:
        policy = admin.policy(retry, _DELAYS, applied=True)
        found = policy if isinstance(policy, dict) else {}
        longest_ms = int(found.get("maxDeliveryDelayInMillis") or 0)
        self.most_delay_ms = 0 if found.get("active") is False else longest_ms or None
        if self.most_delay_ms == 0:
            self.warnings.append(
                f"brokers deliver retries at once (delayedDeliveryEnabled), so the sidecar itself waits with them; "
                f"switch delayed delivery on for {retry}"
            )
        elif self.most_delay_ms:
            self.warnings.append(
                f"brokers refuse delays over {longest_ms} ms (delayedDeliveryMaxDelayInMillis), so the sidecar itself "
                f"waits with longer ones; lift that for {retry}"
            )

    def _keep_subscriptions(self, admin: BrokerTopicAdmin, retry: TopicName) -> None:
        minutes = admin.namespace_policy(retry.namespace, _EXPIRATION)
        if minutes is None and admin.broker_setting("subscriptionExpirationTimeMinutes") not in (None, "", "0"):
            admin.set_namespace_policy(retry.namespace, _EXPIRATION, _NEVER)
            minutes = admin.namespace_policy(retry.namespace, _EXPIRATION)
            if minutes != _NEVER:
                raise TemporaryError(f"{_EXPIRATION} of {retry.namespace} is not in force yet")
        if isinstance(minutes, int) and minutes > 0:
            self.warnings.append(
                f"subscriptions in {retry.namespace} expire after {minutes} minutes, with all records and dead letters "
                f"that wait: pulsar-admin namespaces set-subscription-expiration-time {retry.namespace} --time 0"
            )


def _allow_delays(admin: BrokerTopicAdmin, retry: TopicName) -> None:
    if _allows_any(admin.policy(retry, _DELAYS)):
        return
    admin.set_policy(retry, _DELAYS, _ANY_DELAY)
    if not _allows_any(admin.policy(retry, _DELAYS)):
        raise TemporaryError(f"{_DELAYS} of {retry} is not in force yet")


def _allows_any(policy: object) -> bool:
    return isinstance(policy, dict) and policy.get("active") is True and not policy.get("maxDeliveryDelayInMillis")
