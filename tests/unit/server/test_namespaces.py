"""Deletions of namespaces, by their route and the command that follows them."""

import pytest
from pulsar_sidecar.features.ledger_deletion.cli import topics
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.server.answers import as_json

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served

PATHS = [
    ("/admin/v2/namespaces/public/old", "public/old"),
    ("/admin/namespaces/p/c/n", "p/c/n"),
]
RUNNING = (OperationState.RUNNING, 4, None)


@pytest.mark.parametrize(("path", "namespace"), PATHS)
def test_a_deletion_that_is_done_is_204(
    path: str, namespace: str, service: FakeDeletionService, server: Served
) -> None:
    answer = server.ask("DELETE", f"{path}?force=true&authoritative=true")
    assert (answer.status, answer.body) == (204, b"")
    assert service.calls("delete_namespace") == [(namespace, True, None, True)]


@pytest.mark.parametrize(("path", "namespace"), PATHS)
def test_running_deletion_is_202_and_can_be_followed(
    path: str, namespace: str, service: FakeDeletionService, server: Served
) -> None:
    service.namespace_statuses = [(OperationState.RUNNING, 4, "no broker answers")]
    answer = server.ask("DELETE", f"{path}?wait=false")
    assert answer.status == 202
    expected = service.namespace_deletion(namespace, OperationId("namespace-1"))
    assert answer.json == as_json(expected)
    assert service.calls("delete_namespace") == [(namespace, False, None, False)]
    followed = server.ask("GET", answer.headers["location"])
    assert (followed.status, followed.json) == (200, answer.json)
    assert service.calls("namespace_deletion") == [(namespace, "namespace-1")] * 2


@pytest.mark.parametrize(
    "path", ["/admin/v2/namespaces/a%2Fb/c", "/admin/v2/namespaces/public/o%20d", "/admin/namespaces/p/c/%"]
)
def test_invalid_namespace_is_400(path: str, service: FakeDeletionService, server: Served) -> None:
    assert server.ask("DELETE", path).status == 400
    assert service.asked == []


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_BETWEEN_LOOKS_SECONDS", 0.0)


def test_command_follows_the_deletion_and_shows_progress(shell: Terminal, service: FakeDeletionService) -> None:
    service.namespace_statuses = [
        (OperationState.RUNNING, 0, None),
        RUNNING,
        TemporaryError("the metadata store does not respond"),
        (OperationState.RUNNING, 8, "no broker answers"),
        (OperationState.DONE, 10, None),
    ]
    ran = shell.run("namespaces", "delete", "public/old", "--force")
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


def test_namespace_that_is_deleted_immediately(shell: Terminal, service: FakeDeletionService) -> None:
    ran = shell.run("namespaces", "delete", "p/c/n")
    assert (ran.code, ran.err) == (0, "deleted p/c/n\n")
    assert service.calls("delete_namespace") == [("p/c/n", False, None, False)]


def test_when_the_time_is_over_the_sidecars_continue(shell: Terminal, service: FakeDeletionService) -> None:
    service.namespace_statuses = [(OperationState.RUNNING, 4, "no broker answers")]
    ran = shell.run("namespaces", "delete", "public/old", "--wait-seconds", "0")
    assert ran.code == 4
    assert ran.err.splitlines()[-1] == (
        "public/old is not deleted yet; the sidecars continue, and the same command follows them"
    )


@pytest.mark.parametrize(
    ("statuses", "reason"),
    [
        ([ConflictError("Cannot delete non empty namespace")], "Cannot delete non empty namespace (HTTP 409)"),
        ([RUNNING, (OperationState.REFUSED, 4, "DELETE: 403")], "public/old is not deleted: DELETE: 403"),
        ([RUNNING, NotFoundError("there is no such deletion")], "there is no such deletion"),
    ],
)
def test_another_end_is_a_failure_with_its_reason(
    statuses: list[object], reason: str, shell: Terminal, service: FakeDeletionService
) -> None:
    service.namespace_statuses = statuses.copy()
    ran = shell.run("namespaces", "delete", "public/old", "--force")
    assert (ran.code, reason in ran.err.splitlines()[-1]) == (1, True)


@pytest.mark.parametrize("name", ["public", "a/b/c/d", "public/", ""])
def test_a_command_refuses_what_is_no_namespace(name: str, shell: Terminal, service: FakeDeletionService) -> None:
    ran = shell.run("namespaces", "delete", name)
    assert (ran.code, "is not a namespace" in ran.err) == (1, True)
    assert service.asked == []
