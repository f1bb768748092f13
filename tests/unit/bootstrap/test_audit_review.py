"""Review and application of audits, fully assembled: audits and dumps on disk, the commands' programs on them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pulsar_sidecar.adapters.parquet.directories import read_summary
from pulsar_sidecar.bootstrap.audit_review import (
    apply_audit,
    explain_ledger,
    prune_archive,
    push_audit,
    report_audit,
    show_audit,
)
from pulsar_sidecar.features.audit.requests import ApplyRequest, FindingsTable, GroupColumn, RowsRequest
from pulsar_sidecar.features.audit.results.report import metrics_text
from pulsar_sidecar.features.audit.results.summaries import GuardResult
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError

from tests.fakes.bookkeeper import cursor_bytes, managed_ledger_bytes
from tests.fakes.http_servers import Answer, HttpServer, http_server
from tests.unit.audit.audited_clusters import COMPACTION, TOPIC_NODE, AuditedCluster
from tests.unit.audit.findings import DAY_MS, STORE_TIME_MS, missing, orphan, unattributed, usage
from tests.unit.audit.written import write_audit

_ORPHANS = [orphan(4), orphan(9, kind="cursor", cursor_name="sub"), orphan(11, standing="changed")]


def _ignore(done: int, total: int) -> None:
    """There is no terminal."""


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    directory = tmp_path / "audit"
    write_audit(directory, _ORPHANS, [missing(5)], [unattributed(7)], [usage("persistent://a/b/c")])
    return directory


def test_show_reads_rows_from_disk_and_ends_as_the_audit_did(audit: Path, tmp_path: Path) -> None:
    shown = show_audit(audit)
    assert shown.exit_code == 2
    assert "PLAN: 2 ledgers" in shown.text
    assert shown.document["verdict"] == "plan"
    rows = show_audit(audit, (FindingsTable.ORPHANS, FindingsTable.USAGE), RowsRequest({"kind": "cursor"}, 5))
    assert [row["ledger_id"] for row in rows.document["orphans"]["rows"]] == [9]
    assert "Unreferenced ledgers: 1 of 1" in rows.text
    groups = show_audit(audit, (FindingsTable.ORPHANS,), RowsRequest(group_by=GroupColumn.KIND))
    assert groups.document["orphans"]["groups"][0] == {
        "value": "data", "ledgers": 2, "bytes": 2015, "unknownSizeLedgers": 0,
    }  # fmt: skip
    assert "Unreferenced ledgers by kind: 2" in groups.text
    write_audit(tmp_path / "clean")
    assert show_audit(tmp_path / "clean").exit_code == 0
    failed = GuardResult("share-of-ledgers", False, "40 %", "10 %", "too many")
    write_audit(tmp_path / "stopped", _ORPHANS, plan=None, guards=(failed,))
    assert show_audit(tmp_path / "stopped").exit_code == 1


def test_each_ledger_is_found_in_its_table(audit: Path) -> None:
    assert "row 1 of the plan" in explain_ledger(audit, 9)
    assert "its owner is not known" in explain_ledger(audit, 7)
    assert "It does not exist" in explain_ledger(audit, 5)
    assert "--dump DIR" in explain_ledger(audit, 1)


def test_references_of_a_ledger_are_found_in_a_dump(audit: Path, tmp_path: Path) -> None:
    cluster = AuditedCluster({TOPIC_NODE: managed_ledger_bytes([1, 2]), COMPACTION: cursor_bytes(cursor_ledger=3)})
    dump = cluster.dump(tmp_path / "dump")
    assert f"  - {TOPIC_NODE}" in explain_ledger(audit, 2, dump)
    assert f"  - {COMPACTION}" in explain_ledger(audit, 3, dump)
    assert "nothing in that dump references it" in explain_ledger(audit, 12345, dump)
    with pytest.raises(InvalidInputError):
        explain_ledger(audit, 2, audit)


def test_a_report_is_written_where_it_is_asked_for(audit: Path, tmp_path: Path) -> None:
    assert report_audit(audit) == audit / "report.html"
    other = report_audit(audit, tmp_path / "other.html")
    assert other.read_text() == (audit / "report.html").read_text()
    assert "persistent://a/b/c" in other.read_text()
    with pytest.raises(TemporaryError, match="cannot be written"):
        report_audit(audit, tmp_path / "nowhere" / "report.html")


def test_executing_wants_the_approved_plan_and_then_addresses(audit: Path) -> None:
    looked = apply_audit(ApplyRequest(audit), _ignore)
    assert (looked.rows, looked.bytes, looked.executed) == (2, 2013, False)
    plan = looked.plan_sha256
    with pytest.raises(InvalidInputError, match="--plan"):
        apply_audit(ApplyRequest(audit, execute=True), _ignore)
    with pytest.raises(InvalidInputError, match="not the approved one"):
        apply_audit(ApplyRequest(audit, execute=True, plan_sha256="0" * 64), _ignore)
    with pytest.raises(InvalidInputError, match="--broker-service-url"):
        apply_audit(ApplyRequest(audit, execute=True, plan_sha256=plan), _ignore)
    brokers = "pulsar://127.0.0.1:1"
    with pytest.raises(InvalidInputError, match="--metadata-store-url"):
        apply_audit(ApplyRequest(audit, execute=True, plan_sha256=plan, broker_service_url=brokers), _ignore)
    with pytest.raises(InvalidInputError, match="scheme:credential") as refused:
        apply_audit(
            ApplyRequest(
                audit,
                execute=True,
                plan_sha256=plan,
                broker_service_url=brokers,
                metadata_store_url="zk:z",
                metadata_store_auth="secret",
            ),
            _ignore,
        )
    assert "secret" not in str(refused.value)


def test_pruning_only_reports_unless_it_is_to_execute(tmp_path: Path) -> None:
    for days in range(3):
        write_audit(tmp_path / f"a{days}", audit_id=str(days), store_time_ms=STORE_TIME_MS - days * DAY_MS)
    pruned = prune_archive(tmp_path, keep=1, older_than_days=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a0", "a1", "a2"]
    assert pruned.removed == (tmp_path / "a1", tmp_path / "a2")
    assert pruned.kept == {tmp_path / "a0": "the newest audit"}
    done = prune_archive(tmp_path, keep=1, older_than_days=0, execute=True)
    assert done.removed == pruned.removed
    assert [path.name for path in tmp_path.iterdir()] == ["a0"]
    for wrong in ((tmp_path, 0), (tmp_path / "nowhere",)):
        with pytest.raises(InvalidInputError):
            prune_archive(*wrong)


@pytest.fixture
def pushgateway() -> Iterator[HttpServer]:
    with http_server() as server:
        yield server


@pytest.mark.parametrize(
    ("below", "pushed"),
    [
        ("", ""),
        ("/", ""),
        ("/instance/west", "/instance/west"),
        ("/instance/a%20b", "/instance@base64/YSBi"),
        ("/instance@base64/YSBi", "/instance@base64/YSBi"),
    ],
)
def test_the_metrics_of_an_audit_replace_those_of_a_group(
    audit: Path, pushgateway: HttpServer, below: str, pushed: str
) -> None:
    push_audit(audit, f"{pushgateway.url}/metrics/job/audit{below}")
    (arrived,) = pushgateway.arrived
    assert (arrived.method, arrived.target) == ("PUT", f"/metrics/job/audit{pushed}")
    assert arrived.headers["Content-Type"].startswith("text/plain; version=")
    assert arrived.body.decode() == metrics_text(read_summary(audit))


def test_metrics_that_are_not_taken_are_a_failure(audit: Path, pushgateway: HttpServer) -> None:
    pushgateway.answer = lambda _: Answer(400)
    group = f"{pushgateway.url}/metrics/job/audit"
    with pytest.raises(TemporaryError, match=f"not pushed to {group}"):
        push_audit(audit, group)
    with pytest.raises(TemporaryError, match="not pushed"):
        push_audit(audit, "http://127.0.0.1:9/metrics/job/audit")


@pytest.mark.parametrize(
    "url",
    ["", "pushgateway:9091", "http://", "http:///metrics/job/a", "ftp://h/metrics/job/a", "http://h:9091/metrics/job/",
     "http://h/metrics/job/a/instance", "http://h/metrics/job/a//b", "http://[::1/metrics/job/a",
     "http://h:65536/metrics/job/a"],
)  # fmt: skip
def test_only_a_group_of_a_pushgateway_is_pushed_to(audit: Path, url: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a group"):
        push_audit(audit, url)
