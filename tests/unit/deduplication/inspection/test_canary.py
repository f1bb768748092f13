"""Publishing twice under one sequence id; the check's topic is deleted however it ends."""

from collections.abc import Sequence

import pytest
from pulsar_sidecar.features.deduplication.inspection.canary import (
    CANARY_PREFIX,
    DeduplicationChecks,
    DuplicateReceipt,
    SendAnswer,
)
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
    """`CanaryTopics` and `DuplicateSender`, with a record of calls in order."""

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


def test_an_existing_topic_is_left_alone(checks: DeduplicationChecks, namespace: FakeNamespace) -> None:
    namespace.existing = {NAME}
    with pytest.raises(ConflictError, match="left alone"):
        checks.check(NAMESPACE)
    assert namespace.done == [("create", NAME)]
    assert namespace.existing == {NAME}


@pytest.mark.parametrize("step", ["create", "send"])
@pytest.mark.parametrize("error", [TemporaryError("no broker"), OutcomeUnknownError("lost"), ConflictError("no")])
def test_the_topic_is_deleted_after_any_failure(
    checks: DeduplicationChecks, namespace: FakeNamespace, step: str, error: SidecarError
) -> None:
    namespace.failures = {step: error}
    with pytest.raises(type(error), match=str(error)):
        checks.check(NAMESPACE)
    assert namespace.done[-1] == ("delete", NAME)
    assert namespace.existing == set()


def test_an_undeleted_topic_is_named_beside_an_error(checks: DeduplicationChecks, namespace: FakeNamespace) -> None:
    namespace.failures = {"delete": TemporaryError("no broker"), "send": TemporaryError("broken")}
    with pytest.raises(TemporaryError, match=r"broken; besides, .* is left behind"):
        checks.check(NAMESPACE)


@pytest.mark.parametrize(("name", "error"), [("pulsar/system", InvalidInputError), ("public/missing", NotFoundError)])
def test_refused_check_creates_nothing(
    checks: DeduplicationChecks, namespace: FakeNamespace, name: str, error: type[SidecarError]
) -> None:
    with pytest.raises(error):
        checks.check(name)
    assert namespace.done == []
