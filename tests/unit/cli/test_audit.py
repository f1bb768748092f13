"""``audit show|explain|apply|report|prune``: arguments become a request, the result text and exit code."""

import json
from pathlib import Path

import pytest
from pulsar_sidecar.features.audit.requests import (
    AppliedPlan,
    ApplyRequest,
    AuditView,
    GroupColumn,
    PruneResult,
    RowsRequest,
)
from pulsar_sidecar.model.client_conf import ClientConf
from pulsar_sidecar.model.errors import TemporaryError

from tests.unit.cli.running import Terminal

HASH = "ab" * 32
LOOKED = AppliedPlan("id", HASH, 2, 2048, executed=False)
AUDIT = Path("audits/monday")


@pytest.mark.parametrize("code", [0, 1, 2])
def test_show_prints_the_text_and_ends_with_the_audits_code(terminal: Terminal, code: int) -> None:
    terminal.show = AuditView("at a glance \x1b[31m", {"verdict": "x"}, code)
    ran = terminal.run("audit", "show", str(AUDIT))
    assert (ran.code, ran.out) == (code, "at a glance \\x1b[31m\n")
    assert terminal.asked == [(AUDIT, (), RowsRequest())]


def test_show_as_json(terminal: Terminal) -> None:
    terminal.show = AuditView("text", {"verdict": "plan"}, 2)
    assert json.loads(terminal.run("audit", "show", "a", "--format", "json").out) == {"verdict": "plan"}
    assert json.loads(terminal.run("--output", "json", "audit", "show", "a").out) == {"verdict": "plan"}


def test_show_chooses_tables_and_rows(terminal: Terminal) -> None:
    terminal.show = AuditView("", {}, 0)
    terminal.run("audit", "show", "a", "--missing", "--usage", "--tenant", "t", "--limit", "3")
    terminal.run(
        "audit", "show", "a", "--kind", "cursor", "--cause", "unknown", "--standing", "changed", "--topic", "x"
    )
    terminal.run("audit", "show", "a", "--namespace", "t/n", "--offset", "40", "--largest-first")
    terminal.run("audit", "show", "a", "--usage", "--by", "tenant")
    assert terminal.asked == [
        (Path("a"), ("missing", "usage"), RowsRequest({"tenant": "t"}, 3)),
        (
            Path("a"),
            ("orphans",),
            RowsRequest({"kind": "cursor", "cause": "unknown", "standing": "changed", "topic": "x"}),
        ),
        (Path("a"), ("orphans",), RowsRequest({"namespace": "t/n"}, offset=40, largest_first=True)),
        (Path("a"), ("usage",), RowsRequest(group_by=GroupColumn.TENANT)),
    ]


def test_explain(terminal: Terminal) -> None:
    terminal.explain = "Ledger 5: it is so."
    ran = terminal.run("audit", "explain", "a", "5", "--dump", "d")
    assert (ran.code, ran.out) == (0, "Ledger 5: it is so.\n")
    assert terminal.asked == [(Path("a"), 5, Path("d"))]


def test_a_look_at_the_plan_shows_how_to_send_it(terminal: Terminal) -> None:
    terminal.applied = LOOKED
    ran = terminal.run("audit", "apply", str(AUDIT))
    assert ran.code == 0
    assert HASH in ran.out
    assert f"audit apply {AUDIT} --execute --plan {HASH}" in ran.err
    assert "nothing was sent" in ran.err
    assert terminal.asked == [ApplyRequest(AUDIT)]


def test_an_empty_plan_is_called_empty(terminal: Terminal) -> None:
    terminal.applied = AppliedPlan("id", HASH, 0, 0, executed=False)
    ran = terminal.run("audit", "apply", "a")
    assert ran.code == 0
    assert "nothing to send" in ran.err
    assert "--execute" not in ran.err


def test_executing_takes_addresses_and_credentials_from_everywhere(terminal: Terminal, tmp_path: Path) -> None:
    configuration = tmp_path / "client.conf"
    configuration.write_text("brokerServiceUrl=pulsar://b:6650\nauthPlugin=token\nauthParams=token:secret\n")
    terminal.set("PULSAR_CLIENT_CONF", str(configuration))
    terminal.set("PULSAR_SIDECAR_METADATA_STORE_URL", "zk:z:2181")
    terminal.set("PULSAR_SIDECAR_METADATA_STORE_AUTH", "digest:a:b")
    terminal.applied = AppliedPlan("id", HASH, 2, 2048, executed=True, sent=1, sent_earlier=1, warnings=("careful",))
    ran = terminal.run(
        "--tls-trust-cert-path", "ca.pem", "audit", "apply", "a", "--execute", "--plan", HASH, "--rate", "9",
        "--max-age-hours", "1", "--format", "json",
    )  # fmt: skip
    assert ran.code == 0
    document = json.loads(ran.out)
    assert (document["executed"], document["sent"], document["sentEarlier"]) == (True, 1, 1)
    assert "warning: careful" in ran.err
    assert "sending: 2 of 2" in ran.err
    (request,) = terminal.asked
    assert (request.metadata_store_url, request.broker_service_url) == ("zk:z:2181", "pulsar://b:6650")
    assert (request.rate, request.max_age_hours, request.plan_sha256) == (9, 1, HASH)
    assert request.metadata_store_auth == "digest:a:b"
    assert request.client == ClientConf("token", "token:secret", Path("ca.pem"))
    assert "secret" not in repr(request)
    assert "digest" not in repr(request)


def test_report_names_its_place(terminal: Terminal) -> None:
    terminal.report = Path("x.html")
    assert terminal.run("audit", "report", "a", "--output", "x.html").out == "x.html\n"
    assert terminal.asked == [(Path("a"), Path("x.html"))]


def test_push_exits_1_if_the_gateway_rejects_the_metrics(terminal: Terminal) -> None:
    command = ("audit", "push", "a", "--group-url", "http://h/metrics/job/a")
    ran = terminal.run(*command)
    assert (ran.code, ran.out) == (0, "")
    assert terminal.pushed == [(Path("a"), "http://h/metrics/job/a")]
    terminal.refusal = TemporaryError("the metrics were not pushed")
    assert terminal.run(*command).code == 1


def test_prune_lists_what_would_go_and_why_the_rest_stays(terminal: Terminal) -> None:
    terminal.prune = PruneResult((Path("old"),), {Path("new"): "the newest audit"}, executed=False)
    ran = terminal.run("audit", "prune", "archive", "--keep", "2", "--older-than-days", "7")
    assert ran.code == 0
    assert [line.split() for line in ran.out.splitlines()][1:] == [
        ["old", "would", "be", "removed", "old"], ["new", "stays", "the", "newest", "audit"],
    ]  # fmt: skip
    assert "with --execute" in ran.err
    assert terminal.asked == [(Path("archive"), 2, 7, False)]


def test_help_teaches_the_order_of_things(terminal: Terminal) -> None:
    ran = terminal.run("audit", "apply", "--help")
    assert ran.code == 0
    assert "deletes nothing" in ran.out
