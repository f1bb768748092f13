"""``pulsar-sidecar pins``, as a person runs it, and its routes, over a cluster in memory."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pulsar_sidecar.features.pins.bookies import BookiesReader
from pulsar_sidecar.features.pins.http import bookies_router, router
from pulsar_sidecar.features.pins.ports import StoredCopies
from pulsar_sidecar.model.ids import BookieId, LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import managed_ledger_path
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.fakes.bookkeeper import data_custom_metadata, ledger_metadata_bytes, managed_ledger_bytes
from tests.fakes.pins import FIGURES, TOPIC, PinnedCluster
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

AS_OF = "; as of 2023-11-14T22:13:20Z"
BASE = "/admin/v2/pins"
BOOKIE = BookieId("bookie-1:3181")


@contextmanager
def served_pins(cluster: PinnedCluster) -> Iterator[Served]:
    """Serve one ledger of `TOPIC`, a deleted one that `BOOKIE` has not collected, and an unresponsive bookie."""
    cluster.bookies.stored[LedgerId(60)] = StoredCopies(700, (BOOKIE,))
    cluster.bookies.read = {BOOKIE: FIGURES, BookieId("bookie-2:3181"): Unreadable("no answer")}
    cluster.bookies.down = {BookieId("bookie-2:3181")}
    every = [(LedgerId(1), ledger_metadata_bytes(custom_metadata=data_custom_metadata(TOPIC.managed_ledger_name)))]
    bookies = BookiesReader(lambda: iter(every), cluster.bookies, cluster.clock)
    with served(routers=[router(cluster.reader), bookies_router(bookies)]) as server:
        yield server


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    cluster = PinnedCluster()
    cluster.topic(1, 2, 3)
    cluster.topic(1, topic=parse_topic_name("other/ns/shadow"), properties={SHADOW_SOURCE: str(TOPIC)})
    cluster.cursor("s", mark_delete=(1, 9))
    with served_pins(cluster) as server:
        yield server


def test_a_topic_with_its_remedies(shell: Terminal) -> None:
    ran = shell.run("pins", "topic", str(TOPIC))
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        f"{TOPIC}: 2.9 KiB (5.9 KiB on bookies); NOT LOADED: none of it is trimmed{AS_OF}",
        "  backlog s: holds 2 ledgers, 2.0 KiB (3.9 KiB on bookies); frees 2.0 KiB (3.9 KiB on bookies)",
        "    acknowledged up to 1:9; 20 entries waiting",
        "    - start its consumers, so that they acknowledge the backlog",
        f"    - skip the backlog: the subscription never receives it: pulsar-admin topics clear-backlog -s s {TOPIC}",
        f"    - delete the subscription if no consumer needs it: pulsar-admin topics unsubscribe -s s {TOPIC}",
        "  not-loaded: holds 1 ledger, 1000 B (2.0 KiB on bookies); frees 1000 B (2.0 KiB on bookies)",
        "    no broker has loaded the topic, and only such a broker trims it",
        f"    - load the topic, and trim it: pulsar-admin topics trim-topic {TOPIC}",
    ]
    assert json.loads(shell.run("pins", "topic", str(TOPIC), "--output-format", "json").out)[0]["topic"] == str(TOPIC)


def test_a_shadow_names_its_source(shell: Terminal) -> None:
    ran = shell.run("pins", "namespace", "other/ns")
    assert f"a shadow of {TOPIC}, whose ledgers it reads" in ran.out


def test_bytes_in_tiered_storage(terminal: Terminal) -> None:
    cluster = PinnedCluster()
    copies = {1: OffloadContext(1, 2, "S3", {}), 2: OffloadContext(1, 3, "S3", {}, bookkeeper_deleted=True)}
    listed = managed_ledger_bytes((1, 2, 3), offloaded=copies)
    cluster.store.put(managed_ledger_path(TOPIC.managed_ledger_name), listed)
    with served_pins(cluster) as server:
        terminal.set("PULSAR_SIDECAR_ADMIN_URL", server.url)
        for named in ("topic", str(TOPIC)), ("namespace", TOPIC.namespace):
            assert ", 2.0 KiB in tiered storage (1000 B only there)" in terminal.run("pins", *named).out


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
    assert "  disk usage: 2.9 MiB of 8.6 MiB, including other files" in ran.out.splitlines()
    assert "  not collected: unknown, at most 2.9 MiB, and 6 ledgers" in ran.out.splitlines()
    assert "bookie-2:3181 (DOWN): 1 ledger; 1000 B of closed ones; as of 2" in ran.out
    assert "  its figures are unavailable: no answer" in ran.out.splitlines()
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
    assert "none of 2 bookies" in ran.err


# --- the routes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/persistent/public/default/none", 404),
        ("/persistent/p/c/n/none", 404),
        ("/namespaces/public/none", 404),
        ("/namespaces/public/default?limit=101", 400),
        ("/namespaces/public/default?x=1", 400),
        ("/ledgers/x", 400),
        ("/bookies/none%3A1", 404),
    ],
)
def test_missing_topic_and_invalid_input_are_refused(server: Served, path: str, status: int) -> None:
    assert server.ask("GET", f"{BASE}{path}").status == status
