import json
import re
from dataclasses import replace
from uuid import UUID

import pytest
from pulsar_sidecar.features.ledger_deletion.results import Redirect, SidecarInstance
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause, LeakState
from pulsar_sidecar.model.errors import DisabledError

from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.leaks import TOPIC, explanation, leak, standby, watching
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import served

WATCH = ("ledger-deletion", "watch")
pytestmark = pytest.mark.usefixtures("server")


def test_status_as_a_table_and_as_json(terminal: Terminal, service: FakeDeletionService) -> None:
    service.watch.answer = watching(braked="too many")
    table = terminal.run(*WATCH, "status")
    assert (table.code, table.err) == (0, "")
    assert re.search(r"^braked +too many$", table.out, re.MULTILINE)
    assert re.search(r"^  trim +2$", table.out, re.MULTILINE)
    assert json.loads(terminal.run(*WATCH, "status", "--output", "json").out)["brakeLimit"] == 50


def test_status_on_standby_names_the_command_that_has_the_figures(
    terminal: Terminal, service: FakeDeletionService
) -> None:
    service.watch.answer = standby()
    table = terminal.run(*WATCH, "status")
    assert re.search(r"^ledgers +-$", table.out, re.MULTILINE)
    assert "--admin-url http://east-1:8750 ledger-deletion watch status" in table.err


def test_leaks_are_listed_with_a_summary_by_cause(terminal: Terminal, service: FakeDeletionService) -> None:
    service.watch.found = [leak(7, LeakCause.SCHEMA), leak(8), leak(9), leak(10, cause=None)]
    table = terminal.run(*WATCH, "leaks", "--limit", "2")
    header, first, _ = table.out.splitlines()
    columns = ["ledger", "id", "offload", "attempt", "state", "cause", "since", "length", "topic", "detail"]
    assert header.split() == columns
    assert first.split() == ["7", "-", "leaked", "schema", "2023-11-14T22:13:20Z", "900", "B", TOPIC, "why"]
    assert (
        table.err == "4 ledgers: 2 trim, 1 schema, 1 unknown; 2 of them are shown, --limit and --offset show others\n"
    )
    assert json.loads(terminal.run(*WATCH, "leaks", "--output", "json").out)["byCause"] == {
        "schema": 1,
        "trim": 2,
        "unknown": 1,
    }


def test_brake_and_append(terminal: Terminal, service: FakeDeletionService) -> None:
    service.watch.found = [leak(7)]
    assert "leaked" in terminal.run(*WATCH, "append", "7").out
    assert "maintenance" in terminal.run(*WATCH, "brake", "--reason", "maintenance").out
    assert (service.calls("append_leak"), service.calls("brake")) == ([7], ["maintenance"])
    attempt = "5facb921-a29a-41f6-bc28-bf15d5273bac"
    assert terminal.run(*WATCH, "append", "7", "--offload-attempt", attempt).code == 0
    assert service.calls("append_leak")[1:] == [(7, UUID(attempt))]


def test_empty_leak_list_prints_a_count(terminal: Terminal) -> None:
    ran = terminal.run(*WATCH, "leaks")
    assert (ran.code, ran.out, ran.err) == (0, "", "0 ledgers\n")


def test_leaks_are_chosen_by_state_and_cause(terminal: Terminal, service: FakeDeletionService) -> None:
    assert terminal.run(*WATCH, "leaks", "--state", "kept", "--cause", "cursor-switch", "--ended").code == 0
    assert service.calls("leaks") == [(LeakState.KEPT, LeakCause.CURSOR_SWITCH, True, 100, 0)]
    wrong = terminal.run(*WATCH, "leaks", "--cause", "retention")
    assert (wrong.code, "never-linked" in wrong.err) == (1, True)


def test_help_names_every_state_and_cause(terminal: Terminal) -> None:
    page = " ".join(terminal.run(*WATCH, "leaks", "--help").out.split())
    for word in (*LeakState, *LeakCause):
        assert re.search(rf"\b{word.value}\b", page.replace("- ", "-")), word


def test_text_of_others_cannot_move_the_cursor(terminal: Terminal, service: FakeDeletionService) -> None:
    service.watch.found = [leak(7, detail="\x1b[2Jgone\nline")]
    ran = terminal.run(*WATCH, "leaks")
    assert "\x1b" not in ran.out
    assert len(ran.out.splitlines()) == 2


def test_a_ledger_is_explained(terminal: Terminal, service: FakeDeletionService) -> None:
    service.watch.explained = {7: explanation(7)}
    ran = terminal.run(*WATCH, "explain", "7")
    assert re.search(r"^verdict +nothing references it, and it may be deleted$", ran.out, re.MULTILINE)
    assert terminal.run(*WATCH, "explain", "x").code == 1
    assert service.calls("explain") == [7]


def test_leaks_are_read_from_the_leading_sidecar(terminal: Terminal, service: FakeDeletionService) -> None:
    leader = FakeDeletionService()
    leader.watch.found = [leak(7)]
    leader.watch.explained = {7: explanation(7)}
    with served(leader) as other:
        service.watch.redirect = Redirect(other.url)
        service.instances = (SidecarInstance("other", other.url, None, 5),)
        assert terminal.run(*WATCH, "leaks", "--cause", "trim").err == "1 ledger: 1 trim\n"
        assert terminal.run(*WATCH, "explain", "7").code == 0
    assert leader.asked == [("leaks", (None, LeakCause.TRIM, False, 100, 0)), ("explain", 7)]


def test_a_watch_that_is_off_names_the_setting_that_turns_it_on(
    terminal: Terminal, service: FakeDeletionService
) -> None:
    service.failure = DisabledError("set ledgerDeletionWatch=report")
    ran = terminal.run(*WATCH, "leaks")
    assert (ran.code, ran.out, "set ledgerDeletionWatch=report (HTTP 405)" in ran.err) == (1, "", True)


def test_resume_and_holds(terminal: Terminal, service: FakeDeletionService) -> None:
    service.watch.shared = replace(service.watch.shared, braked="too many")
    assert re.search(r"^braked +too many$", terminal.run(*WATCH, "hold", "list").out, re.MULTILINE)
    assert re.search(r"^braked +-$", terminal.run(*WATCH, "resume").out, re.MULTILINE)
    added = terminal.run(*WATCH, "hold", "add", TOPIC, "--output", "json")
    assert json.loads(added.out) == {"braked": None, "holds": [TOPIC]}
    assert terminal.run(*WATCH, "hold", "remove", TOPIC).code == 0
    missing = terminal.run(*WATCH, "hold", "remove", "public")
    assert (missing.code, "HTTP 404" in missing.err) == (1, True)
    asked = [
        ("control", None),
        ("resume_watch", None),
        ("hold", TOPIC),
        ("release_hold", TOPIC),
        ("release_hold", "public"),
    ]
    assert service.asked == asked
