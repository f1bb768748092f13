"""The calls about namespaces, on a service with its loops, and one sidecar's view of a deletion that another ended."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import operation_path
from pulsar_sidecar.features.ledger_deletion.workflow.namespace_deletions import NamespaceDeletions
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.model.errors import BrokerRefusedError, DisabledError, RefusedBeforehandError, TemporaryError
from pulsar_sidecar.model.ids import OperationId

from tests.fakes.namespaces import FakeNamespaceAdmin
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.namespace_sidecars import NAMESPACE, NamespaceSidecar, filled
from tests.unit.ledger_deletion.test_serving import service_of


def calls_of(sidecar: NamespaceSidecar, clock: Clock, stop: threading.Event) -> NamespaceDeletions:
    return NamespaceDeletions(sidecar.namespaces, sidecar.store, clock, stop, lambda: True, lambda _status: None)


@contextmanager
def running(fake_pulsar: FakePulsar, brokers: FakeNamespaceAdmin) -> Iterator[NamespaceDeletions]:
    """A sidecar's part, with a loop."""
    stop = threading.Event()
    deletions = calls_of(NamespaceSidecar(fake_pulsar, brokers, topics_at_once=4), SystemClock(), stop)
    loop = threading.Thread(target=deletions.run)
    loop.start()
    yield deletions
    stop.set()
    deletions.close()
    loop.join()


def test_a_call_waits_for_the_end() -> None:
    fake_pulsar, brokers = filled(5)
    with running(fake_pulsar, brokers) as deletions:
        status = deletions.delete(NAMESPACE, force=True, requested_by="me", wait_ms=30_000)
        assert (status.state, status.topics_deleted, status.topics_left) == (OperationState.DONE, 5, 0)
        assert deletions.status(NAMESPACE, status.operation_id) == status
        assert deletions.running() == []


def test_a_call_that_does_not_wait_answers_what_runs() -> None:
    fake_pulsar, brokers = filled(5)
    deletions = calls_of(NamespaceSidecar(fake_pulsar, brokers), fake_pulsar.clock, threading.Event())
    status = deletions.delete(NAMESPACE, force=True, requested_by="me", wait_ms=0)
    assert (status.state, status.topics_found, status.topics_deleted) == (OperationState.RUNNING, 5, 0)
    assert deletions.running() == [status]
    assert deletions.delete(NAMESPACE, force=True, requested_by="me", wait_ms=1_000) == status


def test_a_refusal_on_the_way_is_raised_as_it_came() -> None:
    fake_pulsar, brokers = filled(1)
    brokers.refusals = [BrokerRefusedError(405, "no")]
    with running(fake_pulsar, brokers) as deletions, pytest.raises(BrokerRefusedError, match="405: no"):
        deletions.delete(NAMESPACE, force=True, requested_by="me", wait_ms=30_000)


@pytest.mark.parametrize("gone", [False, True])
def test_status_infers_the_outcome_from_the_namespace(*, gone: bool) -> None:
    fake_pulsar, brokers = filled(1)
    deletions = calls_of(NamespaceSidecar(fake_pulsar, brokers), fake_pulsar.clock, threading.Event())
    running_now = deletions.delete(NAMESPACE, force=True, requested_by="me", wait_ms=0)
    fake_pulsar.store.remove(operation_path(running_now.operation_id))
    if gone:
        brokers.delete_namespace(NAMESPACE, force=True)
        assert deletions.status(NAMESPACE, running_now.operation_id).state is OperationState.DONE
    else:
        status = deletions.status(NAMESPACE, running_now.operation_id)
        assert status.state is OperationState.REFUSED
        assert "the outcome topic has the reason" in status.reason


def test_the_service_has_to_be_on_and_ready(fake_pulsar: FakePulsar) -> None:
    off = service_of(fake_pulsar, enabled=False)
    with pytest.raises(DisabledError):
        off.delete_namespace(NAMESPACE, force=True, requested_by=None, wait=True)
    with pytest.raises(DisabledError):
        off.namespace_deletion(NAMESPACE, OperationId("namespace-1"))
    with pytest.raises(DisabledError):
        off.namespace_deletions()
    not_ready = service_of(fake_pulsar)
    with pytest.raises(TemporaryError, match="not ready"):
        not_ready.delete_namespace(NAMESPACE, force=True, requested_by=None, wait=True)
    assert not_ready.namespace_deletions() == []


def test_the_service_deletes_a_namespace_with_its_own_loops() -> None:
    fake_pulsar, brokers = filled(3)
    service = service_of(fake_pulsar)
    runtime = service._runtime
    runtime.ready.set()
    with pytest.raises(RefusedBeforehandError, match="Cannot delete non empty namespace"):
        service.delete_namespace(NAMESPACE, force=False, requested_by=None, wait=True)
    index = threading.Thread(target=runtime.shadows.run)
    index.start()
    try:
        begun = service.delete_namespace(NAMESPACE, force=True, requested_by=None, wait=False)
        held = runtime.namespaces.deleter.take_due()
        runtime.namespaces._drive(held)
    finally:
        runtime.close()
        index.join()
    assert service.namespace_deletion(NAMESPACE, begun.operation_id).state is OperationState.DONE
    assert not brokers.namespace_exists(NAMESPACE)


def test_a_second_deletion_does_not_end_as_the_first_one_did() -> None:
    fake_pulsar, brokers = filled(1)
    brokers.refusals = [BrokerRefusedError(405, "no")]
    sidecar = NamespaceSidecar(fake_pulsar, brokers)
    deletions = calls_of(sidecar, fake_pulsar.clock, threading.Event())

    def begin() -> OperationId:
        return deletions.delete(NAMESPACE, force=True, requested_by="me", wait_ms=0).operation_id

    first = begin()
    held = sidecar.namespaces.take_due()
    deletions._drive(held)
    assert deletions.status(NAMESPACE, first).state is OperationState.REFUSED
    assert begin() == first
    NamespaceSidecar(fake_pulsar, brokers, name="sidecar-2").work()
    assert deletions.status(NAMESPACE, first).state is OperationState.DONE
