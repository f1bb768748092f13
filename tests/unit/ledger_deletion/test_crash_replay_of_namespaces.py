"""The deletion of a namespace with the process killed at any point, alone and with 50 topics at once.

Whatever happens: nothing referenced is deleted, every accepted record ends, and no ledger of the namespace is left.
"""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.features.ledger_deletion.steps import Step
from pulsar_sidecar.model.errors import SidecarError

from tests.fakes.namespaces import FakeNamespaceAdmin
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.faults import Failure, OneFault
from tests.unit.ledger_deletion.namespace_sidecars import DeadAt, NamespaceSidecar, check_gone, filled
from tests.unit.ledger_deletion.sidecars import Crash

THOROUGH = settings.get_current_profile_name() == "thorough"


def live(
    fake_pulsar: FakePulsar, brokers: FakeNamespaceAdmin, topics_at_once: int, crashes: Sequence[int] = ()
) -> list[DeadAt]:
    """Delete the namespace; each number of ``crashes`` kills one process at that point."""
    lives = [DeadAt(number) for number in crashes] + [DeadAt()]
    for steps in lives:
        fake_pulsar.store.end_session()
        fake_pulsar.topics.drop_connections()
        sidecar = NamespaceSidecar(fake_pulsar, brokers, topics_at_once=topics_at_once, steps=steps)
        try:
            if steps is lives[0]:
                sidecar.namespaces.begin("public/old", force=True, requested_by="me")
            sidecar.work()
        except Crash:
            continue
        break
    return lives


@pytest.mark.parametrize("topics", [1, 2, 50])
def test_without_faults_nothing_is_left(topics: int) -> None:
    fake_pulsar, brokers = filled(topics)
    steps = live(fake_pulsar, brokers, topics)[0]
    check_gone(fake_pulsar)
    assert brokers.deletions == [("public/old", True)]
    assert {Step.NAMESPACE_PROGRESS_KEPT, Step.NAMESPACE_ASKED, Step.NAMESPACE_NODES_REMOVED} <= set(steps.seen)


@pytest.mark.parametrize(("topics", "every"), [(1, 1), (2, 2), (50, 151)])
def test_a_crash_before_and_after_any_step(topics: int, every: int) -> None:
    count = len(live(*filled(topics), topics)[0].seen)
    assert count > 30
    for number in range(0, count, 1 if THOROUGH else every):
        fake_pulsar, brokers = filled(topics)
        before = fake_pulsar.ledgers()
        live(fake_pulsar, brokers, topics, [number])
        if number == 0:
            assert fake_pulsar.ledgers() == before
        else:
            check_gone(fake_pulsar)


def test_a_second_crash_after_the_first() -> None:
    count = len(live(*filled(2), 1)[0].seen)
    for first in range(1, count, 1 if THOROUGH else 17):
        for second in range(first % 5, count, 1 if THOROUGH else 19):
            fake_pulsar, brokers = filled(2)
            live(fake_pulsar, brokers, 1, [first, second])
            check_gone(fake_pulsar)


def test_a_broker_that_dies_before_any_of_its_steps() -> None:
    for die_at in range(0, 1000, 1 if THOROUGH else 3):
        fake_pulsar, brokers = filled(2)
        fake_pulsar.die_at = die_at
        live(fake_pulsar, brokers, 2)
        check_gone(fake_pulsar)
        if fake_pulsar.die_at is not None:
            assert die_at > 20
            return
    raise AssertionError("the broker needs more steps than expected")


def test_a_broker_and_a_sidecar_die() -> None:
    for number in range(1, 60, 1 if THOROUGH else 13):
        fake_pulsar, brokers = filled(2)
        fake_pulsar.die_at = number
        live(fake_pulsar, brokers, 2, [number + 20])
        check_gone(fake_pulsar)


def test_another_sidecar_continues_a_released_deletion() -> None:
    fake_pulsar, brokers = filled(3)
    first = NamespaceSidecar(fake_pulsar, brokers, should_continue=lambda: False)
    deletion = first.namespaces.begin("public/old", force=True, requested_by="me")
    assert first.drive_namespace().state is OperationState.RUNNING
    second = NamespaceSidecar(fake_pulsar, brokers, name="sidecar-2")
    assert second.namespaces.begin("public/old", force=True, requested_by="me").operation_id == deletion.operation_id
    second.work()
    assert [ended.state for ended in second.ended] == [OperationState.DONE]
    check_gone(fake_pulsar)


@pytest.mark.parametrize("failure", Failure)
def test_any_call_of_any_port_fails_once(failure: Failure) -> None:
    for number in range(0, 1_000, 1 if THOROUGH else 7):
        fake_pulsar, brokers = filled(1)
        faults = OneFault(number, failure)
        sidecar = NamespaceSidecar(fake_pulsar, brokers, wrap=faults.wrap)
        try:
            sidecar.namespaces.begin("public/old", force=True, requested_by="me")
        except SidecarError:
            sidecar.namespaces.begin("public/old", force=True, requested_by="me")
        sidecar.work()
        check_gone(fake_pulsar)
        if len(faults.calls) <= number:
            assert number > 100
            return
    raise AssertionError("never runs without the fault")
