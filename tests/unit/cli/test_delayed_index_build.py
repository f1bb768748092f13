"""``delayed-index build``, as a person runs it: read the plan, approve its hash, and see the outcome."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.features.delayed_index import http

from tests.fakes.index_building import FIRST_BUCKET, SUBSCRIPTION, IndexToBuild, small_buckets
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

TOPIC = "persistent://public/default/orders"
MINUTE = 60_000
BUILD = ("delayed-index", "build", TOPIC)


@pytest.fixture
def index() -> IndexToBuild:
    return IndexToBuild({3: [3 * MINUTE, MINUTE, 0, 2 * MINUTE], 5: [0], 8: [9 * MINUTE]}, small_buckets())


@pytest.fixture
def server(index: IndexToBuild) -> Iterator[Served]:
    with served(routers=[http.build_router(index.builder)]) as server:
        yield server


def test_the_plan_changes_nothing_and_names_the_next_step(shell: Terminal, index: IndexToBuild) -> None:
    ran = shell.run(*BUILD)
    assert ran.code == 0, ran.err
    assert [line.split() for line in ran.out.splitlines()[1:]] == [
        [TOPIC, "a", "b/c", "3-3", "3", "3", "1970-01-01T00:01:00Z", "1970-01-01T00:03:00Z", "-", "planned"],
        [TOPIC, "a", "b/c", "5-8", "1", "1", "1970-01-01T00:09:00Z", "1970-01-01T00:09:00Z", "-", "planned"],
    ]
    assert f"delayed-index build {TOPIC} --execute --plan {index.plan().hash}" in ran.err
    assert index.named() == {}


def test_the_approved_plan_is_carried_out(shell: Terminal, index: IndexToBuild) -> None:
    ran = shell.run(*BUILD, "-s", SUBSCRIPTION, "--execute", "--plan", index.plan().hash, "--output", "json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document["executed"]
    [subscription] = document["subscriptions"]
    assert (subscription["outcome"], subscription["subscription"]) == ("done", SUBSCRIPTION)
    assert [each["ledgerId"] for each in subscription["buckets"]] == [FIRST_BUCKET, FIRST_BUCKET + 1]
    assert list(index.named().values()) == [FIRST_BUCKET, FIRST_BUCKET + 1]
    again = shell.run(*BUILD)
    assert (again.code, again.out.strip()) == (0, "")
    assert "there is nothing to build" in again.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--execute",), "require each other"),
        (("--plan", "0" * 64), "require each other"),
        (("--execute", "--plan", "0" * 64), "approve the new plan"),
        (("--execute", "--plan", "abc"), "plan"),
        (("-s", "nobody"), "no subscription nobody"),
    ],
)
def test_refused_build_changes_nothing(
    shell: Terminal, index: IndexToBuild, options: tuple[str, ...], expected: str
) -> None:
    ran = shell.run(*BUILD, *options)
    assert ran.code != 0
    assert expected in ran.err
    assert index.named() == {}


def test_a_topic_loaded_at_the_same_moment_is_reported(shell: Terminal, index: IndexToBuild) -> None:
    approved = index.plan().hash
    index.load_at_the_change()
    ran = shell.run(*BUILD, "--execute", "--plan", approved)
    assert ran.code == 4, ran.err
    assert "loaded-meanwhile" in ran.out
    assert "unload" in ran.err
