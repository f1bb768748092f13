from uuid import UUID

import pytest
from pulsar_sidecar.features.ledger_deletion.results import Redirect
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause, LeakState
from pulsar_sidecar.server.answers import as_json

from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.leaks import leak
from tests.unit.server.serving import Served

BASE = "/admin/v2/ledger-deletion/watch"
ATTEMPT = "5facb921-a29a-41f6-bc28-bf15d5273bac"
LEAK = as_json(leak(7))


def test_leaks_are_listed_and_counted(service: FakeDeletionService, server: Served) -> None:
    service.watch.found = [leak(7), leak(8), leak(9, cause=None)]
    assert server.ask("GET", f"{BASE}/leaks?limit=1").json == {
        "total": 3,
        "byCause": {"trim": 2, "unknown": 1},
        "trend": [{"fromMs": 1_699_999_200_000, "leaks": 3}],
        "leaks": [LEAK],
    }
    assert server.ask("GET", f"{BASE}/leaks?state=leaked&cause=never-linked&ended=true&offset=5").status == 200
    assert service.calls("leaks") == [
        (None, None, False, 1, 0),
        (LeakState.LEAKED, LeakCause.NEVER_LINKED, True, 100, 5),
    ]


@pytest.mark.parametrize("asked", ["leaks", "leaks?cause=trim&limit=5", "leaks/7", "leaks/7?x=%20&y"])
def test_another_sidecars_leaks_are_a_redirect(asked: str, service: FakeDeletionService, server: Served) -> None:
    service.watch.redirect = Redirect("http://east-1:8750/")
    answer = server.ask("GET", f"{BASE}/{asked}")
    assert (answer.status, answer.headers["location"]) == (307, f"http://east-1:8750{BASE}/{asked}")


def test_leaked_ledger_is_appended(service: FakeDeletionService, server: Served) -> None:
    service.watch.found = [leak(7)]
    answer = server.ask("POST", f"{BASE}/leaks/7/append")
    assert (answer.status, answer.json) == (202, LEAK)
    of_one = f"{BASE}/leaks/7/append?offloadAttempt={ATTEMPT}"
    assert server.ask("POST", of_one).status == 202
    assert server.ask("POST", f"{BASE}/leaks/7/append?offloadAttempt=7").status == 400
    assert service.calls("append_leak") == [7, (7, UUID(ATTEMPT))]
    service.watch.redirect = Redirect("http://east-1:8750/")
    answer = server.ask("POST", of_one)
    assert (answer.status, answer.headers["location"]) == (307, f"http://east-1:8750{of_one}")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "leaks?limit=0", None),
        ("GET", "leaks?limit=10001", None),
        ("GET", "leaks?state=gone", None),
        ("GET", "leaks?cause=TRIM", None),
        ("GET", "leaks?unknown=1", None),
        ("GET", "leaks/-1", None),
        ("GET", "leaks/x", None),
        ("GET", f"leaks/{2**63}", None),
        ("GET", "leaks?offset=-1", None),
        ("POST", "leaks/x/append", None),
        ("POST", "brake", None),
        ("POST", "brake", {"reason": ""}),
        ("POST", "holds", None),
        ("POST", "holds", {}),
        ("POST", "holds", {"hold": ""}),
        ("POST", "holds", {"hold": 7}),
        ("POST", "holds", {"hold": "a", "more": 1}),
        ("DELETE", "holds", None),
        ("DELETE", "holds?hold=", None),
        ("DELETE", "holds?hold=a&more=1", None),
    ],
)
def test_bad_input_is_refused(
    method: str, path: str, body: object, service: FakeDeletionService, server: Served
) -> None:
    answer = server.ask(method, f"{BASE}/{path}", body)
    assert answer.status == 400
    assert answer.reason
    assert service.asked == []
