"""Check of brokers' deduplication in a namespace, by publishing twice under one sequence id.

Invariant: the check publishes only to a topic of its own, which it has just created under a name that no other client
has; it neither publishes to nor deletes a topic that exists already. It deletes its topic however it ends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pulsar_sidecar.features.deduplication.inspection.policy_changes import Policies, RunningDeduplication
from pulsar_sidecar.features.deduplication.policies import DeduplicationPolicy
from pulsar_sidecar.features.deduplication.results import CheckOutcome, DeduplicationCheck
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicDomain, TopicName

CANARY_PREFIX: Final = "pulsar-sidecar-deduplication-check-"
PAYLOAD: Final = b"pulsar-sidecar deduplication check"


@dataclass(frozen=True, slots=True)
class DuplicateReceipt:
    """Receipt of a message that the broker refused as a duplicate (message id -1:-1)."""


@dataclass(frozen=True, slots=True)
class SendFailure:
    """Failure of a message; ``reason`` is the broker's error."""

    reason: str


SendAnswer = Position | DuplicateReceipt | SendFailure


class CanaryTopics(Protocol):
    """Creation and deletion of topics (`adapters.pulsar.rest.topic_admin`)."""

    def create(self, topic: TopicName) -> bool:
        """Create a topic without partitions, and return False if there is one."""

    def delete_topic(self, topic: TopicName, *, partitioned: bool, force: bool) -> None:
        """Delete a topic; `NotFoundError` if there is none."""


class DuplicateSender(Protocol):
    """Sender of messages under sequence ids of the caller's choice."""

    def send_all(self, topic: TopicName, producer_name: str, sequence_ids: Sequence[int]) -> Sequence[SendAnswer]:
        """Send one message under each id by one producer, each after the previous response; return the responses.

        Raises:
            TemporaryError: no producer could be opened, or the connection ended.
        """


def outcome_of(first: SendAnswer, second: SendAnswer) -> tuple[CheckOutcome, str]:
    """Return the outcome that the responses to two messages under one sequence id show, with the reason."""
    if not isinstance(first, Position):
        why = first.reason if isinstance(first, SendFailure) else "the broker took it for a duplicate, on a new topic"
        return CheckOutcome.UNKNOWN, f"the first message was not stored ({why}), so the second proves nothing"
    match second:
        case DuplicateReceipt():
            return CheckOutcome.REFUSED, f"the first message is at {first}, the second was refused as its duplicate"
        case Position():
            return CheckOutcome.STORED_TWICE, f"the same message is at {first} and at {second}"
        case SendFailure():
            return CheckOutcome.UNKNOWN, f"the broker did not decide about the second message: {second.reason}"


@dataclass(frozen=True, slots=True)
class DeduplicationChecks:
    """Checks of brokers' deduplication; ``new_id`` returns a text that no sidecar has used before."""

    topics: CanaryTopics
    sender: DuplicateSender
    policies: Policies
    running: RunningDeduplication
    new_id: Callable[[], str]

    def check(self, namespace: str) -> DeduplicationCheck:
        """Publish twice under one sequence id to a new topic of the namespace, and delete the topic.

        Raises:
            InvalidInputError: every topic of the namespace is a system topic.
            NotFoundError: there is no such namespace.
            ConflictError: a topic of that name exists; the check left it alone.
            SidecarError: the topic could not be created or published to; the text names it if it is left behind.
        """
        tenant, _, portion = namespace.partition("/")
        topic = TopicName(TopicDomain.PERSISTENT, tenant, None, portion, f"{CANARY_PREFIX}{self.new_id()}")
        if topic.is_system_topic:
            raise InvalidInputError(f"every topic in {namespace} is a system topic, which brokers never deduplicate")
        policy = self.policies.of_namespace(DeduplicationPolicy.ENABLED, namespace)
        try:
            published = self._published(topic)
        except SidecarError as error:
            # The topic may exist even if its creation failed: a response can be lost.
            left_behind = self._deleted(topic)
            if left_behind is None:
                raise
            raise TemporaryError(f"{error}; besides, {left_behind}") from error
        if published is None:
            raise ConflictError(f"{topic} already exists and was left alone; run the check again")
        first, second, status = published
        outcome, reason = outcome_of(first, second)
        left_behind = self._deleted(topic)
        expected = CheckOutcome.REFUSED if policy.applied else CheckOutcome.STORED_TWICE
        return DeduplicationCheck(
            namespace=namespace,
            topic=str(topic),
            outcome=outcome,
            reason=reason,
            policy=policy,
            as_configured=None if outcome is CheckOutcome.UNKNOWN else outcome is expected,
            status=status,
            first=_written(first),
            second=_written(second),
            left_behind=left_behind,
        )

    def _published(self, topic: TopicName) -> tuple[SendAnswer, SendAnswer, str | None] | None:
        """Return both responses and the topic's status, or None if there is a topic of this name already."""
        if not self.topics.create(topic):
            return None
        first, second = self.sender.send_all(topic, topic.local_name, [0, 0])
        return first, second, self.running.statuses([topic], 1).get(topic)

    def _deleted(self, topic: TopicName) -> str | None:
        try:
            self.topics.delete_topic(topic, partitioned=False, force=True)
        except NotFoundError:
            return None
        except SidecarError as error:
            return f"{topic} is left behind ({error}); delete it with: pulsar-admin topics delete -f {topic}"
        return None


def _written(answer: SendAnswer) -> str:
    match answer:
        case Position():
            return str(answer)
        case DuplicateReceipt():
            return "duplicate"
        case SendFailure(reason):
            return f"error: {reason}"
