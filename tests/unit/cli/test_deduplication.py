"""``deduplication show`` as a person runs it, over the service's routes."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.features.deduplication import http
from pulsar_sidecar.features.deduplication.policies import DeduplicationPolicy
from pulsar_sidecar.features.deduplication.ports import ReplayedEntry
from pulsar_sidecar.features.deduplication.results import (
    DeduplicationDecision,
    DeduplicationView,
    HeldLedgers,
    PolicyLevel,
)
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.server.answers import parse_answer

from tests.fakes.deduplication import TOPIC, DeduplicatedTopics
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

REPLICATOR = "pulsar.repl.east-->west"
OTHER = parse_topic_name("persistent://public/default/other")


@pytest.fixture(scope="module")
def topics() -> DeduplicatedTopics:
    made = DeduplicatedTopics()
    made.brokers.namespaces[DeduplicationPolicy.ENABLED, "public/default"] = True
    sequences = {f"p{number}": number for number in range(4)} | {f"{REPLICATOR}_LID": 9, f"{REPLICATOR}_EID": 3}
    made.put(mark_delete=(1, 4), sequences=sequences)
    made.cursor("slow", (2, 0))
    made.messages.put((1, 4), "p0", 0, at_ms=made.clock.now_ms() - 90_000)
    made.messages.put((1, 5), "p0", 9)
    place = Position(LedgerId(1), EntryId(6))
    made.messages.put_other(ReplayedEntry(place, "new", 2**63 - 1, 0, is_marker=False, replicated_from="east"))
    made.brokers.loaded = [TOPIC]
    return made


@pytest.fixture(scope="module")
def server(topics: DeduplicatedTopics) -> Iterator[Served]:
    with served(routers=[http.router(topics.service)]) as opened:
        yield opened


def test_show(shell: Terminal) -> None:
    ran = shell.run("deduplication", "show", str(TOPIC))
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        str(TOPIC),
        "  deduplication  enabled by the namespace's policy",
        "  snapshot       at 1:4, 4 producers and 1 replicator, in the cursor's node; "
        "messages there were published 1 min ago",
        "  limits         6 of 10,000 names; 120 B, of 5.0 MiB in an entry and 1024.0 KiB in a node of a "
        "stock ZooKeeper",
        "  since          25 entries, 2.4 KiB: a topic load replays them in about 0.0 s",
        "  holds back     2 ledgers, 2.0 KiB; no other cursor holds 1 of them, 1000 B",
        "  producer                 snapshot",
        "  p0                       0",
        "  p1                       1",
        "  p2                       2",
        "  p3                       3",
        f"  {REPLICATOR}  9:3",
    ]


def test_show_lists_so_many_producers(shell: Terminal) -> None:
    ran = shell.run("deduplication", "show", str(TOPIC), "--producers", "1")
    assert ran.out.splitlines()[-2:] == [
        "  p0        0",
        "  and 4 more; show them with --producers or --output-format json",
    ]


def test_replay(shell: Terminal, topics: DeduplicatedTopics) -> None:
    topics.brokers.looks_until_applied = 0
    ran = shell.run("deduplication", "show", str(TOPIC), "--replay", "--ask-broker")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[1].endswith("; the broker reports: Enabled")
    replayed = (
        "2 entries up to 1:6, 0 of them markers; a broker that loads and deduplicates the topic now gets this map"
    )
    assert f"  replay         {replayed}" in lines
    rows = [line.split() for line in lines[-6:]]
    assert ["new", "-", "9223372036854775807"] in rows
    assert ["p0", "0", "9"] in rows
    assert rows[-1] == [REPLICATOR, "9:3", "9:3"]
    (remark,) = (line for line in lines if line.startswith("  remark"))
    assert "of 1 producer elsewhere: new (east)" in remark


def test_an_unloaded_topic_is_reported_as_unloaded(shell: Terminal, topics: DeduplicatedTopics) -> None:
    topics.put(OTHER)
    ran = shell.run("deduplication", "show", str(OTHER), "--ask-broker")
    assert ran.out.splitlines()[1].endswith("enabled by the namespace's policy; no broker has the topic loaded")


def test_load_replays_nothing_without_deduplication(shell: Terminal, topics: DeduplicatedTopics) -> None:
    off = parse_topic_name("persistent://public/default/off")
    topics.put(off, mark_delete=(1, 4))
    topics.brokers.topics[DeduplicationPolicy.ENABLED, off] = False
    lines = shell.run("deduplication", "show", str(off)).out.splitlines()
    assert "  since          25 entries, 2.4 KiB: a topic load replays none of them" in lines


def test_an_incomplete_replay_exits_with_4(shell: Terminal) -> None:
    ran = shell.run("deduplication", "show", str(TOPIC), "--replay", "--limit", "1", "--output", "json")
    assert ran.code == 4
    (view,) = parse_answer(list[DeduplicationView], json.loads(ran.out))
    assert view.replay is not None
    assert view.replay.problems == ("replayed 1 entry, and there are more; raise the limit",)
    assert view.decision == DeduplicationDecision(True, PolicyLevel.NAMESPACE, "enabled by the namespace's policy")
    assert view.held_alone == HeldLedgers((1,), 1_000)
