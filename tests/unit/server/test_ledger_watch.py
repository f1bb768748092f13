"""The watch for leaks, by its routes and commands."""

import json
import re
from dataclasses import replace
from uuid import UUID

import pytest
from pulsar_sidecar.features.ledger_deletion.results import Redirect, SidecarInstance
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause, LeakState
from pulsar_sidecar.model.errors import DisabledError
from pulsar_sidecar.server.answers import as_json

from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.leaks import TOPIC, explanation, leak, standby, watching
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

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


# --- commands --------------------------------------------------------------------------------------------------------


WATCH = ("ledger-deletion", "watch")


def test_status_as_a_table_and_as_json(shell: Terminal, service: FakeDeletionService) -> None:
    service.watch.answer = watching(braked="too many")
    table = shell.run(*WATCH, "status")
    assert (table.code, table.err) == (0, "")
    assert re.search(r"^braked +too many$", table.out, re.MULTILINE)
    assert re.search(r"^  trim +2$", table.out, re.MULTILINE)
    assert json.loads(shell.run(*WATCH, "status", "--output", "json").out)["brakeLimit"] == 50


def test_status_on_standby_names_the_command_that_has_the_figures(
    shell: Terminal, service: FakeDeletionService
) -> None:
    service.watch.answer = standby()
    table = shell.run(*WATCH, "status")
    assert re.search(r"^ledgers +-$", table.out, re.MULTILINE)
    assert "--admin-url http://east-1:8750 ledger-deletion watch status" in table.err


def test_leaks_are_shown_with_a_summary_by_cause(shell: Terminal, service: FakeDeletionService) -> None:
    service.watch.found = [leak(7, LeakCause.SCHEMA), leak(8), leak(9), leak(10, cause=None)]
    table = shell.run(*WATCH, "leaks", "--limit", "2")
    header, first, _ = table.out.splitlines()
    columns = ["ledger", "id", "offload", "attempt", "state", "cause", "since", "length", "topic", "detail"]
    assert header.split() == columns
    assert first.split() == ["7", "-", "leaked", "schema", "2023-11-14T22:13:20Z", "900", "B", TOPIC, "why"]
    assert (
        table.err == "4 ledgers: 2 trim, 1 schema, 1 unknown; 2 of them are shown, --limit and --offset show others\n"
    )
    assert json.loads(shell.run(*WATCH, "leaks", "--output", "json").out)["byCause"] == {
        "schema": 1,
        "trim": 2,
        "unknown": 1,
    }


def test_brake_and_append(shell: Terminal, service: FakeDeletionService) -> None:
    service.watch.found = [leak(7)]
    assert "leaked" in shell.run(*WATCH, "append", "7").out
    assert "maintenance" in shell.run(*WATCH, "brake", "--reason", "maintenance").out
    assert (service.calls("append_leak"), service.calls("brake")) == ([7], ["maintenance"])
    assert shell.run(*WATCH, "append", "7", "--offload-attempt", ATTEMPT).code == 0
    assert service.calls("append_leak")[1:] == [(7, UUID(ATTEMPT))]


def test_empty_leak_list_prints_a_count(shell: Terminal) -> None:
    ran = shell.run(*WATCH, "leaks")
    assert (ran.code, ran.out, ran.err) == (0, "", "0 ledgers\n")


def test_leaks_are_chosen_by_state_and_cause(shell: Terminal, service: FakeDeletionService) -> None:
    assert shell.run(*WATCH, "leaks", "--state", "kept", "--cause", "cursor-switch", "--ended").code == 0
    assert service.calls("leaks") == [(LeakState.KEPT, LeakCause.CURSOR_SWITCH, True, 100, 0)]
    wrong = shell.run(*WATCH, "leaks", "--cause", "retention")
    assert (wrong.code, "never-linked" in wrong.err) == (1, True)


def test_help_names_every_state_and_cause(shell: Terminal) -> None:
    page = " ".join(shell.run(*WATCH, "leaks", "--help").out.split())
    for word in (*LeakState, *LeakCause):
        assert re.search(rf"\b{word.value}\b", page.replace("- ", "-")), word


def test_a_ledger_is_explained(shell: Terminal, service: FakeDeletionService) -> None:
    service.watch.explained = {7: explanation(7)}
    ran = shell.run(*WATCH, "explain", "7")
    assert re.search(r"^verdict +nothing references it, and it may be deleted$", ran.out, re.MULTILINE)
    assert shell.run(*WATCH, "explain", "x").code == 1
    assert service.calls("explain") == [7]


def test_leaks_are_read_from_the_leading_sidecar(shell: Terminal, service: FakeDeletionService) -> None:
    leader = FakeDeletionService()
    leader.watch.found = [leak(7)]
    leader.watch.explained = {7: explanation(7)}
    with served(leader) as other:
        service.watch.redirect = Redirect(other.url)
        service.instances = (SidecarInstance("other", other.url, None, 5),)
        assert shell.run(*WATCH, "leaks", "--cause", "trim").err == "1 ledger: 1 trim\n"
        assert shell.run(*WATCH, "explain", "7").code == 0
    assert leader.asked == [("leaks", (None, LeakCause.TRIM, False, 100, 0)), ("explain", 7)]


def test_a_watch_that_is_off_names_the_setting_that_turns_it_on(shell: Terminal, service: FakeDeletionService) -> None:
    service.failure = DisabledError("set ledgerDeletionWatch=report")
    ran = shell.run(*WATCH, "leaks")
    assert (ran.code, ran.out, "set ledgerDeletionWatch=report (HTTP 405)" in ran.err) == (1, "", True)


def test_resume_and_holds(shell: Terminal, service: FakeDeletionService) -> None:
    service.watch.shared = replace(service.watch.shared, braked="too many")
    assert re.search(r"^braked +too many$", shell.run(*WATCH, "hold", "list").out, re.MULTILINE)
    assert re.search(r"^braked +-$", shell.run(*WATCH, "resume").out, re.MULTILINE)
    added = shell.run(*WATCH, "hold", "add", TOPIC, "--output", "json")
    assert json.loads(added.out) == {"braked": None, "holds": [TOPIC]}
    assert shell.run(*WATCH, "hold", "remove", TOPIC).code == 0
    missing = shell.run(*WATCH, "hold", "remove", "public")
    assert (missing.code, "HTTP 404" in missing.err) == (1, True)
    asked = [
        ("control", None),
        ("resume_watch", None),
        ("hold", TOPIC),
        ("release_hold", TOPIC),
        ("release_hold", "public"),
    ]
    assert service.asked == asked
