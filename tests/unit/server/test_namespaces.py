import pytest
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.server.answers import as_json

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.server.serving import Served

PATHS = [
    ("/admin/v2/namespaces/public/old", "public/old"),
    ("/admin/namespaces/p/c/n", "p/c/n"),
]


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
