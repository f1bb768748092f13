"""The routes of pins, over a cluster in memory."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.pins import TOPIC, PinnedCluster
from tests.unit.api.pins_serving import BOOKIE, served_pins
from tests.unit.api.serving import Served

BASE = "/admin/v2/pins"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    cluster = PinnedCluster()
    cluster.topic(1, 2, 3)
    cluster.cursor("s", mark_delete=(1, 9))
    with served_pins(cluster) as server:
        yield server


def asked(server: Served, path: str) -> Any:
    answer = server.ask("GET", f"{BASE}{path}")
    assert answer.status == 200, answer.body
    return answer.json


def test_a_topic(server: Served) -> None:
    (found,) = asked(server, "/persistent/public/default/orders")
    assert (found["topic"], found["loadedBy"], found["ledgers"]) == (str(TOPIC), None, 3)
    assert (found["bytes"], found["onBookiesBytes"], found["tieredBytes"]) == (3000, 6000, 0)
    backlog, not_loaded = found["pins"]
    assert (backlog["cause"], backlog["holder"], backlog["ledgerIds"]) == ("backlog", "s", [2, 3])
    assert (backlog["bytes"], backlog["freesOnBookiesBytes"], backlog["endsMs"]) == (2000, 4000, None)
    assert backlog["remedies"][-1]["command"] == f"pulsar-admin topics unsubscribe -s s {TOPIC}"
    assert backlog["alsoHeldBy"] == []
    assert not_loaded["cause"] == "not-loaded"
    assert found["readMs"] > 0
    assert found["held"][0] == {"pins": ["backlog s"], "ledgers": 2, "bytes": 2000, "onBookiesBytes": 4000}


def test_a_namespace_by_pages(server: Served) -> None:
    found = asked(server, "/namespaces/public/default?limit=1")
    assert (found["topics"], found["listedBytes"]) == (1, 2000)
    assert [each["topic"] for each in found["largest"]] == [str(TOPIC)]
    assert asked(server, "/namespaces/public/default?offset=1")["largest"] == []
    for query in ("limit=0", "limit=101", "offset=-1", "x=1"):
        assert server.ask("GET", f"{BASE}/namespaces/public/default?{query}").status == 400


def test_a_ledger(server: Served) -> None:
    found = asked(server, "/ledgers/2")
    assert (found["topic"], found["kind"], found["bookies"]) == (str(TOPIC), "data", [])
    deleted = asked(server, "/ledgers/60")
    assert (deleted["topic"], deleted["kind"], deleted["bookies"]) == (None, None, [BOOKIE])
    assert server.ask("GET", f"{BASE}/ledgers/61").status == 404
    assert server.ask("GET", f"{BASE}/ledgers/x").status == 400


def test_bookies(server: Served) -> None:
    first, second = asked(server, "/bookies")
    assert (first["figures"]["liveBytes"], first["uncollectedAtMostBytes"], first["problem"]) == (5000, 2_995_000, None)
    assert (first["state"], second["state"]) == ("writable", "down")
    assert first["unreadableLedgers"] == 0
    assert (second["figures"], second["problem"]) == (None, "no answer")
    one = asked(server, f"/bookies/{BOOKIE}?byTopic=true")
    assert one["shares"] == [{"owner": str(TOPIC), "ledgers": 1, "sizeBytes": 1000}]
    assert server.ask("GET", f"{BASE}/bookies/none%3A1").status == 404


@pytest.mark.parametrize(
    "path", ["/persistent/public/default/none", "/namespaces/public/none", "/persistent/p/c/n/none"]
)
def test_what_does_not_exist(server: Served, path: str) -> None:
    assert server.ask("GET", f"{BASE}{path}").status == 404
