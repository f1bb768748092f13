"""The routes of deduplication's policies, and their commands."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.api.rooms import deduplication_policies
from pulsar_sidecar.deduplication.inspection.policy_changes import PolicyChanges
from pulsar_sidecar.deduplication.policies import DeduplicationPolicy
from pulsar_sidecar.ledger_ownership.stored_topics import StoredTopics

from tests.fakes.clock import FakeClock
from tests.fakes.deduplication_policies import NAMESPACE, TOPIC, FakeDeduplication, put_topic
from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.api.serving import Served, served
from tests.unit.cli.running import Terminal

ENABLED, INTERVAL = DeduplicationPolicy.ENABLED, DeduplicationPolicy.SNAPSHOT_INTERVAL
ORDERS = "/admin/v2/persistent/public/default/orders"
DEFAULT = "/admin/v2/namespaces/public/default"


@pytest.fixture(scope="module")
def _shared() -> Iterator[tuple[FakeDeduplication, Served]]:
    brokers, store = FakeDeduplication(), FakeMetadataStore()
    put_topic(store)
    changes = PolicyChanges(brokers, brokers, StoredTopics(store), FakeClock())
    with served(FakeDeletionService(), routers=[deduplication_policies.router(changes)]) as server:
        yield brokers, server


@pytest.fixture
def brokers(_shared: tuple[FakeDeduplication, Served]) -> FakeDeduplication:
    brokers = _shared[0]
    brokers.__init__()  # type: ignore[misc]
    brokers.loaded = [TOPIC]
    return brokers


@pytest.fixture
def server(_shared: tuple[FakeDeduplication, Served], brokers: FakeDeduplication) -> Served:
    return _shared[1]


def test_a_change_is_answered_with_its_effect(server: Served, brokers: FakeDeduplication) -> None:
    brokers.namespaces[ENABLED, NAMESPACE] = False
    assert server.ask("POST", f"{ORDERS}/deduplicationEnabled", True).json == {
        "asked": True,
        "stored": True,
        "values": {
            "topic": True,
            "topicGlobal": None,
            "namespace": False,
            "broker": False,
            "applied": True,
            "decidedBy": "topic",
        },
        "statuses": [{"topic": str(TOPIC), "status": "Enabled"}],
        "remarks": ["what was published before is unknown to brokers, so that a copy of it is stored again"],
    }


@pytest.mark.parametrize(
    ("policy", "of_topic", "of_namespace", "value"),
    [
        (ENABLED, "deduplicationEnabled", "deduplication", True),
        (INTERVAL, "deduplicationSnapshotInterval", "deduplicationSnapshotInterval", 300),
    ],
)
def test_policies_are_set_read_and_removed(
    server: Served,
    brokers: FakeDeduplication,
    policy: DeduplicationPolicy,
    of_topic: str,
    of_namespace: str,
    value: int,
) -> None:
    for path in (f"{ORDERS}/{of_topic}", f"{DEFAULT}/{of_namespace}"):
        assert server.ask("GET", path).json is None
        assert server.ask("POST", path, value).status == 200
        assert server.ask("GET", path).json == value
    assert server.ask("DELETE", f"{ORDERS}/{of_topic}").json["values"]["decidedBy"] == "namespace"  # type: ignore[index]
    assert server.ask("GET", f"{ORDERS}/{of_topic}").json is None
    assert server.ask("GET", f"{ORDERS}/{of_topic}?applied=true").json == value
    assert server.ask("DELETE", f"{DEFAULT}/{of_namespace}").json["stored"] is None  # type: ignore[index]
    places = [("topic", str(TOPIC)), ("namespace", NAMESPACE)]
    expected = [(kind, policy, place, given) for given in (value, None) for kind, place in places]
    assert brokers.changed == expected


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (f"{ORDERS}/deduplicationEnabled", "true", 400),
        (f"{ORDERS}/deduplicationEnabled", 3, 400),
        (f"{ORDERS}/deduplicationEnabled", b"", 400),
        (f"{ORDERS}/deduplicationSnapshotInterval", -1, 400),
        (f"{ORDERS}/deduplicationSnapshotInterval", 1.5, 400),
        (f"{DEFAULT}/deduplicationSnapshotInterval", True, 400),
        (f"{ORDERS}-partition-0/deduplicationEnabled", True, 400),
        ("/admin/v2/persistent/public/default/missing/deduplicationEnabled", True, 404),
        ("/admin/v2/namespaces/public/missing/deduplication", True, 404),
    ],
)
def test_bad_input_changes_nothing(
    server: Served, brokers: FakeDeduplication, path: str, body: object, status: int
) -> None:
    assert server.ask("POST", path, body).status == status
    assert brokers.changed == []


# --- commands ------------------------------------------------------------------------------------------------------


def test_set_shows_what_came_of_it(shell: Terminal, brokers: FakeDeduplication) -> None:
    ran = shell.run("topics", "set-deduplication", str(TOPIC), "--enable")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "asked      true",
        "stored     true",
        "in effect  true, decided by the topic (topic true, topic (global) null, namespace null, broker false)",
        "now        persistent://public/default/orders  Enabled",
        "note       what was published before is unknown to brokers, so that a copy of it is stored again",
    ]
    brokers.loaded = []
    ran = shell.run("topics", "remove-deduplication", str(TOPIC))
    assert "asked      remove it\nstored     null\n" in ran.out
    assert "now        persistent://public/default/orders  not loaded: from its next load on" in ran.out


def test_every_command_reaches_its_policy(shell: Terminal, brokers: FakeDeduplication) -> None:
    for group, place in (("topics", str(TOPIC)), ("namespaces", NAMESPACE)):
        for name, values, shown in (
            ("deduplication", ["-e"], "true"),
            ("deduplication-snapshot-interval", ["-i", "300"], "300"),
        ):
            assert shell.run(group, f"get-{name}", place).out == "null\n"
            assert shell.run(group, f"set-{name}", place, *values).code == 0
            assert shell.run(group, f"get-{name}", place).out == f"{shown}\n"
            ran = shell.run(group, f"remove-{name}", place, "--output", "json")
            assert json.loads(ran.out)["stored"] is None
    assert [(kind, policy, value) for kind, policy, _, value in brokers.changed] == [
        (kind, policy, value)
        for kind in ("topic", "namespace")
        for policy, given in ((ENABLED, True), (INTERVAL, 300))
        for value in (given, None)
    ]
    brokers.namespaces[ENABLED, NAMESPACE] = True
    assert shell.run("topics", "get-deduplication", str(TOPIC), "-ap").out == "true\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "set-deduplication", str(TOPIC)),
        ("topics", "set-deduplication", str(TOPIC), "-e", "-d"),
        ("topics", "set-deduplication-snapshot-interval", str(TOPIC)),
        ("namespaces", "set-deduplication", "public", "-e"),
        ("namespaces", "set-deduplication-snapshot-interval", NAMESPACE, "-i", "-1"),
    ],
)
def test_wrong_usage_changes_nothing(shell: Terminal, brokers: FakeDeduplication, arguments: tuple[str, ...]) -> None:
    ran = shell.run(*arguments)
    assert (ran.code, ran.out) == (1, "")
    assert brokers.changed == []
