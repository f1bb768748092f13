import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.http.deletions import answer_of
from pulsar_sidecar.features.ledger_deletion.record import Mark, PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.results import (
    Control,
    DeadLetter,
    OperationState,
    PendingRecord,
    TopicDeletionStatus,
)
from pulsar_sidecar.model.ids import LedgerId, NodeVersion, OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.server.answers import as_json

from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.leaks import explanation, watching
from tests.unit.server.serving import Served

BASE = "/admin/v2/ledger-deletion"
TOPIC = parse_topic_name("persistent://public/default/orders")
RECORD = PendingDeleteLedgerInfo(TOPIC, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, LedgerId(7))
DOCUMENT = {
    "topicName": "persistent://public/default/orders",
    "ledgerComponent": "MANAGED_LEDGER",
    "ledgerType": "LEDGER",
    "ledgerId": 7,
}


def test_a_caller_may_bring_its_own_producer_and_what_it_knew(service: FakeDeletionService, server: Served) -> None:
    sidecar = {"markedVersion": 3, "unreferenced": True, "instanceId": "i", "createdMs": 5, "lengthBytes": 6}
    request = {"ledgers": [DOCUMENT | {"sidecar": sidecar}], "producerName": "cleaner-1", "firstSequenceId": 40}
    assert server.ask("POST", f"{BASE}/pending", request).status == 200
    mark = Mark(marked_version=NodeVersion(3), unreferenced=True, instance_id="i", created_ms=5, length_bytes=6)
    assert service.calls("send") == [([RECORD.marked(mark)], "cleaner-1", 40)]


def test_the_largest_ledger_id_is_a_ledger_id(service: FakeDeletionService, server: Served) -> None:
    answer = server.ask("POST", f"{BASE}/pending", {"ledgers": [DOCUMENT | {"ledgerId": 2**63 - 1}]})
    assert answer.json == {"sent": [2**63 - 1], "notSent": []}


@pytest.mark.parametrize("remembers", [False, True])
def test_the_count_has_an_age(service: FakeDeletionService, server: Served, *, remembers: bool) -> None:
    service.remembers = remembers
    answer = server.ask("GET", "/admin/v2/broker-stats/estimatedInflightDeletionLedgerCount")
    assert (answer.status, answer.body) == (200, b"7")
    assert answer.headers["x-pulsar-sidecar-age-ms"] == "120"


def test_pause_and_resume(service: FakeDeletionService, server: Served) -> None:
    paused = Control(True, "bookies move", paused_since_ms=9)
    assert server.ask("POST", f"{BASE}/pause", {"reason": "bookies move"}).json == as_json(paused)
    assert server.ask("POST", f"{BASE}/pause").json == as_json(replace(paused, paused_reason=None))
    assert server.ask("POST", f"{BASE}/resume").json == as_json(Control())


STUCK = TopicDeletionStatus(
    OperationId("o"), str(TOPIC), None, OperationState.STUCK, 3, 2, 9, "it fails", "me", 12, 11, 13, "r-1", "abandon it"
)
FOLLOWED = STUCK.followed(
    driver="sidecar-2",
    left_nodes=("/managed-ledgers/public/default/persistent/orders",),
    left=(LedgerId(7), LedgerId(8)),
)
UNREADABLE = TopicDeletionStatus(OperationId("o"), None, None, OperationState.UNREADABLE, None, None, 9, "newer")


def test_a_call_that_follows_a_deletion_answers_like_one_that_begins_it() -> None:
    assert json.loads(bytes(answer_of(STUCK.followed(driver="sidecar-2")).body)) == as_json(STUCK)


def furnish(service: FakeDeletionService) -> None:
    """Give every list an item."""
    pending_topic = "persistent://pulsar/system/__ledger_deletion-RETRY"
    service.running, service.followed = [STUCK, UNREADABLE], [FOLLOWED]
    service.waiting = [PendingRecord("1:1:0", pending_topic, DOCUMENT, 5, 2, 65_005, "too-young", 2048)]
    service.dead = [
        DeadLetter("1:7:0", DOCUMENT, "{}", "no bookie answers", 10, 1_700_000_000_000),
        DeadLetter("1:2:0", None, "\x00not json", "the record is not a JSON document", 0, 9, "r-1"),
    ]
    service.watch.answer, service.watch.explained = watching(braked="too many"), {7: explanation(7)}


@pytest.mark.parametrize(
    ("path", "returned"),
    [
        ("status", lambda service: service.status()),
        ("inflight", lambda service: service.inflight),
        ("topic-deletions", lambda service: service.running),
        ("topic-deletions/o", lambda service: service.followed[0]),
        ("namespace-deletions", lambda service: service.namespace_deletions()),
        ("pending", lambda service: service.waiting),
        ("pending?limit=1&offset=1", lambda _: []),
        ("dead-letters", lambda service: service.dead),
        ("dead-letters?limit=1", lambda service: service.dead[:1]),
        ("trend", lambda service: service.trend()),
        ("watch", lambda service: service.watch.answer),
        ("watch/leaks/7", lambda service: service.watch.explained[7]),
        ("watch/holds", lambda service: service.watch.shared),
    ],
)
def test_a_read_answers_what_the_service_returns(
    path: str, returned: Callable[[FakeDeletionService], object], service: FakeDeletionService, server: Served
) -> None:
    furnish(service)
    answer = server.ask("GET", f"{BASE}/{path}").json
    expected = returned(service)
    assert answer == ([as_json(each) for each in expected] if isinstance(expected, list) else as_json(expected))


def test_limits_have_a_default_and_a_maximum(service: FakeDeletionService, server: Served) -> None:
    assert server.ask("POST", f"{BASE}/dead-letters/redrive", {}).json == {"redriven": 0, "left": 0}
    assert service.calls("redrive") == [(None, 10_000)]
    for path in ("pending?limit=1001", "pending?offset=10001", "dead-letters?limit=10001"):
        assert server.ask("GET", f"{BASE}/{path}").status == 400


def test_unknown_deletion_is_not_found(service: FakeDeletionService, server: Served) -> None:
    for method, path in (("GET", "o"), ("POST", "o/abandon")):
        answer = server.ask(method, f"{BASE}/topic-deletions/{path}")
        assert (answer.status, answer.reason) == (404, "no topic deletion o is running")


@pytest.mark.parametrize("name", ["..", "%2e%2e", "a%2Fb", "a%00", "a%20b", "%C3%A4", "a" * 101])
def test_an_id_is_a_nodes_name_and_nothing_else(name: str, service: FakeDeletionService, server: Served) -> None:
    for method, path in (("GET", name), ("POST", f"{name}/abandon")):
        assert server.ask(method, f"{BASE}/topic-deletions/{path}").status in (400, 404, 405)
    assert service.asked == []


def test_probes(service: FakeDeletionService, server: Served) -> None:
    assert (server.ask("GET", "/livez").status, server.ask("GET", "/readyz").status) == (200, 200)
    service.missing = "no broker answers"
    answer = server.ask("GET", "/readyz")
    assert (answer.status, answer.reason) == (503, "no broker answers")
    assert server.ask("GET", "/livez").status == 200
    service.missing = None
    server.draining.set()
    try:
        answer = server.ask("GET", "/readyz")
        assert (answer.status, answer.reason) == (503, "the service is stopping")
        assert server.ask("GET", "/livez").status == 200
    finally:
        server.draining.clear()


def test_metrics_are_prometheus_text(server: Served) -> None:
    server.metrics.received.inc(3)
    answer = server.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b'pulsar_ledger_deletion_received_total{cluster="east"} 3.0' in answer.body


def test_the_reference_needs_no_other_host(server: Served) -> None:
    page = server.ask("GET", "/docs").body.decode()
    assert "/admin/v2/ledger-deletion/undelete" in page
    assert "//" not in page.replace("://", "")
    assert "<script" not in page
    document = server.ask("GET", "/openapi.json").json
    assert isinstance(document, dict)
    for operations in document["paths"].values():
        for operation in operations.values():
            assert "422" not in operation["responses"]
