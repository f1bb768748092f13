"""``subscriptions ack-state`` and the policy's commands, as a person runs them."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.ack_state.limits import PauseSettings, TopicPolicy
from pulsar_sidecar.ack_state.workflow import PauseRemoval
from pulsar_sidecar.api.rooms import ack_state
from pulsar_sidecar.cli.groups.subscriptions import level
from pulsar_sidecar.cli.groups.waiting_messages import bar
from pulsar_sidecar.model.errors import ConflictError, NotFoundError

from tests.fakes.ack_states import FakeAckStates
from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.api.serving import Served, served
from tests.unit.cli.running import Terminal

TOPIC = "persistent://public/default/orders"
POLICY = "dispatcher-pause-on-ack-state-persistent"


@pytest.fixture(scope="module")
def _shared() -> Iterator[tuple[FakeAckStates, Served]]:
    states = FakeAckStates()
    with served(FakeDeletionService(), routers=[ack_state.router(states)]) as server:
        yield states, server


@pytest.fixture
def states(_shared: tuple[FakeAckStates, Served]) -> FakeAckStates:
    _shared[0].reset()
    return _shared[0]


@pytest.fixture
def shell(terminal: Terminal, _shared: tuple[FakeAckStates, Served], states: FakeAckStates) -> Terminal:
    terminal.set("PULSAR_SIDECAR_ADMIN_URL", _shared[1].url)
    return terminal


def test_the_table_shows_what_fits_and_what_would_come_again(shell: Terminal) -> None:
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
        "  stored                  in ledger 7, entry 5: up to 6:-1 and 21 ranges, 252 B",
        "  entries                 60 from 6:0, a character is about 2",
        "    acknowledged          |::::::::::::::::::::::::::::::|",
        "    stored                |:::::::::::::::::::::         |",
        "  if the broker died now  9 acknowledged entries delivered again: 6:43, 6:45, 6:47, ...",
        "  if the topic unloads    9 acknowledged entries delivered again: 6:43, 6:45, 6:47, ...",
        "  in any case             4 delivered, unacknowledged messages are delivered again",
    ]


def test_without_a_subscription_all_are_shown(shell: Terminal, states: FakeAckStates) -> None:
    states.subscriptions = {"billing": 3, "a\x1b[31m": 0}
    states.policies = PauseSettings(TopicPolicy.FALSE_OR_UNSET, False, True)
    ran = shell.run("subscriptions", "ack-state", "orders")
    assert ran.out.count("(Shared, 2 consumers)") == 2
    assert "\x1b" not in ran.out
    assert "no acknowledged entry is delivered again" in ran.out
    assert "room for 17 more" in ran.out
    states.subscriptions = {}
    assert shell.run("subscriptions", "ack-state", "orders").out == "no durable subscription\n"


def test_json_is_the_services_answer(shell: Terminal) -> None:
    ran = shell.run("subscriptions", "ack-state", TOPIC, "--output", "json", "--ranges", "1")
    (answer,) = json.loads(ran.out)
    assert answer["afterCrash"] == {"entries": 9, "rangeCount": 9, "ranges": ["6:43"]}


def test_what_does_not_exist_is_reported(shell: Terminal, states: FakeAckStates) -> None:
    states.failure = NotFoundError("there is no topic persistent://public/default/orders")
    ran = shell.run("subscriptions", "ack-state", TOPIC)
    assert (ran.code, ran.out) == (1, "")
    assert "there is no topic" in ran.err
    assert shell.run("subscriptions", "ack-state", "non-persistent://public/default/x").code == 1


@pytest.mark.parametrize(("policy", "printed"), [(True, "true"), (False, "false"), (None, "null")])
def test_a_namespaces_policy(shell: Terminal, states: FakeAckStates, policy: bool | None, printed: str) -> None:
    states.namespace = policy
    assert shell.run("namespaces", f"get-{POLICY}", "public/default").out == f"{printed}\n"
    assert shell.run("namespaces", f"set-{POLICY}", "public/default").err == "set to true\n"
    removed = shell.run("namespaces", f"remove-{POLICY}", "public/default")
    assert removed.out == "removed    yes\nin effect  no\nremark     -\n"
    assert [call[0] for call in states.asked] == ["namespace_pause", "enable_namespace_pause", "remove_namespace_pause"]
    assert shell.run("namespaces", f"get-{POLICY}", "public").code == 1


def test_a_topics_policy(shell: Terminal, states: FakeAckStates) -> None:
    assert shell.run("topics", f"get-{POLICY}", TOPIC).out == "true\n"
    states.policies = PauseSettings(TopicPolicy.FALSE_OR_UNSET, None, True)
    assert shell.run("topics", f"get-{POLICY}", TOPIC, "-ap").out == "null\n"
    assert shell.run("topics", f"set-{POLICY}", TOPIC).code == 0
    states.removal = PauseRemoval(removed=False, in_effect=False, remark="the broker stores false instead")
    assert "the broker stores false instead" in shell.run("topics", f"remove-{POLICY}", TOPIC, "--force").out
    assert states.asked[-1][2] is True
    states.failure = ConflictError("the broker would store false")
    refused = shell.run("topics", f"remove-{POLICY}", TOPIC)
    assert (refused.code, refused.out) == (1, "")
    assert "the broker would store false" in refused.err


@given(st.floats(0, 1), st.floats(0.001, 1))
def test_a_plot_never_shows_something_as_nothing_or_a_part_as_all(part: float, whole: float) -> None:
    shown = level(part, whole)
    assert (shown == " ") == (part == 0)
    assert (shown == "#") == (part >= whole)
    assert (bar(part, whole) == "") == (part == 0)
