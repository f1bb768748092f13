"""The routes of acknowledgement states and of the policy that pauses dispatch."""

from collections.abc import Iterator

import pytest
from pulsar_sidecar.ack_state.limits import PauseSettings, TopicPolicy
from pulsar_sidecar.ack_state.states import DetailOptions
from pulsar_sidecar.ack_state.workflow import PauseRemoval
from pulsar_sidecar.api.rooms import ack_state
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.names import TopicDomain, TopicName

from tests.fakes.ack_states import FakeAckStates
from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.api.serving import Served, served

V2 = "/admin/v2/persistent/public/default"
V1 = "/admin/persistent/p/c/n"
POLICY = "dispatcherPauseOnAckStatePersistent"


def topic(local_name: str, tenant: str = "public", cluster: str | None = None, namespace: str = "default") -> TopicName:
    return TopicName(TopicDomain.PERSISTENT, tenant, cluster, namespace, local_name)


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
def server(_shared: tuple[FakeAckStates, Served], states: FakeAckStates) -> Served:
    return _shared[1]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (f"{V2}/orders/subscription/billing/ackState", (topic("orders"), "billing", DetailOptions(20, 60))),
        (f"{V2}/orders/ackState?ranges=3&stretches=7", (topic("orders"), None, DetailOptions(3, 7))),
        (f"{V1}/orders/subscription/s/ackState", (topic("orders", "p", "c", "n"), "s", DetailOptions())),
        (f"{V2}/a%20b%25c/subscription/%C3%BC%2F%20x/ackState", (topic("a b%c"), "ü/ x", DetailOptions())),
    ],
)
def test_a_path_names_topic_and_subscription(
    server: Served, states: FakeAckStates, path: str, asked: tuple[object, ...]
) -> None:
    states.subscriptions = {str(asked[1] or "billing"): 30}
    assert server.ask("GET", path).status == 200
    assert states.asked == [("ack_states", *asked)]


def test_the_answer_names_what_brokers_do_not(server: Served) -> None:
    (answer,) = server.ask("GET", f"{V2}/orders/subscription/billing/ackState?ranges=2&stretches=3").json  # type: ignore[misc]
    assert answer == {
        "topic": "persistent://public/default/orders",
        "subscription": "billing",
        "broker": "127.0.0.1:8080",
        "type": "Shared",
        "consumers": 2,
        "markDeletePosition": "6:-1",
        "readPosition": "6:60",
        "nonContiguousDeletedMessagesRanges": 30,
        "maxUnackedRangesToPersist": 20,
        "rangesLeft": 0,
        "individuallyAcknowledgedEntries": 30,
        "serializedSizeBytes": 294,
        "entryBytes": 307,
        "maxEntryBytes": 5_253_056,
        "entryBytesLeft": 5_252_749,
        "nodeBytes": 325,
        "maxNodeBytes": 1_047_551,
        "nodeBytesLeft": 1_047_226,
        "nextWrite": "cursor ledger",
        "unloadWrite": "metadata store",
        "loadable": True,
        "maxBatchDeletedIndexToPersist": 10_000,
        "unackedMessages": 4,
        "msgBacklog": 30,
        "msgDelayed": 3,
        "blockedOnAckStatePersistent": True,
        "pause": "in force",
        "policies": {"topic": "true", "namespace": None, "broker": False, "applied": True},
        "stored": {
            "place": "cursor ledger",
            "cursorLedger": 7,
            "entry": 5,
            "markDeletePosition": "6:-1",
            "ranges": 21,
            "batchDeletedIndexes": 0,
            "sizeBytes": 252,
        },
        "afterCrash": {"entries": 9, "rangeCount": 9, "ranges": ["6:43", "6:45"]},
        "afterUnload": {"entries": 9, "rangeCount": 9, "ranges": ["6:43", "6:45"]},
        "stretches": [
            {"first": "6:0", "entries": 20, "acknowledged": 10, "stored": 10},
            {"first": "6:20", "entries": 20, "acknowledged": 10, "stored": 10},
            {"first": "6:40", "entries": 20, "acknowledged": 10, "stored": 1},
        ],
    }


def test_what_is_unknown_is_null(server: Served, states: FakeAckStates) -> None:
    states.policies = PauseSettings(TopicPolicy.FALSE_OR_UNSET, True, False)
    (answer,) = server.ask("GET", f"{V2}/orders/subscription/billing/ackState").json  # type: ignore[misc]
    assert (answer["blockedOnAckStatePersistent"], answer["pause"]) == (None, "unknown")
    assert answer["policies"]["applied"] is None


@pytest.mark.parametrize(
    ("failure", "status"),
    [(NotFoundError("there is no topic x"), 404), (TemporaryError("no broker"), 503), (ConflictError("no"), 409)],
)
def test_failures_have_their_codes(server: Served, states: FakeAckStates, failure: SidecarError, status: int) -> None:
    states.failure = failure
    for method, path in [("GET", "orders/ackState"), ("DELETE", f"orders/{POLICY}"), ("POST", f"orders/{POLICY}")]:
        answer = server.ask(method, f"{V2}/{path}")
        assert (answer.status, answer.reason) == (status, str(failure))


@pytest.mark.parametrize(
    "path",
    [
        "orders/ackState?ranges=-1",
        "orders/ackState?ranges=100001",
        "orders/ackState?stretches=many",
        "orders/ackState?unknown=1",
        "a%2Fb/ackState",
        "orders/subscription/%ZZ/ackState",
        "orders/subscription/../ackState",
        f"orders/subscription/{'x' * 20_000}/ackState",
    ],
)
def test_bad_input_is_refused_before_any_request(server: Served, states: FakeAckStates, path: str) -> None:
    assert server.ask("GET", f"{V2}/{path}").status in (400, 404, 414, 431)
    assert states.asked == []


@pytest.mark.parametrize("policy", [True, False, None])
def test_a_namespace_may_set_nothing(server: Served, states: FakeAckStates, policy: bool | None) -> None:
    states.namespace = policy
    assert server.ask("GET", f"/admin/v2/namespaces/public/default/{POLICY}").json is policy
    assert states.asked == [("namespace_pause", "public/default")]


def test_the_policy_is_set_and_removed(server: Served, states: FakeAckStates) -> None:
    states.removal = PauseRemoval(removed=False, in_effect=False, remark="the broker stores false")
    for place, name in [(f"{V2}/orders", topic("orders")), ("/admin/v2/namespaces/public/default", "public/default")]:
        assert server.ask("POST", f"{place}/{POLICY}").status == 204
        removed = server.ask("DELETE", f"{place}/{POLICY}")
        assert removed.json == {"removed": False, "inEffect": False, "remark": "the broker stores false"}
        kind = "namespace" if isinstance(name, str) else "topic"
        force = () if isinstance(name, str) else (False,)
        assert states.asked[-2:] == [(f"enable_{kind}_pause", name), (f"remove_{kind}_pause", name, *force)]
    server.ask("DELETE", f"{V2}/orders/{POLICY}?force=true")
    assert states.asked[-1] == ("remove_topic_pause", topic("orders"), True)


def test_a_topics_policy_is_read_as_set_and_as_applied(server: Served, states: FakeAckStates) -> None:
    states.policies = PauseSettings(TopicPolicy.FALSE_OR_UNSET, True, False)
    assert server.ask("GET", f"{V2}/orders/{POLICY}").json is False
    assert server.ask("GET", f"{V2}/orders/{POLICY}?applied=true").json is None
    states.policies = PauseSettings(TopicPolicy.TRUE, None, False)
    assert server.ask("GET", f"{V2}/orders/{POLICY}").json is True
    assert server.ask("GET", f"{V2}/orders/{POLICY}?applied=true").json is True
