"""The routes of acknowledgement states and of the policy that pauses dispatch, over a broker in memory."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pulsar_sidecar.features.acknowledgements.http import router, stored_router
from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits
from pulsar_sidecar.features.acknowledgements.states import DetailOptions
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.server.answers import as_json

from tests.fakes.acknowledging_broker import FakeAcknowledgingBroker
from tests.fakes.stored_ack_states import FOUR, ORDERS, StoredHoles
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
    holes.cursor("billing", (1, 0), FOUR)
    holes.cursor("nearly", (1, 1), FOUR[:3])
    holes.cursor("none", (2, 9))
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
    assert server.ask("GET", policy).json is None
    assert server.ask("POST", policy).status == 204
    assert server.ask("GET", policy).json is True
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
