"""Stuck cursors and slow loads, by the commands and the routes that they call."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.features.deduplication import http
from pulsar_sidecar.features.deduplication.inspection.lag_limits import LagLimits
from pulsar_sidecar.features.deduplication.policies import BrokerDeduplication
from pulsar_sidecar.features.deduplication.results import LoadForecasts, StuckReport
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.server.answers import parse_answer

from tests.unit.cli.running import Terminal
from tests.unit.deduplication.inspection.test_stuck import ELSEWHERE, ORDERS, Setup
from tests.unit.server.serving import Served, served


@pytest.fixture
def setup() -> Setup:
    setup = Setup()
    setup.topics.put(ORDERS, (1, 2, 3), (1, 4))
    setup.topics.put(ELSEWHERE, (1, 2, 3), (3, 9))
    setup.switched(on=True, namespace="public/elsewhere")
    return setup


@pytest.fixture
def server(setup: Setup) -> Iterator[Served]:
    with served(routers=[http.health_router(setup.health)]) as server:
        yield server


@pytest.mark.parametrize("wrong", ["entries=-1", "sizeBytes=-1", "most=0"])
def test_limits_have_bounds(server: Served, wrong: str) -> None:
    assert server.ask("GET", f"/admin/v2/deduplication/stuck?{wrong}").status == 400


def test_stuck_shows_retained_ledgers_and_remedies(shell: Terminal, setup: Setup) -> None:
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
    written = json.loads(shell.run("deduplication", "stuck", "public/default", "--output", "json").out)
    assert parse_answer(StuckReport, written) == setup.health.stuck("public/default", LagLimits(), 100)
    assert shell.run("deduplication", "stuck", "public/elsewhere").code == 0
    assert shell.run("deduplication", "stuck", "public/missing").code == 1


def test_the_limits_are_the_callers(shell: Terminal, setup: Setup) -> None:
    setup.switched(on=True)
    for arguments, code in (([], 0), (["--entries", "24"], 2), (["--bytes", "2499"], 2), (["--entries", "25"], 0)):
        assert shell.run("deduplication", "stuck", "public/default", *arguments).code == code


def test_unreadable_topics_have_an_exit_code(shell: Terminal, setup: Setup) -> None:
    setup.switched(on=True)
    setup.topics.lengths.unreadable = "ledger 3 cannot be measured"
    for command in ("stuck", "forecast"):
        ran = shell.run("deduplication", command, "public/default")
        assert (ran.code, f"not read: {ORDERS}: ledger 3 cannot be measured" in ran.out) == (4, True)


def test_a_forecast_without_a_namespace_is_of_all_topics(shell: Terminal, setup: Setup) -> None:
    setup.switched(on=True)
    found = parse_answer(LoadForecasts, json.loads(shell.run("deduplication", "forecast", "--output", "json").out))
    assert found == setup.health.slowest_loads(None)
    assert {load.topic for load in found.slowest} == {str(ORDERS), str(ELSEWHERE)}


def test_forecast_shows_seconds_and_their_assumption(shell: Terminal, setup: Setup) -> None:
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
