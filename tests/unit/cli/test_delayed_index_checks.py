"""``delayed-index fsck`` and ``repair``, as a person runs them."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.features.delayed_index import http
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.ownership.paths import ledger_path

from tests.fakes.checked_index import FIRST, CheckedIndex, FakeDeletions, FakeLoaded, repair_of, tracker
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

TOPIC = "persistent://public/default/orders"
BUCKET = "#pulsar.internal.delayed.bucket_7_8"


@pytest.fixture
def index() -> CheckedIndex:
    return CheckedIndex()


@pytest.fixture
def loaded() -> FakeLoaded:
    return FakeLoaded()


@pytest.fixture
def server(index: CheckedIndex, loaded: FakeLoaded) -> Iterator[Served]:
    routes = http.repair_router(repair_of(index, loaded, FakeDeletions()))
    with served(routers=[routes]) as found:
        yield found


def test_a_clean_topic_and_a_clean_namespace(shell: Terminal) -> None:
    for place in (TOPIC, "public/default"):
        ran = shell.run("delayed-index", "fsck", place, "--orphans", "--all-messages")
        assert (ran.code, ran.out.strip()) == (
            0,
            "clean: 1 topic, 1 subscription, 2 buckets, 7 indexes, 7 of 7 messages compared, "
            "2 ledgers searched for orphans",
        ), ran.err
    assert "at most 85.59% are wrong" in shell.run("delayed-index", "fsck", TOPIC, "--sample", "2").out


def test_messages_that_cannot_be_read_are_counted(shell: Terminal, index: CheckedIndex) -> None:
    index.messages.answers[7, 3] = Unreadable("its bookies are away")
    ran = shell.run("delayed-index", "fsck", TOPIC)
    assert (ran.code, ran.out.strip()) == (
        0,
        "clean: 1 topic, 1 subscription, 2 buckets, 7 indexes, 6 of 7 messages compared (1 could not be read)",
    ), ran.err


def test_findings_are_reported_with_their_remedy(shell: Terminal, index: CheckedIndex) -> None:
    index.store.remove(ledger_path(LedgerId(FIRST)))
    ran = shell.run("delayed-index", "fsck", TOPIC)
    assert ran.code == 2
    assert ran.out.splitlines()[:2] == [
        f"dangling-pointer  {TOPIC}  s  {BUCKET}",
        f"  cause       there is no ledger {FIRST}",
    ]


def test_failed_check_exits_with_1(shell: Terminal) -> None:
    for place in ("persistent://public/default/none", "public/none", "a/b/c/d/e"):
        assert shell.run("delayed-index", "fsck", place).code == 1


def test_a_plan_is_shown_approved_and_carried_out(shell: Terminal, index: CheckedIndex, loaded: FakeLoaded) -> None:
    index.store.remove(ledger_path(LedgerId(FIRST)))
    loaded.from_question = 1
    shown = shell.run("delayed-index", "repair", TOPIC, "--output", "json")
    plan = json.loads(shown.out)
    assert shown.code == 0
    assert [each["step"] for each in plan["actions"]] == ["drop-pointer"]
    assert f"loaded. Stop no client; then: pulsar-admin topics unload {TOPIC}" in shown.err
    assert f"--execute --plan {plan['plan']}" in shown.err
    refused = shell.run("delayed-index", "repair", TOPIC, "--execute", "--plan", plan["plan"])
    assert (refused.code, "topics unload" in refused.err) == (1, True)
    loaded.from_question = None
    done = shell.run("delayed-index", "repair", TOPIC, "--execute", "--plan", plan["plan"])
    assert done.code == 0, done.err
    assert "drop-pointer" in done.out
    again = shell.run("delayed-index", "repair", TOPIC)
    assert (again.code, again.out, again.err.strip()) == (0, "", "there is nothing to repair")


def test_topic_loaded_during_repair_exits_with_4(shell: Terminal, index: CheckedIndex, loaded: FakeLoaded) -> None:
    index.store.remove(ledger_path(LedgerId(FIRST)))
    plan = json.loads(shell.run("delayed-index", "repair", TOPIC, "--output", "json").out)["plan"]
    loaded.from_question = loaded.asked + 4
    ran = shell.run("delayed-index", "repair", TOPIC, "--execute", "--plan", plan)
    assert (ran.code, "unload it once more" in ran.out) == (4, True)


def test_kinds_choose(shell: Terminal, index: CheckedIndex) -> None:
    index.store.remove(ledger_path(LedgerId(FIRST)))
    ran = shell.run("delayed-index", "repair", TOPIC, "--kind", "overlap", "--kind", "bad-key")
    assert ran.err.splitlines()[-1] == "nothing can be repaired with these options now; see the remaining findings"
    refused = shell.run("delayed-index", "repair", TOPIC, "--kind", "no-such-kind")
    assert (refused.code, "not one of 'dangling-pointer', 'foreign-ledger'" in refused.err) == (1, True)


def test_orphans_are_repaired_only_where_they_are_looked_for(shell: Terminal, server: Served) -> None:
    refused = shell.run("delayed-index", "repair", TOPIC, "--kind", "orphaned-bucket")
    assert (refused.code, "--kind orphaned-bucket needs --orphans" in refused.err) == (1, True)
    answer = server.ask("GET", "/admin/v2/namespaces/public/default/delayedIndex/repair?kinds=orphaned-bucket")
    assert (answer.status, "orphans=true" in answer.reason) == (400, True)


def test_unrepairable_findings_are_reported(shell: Terminal, index: CheckedIndex) -> None:
    index.brokers["b"] = tracker(max_num_buckets=3)
    ran = shell.run("delayed-index", "repair", TOPIC)
    left, end = ran.err.splitlines()
    assert left.startswith("left: unusable-setting: b has delayedDeliveryMaxNumBuckets=3; set ")
    assert end == "nothing can be repaired with these options now; see the remaining findings"
    assert shell.run("delayed-index", "fsck", TOPIC).out.splitlines()[0] == "unusable-setting"


@pytest.mark.parametrize("arguments", [["--execute"], ["--plan", "0" * 64], ["--execute", "--plan", "no hash"]])
def test_a_plan_needs_its_hash(shell: Terminal, arguments: list[str]) -> None:
    assert shell.run("delayed-index", "repair", TOPIC, *arguments).code == 1
