"""Operations that wait in the metadata store, where there are very many."""

from pulsar_sidecar.features.ledger_deletion.steps import Steps
from pulsar_sidecar.features.ledger_deletion.topic_deletion.durable_operations import DurableOperations
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import operation_path
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.metadata import Node

from tests.fakes.metadata import FakeMetadataStore


def operations_in(store: FakeMetadataStore, count: int) -> DurableOperations:
    for number in range(count):
        store.put(operation_path(OperationId(f"{number:04}")), b"waits")
    store.journal.clear()
    return DurableOperations("one", store, Steps())


def test_a_look_for_one_that_is_due_reads_many_at_a_time() -> None:
    store = FakeMetadataStore()
    assert operations_in(store, 1_000).take_due(lambda node: None) is None
    assert [each.method for each in store.journal] == ["children"] + ["read_many"] * 5


def test_each_has_its_turn_before_one_that_was_released() -> None:
    operations = operations_in(FakeMetadataStore(), 300)
    taken = []
    for _ in range(301):
        held = operations.take_due(lambda node: node)
        assert isinstance(held, Node)
        taken.append(OperationId(held.path.rpartition("/")[2]))
        operations.release(taken[-1])
    assert taken == [f"{number:04}" for number in (*range(300), 0)]
