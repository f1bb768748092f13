"""`pulsar-sidecar drained` before an uninstall: nothing left, something left, and uncounted work."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.cli.command_groups import ExitCode
from pulsar_sidecar.features.audit import http as audit
from pulsar_sidecar.features.audit.plan_progress import advance, begin, unfinished_plans
from pulsar_sidecar.features.delayed_messages.http import routes as delayed_delivery
from pulsar_sidecar.features.delayed_messages.results import CancelStatus
from pulsar_sidecar.features.ledger_deletion.results import InflightEstimate
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakState

from tests.fakes.delayed_service import FakeDelayedDelivery
from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.leaks import leak
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

NOTHING = InflightEstimate(0, 0, None, 0)
PLAN = "5" * 64


@pytest.fixture
def store() -> FakeMetadataStore:
    return FakeMetadataStore()


@pytest.fixture
def delayed() -> FakeDelayedDelivery:
    return FakeDelayedDelivery(status=CancelStatus(True, True, 0, True, None, None))


@pytest.fixture
def server(
    service: FakeDeletionService, store: FakeMetadataStore, delayed: FakeDelayedDelivery, terminal: Terminal
) -> Iterator[Served]:
    service.inflight = NOTHING
    routers = [audit.plans_router(lambda: unfinished_plans(store)), delayed_delivery.router(delayed)]
    with served(service, routers=routers) as server:
        yield server


def test_drained_sidecar_can_be_removed(shell: Terminal) -> None:
    ran = shell.run("drained")
    assert (ran.code, "can be removed" in ran.err) == (ExitCode.DONE, True)


def test_each_kind_of_work_is_counted(
    shell: Terminal, service: FakeDeletionService, store: FakeMetadataStore, delayed: FakeDelayedDelivery
) -> None:
    delayed.status = CancelStatus(True, True, 3, True, None, None)
    service.inflight = InflightEstimate(7, 120, 5_000, 900)
    service.protected = {4711: 1_900_000_000_000}
    service.watch.found = [leak(1, state=LeakState.LEAKED)]
    held = begin(store, PLAN, "20260706T120000Z-5f0c", 10, 0)
    advance(store, PLAN, held, 4, 0)
    ran = shell.run("--output-format", "json", "drained")
    assert ran.code == ExitCode.FINDINGS
    counted = {each["what"]: each["count"] for each in json.loads(ran.out)}
    assert counted == {
        "records in flight, retries included": 7,
        "protected ledgers": 1,
        "leaked ledgers that were not appended": 1,
        "open cancellations": 3,
        "audit plans that were sent only in part": 1,
    }
    assert "4 of 10 rows" in ran.out


def test_a_ledger_that_was_appended_is_in_flight_and_no_leak(shell: Terminal, service: FakeDeletionService) -> None:
    service.watch.found = [leak(1, state=LeakState.APPENDED)]
    assert shell.run("drained").code == ExitCode.DONE


def test_unknown_backlog_is_not_drained(shell: Terminal, delayed: FakeDelayedDelivery) -> None:
    delayed.status = CancelStatus(True, False, 0, False, None, None)
    ran = shell.run("drained")
    assert ran.code == ExitCode.NOT_ALL
    assert "not known" in ran.out


def test_disabled_features_are_named(shell: Terminal, service: FakeDeletionService) -> None:
    service.enabled = False
    ran = shell.run("drained")
    assert (ran.code, "topicTwoPhaseDeletionEnabled is off" in ran.err) == (ExitCode.DONE, True)
