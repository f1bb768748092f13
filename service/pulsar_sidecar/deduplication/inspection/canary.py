"""Whether brokers deduplicate in a namespace, found out by publishing twice under one sequence id.

Invariant: only a topic of the check's own is published to, which it has just created under a name that no other client
has; a topic that exists already is neither published to nor deleted. The topic is deleted however the check ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from pulsar_sidecar.deduplication.inspection.policy_changes import Policies, RunningDeduplication
from pulsar_sidecar.deduplication.policies import DeduplicationPolicy, PolicyValues
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicDomain, TopicName

CANARY_PREFIX: Final = "pulsar-sidecar-deduplication-check-"
PAYLOAD: Final = b"pulsar-sidecar deduplication check"


class CheckOutcome(Enum):
    """What the broker did with the second message."""

    REFUSED = "refused as duplicate"
    STORED_TWICE = "stored twice"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DuplicateReceipt:
    """The receipt of a message that the broker refused as one that is stored (message id -1:-1)."""


@dataclass(frozen=True, slots=True)
class SendFailure:
    """The broker answered with an error, which ``reason`` is."""

    reason: str


SendAnswer = Position | DuplicateReceipt | SendFailure


class CanaryTopics(Protocol):
    """Creating and deleting topics (`adapters.pulsar.rest.topic_admin`)."""

    def create(self, topic: TopicName) -> bool:
        """Create a topic without partitions; False if there is one."""
        ...

    def delete_topic(self, topic: TopicName, *, partitioned: bool, force: bool) -> None:
        """Delete it; `NotFoundError` if there is none."""
        ...


class DuplicateSender(Protocol):
    """Publishes under sequence ids of the caller's choice."""

    def send_all(self, topic: TopicName, producer_name: str, sequence_ids: Sequence[int]) -> Sequence[SendAnswer]:
        """One message under each, by one producer, each after the answer to the one before; the answers in order.

        Raises:
            TemporaryError: no producer could be opened, or the connection ended.
        """
        ...


@dataclass(frozen=True, slots=True)
class DeduplicationCheck:
    """What a check found.

    Attributes:
        topic: the check's own, which is gone unless ``left_behind`` has the reason why not.
        reason: what the broker did, in a sentence.
        status: the topic's ``deduplicationStatus``; None if its broker did not show it.
        policy: who should decide it.
        first: the answer to the first message.
        second: the answer to the second one.
    """

    namespace: str
    topic: TopicName
    outcome: CheckOutcome
    reason: str
    policy: PolicyValues
    status: str | None
    first: SendAnswer
    second: SendAnswer
    left_behind: str | None = None

    @property
    def as_configured(self) -> bool | None:
        """Whether the broker did what the policies demand; None if it is not known what it does."""
        if self.outcome is CheckOutcome.UNKNOWN:
            return None
        expected = CheckOutcome.REFUSED if self.policy.applied else CheckOutcome.STORED_TWICE
        return self.outcome is expected


def outcome_of(first: SendAnswer, second: SendAnswer) -> tuple[CheckOutcome, str]:
    """What the answers to two messages under one sequence id mean."""
    if not isinstance(first, Position):
        why = first.reason if isinstance(first, SendFailure) else "the broker took it for a duplicate, on a new topic"
        return CheckOutcome.UNKNOWN, f"the first message was not stored ({why}), so the second shows nothing"
    match second:
        case DuplicateReceipt():
            return CheckOutcome.REFUSED, f"the first message is at {first}, the second was refused as its duplicate"
        case Position():
            return CheckOutcome.STORED_TWICE, f"the same message is at {first} and at {second}"
        case SendFailure():
            return CheckOutcome.UNKNOWN, f"the broker did not decide about the second message: {second.reason}"


class DeduplicationChecks:
    """Runs checks."""

    def __init__(
        self,
        topics: CanaryTopics,
        sender: DuplicateSender,
        policies: Policies,
        running: RunningDeduplication,
        new_id: Callable[[], str],
    ) -> None:
        """``new_id`` answers something that it has never answered before, on no sidecar."""
        self._topics = topics
        self._sender = sender
        self._policies = policies
        self._running = running
        self._new_id = new_id

    def check(self, namespace: str) -> DeduplicationCheck:
        """Publish twice under one sequence id to a new topic of the namespace, and delete the topic.

        Raises:
            InvalidInputError: every topic of the namespace is a system topic.
            NotFoundError: there is no such namespace.
            ConflictError: a topic of that name exists; it was left alone.
            SidecarError: the topic could not be created or published to; the text names it if it is left behind.
        """
        tenant, _, portion = namespace.partition("/")
        topic = TopicName(TopicDomain.PERSISTENT, tenant, None, portion, f"{CANARY_PREFIX}{self._new_id()}")
        if topic.is_system_topic:
            raise InvalidInputError(f"every topic in {namespace} is a system topic, which brokers never deduplicate")
        policy = self._policies.of_namespace(DeduplicationPolicy.ENABLED, namespace)
        try:
            published = self._published(topic)
        except SidecarError as error:
            # It may be there even if its creation failed: an answer can be lost.
            left_behind = self._deleted(topic)
            if left_behind is None:
                raise
            raise TemporaryError(f"{error}; besides, {left_behind}") from error
        if published is None:
            raise ConflictError(f"{topic} exists already and was left alone; run the check again")
        first, second, status = published
        outcome, reason = outcome_of(first, second)
        left_behind = self._deleted(topic)
        return DeduplicationCheck(namespace, topic, outcome, reason, policy, status, first, second, left_behind)

    def _published(self, topic: TopicName) -> tuple[SendAnswer, SendAnswer, str | None] | None:
        """Both answers, and the topic's status; None if there is a topic of this name already."""
        if not self._topics.create(topic):
            return None
        first, second = self._sender.send_all(topic, topic.local_name, [0, 0])
        return first, second, self._running.statuses([topic], 1).get(topic)

    def _deleted(self, topic: TopicName) -> str | None:
        """Delete the check's own topic; why it is left behind, None if it is gone."""
        try:
            self._topics.delete_topic(topic, partitioned=False, force=True)
        except NotFoundError:
            return None
        except SidecarError as error:
            return f"{topic} is left behind ({error}); delete it with: pulsar-admin topics delete -f {topic}"
        return None
