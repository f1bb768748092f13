"""Publishing twice under one sequence id, whatever the broker does about it."""

from collections.abc import Sequence

import pytest
from pulsar_sidecar.deduplication.inspection.canary import (
    CANARY_PREFIX,
    CheckOutcome,
    DeduplicationChecks,
    DuplicateReceipt,
    SendAnswer,
    SendFailure,
)
from pulsar_sidecar.deduplication.policies import DeduplicationPolicy
from pulsar_sidecar.model.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName

from tests.fakes.deduplication_policies import NAMESPACE, FakeDeduplication

FIRST, SECOND = (Position(LedgerId(7), EntryId(entry)) for entry in (0, 1))
NAME = f"persistent://{NAMESPACE}/{CANARY_PREFIX}0123"


class FakeNamespace:
    """`CanaryTopics` and `DuplicateSender`, and what was done in order."""

    def __init__(self) -> None:
        self.existing: set[str] = set()
        self.answers: Sequence[SendAnswer] = [FIRST, DuplicateReceipt()]
        self.failures: dict[str, SidecarError] = {}
        self.done: list[tuple[str, str]] = []

    def create(self, topic: TopicName) -> bool:
        self._do("create", topic)
        is_new = str(topic) not in self.existing
        self.existing.add(str(topic))
        return is_new

    def delete_topic(self, topic: TopicName, *, partitioned: bool, force: bool) -> None:
        self._do("delete", topic)
        if str(topic) not in self.existing:
            raise NotFoundError("there is no such topic")
        assert (partitioned, force) == (False, True)
        self.existing.remove(str(topic))

    def send_all(self, topic: TopicName, producer_name: str, sequence_ids: Sequence[int]) -> Sequence[SendAnswer]:
        self._do("send", topic)
        assert len(set(sequence_ids)) == 1
        return self.answers

    def _do(self, step: str, topic: TopicName) -> None:
        self.done.append((step, str(topic)))
        if step in self.failures:
            raise self.failures[step]


@pytest.fixture
def namespace() -> FakeNamespace:
    return FakeNamespace()


@pytest.fixture
def brokers() -> FakeDeduplication:
    return FakeDeduplication()


@pytest.fixture
def checks(namespace: FakeNamespace, brokers: FakeDeduplication) -> DeduplicationChecks:
    return DeduplicationChecks(namespace, namespace, brokers, brokers, lambda: "0123")


@pytest.mark.parametrize(
    ("answers", "policy", "outcome", "as_configured"),
    [
        ([FIRST, DuplicateReceipt()], True, CheckOutcome.REFUSED, True),
        ([FIRST, DuplicateReceipt()], False, CheckOutcome.REFUSED, False),
        ([FIRST, SECOND], False, CheckOutcome.STORED_TWICE, True),
        ([FIRST, SECOND], None, CheckOutcome.STORED_TWICE, True),
        ([FIRST, SECOND], True, CheckOutcome.STORED_TWICE, False),
        ([FIRST, SendFailure("cannot determine")], True, CheckOutcome.UNKNOWN, None),
        ([DuplicateReceipt(), DuplicateReceipt()], True, CheckOutcome.UNKNOWN, None),
        ([SendFailure("no"), SECOND], False, CheckOutcome.UNKNOWN, None),
    ],
)
def test_the_answers_agree_with_what_the_broker_does(
    checks: DeduplicationChecks,
    namespace: FakeNamespace,
    brokers: FakeDeduplication,
    answers: Sequence[SendAnswer],
    policy: bool | None,
    outcome: CheckOutcome,
    as_configured: bool | None,
) -> None:
    namespace.answers = answers
    brokers.namespaces[DeduplicationPolicy.ENABLED, NAMESPACE] = policy
    found = checks.check(NAMESPACE)
    assert (found.outcome, found.as_configured, found.left_behind) == (outcome, as_configured, None)
    assert namespace.done == [("create", NAME), ("send", NAME), ("delete", NAME)]
    assert namespace.existing == set()


def test_an_existing_topic_is_left_alone(checks: DeduplicationChecks, namespace: FakeNamespace) -> None:
    namespace.existing = {NAME}
    with pytest.raises(ConflictError, match="left alone"):
        checks.check(NAMESPACE)
    assert namespace.done == [("create", NAME)]
    assert namespace.existing == {NAME}


@pytest.mark.parametrize("step", ["create", "send"])
@pytest.mark.parametrize("error", [TemporaryError("no broker"), OutcomeUnknownError("lost"), ConflictError("no")])
def test_whatever_fails_the_topic_goes(
    checks: DeduplicationChecks, namespace: FakeNamespace, step: str, error: SidecarError
) -> None:
    namespace.failures = {step: error}
    with pytest.raises(type(error), match=str(error)):
        checks.check(NAMESPACE)
    assert namespace.done[-1] == ("delete", NAME)
    assert namespace.existing == set()


def test_a_topic_that_is_left_behind_is_named(checks: DeduplicationChecks, namespace: FakeNamespace) -> None:
    namespace.failures = {"delete": TemporaryError("no broker")}
    assert f"pulsar-admin topics delete -f {NAME}" in (checks.check(NAMESPACE).left_behind or "")
    namespace.existing.clear()
    namespace.failures["send"] = TemporaryError("broken")
    with pytest.raises(TemporaryError, match=r"broken; besides, .* is left behind"):
        checks.check(NAMESPACE)


@pytest.mark.parametrize(("name", "error"), [("pulsar/system", InvalidInputError), ("public/missing", NotFoundError)])
def test_where_no_check_makes_sense_nothing_is_created(
    checks: DeduplicationChecks, namespace: FakeNamespace, name: str, error: type[SidecarError]
) -> None:
    with pytest.raises(error):
        checks.check(name)
    assert namespace.done == []
