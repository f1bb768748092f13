"""``pulsar-sidecar pins``, as a person runs it."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.ledger_ownership.shadows import SHADOW_SOURCE
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.pins import TOPIC, PinnedCluster
from tests.unit.api.pins_serving import BOOKIE, served_pins
from tests.unit.api.serving import Served
from tests.unit.cli.running import Terminal

AS_OF = "; as of 2023-11-14T22:13:20Z"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    cluster = PinnedCluster()
    cluster.topic(1, 2, 3)
    cluster.topic(1, topic=parse_topic_name("other/ns/shadow"), properties={SHADOW_SOURCE: str(TOPIC)})
    cluster.cursor("s", mark_delete=(1, 9))
    with served_pins(cluster) as server:
        yield server


@pytest.fixture
def shell(terminal: Terminal, server: Served) -> Terminal:
    terminal.set("PULSAR_SIDECAR_ADMIN_URL", server.url)
    return terminal


def test_a_topic_with_its_remedies(shell: Terminal) -> None:
    ran = shell.run("pins", "topic", str(TOPIC))
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        f"{TOPIC}: 2.9 KiB (5.9 KiB on bookies); NOT LOADED: nothing of it is trimmed{AS_OF}",
        "  backlog s: holds 2 ledgers, 2.0 KiB (3.9 KiB on bookies); frees 2.0 KiB (3.9 KiB on bookies)",
        "    acknowledged up to 1:9; 20 entries waiting",
        "    - start its consumers, and let them acknowledge",
        "    - skip everything that waits: the subscription never gets it: "
        f"pulsar-admin topics clear-backlog -s s {TOPIC}",
        "    - delete the subscription, if no consumer needs it any more: "
        f"pulsar-admin topics unsubscribe -s s {TOPIC}",
        "  not-loaded: holds 1 ledger, 1000 B (2.0 KiB on bookies); frees 1000 B (2.0 KiB on bookies)",
        "    no broker has the topic loaded, and only such a one trims it",
        f"    - have a broker load the topic and trim it: pulsar-admin topics trim-topic {TOPIC}",
    ]
    assert json.loads(shell.run("pins", "topic", str(TOPIC), "--output-format", "json").out)[0]["topic"] == str(TOPIC)


def test_a_shadow_names_its_source(shell: Terminal) -> None:
    ran = shell.run("pins", "namespace", "other/ns")
    assert f"a shadow of {TOPIC}, whose ledgers it reads" in ran.out


def test_a_namespace_without_remedies(shell: Terminal) -> None:
    ran = shell.run("pins", "namespace", "public/default")
    assert ran.out.splitlines()[0] == f"public/default: 1 topic, 2.0 KiB in their lists{AS_OF}"
    assert "clear-backlog" not in ran.out
    assert len(shell.run("pins", "namespace", "public/default", "--offset", "1").out.splitlines()) == 1


def test_a_ledger(shell: Terminal) -> None:
    assert shell.run("pins", "ledger", "2").out.startswith(f"ledger 2: data of {TOPIC}, 1000 B")
    deleted = shell.run("pins", "ledger", "60").out
    assert "its metadata is gone; bookies that hold it: bookie-1:3181" in deleted
    missing = shell.run("pins", "ledger", "61")
    assert missing.code == 1
    assert "no bookie holds an entry" in missing.err


def test_bookies(shell: Terminal) -> None:
    ran = shell.run("pins", "bookies")
    assert "  its disks: 2.9 MiB of 8.6 MiB used, by whatever is on them" in ran.out.splitlines()
    assert "  not collected: not known, at most 2.9 MiB, and 6 ledgers" in ran.out.splitlines()
    assert "bookie-2:3181 (DOWN): 1 ledger; 1000 B of closed ones; as of 2" in ran.out
    assert "  its own figures are not known: no answer" in ran.out.splitlines()
    assert ran.code == 0
    one = shell.run("pins", "bookie", BOOKIE, "--by-topic").out
    assert f"  {TOPIC}: 1 ledger, 1000 B" in one.splitlines()
    assert "api/v1/bookie/gc" in one


def test_bookies_that_are_all_down_are_listed_and_no_success(terminal: Terminal) -> None:
    cluster = PinnedCluster()
    with served_pins(cluster) as server:
        cluster.bookies.down.add(BOOKIE)
        cluster.bookies.read[BOOKIE] = Unreadable("it is down")
        terminal.set("PULSAR_SIDECAR_ADMIN_URL", server.url)
        ran = terminal.run("pins", "bookies")
    assert (ran.code, ran.out.count("(DOWN): 1 ledger; 1000 B")) == (3, 2)
    assert "no bookie is up, of 2" in ran.err
