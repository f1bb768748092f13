import pytest
from pulsar_sidecar.features.ledger_deletion.cli import topics
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, TemporaryError

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.cli.running import Terminal

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_BETWEEN_LOOKS_SECONDS", 0.0)


def test_command_follows_the_deletion_and_shows_progress(terminal: Terminal, service: FakeDeletionService) -> None:
    service.namespace_statuses = [
        (OperationState.RUNNING, 0, None),
        (OperationState.RUNNING, 4, None),
        TemporaryError("the metadata store does not respond"),
        (OperationState.RUNNING, 8, "no broker answers"),
        (OperationState.DONE, 10, None),
    ]
    ran = terminal.run("namespaces", "delete", "public/old", "--force")
    assert (ran.code, ran.out) == (0, "")
    assert service.calls("delete_namespace") == [("public/old", True, None, False)]
    assert ran.err.splitlines() == [
        "topics of public/old deleted: 4 of 10; 30 ledgers recorded, 2 topics/s, 3 s left",
        "waiting: the metadata store does not respond (HTTP 503)",
        "topics of public/old deleted: 8 of 10; 30 ledgers recorded, 4 topics/s, 0 s left",
        "waiting: no broker answers",
        "topics of public/old deleted: 10 of 10; 30 ledgers recorded, 5 topics/s, 0 s left",
        "deleted public/old: 10 topics, 30 ledgers recorded",
    ]


def test_namespace_that_is_deleted_immediately(terminal: Terminal, service: FakeDeletionService) -> None:
    ran = terminal.run("namespaces", "delete", "p/c/n")
    assert (ran.code, ran.err) == (0, "deleted p/c/n\n")
    assert service.calls("delete_namespace") == [("p/c/n", False, None, False)]


def test_when_the_time_is_over_the_sidecars_continue(terminal: Terminal, service: FakeDeletionService) -> None:
    service.namespace_statuses = [(OperationState.RUNNING, 4, "no broker answers")]
    ran = terminal.run("namespaces", "delete", "public/old", "--wait-seconds", "0")
    assert ran.code == 4
    assert ran.err.splitlines()[-1] == (
        "public/old is not deleted yet; the sidecars continue, and the same command follows them"
    )


@pytest.mark.parametrize("statuses", [[ConflictError("Cannot delete non empty namespace")]])
def test_a_refusal_is_a_failure(statuses: list[object], terminal: Terminal, service: FakeDeletionService) -> None:
    service.namespace_statuses = statuses
    ran = terminal.run("namespaces", "delete", "public/old")
    assert (ran.code, "Cannot delete non empty namespace (HTTP 409)" in ran.err) == (1, True)


def test_a_refusal_on_the_way_is_a_failure_with_its_reason(terminal: Terminal, service: FakeDeletionService) -> None:
    service.namespace_statuses = [(OperationState.RUNNING, 4, None), (OperationState.REFUSED, 4, "DELETE: 403")]
    ran = terminal.run("namespaces", "delete", "public/old", "--force")
    assert (ran.code, ran.err.splitlines()[-1]) == (1, "public/old is not deleted: DELETE: 403")


def test_a_sidecar_that_knows_no_such_deletion_ends_it(terminal: Terminal, service: FakeDeletionService) -> None:
    service.namespace_statuses = [(OperationState.RUNNING, 4, None), NotFoundError("there is no such deletion")]
    ran = terminal.run("namespaces", "delete", "public/old", "--force")
    assert (ran.code, "there is no such deletion" in ran.err) == (1, True)


@pytest.mark.parametrize("name", ["public", "a/b/c/d", "public/", ""])
def test_invalid_namespace_is_refused(name: str, terminal: Terminal, service: FakeDeletionService) -> None:
    ran = terminal.run("namespaces", "delete", name)
    assert (ran.code, "is not a namespace" in ran.err) == (1, True)
    assert service.asked == []
