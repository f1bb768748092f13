"""``subscriptions`` and the commands of the pause's policy, as a person runs them."""

import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.cli.words import bar
from pulsar_sidecar.features.acknowledgements.cli import level
from pulsar_sidecar.features.acknowledgements.http import router, stored_router
from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits

from tests.fakes.acknowledging_broker import FakeAcknowledgingBroker
from tests.fakes.stored_ack_states import FOUR, ORDERS, StoredHoles
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import served

TOPIC = str(ORDERS)
POLICY = "dispatcher-pause-on-ack-state-persistent"


@pytest.fixture
def broker() -> FakeAcknowledgingBroker:
    broker = FakeAcknowledgingBroker(AckStateLimits(max_unacked_ranges=20))
    broker.dig(ORDERS, "billing", 30)
    return broker


@pytest.fixture
def holes() -> StoredHoles:
    return StoredHoles()


@pytest.fixture
def shell(terminal: Terminal, broker: FakeAcknowledgingBroker, holes: StoredHoles) -> Iterator[Terminal]:
    with (
        closing(broker.service()) as states,
        served(routers=[router(states), stored_router(holes.surveys)]) as server,
    ):
        terminal.set("PULSAR_SIDECAR_ADMIN_URL", server.url)
        yield terminal


def test_the_table_shows_what_fits_and_what_would_come_again(shell: Terminal, broker: FakeAcknowledgingBroker) -> None:
    broker.topics[ORDERS].pause = True
    ran = shell.run("subscriptions", "ack-state", TOPIC, "-s", "billing", "--width", "30")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "persistent://public/default/orders  billing  (Shared, 2 consumers)",
        "  acknowledged up to      6:-1",
        "  beyond it               30 ranges of 20 that fit (10 too many), 30 entries, 294 B when written",
        "  bytes                   307 B of 5.0 MiB in an entry, 325 B of 1023.0 KiB in a node: fits",
        "  dispatch                PAUSED: no new messages are read until ranges merge; due delayed messages"
        " and redeliveries continue",
        "  policy                  topic true, namespace unset, broker false",
        "  stored                  in ledger 7, entry 1: up to 6:-1 and 21 ranges, 1 B",
        "  entries                 60 from 6:0, a character is about 2",
        "    acknowledged          |::::::::::::::::::::::::::::::|",
        "    stored                |:::::::::::::::::::::         |",
        "  if the broker died now  9 acknowledged entries delivered again: 6:43, 6:45, 6:47, ...",
        "  if the topic unloads    9 acknowledged entries delivered again: 6:43, 6:45, 6:47, ...",
        "  in any case             4 delivered, unacknowledged messages are delivered again",
    ]
    broker.topics[ORDERS].subscriptions["billing"].properties = {"pulsar.replicated.subscription": 1}
    told = "  in other clusters       replicated up to there, at each snapshot; 30 entries beyond it: not replicated"
    assert told in shell.run("subscriptions", "ack-state", TOPIC).out.splitlines()
    (answer,) = json.loads(shell.run("subscriptions", "ack-state", TOPIC, "--output", "json", "--ranges", "1").out)
    assert answer["afterCrash"] == {"entries": 9, "rangeCount": 9, "ranges": ["6:43"]}


def test_without_a_subscription_all_are_shown(shell: Terminal, broker: FakeAcknowledgingBroker) -> None:
    subscriptions = broker.topics[ORDERS].subscriptions
    for name, count in (("billing", 3), ("a\x1b[31m", 0)):
        broker.dig(ORDERS, name, count)
    ran = shell.run("subscriptions", "ack-state", "orders")
    assert ran.out.count("(Shared, 2 consumers)") == 2
    assert "\x1b" not in ran.out
    assert "no acknowledged entry is delivered again" in ran.out
    assert "room for 17 more" in ran.out
    subscriptions.clear()
    assert shell.run("subscriptions", "ack-state", "orders").out == "no durable subscription\n"


def test_missing_topic_is_reported(shell: Terminal) -> None:
    ran = shell.run("subscriptions", "ack-state", "nowhere")
    assert (ran.code, ran.out) == (1, "")
    assert "there is no topic" in ran.err
    assert shell.run("subscriptions", "ack-state", "non-persistent://public/default/x").code == 1


def test_a_namespaces_policy(shell: Terminal) -> None:
    assert shell.run("namespaces", f"get-{POLICY}", "public/default").out == "null\n"
    assert shell.run("namespaces", f"set-{POLICY}", "public/default").err == "set to true\n"
    assert shell.run("namespaces", f"get-{POLICY}", "public/default").out == "true\n"
    removed = shell.run("namespaces", f"remove-{POLICY}", "public/default")
    assert removed.out == "removed    yes\nin effect  no\nremark     -\n"
    assert shell.run("namespaces", f"get-{POLICY}", "public").code == 1


def test_a_topics_policy(shell: Terminal, broker: FakeAcknowledgingBroker) -> None:
    broker.namespaces["public/default"] = True
    assert shell.run("topics", f"get-{POLICY}", TOPIC, "-ap").out == "null\n"
    assert shell.run("topics", f"set-{POLICY}", TOPIC).code == 0
    assert shell.run("topics", f"get-{POLICY}", TOPIC).out == "true\n"
    refused = shell.run("topics", f"remove-{POLICY}", TOPIC)
    assert (refused.code, refused.out) == (1, "")
    assert "the broker would store false" in refused.err
    assert "the broker stores false instead" in shell.run("topics", f"remove-{POLICY}", TOPIC, "--force").out


@given(st.floats(0, 1), st.floats(0.001, 1))
def test_a_plot_never_shows_something_as_nothing_or_a_part_as_all(part: float, whole: float) -> None:
    shown = level(part, whole)
    assert (shown == " ") == (part == 0)
    assert (shown == "#") == (part >= whole)
    assert (bar(part, whole) == "") == (part == 0)


def test_the_fullest_come_first(shell: Terminal, holes: StoredHoles) -> None:
    for name, mark_delete, ranges in (("none", (2, 9), ()), ("nearly", (1, 1), FOUR[:3]), ("billing", (1, 0), FOUR)):
        holes.cursor(name, mark_delete, ranges)
    ran = shell.run("subscriptions", "fullest", "public/default", "--limit", "2")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "3 subscriptions of 1 topic or partition: 1 full, 1 nearly full (of at most 3 ranges)",
        "topic                               subscription  ranges  status       unacknowledged",
        f"{ORDERS}  billing       4       full         12",
        f"{ORDERS}  nearly        3       nearly full  15",
        "1 more; see them with --offset or --limit",
    ]
    for options, found in ((("--contains", "none"), ["none"]), ((TOPIC, "--holes"), ["billing", "nearly"])):
        ran = shell.run("subscriptions", "fullest", *options, "--output", "json")
        assert [state["subscription"] for state in json.loads(ran.out)["states"]] == found


def test_unreadable_states_set_the_exit_code(shell: Terminal, holes: StoredHoles) -> None:
    holes.cursor("billing", (1, 0), FOUR)
    holes.cursors.unreadable = "the bookie does not respond"
    ran = shell.run("subscriptions", "fullest", "public")
    assert (ran.code, f"not read: {ORDERS} billing: the bookie does not respond" in ran.out) == (4, True)
