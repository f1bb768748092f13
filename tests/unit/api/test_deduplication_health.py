"""The routes of stuck cursors and slow loads, and their commands."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.api.rooms import deduplication
from pulsar_sidecar.deduplication.inspection.stuck import StuckReport
from pulsar_sidecar.deduplication.policies import BrokerDeduplication
from pulsar_sidecar.model.errors import InvalidInputError

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.api.serving import Served, served
from tests.unit.cli.running import Terminal
from tests.unit.deduplication.inspection.test_stuck import ELSEWHERE, ORDERS, Setup

DEFAULT = "/admin/v2/namespaces/public/default/deduplication"


@pytest.fixture
def setup() -> Setup:
    setup = Setup()
    setup.topics.put(ORDERS, (1, 2, 3), (1, 4))
    setup.topics.put(ELSEWHERE, (1, 2, 3), (3, 9))
    setup.switched(on=True, namespace="public/elsewhere")
    return setup


@pytest.fixture
def server(setup: Setup) -> Iterator[Served]:
    with served(FakeDeletionService(), routers=[deduplication.health_router(setup.health)]) as server:
        yield server


def test_stuck_cursors_over_rest(server: Served) -> None:
    everything = server.ask("GET", "/admin/v2/deduplication/stuck").json
    assert everything == {
        "topics": 2,
        "cursors": 2,
        "found": 1,
        "heldBytes": 2000,
        "stuck": [
            {
                "topic": str(ORDERS),
                "reason": "left over",
                "because": "off by the broker",
                "certain": True,
                "position": "1:4",
                "since": {"entries": 25, "sizeBytes": 2500},
                "heldLedgers": 2,
                "heldBytes": 2000,
                "freedBytes": 2000,
                "status": None,
                "remedy": "load the topic once: its broker then deletes the cursor: "
                f"pulsar-admin topics stats {ORDERS}",
            }
        ],
        "unreadable": [],
    }
    assert server.ask("GET", f"{DEFAULT}/stuck?entries=3&sizeBytes=4&most=5").status == 200
    for wrong in ("entries=-1", "most=0", "entries=x", "other=1"):
        assert server.ask("GET", f"{DEFAULT}/stuck?{wrong}").status == 400
    assert server.ask("GET", DEFAULT.replace("default", "missing") + "/stuck").status == 404


def test_slow_loads_over_rest(server: Served, setup: Setup) -> None:
    setup.switched(on=True)
    found = server.ask("GET", f"{DEFAULT}/forecast").json
    assert isinstance(found, dict)
    (slowest,) = found["slowest"]
    assert (slowest["topic"], slowest["replay"]["entries"], slowest["timesOut"]) == (str(ORDERS), 25, False)
    assert (found["topics"], found["cursors"], found["loadTimeoutSeconds"]) == (1, 1, 60)


def test_stuck_shows_what_is_held_and_what_helps(shell: Terminal) -> None:
    ran = shell.run("deduplication", "stuck")
    assert ran.code == 2
    assert ran.out.splitlines() == [
        "2 topics or partitions, 2 with a deduplication cursor: 1 stuck, which hold 2.0 KiB",
        "",
        f"{ORDERS}: left over (off by the broker)",
        "  snapshot  at 1:4, behind it 25 entries, 2.4 KiB",
        "  holds     2 ledgers, 2.0 KiB; no other cursor: 2.0 KiB",
        f"  remedy    load the topic once: its broker then deletes the cursor: pulsar-admin topics stats {ORDERS}",
    ]
    assert json.loads(shell.run("deduplication", "stuck", "public/default", "--output", "json").out)["found"] == 1
    assert shell.run("deduplication", "stuck", "public/elsewhere").code == 0
    assert shell.run("deduplication", "stuck", "public/missing").code == 1


def test_the_limits_are_the_callers(shell: Terminal, setup: Setup) -> None:
    setup.switched(on=True)
    for arguments, code in (([], 0), (["--entries", "24"], 2), (["--bytes", "2499"], 2), (["--entries", "25"], 0)):
        assert shell.run("deduplication", "stuck", "public/default", *arguments).code == code


def test_what_could_not_be_read_is_an_exit_code(shell: Terminal, setup: Setup) -> None:
    setup.switched(on=True)
    setup.topics.lengths.unreadable = "ledger 3 cannot be measured"
    for command in ("stuck", "forecast"):
        ran = shell.run("deduplication", command, "public/default")
        assert (ran.code, f"not read: {ORDERS}: ledger 3 cannot be measured" in ran.out) == (4, True)


def test_a_forecast_without_a_namespace_is_of_all_topics(shell: Terminal, setup: Setup) -> None:
    setup.switched(on=True)
    found = json.loads(shell.run("deduplication", "forecast", "--output", "json").out)
    assert {load["topic"] for load in found["slowest"]} == {str(ORDERS), str(ELSEWHERE)}


def test_forecast_shows_seconds_and_what_they_rest_on(shell: Terminal, setup: Setup) -> None:
    setup.switched(on=True)
    ran = shell.run("deduplication", "forecast", "public/default")
    lines = ran.out.splitlines()
    assert (ran.code, lines[0]) == (0, "1 topic or partition, 1 with a deduplication cursor")
    assert lines[1] == f"{ORDERS}: 0.0 s: 25 entries, 2.4 KiB after 1:4"
    assert lines[2].startswith("assumed: a broker of 4.0.8 replays")
    setup.brokers.broker = BrokerDeduplication(load_timeout_seconds=0)
    assert "more than topicLoadTimeoutSeconds (0 s)" in shell.run("deduplication", "forecast", "public/default").out


def test_a_dump_needs_no_service(shell: Terminal, setup: Setup) -> None:
    shell.set("PULSAR_SIDECAR_ADMIN_URL", "http://127.0.0.1:1")
    shell.stuck = setup.stuck()
    ran = shell.run("deduplication", "stuck", "--dump", "dumps/monday", "--output", "json", "--entries", "7")
    assert (ran.code, json.loads(ran.out)["stuck"][0]["topic"]) == (2, str(ORDERS))
    shell.stuck = StuckReport(0, 0, 0, 0, (), ("/managed-ledgers/x: refused",))
    assert shell.run("deduplication", "stuck", "public/default", "--dump", "dumps/monday").code == 4
    shell.stuck = InvalidInputError("dumps/monday is no dump")
    assert shell.run("deduplication", "stuck", "--dump", "dumps/monday").code == 1
    assert shell.run("deduplication", "stuck", "public", "--dump", "dumps/monday").code == 1
    assert shell.run("deduplication", "stuck", "--broker-deduplication-enabled").code == 1
