"""``topics delayed-messages`` as a person runs it, over the service's route."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.backlog.waiting import WaitingReader
from pulsar_sidecar.features.delayed_index import http
from pulsar_sidecar.features.delayed_index.cli import waiting as waiting_messages

from tests.fakes.clock import FakeClock
from tests.fakes.delayed_messages import TOPIC, FakeCluster
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

PATH = "/admin/v2/persistent/public/default/orders/delayedMessages"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """Three hours of one message a minute, the first 10 acknowledged, and two that are due at once."""
    cluster = FakeCluster(FakeClock())
    for minute in range(180):
        cluster.publish(1, (minute + 1) * 60_000)
    cluster.publish(2, None)
    cluster.subscribe("billing").acked = set(sorted(cluster.entries)[:10])
    with served(routers=[http.waiting_router(WaitingReader(cluster, cluster, cluster.clock))]) as server:
        yield server


def test_the_table_counts_by_due_time(shell: Terminal) -> None:
    ran = shell.run("topics", "delayed-messages", str(TOPIC), "--rows", "8")
    lines = ran.out.splitlines()
    assert (ran.code, lines[0], lines[1]) == (
        0,
        "billing (Shared): 170 delayed messages waiting",
        "  2 without a due time",
    )
    assert lines[2].endswith("in 11 min  7:10 of persistent://public/default/orders")
    assert lines[3].endswith("in 3 h  7:179 of persistent://public/default/orders")
    assert lines[4] == "  due from (UTC)        messages in 30 min"
    rows = [line.split() for line in lines[5:]]
    assert sum(int(row[1]) for row in rows) == 170
    assert len(rows) <= 8
    assert max(len(row[2]) for row in rows) == 40


def test_pages_are_added_up_and_progress_is_reported(shell: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = json.loads(shell.run("topics", "delayed-messages", "orders", "--output", "json").out)
    monkeypatch.setattr(waiting_messages, "_PAGE_ENTRIES", 7)
    ran = shell.run("topics", "delayed-messages", "orders", "--output", "json")
    assert json.loads(ran.out) == whole
    assert "entries: " in ran.err
    (subscription,) = whole["subscriptions"]
    assert (whole["complete"], subscription["delayed"], subscription["undelayed"]) == (True, 170, 2)
    assert sum(subscription["byDueSecond"].values()) == 170


def test_a_limit_before_the_end_is_reported(shell: Terminal) -> None:
    ran = shell.run("topics", "delayed-messages", "orders", "--limit", "5")
    assert ran.code == 4
    assert "5 delayed messages waiting" in ran.out
    assert "has more than 5 entries" in ran.err


def test_mistakes_are_reported(shell: Terminal, server: Served) -> None:
    unknown = shell.run("topics", "delayed-messages", "orders", "-s", "nobody")
    assert (unknown.code, unknown.out) == (1, "")
    assert "no durable subscription nobody" in unknown.err
    for query, status in [("limit=0", 400), ("after=x", 400), ("limit=1000001", 400), ("subscription=nobody", 404)]:
        assert server.ask("GET", f"{PATH}?{query}").status == status
    assert server.ask("GET", "/admin/persistent/p/c/n/orders/delayedMessages").status == 404
