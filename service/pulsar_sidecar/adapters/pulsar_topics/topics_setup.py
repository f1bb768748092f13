"""Setup of the deletion service's topics, so that no record can be lost before a sidecar consumes it.

Brokers treat topics in ``pulsar/system`` specially (4.0.8, class ``SystemTopic``): they never delete them for
inactivity, never expire messages, refuse none for a backlog quota, never deduplicate, and compact every minute. So
time-to-live and inactivity need no setting; the setup enables deduplication for Pulsar versions that may honour it; and
compaction gets a threshold, because each run writes a ledger. Its own cursor keeps consumed records until then.

Retries wait on the retry topic by delayed delivery, which brokers may have disabled or limited to short delays; a
policy of that topic overrides both. And subscriptions may expire, with their backlog, while no sidecar runs; no topic
policy prevents that, only the namespace's, which the setup sets if it is unset.

Invariant: every step can be repeated and raced; the setup retries an unconfirmed step, because brokers that just
started confirm little. Only delays and expiry never fail: the sidecar warns of settings that brokers refuse, and works
without them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import eq
from typing import Final, TypeVar

from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import SUBSCRIPTION
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    ConflictError,
    OutcomeUnknownError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.reports.formatting import format_count

DEAD_LETTERS_SUBSCRIPTION: Final = "dead-letters"
_COMPACTION_THRESHOLD_BYTES: Final = 64 * 1024 * 1024
_DELAYS: Final = "delayedDelivery"
_ANY_DELAY: Final = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}
_EXPIRATION: Final = "subscriptionExpirationTime"
_NEVER: Final = 0
_ATTEMPTS: Final = 20
_PAUSE_SECONDS: Final = 0.5
_NOT_READY: Final = (405, 409, 412)
"""Statuses of policy calls while ``__change_events`` of the namespace is being created."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class TopicsSettings:
    """Partitions and retention of ledger deletion's topics.

    Attributes:
        parallelism: partitions of the pending topic (``twoPhaseDeletionLedgerDeletionParallelism``); never lowered.
        outcome_retention_minutes: retention of outcomes by age, -1 for no limit.
        outcome_retention_mebibytes: retention of outcomes by size, -1 for no limit; the first limit reached applies.
    """

    parallelism: int = 4
    outcome_retention_minutes: int = 7 * 24 * 60
    outcome_retention_mebibytes: int = 1024


def confirmed(step: Callable[[], _Answer], what: str, clock: Clock) -> _Answer:
    """Return the result of a step, retried until confirmed; raise a `TemporaryError` that begins with ``what``."""
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            return step()
        except (TemporaryError, OutcomeUnknownError) as error:
            failure = error
        except BrokerRefusedError as error:
            if error.status not in _NOT_READY:
                raise
            failure = error
        clock.wait_seconds(_PAUSE_SECONDS)
    raise TemporaryError(f"{what} not ready: {failure}; try again") from failure


class TopicsSetup:
    """Setup of the four topics by `TopicsSettings`.

    Attributes:
        most_delay_ms: longest delay of a message that brokers accept; None for any, 0 without delayed delivery.
        warnings: settings of retries and expiry that failed, each with the broker setting that helps.
    """

    def __init__(
        self,
        admin: BrokerTopicAdmin,
        topic: Callable[[DeletionTopic], TopicName],
        settings: TopicsSettings,
        clock: Clock,
    ) -> None:
        self._admin = admin
        self._topic = topic
        self._settings = settings
        self._retry = topic(DeletionTopic.RETRY)
        self.most_delay_ms: int | None = None
        self.warnings: list[str] = []
        self._clock = clock

    def run(self) -> None:
        pending = self._topic(DeletionTopic.PENDING)
        self._confirmed(lambda: self._admin.ensure_namespace(pending.tenant, pending.namespace_portion))
        partitions = self._confirmed(lambda: self._partitions(pending))
        for kind in (DeletionTopic.RETRY, DeletionTopic.DEAD_LETTER, DeletionTopic.OUTCOME):
            self._confirmed(partial(self._admin.create, self._topic(kind)))
        for index in range(partitions):
            self._subscribe(pending.partition(index), SUBSCRIPTION)
        self._subscribe(self._retry, SUBSCRIPTION)
        self._subscribe(self._topic(DeletionTopic.DEAD_LETTER), DEAD_LETTERS_SUBSCRIPTION)
        for kind in DeletionTopic:
            self._set_policies(kind)
        self.set_conditions()

    def set_conditions(self) -> None:
        """Set delays of retries and expiry of subscriptions, as far as brokers allow, and check the result."""
        self.warnings = []
        with self._warning_of("delays of retries"):
            self._set_policy(self._retry, _DELAYS, _ANY_DELAY, _allows_any)
        with self._warning_of("delays of retries"):
            self._check_delays()
        with self._warning_of("expiry of subscriptions"):
            self._keep_subscriptions()

    def check_conditions(self) -> None:
        """Check delays and expiry as `set_conditions` does, without setting them."""
        self.warnings = []
        self._check_delays()
        self._check_expiry()

    def _partitions(self, topic: TopicName) -> int:
        self._admin.create(topic, self._settings.parallelism)
        found = self._admin.partitions(topic)
        if not found:
            raise ConflictError(f"{topic} exists without partitions; delete it, then start the sidecar again")
        if found < self._settings.parallelism:
            self._admin.add_partitions(topic, self._settings.parallelism)
        return max(found, self._settings.parallelism)

    def _confirmed(self, step: Callable[[], _Answer]) -> _Answer:
        return confirmed(step, "the topics of ledger deletion are", self._clock)

    def _subscribe(self, topic: TopicName, subscription: str) -> None:
        self._confirmed(lambda: self._admin.create_subscription(topic, subscription))

    def _set_policies(self, kind: DeletionTopic) -> None:
        self._set_policy(self._topic(kind), "deduplicationEnabled", True)
        self._set_policy(self._topic(kind), "compactionThreshold", _COMPACTION_THRESHOLD_BYTES)
        if kind is DeletionTopic.OUTCOME:
            retention = {
                "retentionTimeInMinutes": self._settings.outcome_retention_minutes,
                "retentionSizeInMB": self._settings.outcome_retention_mebibytes,
            }
            self._set_policy(self._topic(kind), "retention", retention)

    def _set_policy(
        self, topic: TopicName, name: str, value: object, is_met: Callable[[object], bool] | None = None
    ) -> None:
        holds = is_met or partial(eq, value)

        def set_and_check() -> None:
            if holds(self._admin.policy(topic, name)):
                return
            self._admin.set_policy(topic, name, value)
            if not holds(self._admin.policy(topic, name)):
                raise TemporaryError(f"{name} of {topic} has not taken effect yet")

        self._confirmed(set_and_check)

    # --- delays and expiry -------------------------------------------------------------------------------------------

    @contextmanager
    def _warning_of(self, what: str) -> Iterator[None]:
        try:
            yield
        except SidecarError as error:
            self.warnings.append(f"{what}: {error}")

    def _check_delays(self) -> None:
        policy = self._admin.policy(self._retry, _DELAYS, applied=True)
        found = policy if isinstance(policy, dict) else {}
        longest_ms = int(found.get("maxDeliveryDelayInMillis") or 0)
        self.most_delay_ms = 0 if found.get("active") is False else longest_ms or None
        if self.most_delay_ms == 0:
            self.warnings.append(
                f"brokers deliver retries at once (delayedDeliveryEnabled), so the sidecar itself holds them back; "
                f"switch delayed delivery on for {self._retry}"
            )
        elif self.most_delay_ms:
            self.warnings.append(
                f"brokers refuse delays over {longest_ms} ms (delayedDeliveryMaxDelayInMillis), so the sidecar itself "
                f"holds back longer ones; raise the limit for {self._retry}"
            )

    def _keep_subscriptions(self) -> None:
        admin, namespace = self._admin, self._retry.namespace
        minutes = admin.namespace_policy(namespace, _EXPIRATION)
        if minutes is None and admin.broker_setting("subscriptionExpirationTimeMinutes") not in (None, "", "0"):
            admin.set_namespace_policy(namespace, _EXPIRATION, _NEVER)
            minutes = admin.namespace_policy(namespace, _EXPIRATION)
            if minutes != _NEVER:
                raise TemporaryError(f"{_EXPIRATION} of {namespace} has not taken effect yet")
        self._check_expiry()

    def _check_expiry(self) -> None:
        namespace = self._retry.namespace
        minutes = self._admin.namespace_policy(namespace, _EXPIRATION)
        if isinstance(minutes, int) and minutes > 0:
            self.warnings.append(
                f"subscriptions in {namespace} expire after {format_count(minutes, 'minute')}, with all pending "
                f"records and dead letters: pulsar-admin namespaces set-subscription-expiration-time {namespace} "
                "--time 0"
            )


def _allows_any(policy: object) -> bool:
    return isinstance(policy, dict) and policy.get("active") is True and not policy.get("maxDeliveryDelayInMillis")
