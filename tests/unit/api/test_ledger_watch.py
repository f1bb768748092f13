from uuid import UUID

import pytest
from msgspec.structs import replace
from pulsar_sidecar.ledger_deletion.service import Redirect
from pulsar_sidecar.ledger_deletion.watch.evidence import LeakCause
from pulsar_sidecar.ledger_deletion.watch.service import LeakState
from pulsar_sidecar.model.errors import DisabledError, TemporaryError

from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.leaks import NODE, TOPIC, explanation, leak, standby, watching
from tests.unit.api.serving import Served

BASE = "/admin/v2/ledger-deletion/watch"
LEADER = {"name": "east-1", "advertisedUrl": "http://east-1:8750", "brokerUrl": None, "startedMs": 5}
ATTEMPT = "5facb921-a29a-41f6-bc28-bf15d5273bac"
LEAK = {
    "ledgerId": 7,
    "state": "leaked",
    "cause": "trim",
    "sinceMs": 1_700_000_000_000,
    "detail": "why",
    "topic": TOPIC,
    "path": NODE,
    "lengthBytes": 900,
    "appendedMs": None,
    "endedMs": None,
    "offloadAttempt": None,
}


def test_status_of_the_sidecar_that_watches(service: FakeDeletionService, server: Served) -> None:
    service.watch.answer = watching(braked="too many")
    assert server.ask("GET", BASE).json == {
        "mode": "report",
        "state": "watching",
        "leader": LEADER,
        "braked": "too many",
        "holds": ["public", "4711"],
        "detail": None,
        "walkedMs": 1_700_000_000_000,
        "walkSeconds": 2.5,
        "lagSeconds": 0.1,
        "ledgers": 10,
        "references": 9,
        "unreadable": 1,
        "unreadableNodes": [NODE],
        "vanished": 3,
        "brakeLimit": 50,
        "unlinked": 2,
        "leaks": {"leaked": 3},
        "leaked": {"trim": 2, "never-linked": 1},
        "appended": 4,
        "unsoughtCopies": {"s3://b is not in offloadAllowedLocations": 2},
    }


def test_what_a_sidecar_on_standby_does_not_know_is_null(service: FakeDeletionService, server: Served) -> None:
    service.watch.answer = standby()
    answer = server.ask("GET", BASE).json
    assert isinstance(answer, dict)
    assert (answer["state"], answer["leader"]) == ("standby", LEADER)
    for figure in ("walkedMs", "ledgers", "references", "unlinked", "leaks", "leaked", "appended", "lagSeconds"):
        assert answer[figure] is None


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


def test_a_ledger_is_explained(service: FakeDeletionService, server: Served) -> None:
    service.watch.explained = {7: explanation(7)}
    assert server.ask("GET", f"{BASE}/leaks/7").json == {
        "ledgerId": 7,
        "exists": True,
        "namedBy": [],
        "owner": NODE,
        "hold": "public",
        "verdict": "nothing references it, and it may be deleted",
        "leak": LEAK,
        "copies": [],
    }
    assert service.calls("explain") == [7]


@pytest.mark.parametrize("asked", ["leaks", "leaks?cause=trim&limit=5", "leaks/7", "leaks/7?x=%20&y"])
def test_another_sidecars_leaks_are_a_redirect(asked: str, service: FakeDeletionService, server: Served) -> None:
    service.watch.redirect = Redirect("http://east-1:8750/")
    answer = server.ask("GET", f"{BASE}/{asked}")
    assert (answer.status, answer.headers["location"]) == (307, f"http://east-1:8750{BASE}/{asked}")


@pytest.mark.parametrize(
    ("failure", "status"),
    [(DisabledError("set ledgerDeletionWatch"), 405), (TemporaryError("no sidecar watches"), 503)],
)
@pytest.mark.parametrize("asked", ["leaks", "leaks/7"])
def test_no_sidecar_watches(
    failure: DisabledError | TemporaryError, status: int, asked: str, service: FakeDeletionService, server: Served
) -> None:
    service.failure = failure
    answer = server.ask("GET", f"{BASE}/{asked}")
    assert (answer.status, answer.reason) == (status, str(failure))


def test_one_leaked_ledger_is_appended(service: FakeDeletionService, server: Served) -> None:
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


def test_brake(service: FakeDeletionService, server: Served) -> None:
    assert server.ask("POST", f"{BASE}/brake", {"reason": "maintenance"}).json == {"braked": "maintenance", "holds": []}
    assert service.calls("brake") == ["maintenance"]


def test_resume(service: FakeDeletionService, server: Served) -> None:
    service.watch.shared = replace(service.watch.shared, braked="too many", holds=("public",))
    assert server.ask("POST", f"{BASE}/resume").json == {"braked": None, "holds": ["public"]}


def test_holds(service: FakeDeletionService, server: Served) -> None:
    assert server.ask("POST", f"{BASE}/holds", {"hold": TOPIC}).json == {"braked": None, "holds": [TOPIC]}
    assert server.ask("GET", f"{BASE}/holds").json == {"braked": None, "holds": [TOPIC]}
    removed = server.ask("DELETE", f"{BASE}/holds?hold=persistent%3A%2F%2Fpublic%2Fdefault%2Forders")
    assert removed.json == {"braked": None, "holds": []}
    missing = server.ask("DELETE", f"{BASE}/holds?hold=public")
    assert (missing.status, "public is not on the hold list" in missing.reason) == (404, True)
    assert service.calls("unhold") == [TOPIC, "public"]


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
