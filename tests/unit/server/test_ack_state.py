"""Acknowledgement states and the policy that pauses dispatch, by routes and commands, over a broker in memory."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.cli.words import bar
from pulsar_sidecar.features.acknowledgements.cli import level
from pulsar_sidecar.features.acknowledgements.http import router, stored_router
from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits
from pulsar_sidecar.features.acknowledgements.states import DetailOptions
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.server.answers import as_json

from tests.fakes.acknowledging_broker import FakeAcknowledgingBroker
from tests.fakes.stored_ack_states import FOUR, ORDERS, StoredHoles
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

V2 = "/admin/v2/persistent/public/default"
V1 = "/admin/persistent/p/c/n"
POLICY = "dispatcherPauseOnAckStatePersistent"
NAMESPACE = "public/default"


@pytest.fixture
def broker() -> FakeAcknowledgingBroker:
    broker = FakeAcknowledgingBroker(AckStateLimits(max_unacked_ranges=20))
    broker.dig(ORDERS, "billing", 30)
    return broker


@pytest.fixture
def holes() -> StoredHoles:
    holes = StoredHoles()
    holes.cursor("none", (2, 9))
    holes.cursor("nearly", (1, 1), FOUR[:3])
    holes.cursor("billing", (1, 0), FOUR)
    return holes


@pytest.fixture
def server(broker: FakeAcknowledgingBroker, holes: StoredHoles) -> Iterator[Served]:
    with (
        closing(broker.service()) as states,
        served(routers=[router(states), stored_router(holes.surveys)]) as server,
    ):
        yield server


@pytest.mark.parametrize(
    ("path", "topic", "subscription"),
    [
        (f"{V2}/a/subscription/billing/ackState", "persistent://public/default/a", "billing"),
        (f"{V2}/a/ackState?ranges=0&stretches=0", "persistent://public/default/a", "billing"),
        (f"{V1}/orders/subscription/s/ackState", "persistent://p/c/n/orders", "s"),
        (f"{V2}/a%20b%25c/subscription/%C3%BC%2F%20x/ackState", "persistent://public/default/a b%c", "ü/ x"),
    ],
)
def test_a_path_names_topic_and_subscription(
    server: Served, broker: FakeAcknowledgingBroker, path: str, topic: str, subscription: str
) -> None:
    broker.dig(parse_topic_name(topic), subscription, 3)
    (answer,) = server.ask("GET", path).json  # type: ignore[misc]
    assert (answer["topic"], answer["subscription"]) == (topic, subscription)


def test_the_answer_names_what_brokers_do_not(server: Served, broker: FakeAcknowledgingBroker) -> None:
    broker.topics[ORDERS].pause = True
    (answer,) = server.ask("GET", f"{V2}/orders/subscription/billing/ackState?ranges=2&stretches=3").json  # type: ignore[misc]
    with closing(broker.service()) as states:
        (state,) = states.ack_states(ORDERS, "billing", DetailOptions(ranges=2, stretches=3))
    assert answer == as_json(state)
    assert answer["policies"] == {"topic": "true", "namespace": None, "broker": False, "applied": True}
    assert answer["afterCrash"] == {"entries": 9, "rangeCount": 9, "ranges": ["6:43", "6:45"]}


def test_unknown_values_are_null(server: Served, broker: FakeAcknowledgingBroker) -> None:
    broker.topics[ORDERS].subscriptions["billing"].type = "None"
    broker.namespaces[NAMESPACE] = True
    (answer,) = server.ask("GET", f"{V2}/orders/ackState").json  # type: ignore[misc]
    assert (answer["type"], answer["policies"]["applied"]) == (None, None)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("persistent/public/default/orders/ackState?ranges=100001", 400),
        ("persistent/public/default/orders/ackState?stretches=many", 400),
        ("persistent/public/default/orders/ackState?unknown=1", 400),
        ("persistent/public/default/orders/subscription/%ZZ/ackState", 400),
        ("persistent/public/default/orders/subscription/nobody/ackState", 404),
        ("storedAckStates?limit=0", 400),
        ("storedAckStates?fullness=empty", 400),
        ("storedAckStates?unknown=1", 400),
        ("tenants/nowhere/storedAckStates", 404),
        ("namespaces/public/nowhere/storedAckStates", 404),
        ("persistent/public/default/nowhere/storedAckStates", 404),
    ],
)
def test_bad_input_is_refused(server: Served, path: str, status: int) -> None:
    assert server.ask("GET", f"/admin/v2/{path}").status == status


# --- the policy ----------------------------------------------------------------------------------------------------


def test_a_topics_policy(server: Served, broker: FakeAcknowledgingBroker) -> None:
    policy = f"{V2}/orders/{POLICY}"
    untouched: Any = server.ask("DELETE", policy).json
    assert (untouched["removed"], untouched["inEffect"], broker.topics[ORDERS].pause) == (False, False, None)
    assert server.ask("GET", policy).json is False
    assert server.ask("POST", policy).status == 204
    assert server.ask("GET", policy).json is True
    removed: Any = server.ask("DELETE", policy).json
    assert removed["remark"].startswith("the broker stores false instead; as long as neither namespace")
    assert (removed["removed"], removed["inEffect"], broker.topics[ORDERS].pause) == (False, False, False)


def test_removing_a_topics_policy_never_turns_off_what_others_turned_on(
    server: Served, broker: FakeAcknowledgingBroker
) -> None:
    policy, broker.namespaces[NAMESPACE] = f"{V2}/orders/{POLICY}", True
    broker.topics[ORDERS].pause = True
    refused = server.ask("DELETE", policy)
    assert (refused.status, "force" in refused.reason, broker.topics[ORDERS].pause) == (409, True, True)
    forced: Any = server.ask("DELETE", f"{policy}?force=true").json
    assert (forced["inEffect"], broker.topics[ORDERS].pause) == (False, False)
    unsure: Any = server.ask("DELETE", policy).json
    assert (unsure["removed"], unsure["inEffect"]) == (False, None)
    assert (server.ask("GET", policy).json, server.ask("GET", f"{policy}?applied=true").json) == (False, None)


def test_a_namespaces_policy(server: Served, broker: FakeAcknowledgingBroker) -> None:
    policy = f"/admin/v2/namespaces/{NAMESPACE}/{POLICY}"
    assert server.ask("POST", policy).status == 204
    assert server.ask("DELETE", policy).json == {"removed": True, "inEffect": False, "remark": None}
    broker.removes = False
    restless: Any = server.ask("DELETE", policy).json
    assert (restless["removed"], restless["inEffect"], "meanwhile" in restless["remark"]) == (False, False, True)
    assert server.ask("GET", policy).json is False
    assert server.ask("GET", f"/admin/v2/namespaces/public/nowhere/{POLICY}").status == 404


# --- stored states -------------------------------------------------------------------------------------------------


def test_the_answer_counts_all_and_shows_a_part(server: Served) -> None:
    answer: Any = server.ask("GET", "/admin/v2/storedAckStates?limit=1&holes=true").json
    (state,) = answer["states"]
    counts = ("topics", "subscriptions", "full", "nearlyFull", "maxUnackedRangesToPersist", "found", "unreadable")
    assert [answer[name] for name in counts] == [1, 3, 1, 1, 3, 2, 0]
    assert [state[name] for name in ("subscription", "fullness", "ranges", "entries")] == ["billing", "full", 4, 19]
    assert state["stretches"] == [0, 100, 0, 100, 0, 100, 0, 0, 0, 100, 100, 100, 100, 0, 0, 0, 0, 0, 0]


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
    assert names(server.ask("GET", f"{V2}/orders/storedAckStates{query}").json) == found


def names(answer: Any) -> list[str]:
    return [state["subscription"] for state in answer["states"]]


# --- commands --------------------------------------------------------------------------------------------------------


COMMAND = "dispatcher-pause-on-ack-state-persistent"


def test_the_table_shows_what_fits_and_what_would_come_again(shell: Terminal, broker: FakeAcknowledgingBroker) -> None:
    broker.topics[ORDERS].pause = True
    ran = shell.run("subscriptions", "ack-state", str(ORDERS), "-s", "billing", "--width", "30")
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
    assert told in shell.run("subscriptions", "ack-state", str(ORDERS)).out.splitlines()
    (answer,) = json.loads(
        shell.run("subscriptions", "ack-state", str(ORDERS), "--output", "json", "--ranges", "1").out
    )
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


def test_commands_of_a_namespaces_policy(shell: Terminal) -> None:
    assert shell.run("namespaces", f"get-{COMMAND}", "public/default").out == "null\n"
    assert shell.run("namespaces", f"set-{COMMAND}", "public/default").err == "set to true\n"
    assert shell.run("namespaces", f"get-{COMMAND}", "public/default").out == "true\n"
    removed = shell.run("namespaces", f"remove-{COMMAND}", "public/default")
    assert removed.out == "removed    yes\nin effect  no\nremark     -\n"
    assert shell.run("namespaces", f"get-{COMMAND}", "public").code == 1


def test_commands_of_a_topics_policy(shell: Terminal, broker: FakeAcknowledgingBroker) -> None:
    broker.namespaces["public/default"] = True
    assert shell.run("topics", f"get-{COMMAND}", str(ORDERS), "-ap").out == "null\n"
    assert shell.run("topics", f"set-{COMMAND}", str(ORDERS)).code == 0
    assert shell.run("topics", f"get-{COMMAND}", str(ORDERS)).out == "true\n"
    refused = shell.run("topics", f"remove-{COMMAND}", str(ORDERS))
    assert (refused.code, refused.out) == (1, "")
    assert "the broker would store false" in refused.err
    assert "the broker stores false instead" in shell.run("topics", f"remove-{COMMAND}", str(ORDERS), "--force").out


@given(st.floats(0, 1), st.floats(0.001, 1))
def test_a_plot_never_shows_something_as_nothing_or_a_part_as_all(part: float, whole: float) -> None:
    shown = level(part, whole)
    assert (shown == " ") == (part == 0)
    assert (shown == "#") == (part >= whole)
    assert (bar(part, whole) == "") == (part == 0)


def test_the_fullest_come_first(shell: Terminal) -> None:
    ran = shell.run("subscriptions", "fullest", "public/default", "--limit", "2")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "3 subscriptions of 1 topic or partition: 1 full, 1 nearly full (of at most 3 ranges)",
        "topic                               subscription  ranges  status       unacknowledged",
        f"{ORDERS}  billing       4       full         12",
        f"{ORDERS}  nearly        3       nearly full  15",
        "1 more; see them with --offset or --limit",
    ]
    for options, found in ((("--contains", "none"), ["none"]), ((str(ORDERS), "--holes"), ["billing", "nearly"])):
        ran = shell.run("subscriptions", "fullest", *options, "--output", "json")
        assert [state["subscription"] for state in json.loads(ran.out)["states"]] == found


def test_unreadable_states_set_the_exit_code(shell: Terminal, holes: StoredHoles) -> None:
    holes.cursors.unreadable = "the bookie does not respond"
    ran = shell.run("subscriptions", "fullest", "public")
    assert (ran.code, f"not read: {ORDERS} billing: the bookie does not respond" in ran.out) == (4, True)
