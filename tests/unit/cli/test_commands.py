import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo, record_document
from pulsar_sidecar.features.ledger_deletion.results import (
    DeadLetter,
    OperationState,
    PendingRecord,
    Redirect,
    SidecarInstance,
    TopicDeletionStatus,
)
from pulsar_sidecar.local_cluster.processes import free_ports
from pulsar_sidecar.model.errors import ConflictError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

TOPIC = parse_topic_name("persistent://public/default/orders")
pytestmark = pytest.mark.usefixtures("server")


def record(ledger_id: int) -> PendingDeleteLedgerInfo:
    return PendingDeleteLedgerInfo(TOPIC, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, LedgerId(ledger_id))


def test_append(terminal: Terminal, service: FakeDeletionService) -> None:
    ran = terminal.run("--output", "json", "ledger-deletion", "append", "1", "2", "--topic", str(TOPIC))
    assert (ran.code, json.loads(ran.out)) == (0, {"sent": [1, 2], "notSent": []})
    assert service.recorded == [record(1), record(2)]


def test_append_of_every_kind(terminal: Terminal, service: FakeDeletionService) -> None:
    context = '{"msb": 1, "lsb": -2, "driverName": "aws-s3", "metadata": {"bucket": "b"}}'
    kinds = [
        ("MANAGED_CURSOR", "--cursor-name", "sub"),
        ("SCHEMA_STORAGE", "--schema-id", "public/default/orders"),
        ("COMPACTED_LEDGER",),
        ("DELAYED_INDEX_BUCKET", "--cursor-name", "sub"),
        ("MANAGED_LEDGER", "--type", "OFFLOAD_LEDGER", "--offload-context", context),
    ]
    for component, *more in kinds:
        ran = terminal.run("ledger-deletion", "append", "7", "-t", "orders", "--component", component, *more)
        assert ran.code == 0, ran
    assert [recorded.component.value for recorded in service.recorded] == [component for component, *_ in kinds]
    assert service.recorded[0].cursor_name == "sub"
    assert service.recorded[1].schema_id == "public/default/orders"
    assert service.recorded[4].offload_context is not None
    assert {recorded.topic for recorded in service.recorded} == {TOPIC}


def test_append_reports_what_was_not_sent(terminal: Terminal, service: FakeDeletionService) -> None:
    service.not_sent = {2: "outcome unknown"}
    ran = terminal.run("ledger-deletion", "append", "1", "2", "--topic", "orders", "--output", "json")
    assert ran.code == 4
    assert json.loads(ran.out) == {"sent": [1], "notSent": [{"ledgerId": 2, "reason": "outcome unknown"}]}


def test_append_from_a_file_in_several_calls(terminal: Terminal, service: FakeDeletionService, tmp_path: Path) -> None:
    lines = [
        json.dumps({"ledgerId": i, "topicName": "orders", "ledgerType": "LEDGER", "ledgerComponent": "MANAGED_LEDGER"})
        for i in range(12_345)
    ]
    file = tmp_path / "records.jsonl"
    file.write_text("\n\n".join(lines) + "\n")
    ran = terminal.run(
        "ledger-deletion", "append", "--file", str(file), "--producer-name", "me", "--first-sequence-id", "100",
        "--output", "json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["sent"] == list(range(12_345))
    assert service.producers == [("me", 100), ("me", 10_100)]


def test_a_failure_between_two_calls_is_not_hidden(
    terminal: Terminal, service: FakeDeletionService, tmp_path: Path
) -> None:
    good = {"ledgerId": 1, "topicName": "orders", "ledgerType": "LEDGER", "ledgerComponent": "MANAGED_LEDGER"}
    file = tmp_path / "records.jsonl"
    file.write_text("\n".join([json.dumps(good)] * 10_000 + [json.dumps(good | {"ledgerId": -2})]))
    ran = terminal.run("ledger-deletion", "append", "--file", str(file), "--output", "json")
    assert ran.code == 4
    answer = json.loads(ran.out)
    assert len(answer["sent"]) == 10_000
    assert [left["ledgerId"] for left in answer["notSent"]] == [-2]
    assert "HTTP 400" in answer["notSent"][0]["reason"]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("1",),
        ("--topic", "orders"),
        ("1", "--topic", "orders", "--file", "-"),
        ("1", "--topic", "a/b"),
        ("1", "--topic", "orders", "--producer-name", "p"),
        ("1", "--topic", "orders", "--offload-context", "{"),
        ("1", "--topic", "orders", "--offload-context", "[]"),
        ("-1", "--topic", "orders"),
        ("9223372036854775808", "--topic", "orders"),
        ("x", "--topic", "orders"),
        ("1", "--topic", "orders", "--component", "LEDGER"),
        ("--file", "/no/such/file"),
        ("--unknown",),
    ],
    ids=" ".join,
)
def test_wrong_usage_sends_nothing(
    arguments: tuple[str, ...], terminal: Terminal, service: FakeDeletionService
) -> None:
    ran = terminal.run("ledger-deletion", "append", *arguments)
    assert ran.code == 1
    assert ran.out == ""
    assert ran.err
    assert service.asked == []


def test_a_bad_line_of_a_file_is_named(terminal: Terminal, service: FakeDeletionService, tmp_path: Path) -> None:
    for text in ("{}\n{", "{}\n[]", "{}\n" + "[" * 100_000):
        (tmp_path / "f").write_text(text)
        ran = terminal.run("ledger-deletion", "append", "--file", str(tmp_path / "f"))
        assert (ran.code, "line 2" in ran.err) == (1, True)
    assert service.asked == []


def test_status_as_a_table_and_as_json(terminal: Terminal, service: FakeDeletionService) -> None:
    service.instances = (SidecarInstance("east-1", "http://a:8750", None, 5),)
    table = terminal.run("ledger-deletion", "status")
    assert table.code == 0
    assert "in flight\n  count          7\n  age            120 ms\n  oldest         5 seconds\n" in table.out
    assert "sidecars\n  name" in table.out
    assert re.search(r"^  east-1 +http://a:8750 +- +1970-01-01T00:00:00.005Z +yes$", table.out, re.MULTILINE)
    assert not re.search("[a-z][A-Z]", table.out), "a table has words, not keys of JSON"
    for arguments in (
        ("--output", "json", "ledger-deletion", "status"),
        ("ledger-deletion", "status", "--output", "json"),
    ):
        assert json.loads(terminal.run(*arguments).out)["inflight"]["count"] == 7


def test_pause_resume_and_rate(terminal: Terminal, service: FakeDeletionService) -> None:
    assert terminal.run("ledger-deletion", "pause", "--reason", "bookies move").code == 0
    assert terminal.run("ledger-deletion", "pause").code == 0
    assert terminal.run("ledger-deletion", "resume").code == 0
    assert terminal.run("ledger-deletion", "rate", "2.5").code == 0
    assert terminal.run("ledger-deletion", "rate", "none").code == 0
    assert service.asked == [
        ("pause", "bookies move"),
        ("pause", None),
        ("resume", None),
        ("limit_rate", 2.5),
        ("limit_rate", None),
    ]
    for wrong in ("0", "-1", "nan", "inf", "fast"):
        assert terminal.run("ledger-deletion", "rate", "--", wrong).code == 1


def test_undelete(terminal: Terminal, service: FakeDeletionService) -> None:
    service.deleted = {7}
    assert json.loads(terminal.run("ledger-deletion", "undelete", "7", "--force", "--output", "json").out) == {
        "ledgerId": 7,
        "readable": True,
        "protectedUntilMs": 1_700_086_400_000,
        "protectedUntil": "2023-11-15T22:13:20Z",
    }
    assert json.loads(terminal.run("ledger-deletion", "end-protection", "7", "--output", "json").out) == {"ledgerId": 7}
    missing = terminal.run("ledger-deletion", "undelete", "7")
    assert (missing.code, missing.out) == (1, "")
    assert "HTTP 404" in missing.err
    assert service.calls("undelete") == [(7, True), (7, False)]


def test_topic_deletions(terminal: Terminal, service: FakeDeletionService) -> None:
    service.running = [
        TopicDeletionStatus(OperationId("op"), str(TOPIC), None, OperationState.RUNNING, 3, 1, 5, "waits")
    ]
    ran = terminal.run("ledger-deletion", "topic-deletions")
    assert str(TOPIC) in ran.out
    assert "waits" in ran.out
    service.followed = [service.running[0].followed(left_nodes=("/a/b",), left=(LedgerId(7),))]
    shown = terminal.run("ledger-deletion", "topic-deletions", "op", "--output", "json")
    assert json.loads(shown.out)["leftLedgerIds"] == [7]


def test_abandon(terminal: Terminal, service: FakeDeletionService) -> None:
    ended = TopicDeletionStatus(
        OperationId("op"), str(TOPIC), None, OperationState.ABANDONED, 3, 1, 5, "it was damaged"
    )
    service.followed = [ended.followed(left_nodes=("/a/b",), left=(), ended_ms=7)]
    ran = terminal.run("ledger-deletion", "abandon", "op")
    assert ran.code == 0
    assert "/a/b" in ran.out
    assert service.calls("abandon_topic_deletion") == [("op", None)]
    service.followed = []
    again = terminal.run("ledger-deletion", "abandon", "op")
    assert (again.code, again.out) == (1, "")
    assert "HTTP 404" in again.err


def test_pending_records(terminal: Terminal, service: FakeDeletionService) -> None:
    waits = PendingRecord("1:0:0", "t", record_document(record(7)), 5, 2, 65_005, "too-young", 2048)
    service.waiting = [waits, replace(waits, record=None, next_try_ms=None)]
    table = terminal.run("ledger-deletion", "pending", "--limit", "1")
    header, row = (re.split("  +", line) for line in table.out.splitlines())
    assert header == ["ledger id", "topic", "length", "written", "tries", "next try", "reason"]
    assert row == ["7", str(TOPIC), "2.0 KiB", "1970-01-01T00:00:00.005Z", "2", "1970-01-01T00:01:05.005Z", "too-young"]
    assert table.err == "there may be more; the next page: --offset 1\n"
    rest = terminal.run("ledger-deletion", "pending", "--offset", "1")
    assert rest.out.splitlines()[1].split() == [
        "-",
        "-",
        "2.0",
        "KiB",
        "1970-01-01T00:00:00.005Z",
        "2",
        "-",
        "too-young",
    ]
    assert terminal.run("ledger-deletion", "pending", "--offset", "2").err == "none\n"
    assert service.calls("pending_records") == [(1, 0), (100, 1), (100, 2)]


def test_dead_letters(terminal: Terminal, service: FakeDeletionService) -> None:
    service.dead = [
        DeadLetter(f"1:{i}:0", record_document(record(i)), "{}", "no bookie answers", 10, 5) for i in range(3)
    ]
    table = terminal.run("ledger-deletion", "dlq", "list", "--limit", "2")
    header = re.split("  +", table.out.splitlines()[0])
    assert header == ["ledger id", "topic", "tries", "dead since", "reason", "message id"]
    assert table.err == "there may be more; the next page: --after 1:1:0\n"
    rest = terminal.run("ledger-deletion", "dlq", "list", "--limit", "2", "--after", "1:1:0")
    assert (len(rest.out.splitlines()), rest.err) == (2, "")
    for wrong in ("1", "1:2", "a:b:c", "1:2:3:4:5", "-1:2:3"):
        assert terminal.run("ledger-deletion", "dlq", "list", "--after", wrong).code == 1
    assert len(table.out.splitlines()) == 3
    assert len(json.loads(terminal.run("ledger-deletion", "dlq", "list", "--output", "json").out)) == 3
    ran = terminal.run("ledger-deletion", "dlq", "redrive", "0", "1", "--output", "json")
    assert json.loads(ran.out) == {"redriven": 2, "left": 1}
    assert json.loads(terminal.run("--output", "json", "ledger-deletion", "dlq", "redrive").out)["left"] == 0
    assert service.calls("redrive") == [([0, 1], 10_000), (None, 10_000)]


def test_the_count(terminal: Terminal) -> None:
    ran = terminal.run("broker-stats", "estimated-inflight-deletion-ledger-count")
    assert (ran.code, ran.out) == (0, "7\n")
    assert "120 ms ago" in ran.err
    ran = terminal.run("--output", "json", "broker-stats", "estimated-inflight-deletion-ledger-count")
    assert json.loads(ran.out)["ageMs"] == 120


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("orders", "persistent://public/default/orders"),
        ("t/n/a b%+ä", "persistent://t/n/a b%+ä"),
        ("persistent://p/c/n/a/b", "persistent://p/c/n/a/b"),
    ],
)
def test_topics_delete(written: str, meant: str, terminal: Terminal, service: FakeDeletionService) -> None:
    assert terminal.run("topics", "delete", written, "--force").code == 0
    assert terminal.run("topics", "delete", written, "--partitioned").code == 0
    topic = parse_topic_name(meant)
    assert service.calls("delete_topic") == [(topic, False, True, None), (topic, True, False, None)]
    assert terminal.run("topics", "delete", written, "--confirm-source-data-loss", meant).code == 0
    assert service.confirmed == [None, None, meant]


@pytest.mark.parametrize("command", ["delete", "delete-shadow"])
def test_a_topic_without_ledgers_is_refused(terminal: Terminal, service: FakeDeletionService, command: str) -> None:
    assert terminal.run("topics", command, "non-persistent://a/b/c").code == 1
    assert service.asked == []


def test_delete_ledger(terminal: Terminal, service: FakeDeletionService) -> None:
    ran = terminal.run("topics", "delete-ledger", "orders", "--ledger-id", "7", "--authoritative")
    assert (ran.code, ran.out) == (0, "")
    assert service.judged == [(record(7), True)]
    service.failure = ConflictError("ledger still in use")
    ran = terminal.run("topics", "delete-ledger", "orders", "-l", "7")
    assert ran.code == 1
    assert "ledger still in use (HTTP 409)" in ran.err


def test_a_redirect_is_followed_to_a_registered_sidecar(terminal: Terminal, service: FakeDeletionService) -> None:
    neighbour = FakeDeletionService()
    with served(neighbour) as other:
        service.ledger_answer = Redirect(other.url)
        service.instances = (SidecarInstance("other", other.url, None, 5),)
        assert terminal.run("topics", "delete-ledger", "orders", "-l", "7").code == 0
    assert neighbour.judged == [(record(7), True)]


def test_a_redirect_to_another_host_is_not(terminal: Terminal, service: FakeDeletionService) -> None:
    stranger = FakeDeletionService()
    with served(stranger) as other:
        service.ledger_answer = Redirect(other.url)
        service.instances = (SidecarInstance("other", "http://127.0.0.1:1", None, 5),)
        ran = terminal.run("topics", "delete-ledger", "orders", "-l", "7")
    assert ran.code == 1
    assert "not a registered sidecar" in ran.err
    assert stranger.asked == []


def test_unreachable_sidecar_exits_with_3(terminal: Terminal) -> None:
    (port,) = free_ports(1)
    ran = terminal.run("--admin-url", f"http://127.0.0.1:{port}", "ledger-deletion", "status")
    assert (ran.code, ran.out) == (3, "")
    assert f"127.0.0.1:{port}" in ran.err


def test_an_answer_that_does_not_come(terminal: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        ran = terminal.run("--admin-url", url, "--request-timeout", "0.2", "ledger-deletion", "status")
    assert ran.code == 3
    assert "within 0.2 s; --request-timeout waits longer" in ran.err


def test_a_service_that_cannot_now(terminal: Terminal, service: FakeDeletionService) -> None:
    service.failure = TemporaryError("no broker answers; try again")
    ran = terminal.run("ledger-deletion", "status")
    assert ran.code == 1
    assert "no broker answers; try again (HTTP 503)" in ran.err


def test_text_of_others_cannot_move_the_cursor(terminal: Terminal, service: FakeDeletionService) -> None:
    evil = "\x1b[2Jgone\r\nline"
    service.dead = [DeadLetter("1:1:0", record_document(record(1)), "{}", evil, 1, 5)]
    service.failure = None
    out = terminal.run("ledger-deletion", "dlq", "list").out
    assert "\x1b" not in out
    assert "\\x1b[2Jgone" in out
    assert len(out.splitlines()) == 2
    service.failure = ConflictError(evil)
    assert "\x1b" not in terminal.run("ledger-deletion", "status").err


def test_wrong_addresses_are_usage(terminal: Terminal, server: Served) -> None:
    for url in ("127.0.0.1:8750", "ftp://127.0.0.1", "file:///etc/passwd"):
        assert terminal.run("--admin-url", url, "ledger-deletion", "status").code == 1
    assert server.ask("GET", "/livez").status == 200
