"""The routes and the command that find full subscriptions by what is stored."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pulsar_sidecar.api.rooms.stored_ack_states import stored_router

from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.stored_ack_states import ORDERS, StoredHoles
from tests.unit.ack_state.test_survey import FOUR
from tests.unit.api.serving import Served, served
from tests.unit.cli.running import Terminal


@pytest.fixture
def holes() -> StoredHoles:
    holes = StoredHoles()
    holes.cursor("billing", (1, 0), FOUR)
    holes.cursor("nearly", (1, 1), FOUR[:3])
    holes.cursor("none", (2, 9))
    return holes


@pytest.fixture
def server(holes: StoredHoles) -> Iterator[Served]:
    with served(FakeDeletionService(), routers=[stored_router(holes.surveys)]) as server:
        yield server


@pytest.fixture
def shell(terminal: Terminal, server: Served) -> Terminal:
    terminal.set("PULSAR_SIDECAR_ADMIN_URL", server.url)
    return terminal


def names(answer: Any) -> list[str]:
    return [state["subscription"] for state in answer["states"]]


def test_the_answer_counts_all_and_shows_a_part(server: Served) -> None:
    answer: Any = server.ask("GET", "/admin/v2/storedAckStates?limit=1&holes=true").json
    (state,) = answer.pop("states")
    assert answer == {
        "asOfMs": 5_000,
        "topics": 1,
        "subscriptions": 3,
        "full": 1,
        "nearlyFull": 1,
        "maxUnackedRangesToPersist": 3,
        "found": 2,
        "unreadable": 0,
        "reasons": [],
    }
    assert len(state.pop("stretches")) == 19
    assert state == {
        "topic": str(ORDERS),
        "subscription": "billing",
        "fullness": "full",
        "pauseEnabled": True,
        "markDeletePosition": "1:0",
        "ranges": 4,
        "entries": 19,
        "acknowledged": 7,
    }


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["billing", "nearly", "none"]),
        ("?offset=1&limit=1", ["nearly"]),
        ("?offset=7", []),
        ("?fullness=nearly%20full", ["nearly"]),
        ("?contains=orders", ["billing", "nearly", "none"]),
        ("?contains=bill", ["billing"]),
        ("?contains=%3Cscript%3E", []),
    ],
)
def test_paging_and_filters(server: Served, query: str, found: list[str]) -> None:
    for place in ("storedAckStates", "namespaces/public/default/storedAckStates", "tenants/public/storedAckStates"):
        assert names(server.ask("GET", f"/admin/v2/{place}{query}").json) == found
    assert names(server.ask("GET", f"/admin/v2/persistent/public/default/orders/storedAckStates{query}").json) == found


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("storedAckStates?limit=0", 400),
        ("storedAckStates?fullness=empty", 400),
        ("storedAckStates?unknown=1", 400),
        ("tenants/nowhere/storedAckStates", 404),
        ("persistent/public/default/nowhere/storedAckStates", 404),
    ],
)
def test_bad_input_is_refused(server: Served, path: str, status: int) -> None:
    assert server.ask("GET", f"/admin/v2/{path}").status == status


def test_the_command_shows_the_fullest(shell: Terminal) -> None:
    ran = shell.run("subscriptions", "fullest", "public/default", "--limit", "2")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "3 subscriptions of 1 topic or partition: 1 full, 1 nearly full (of at most 3 ranges)",
        "topic                               subscription  ranges  fullness     unacknowledged",
        f"{ORDERS}  billing       4       full         12",
        f"{ORDERS}  nearly        3       nearly full  15",
        "1 more; see them with --offset or --limit",
    ]
    everywhere = shell.run("subscriptions", "fullest", "--contains", "none", "--output", "json")
    assert names(json.loads(everywhere.out)) == ["none"]
    assert names(json.loads(shell.run("subscriptions", "fullest", str(ORDERS), "--holes", "--output", "json").out)) == [
        "billing",
        "nearly",
    ]


def test_what_could_not_be_read_is_an_exit_code(shell: Terminal, holes: StoredHoles) -> None:
    holes.cursors.unreadable = "the bookie does not answer"
    ran = shell.run("subscriptions", "fullest", "public")
    assert (ran.code, f"not read: {ORDERS} billing: the bookie does not answer" in ran.out) == (4, True)
