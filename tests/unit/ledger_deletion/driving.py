"""Fixtures of the tests of topic deletion's driver: one operation on one topic."""

from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import OPERATIONS
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.names import TopicName

from tests.fakes.brokers import TopicDeletion
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.sidecars import Sidecar

OP = OperationId("op-1")


def asked(fake_pulsar: FakePulsar) -> list[TopicDeletion]:
    return fake_pulsar.admin.deletions


def running(fake_pulsar: FakePulsar) -> list[str]:
    node = fake_pulsar.store.peek(OPERATIONS)
    return [] if node is None or not node.children_count else (fake_pulsar.store.children(OPERATIONS) or [])


def begin(sidecar: Sidecar, topic: TopicName, operation_id: OperationId = OP, *, partitioned: bool = False):
    return sidecar.deleter.begin(operation_id, topic, partitioned=partitioned, force=True, requested_by="me")
