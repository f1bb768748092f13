"""A selection that is cancelled on the sidecar of each cluster that a topic is replicated to."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pulsar_sidecar.features.delayed_messages.http import routes as delayed_delivery
from pulsar_sidecar.features.delayed_messages.results import Preview
from pulsar_sidecar.features.delayed_messages.selecting import SelectedBatch, Selection
from pulsar_sidecar.model.errors import ConflictError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.server.guard import guarded_router
from pulsar_sidecar.server.rights import Right, takes

from tests.fakes.delayed_service import FakeDelayedDelivery
from tests.unit.cli.running import Ran, Terminal
from tests.unit.server.serving import served

TOPIC = "persistent://public/default/orders"


@dataclass(slots=True)
class Clusters:
    """Two clusters with a sidecar each, and brokers' data about the topic."""

    terminal: Terminal
    services: dict[str, FakeDelayedDelivery]
    urls: dict[str, str] = field(default_factory=dict)
    replicated_to: list[str] | None = field(default_factory=lambda: ["east", "west"])

    def run(self, *options: str) -> Ran:
        return self.run_command("cancel-delayed-messages", TOPIC, "--all-clusters", *options)

    def run_command(self, *words: str) -> Ran:
        self.terminal.set("PULSAR_SIDECAR_CLUSTER_URLS", ", ".join(f"{name}={url}" for name, url in self.urls.items()))
        return self.terminal.run("topics", *words)

    def cancelled(self) -> dict[str, int]:
        return {name: len(service.asked) for name, service in self.services.items()}


@pytest.fixture
def clusters(terminal: Terminal) -> Iterator[Clusters]:
    found = Clusters(terminal, {name: FakeDelayedDelivery() for name in ("east", "west")})
    routes = guarded_router("of a broker")

    @routes.get("/admin/v2/persistent/public/default/orders/replication")
    @takes(Right.STATE)
    async def replication() -> list[str] | None:
        return found.replicated_to

    with ExitStack() as stack:
        for name, service in found.services.items():
            routers = [delayed_delivery.router(service), routes]
            found.urls[name] = stack.enter_context(served(routers=routers, cluster=name)).url
        terminal.set("PULSAR_SIDECAR_ADMIN_URL", found.urls["east"])
        yield found


def test_one_confirmation_yields_verdicts_of_each_cluster(clusters: Clusters) -> None:
    ran = clusters.run("--property", "customer=1", "--yes")
    assert ran.code == 0, ran.err
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [(line["cluster"], line["cancelled"]) for line in lines] == [("east", True)] * 3 + [("west", True)] * 3
    assert "east: 3 messages, due from" in ran.err
    assert "cancelled 6 of 6 messages" in ran.err
    assert clusters.cancelled() == {"east": 3, "west": 3}


def test_a_topic_of_one_cluster_is_cancelled_there(clusters: Clusters) -> None:
    clusters.replicated_to = None
    assert clusters.run("--key", "k", "--yes").code == 0
    assert clusters.cancelled() == {"east": 3, "west": 0}


@pytest.mark.parametrize(
    ("west", "code", "reason"),
    [
        (None, 1, "replicated to west, and no sidecar is known there"),
        ("east", 1, "serves the cluster east, not west"),
        ("http://127.0.0.1:1", 3, "no answer from http://127.0.0.1:1"),
    ],
)
def test_unreachable_cluster_prevents_all_cancellations(
    clusters: Clusters, west: str | None, code: int, reason: str
) -> None:
    clusters.urls |= {"west": clusters.urls.get(west or "", west or "")}
    if west is None:
        del clusters.urls["west"]
    ran = clusters.run("--key", "k", "--yes")
    assert (ran.code, reason in ran.err) == (code, True), ran.err
    assert clusters.cancelled() == {"east": 0, "west": 0}


def test_a_cluster_that_refuses_does_not_hold_up_the_others(
    clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirm = FakeDelayedDelivery.confirm_selected

    def confirmed(service: FakeDelayedDelivery, *asked: Any) -> list[SelectedBatch]:
        if service is clusters.services["east"]:
            raise ConflictError("the selection finds other messages now")
        return confirm(service, *asked)

    monkeypatch.setattr(FakeDelayedDelivery, "confirm_selected", confirmed)
    ran = clusters.run("--key", "k", "--yes")
    assert ran.code == 4, ran.err
    assert "east: the selection finds other messages now (HTTP 409); repeat the command" in ran.err
    assert "cancelled 3 of 6 messages" in ran.err
    assert clusters.cancelled() == {"east": 0, "west": 3}


def test_ids_are_one_clusters_own(clusters: Clusters) -> None:
    ran = clusters.run("--file", "-")
    assert (ran.code, "message ids differ between clusters" in ran.err) == (1, True)


ONE = ("cancel-delayed-message", TOPIC, "-l", "7", "-e", "1", "-t", "1800000000000")


def test_one_message_is_cancelled_with_its_copies(clusters: Clusters, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"east": 1, "west": 1}
    asked: list[Selection] = []
    preview = FakeDelayedDelivery.preview

    def previewed(service: FakeDelayedDelivery, topic: TopicName, selection: Selection) -> Preview:
        asked.append(selection)
        (name,) = (name for name, each in clusters.services.items() if each is service)
        return replace(preview(service, topic, selection), count=rows[name])

    def confirmed(service: FakeDelayedDelivery, topic: TopicName, *_: object) -> list[SelectedBatch]:
        return [
            replace(batch, rows=batch.rows[:1]) for batch in list(confirm(service, topic, Selection(key="k"), ""))[:1]
        ]

    confirm = FakeDelayedDelivery.confirm_selected
    monkeypatch.setattr(FakeDelayedDelivery, "preview", previewed)
    monkeypatch.setattr(FakeDelayedDelivery, "confirm_selected", confirmed)
    ran = clusters.run_command(*ONE, "--all-clusters")
    assert ran.code == 0, ran.err
    assert clusters.cancelled() == {"east": 1, "west": 1}
    due = 1_800_000_000_000
    one = Selection(due, due + 1, producer_name="p", sequence_id=41, publish_time_ms=1_700_000_000_000)
    assert asked == [one, one]
    rows["west"] = 0
    ran = clusters.run_command(*ONE, "--all-clusters")
    assert (ran.code, "west: it does not wait there" in ran.err) == (4, True)
    rows["west"] = 2
    ran = clusters.run_command(*ONE, "--all-clusters")
    assert (ran.code, "several messages in west" in ran.err) == (1, True)
    assert clusters.cancelled() == {"east": 2, "west": 1}


def test_one_cluster_warns_of_the_others(clusters: Clusters) -> None:
    clusters.services["east"].warnings = ("cancelled in this cluster only",)
    ran = clusters.run_command(*ONE)
    assert (ran.code, "warning: cancelled in this cluster only" in ran.err) == (0, True), ran.err
