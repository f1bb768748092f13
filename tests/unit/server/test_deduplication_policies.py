"""Policies of deduplication, by the commands and the routes that they call."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.features.deduplication import http
from pulsar_sidecar.features.deduplication.inspection.policy_changes import PolicyChanges
from pulsar_sidecar.features.deduplication.policies import DeduplicationPolicy
from pulsar_sidecar.ownership.stored_topics import StoredTopics

from tests.fakes.clock import FakeClock
from tests.fakes.deduplication_policies import NAMESPACE, TOPIC, FakeDeduplication, put_topic
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

ENABLED, INTERVAL = DeduplicationPolicy.ENABLED, DeduplicationPolicy.SNAPSHOT_INTERVAL
ORDERS = "/admin/v2/persistent/public/default/orders"
DEFAULT = "/admin/v2/namespaces/public/default"


@pytest.fixture(scope="module")
def _shared() -> Iterator[tuple[FakeDeduplication, Served]]:
    brokers, store = FakeDeduplication(), FakeMetadataStore()
    put_topic(store)
    changes = PolicyChanges(brokers, brokers, StoredTopics(store), FakeClock())
    with served(routers=[http.policies_router(changes)]) as server:
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


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (f"{ORDERS}/deduplicationEnabled", "true", 400),
        (f"{ORDERS}/deduplicationEnabled", 3, 400),
        (f"{ORDERS}/deduplicationEnabled", b"", 400),
        (f"{ORDERS}/deduplicationSnapshotInterval", -1, 400),
        (f"{ORDERS}/deduplicationSnapshotInterval", 1.5, 400),
        (f"{ORDERS}/deduplicationSnapshotInterval", 2**31, 400),
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


def test_set_shows_the_effect(shell: Terminal, brokers: FakeDeduplication) -> None:
    ran = shell.run("topics", "set-deduplication", str(TOPIC), "--enable")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "asked      true",
        "stored     true",
        "in effect  true, decided by the topic (topic true, topic (global) null, namespace null, broker false)",
        "now        persistent://public/default/orders  Enabled",
        "note       brokers do not know what was published before, and store a copy of it again",
    ]
    brokers.loaded = []
    ran = shell.run("topics", "remove-deduplication", str(TOPIC))
    assert "asked      remove it\nstored     null\n" in ran.out
    assert "now        persistent://public/default/orders  not loaded: from its next topic load on" in ran.out


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
