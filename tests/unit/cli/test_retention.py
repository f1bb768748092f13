"""``pulsar-sidecar retention``, as a person runs it, and its routes, over a cluster in memory."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.features.pins.http import sweep_router
from pulsar_sidecar.features.pins.ports import BrokerUsage
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.pins import TOPIC, PinnedCluster
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

OTHER = parse_topic_name("other/ns/bills")


@pytest.fixture
def cluster() -> PinnedCluster:
    cluster = PinnedCluster()
    cluster.topic(1, 2, 3)
    cluster.cursor("s", mark_delete=(2, 9))
    cluster.topic(7, topic=OTHER)
    return cluster


@pytest.fixture
def server(cluster: PinnedCluster) -> Iterator[Served]:
    with served(routers=[sweep_router(cluster.sweep)]) as server:
        yield server


def test_a_dry_run_names_bytes_and_prices_by_owner(shell: Terminal) -> None:
    ran = shell.run("retention", "sweep", "--price-per-gb-month", "1000000")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[1:6] == [
        "trimming the others frees 3 ledgers of 2 topics, 2.9 KiB (5.9 KiB on bookies, 6.00 a month)",
        "",
        "tenant  topics  ledgers  on bookies  a month",
        "public  1       2        3.9 KiB     4.00",
        "other   1       1        2.0 KiB     2.00",
    ]
    assert f"{TOPIC}  2        3.9 KiB" in ran.out


def test_a_sweep_trims_the_largest_first_and_a_repeated_one_has_nothing_to_do(
    shell: Terminal, cluster: PinnedCluster
) -> None:
    cluster.brokers.deletes = {TOPIC: (1, 2), OTHER: (7,)}
    ran = shell.run("retention", "sweep", "--execute", "--rate", "6000")
    assert ran.out.splitlines() == [
        "trimmed 2 of 2 topics",
        "deleted 3 ledgers, 2.9 KiB (5.9 KiB on bookies, after their next collections)",
    ]
    assert "topics trimmed: 1 of 2" in ran.err
    assert cluster.brokers.trimmed == [TOPIC, OTHER]
    again = json.loads(shell.run("retention", "sweep", "--execute", "--output-format", "json").out)
    assert (again["plannedTopics"], again["ledgers"], again["stopped"]) == (0, 0, None)


def test_a_sweep_stops_when_a_broker_is_busy(shell: Terminal, cluster: PinnedCluster) -> None:
    cluster.brokers.usage = BrokerUsage("broker-1", "direct memory", 50.0)
    ran = shell.run("retention", "sweep", "--execute", "--max-load", "40")
    assert ran.code == 4
    assert "stopped: broker broker-1 uses 50 % of its direct memory, more than 40 %; repeat the sweep" in ran.out
    assert not cluster.brokers.trimmed


def test_a_sweep_continues_after_a_topic_that_fails(shell: Terminal, cluster: PinnedCluster) -> None:
    cluster.brokers.deletes = {TOPIC: (1, 2), OTHER: (7,)}
    cluster.brokers.hooks.fail_next("trim", TemporaryError("the topic does not load"))
    ran = shell.run("retention", "sweep", "--execute", "--rate", "6000")
    assert ran.code == 4
    assert f"failed: {TOPIC}: the topic does not load" in ran.out
    assert cluster.brokers.trimmed == [OTHER]


@pytest.mark.parametrize("scope", [str(TOPIC), "public/default", "public"])
def test_a_scope(shell: Terminal, scope: str) -> None:
    answer = json.loads(shell.run("retention", "sweep", scope, "--output-format", "json").out)
    assert [topic["topic"] for topic in answer["topics"]] == [str(TOPIC)]
    assert answer["freed"]["pricePerMonth"] is None


def test_a_scope_that_does_not_exist(shell: Terminal) -> None:
    assert shell.run("retention", "sweep", "none").code == 1
