"""The routes of audits, on audits on disk: what they found, and an approved plan that is sent or not."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.adapters.parquet.directories import sha256_of
from pulsar_sidecar.features.audit.http import router
from pulsar_sidecar.features.audit.opening import NO_DIRECTORY, NoAudits
from pulsar_sidecar.features.audit.results.summaries import GuardResult, Input
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.reports.documents import MANIFEST_NAME

from tests.cluster.patience import until
from tests.fakes.bookkeeper import managed_ledger_bytes
from tests.unit.audit.audited_clusters import TOPIC_NODE, AuditedCluster
from tests.unit.audit.findings import AUDIT_ID, STORE_TIME_MS, missing, orphan, unattributed, usage
from tests.unit.audit.sending import ServedAudits, served_audits
from tests.unit.audit.written import write_audit
from tests.unit.server.serving import Answer, Served, served

BASE = "/admin/v2/audits"
AUDIT = f"{BASE}/{AUDIT_ID}"
_ORPHANS = [orphan(4), orphan(9, kind="cursor", cursor_name="sub", cause="unknown"), orphan(11, standing="changed")]


class Kept:
    """A directory with audits, and a server of it."""

    def __init__(self, audits: ServedAudits, server: Served) -> None:
        self.audits, self.server, self.directory = audits, server, audits.directory

    def ask(self, path: str = "", method: str = "GET", body: object = None) -> Answer:
        return self.server.ask(method, f"{AUDIT}{path}", body)

    def json(self, path: str = "") -> Any:
        answer = self.ask(path)
        assert answer.status == 200, answer.body
        return answer.json

    def approve(self, plan: str, **more: object) -> Answer:
        return self.ask("/application", "POST", {"plan": plan, **more})


class Now:
    """The feature that a test asks; its server is all tests'."""

    reviews: Any = NoAudits(NO_DIRECTORY)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reviews, name)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Now, Served]]:
    now = Now()
    with served(routers=[router(now)]) as server:  # type: ignore[arg-type]
        yield now, server


@pytest.fixture
def kept(tmp_path: Path, shared: tuple[Now, Served]) -> Iterator[Kept]:
    now, server = shared
    with served_audits(tmp_path) as audits:
        now.reviews = audits.reviews
        yield Kept(audits, server)


@pytest.fixture
def plan(kept: Kept) -> str:
    """The hash of the plan of an audit with two deletable ledgers."""
    tables = ([missing(5)], [unattributed(7)], [usage("persistent://a/b/c", tenant="a"), usage("persistent://d/e/f")])
    written = write_audit(kept.directory / "nightly" / "monday", _ORPHANS, *tables)
    assert written.plan is not None
    return written.plan.sha256


def test_audits_are_listed_the_newest_first_page_by_page(kept: Kept) -> None:
    for day, name in enumerate(("friday", "saturday", "sunday")):
        write_audit(kept.directory / name, audit_id=f"id-{name}", store_time_ms=STORE_TIME_MS + day)
    first = kept.server.ask("GET", f"{BASE}?limit=2").json
    assert isinstance(first, dict)
    assert ([audit["auditId"] for audit in first["audits"]], first["total"]) == (["id-sunday", "id-saturday"], 3)
    newest = first["audits"][0]
    assert newest["directory"] == str(kept.directory / "sunday")
    assert (newest["cluster"], newest["asOfMs"], newest["engine"]) == ("standalone", STORE_TIME_MS + 2, "embedded")
    assert (newest["verdict"], newest["nextStep"], newest["missing"], newest["dangers"]) == (
        "clean",
        "nothing to do",
        0,
        0,
    )
    assert newest["existing"] == newest["referenced"] == {"ledgers": 1000, "bytes": 10**9, "unknownSizeLedgers": 0}
    second = kept.server.ask("GET", f"{BASE}?limit=2&offset=2").json
    assert isinstance(second, dict)
    assert [audit["auditId"] for audit in second["audits"]] == ["id-friday"]


def test_a_new_summary_is_read_and_a_damaged_one_is_reported(kept: Kept) -> None:
    write_audit(kept.directory / "monday")
    (kept.directory / "duplicates").mkdir()
    (kept.directory / "duplicates" / "summary.json").write_text('{"kind": "duplicates"}')
    assert kept.server.ask("GET", BASE).json["total"] == 1  # type: ignore[index]
    shutil.rmtree(kept.directory / "monday")
    write_audit(kept.directory / "monday", audit_id="another")
    (kept.directory / "tuesday").mkdir()
    (kept.directory / "tuesday" / "summary.json").write_text('{"kind": "audit"')
    answer = kept.server.ask("GET", BASE).json
    assert isinstance(answer, dict)
    assert [audit["auditId"] for audit in answer["audits"]] == ["another"]
    (unreadable,) = answer["unreadable"]
    assert unreadable["directory"] == str(kept.directory / "tuesday")
    assert "no readable summary.json" in unreadable["reason"]
    gone = kept.ask()
    assert (gone.status, "1 in it cannot be read" in gone.reason) == (404, True)


def test_a_directory_that_is_not_there_is_not_an_empty_one(kept: Kept) -> None:
    shutil.rmtree(kept.directory)
    answer = kept.server.ask("GET", BASE)
    assert (answer.status, "see auditsDirectory" in answer.reason) == (503, True)


def test_audit_has_its_whole_summary(kept: Kept, plan: str) -> None:
    audit = kept.json()
    assert (audit["verdict"], audit["plan"]["sha256"], audit["plan"]["ledgers"]) == ("plan", plan, 2)
    assert audit["summary"]["guards"][0]["name"] == "same-cluster"
    assert audit["summary"]["orphansByCause"]["unknown"]["ledgers"] == 1
    assert audit["history"][0]["orphans"]["ledgers"] == 3
    assert "files" not in audit["summary"]


def test_rows_are_filtered_and_paged(kept: Kept, plan: str) -> None:
    assert [row["ledger_id"] for row in kept.json("/tables/orphans")["rows"]] == [4, 9, 11]
    assert kept.json("/tables/orphans?kind=cursor")["rows"][0]["cursor_name"] == "sub"
    page = kept.json("/tables/orphans?order=size&limit=1&offset=1&namespace=public%2Fdefault")
    assert ([row["ledger_id"] for row in page["rows"]], page["total"]) == ([9], 3)
    assert kept.json("/tables/orphans?status=condemned&cause=unknown")["total"] == 1
    assert kept.json("/tables/missing?topic=persistent%3A%2F%2Fpublic%2Fdefault%2Flost")["total"] == 1
    assert kept.json("/tables/missing?cause=unknown") == {"total": 0, "rows": []}
    assert kept.json("/tables/unattributed")["rows"][0]["ledger_id"] == 7
    assert kept.json("/tables/usage?tenant=a")["rows"][0]["topic"] == "persistent://a/b/c"


def test_rows_are_counted(kept: Kept, plan: str) -> None:
    assert kept.json("/tables/usage/groups?by=tenant") == [
        {"value": "a", "ledgers": 3, "bytes": 3000, "unknownSizeLedgers": 1},
        {"value": "public", "ledgers": 3, "bytes": 3000, "unknownSizeLedgers": 1},
    ]
    assert kept.json("/tables/orphans/groups?by=status")[0]["value"] == "condemned"
    by_cause = kept.json("/tables/orphans/groups?by=cause&kind=cursor")
    assert by_cause == [{"value": "unknown", "ledgers": 1, "bytes": 1009, "unknownSizeLedgers": 0}]


def test_a_damaged_table_shows_nothing(kept: Kept, plan: str) -> None:
    (file,) = kept.directory.rglob("orphan_ledgers/*/*.parquet")
    file.write_bytes(file.read_bytes() + b"x")
    for path in ("/tables/orphans", "/tables/orphans/groups?by=kind", "/ledgers/4"):
        answer = kept.ask(path)
        assert (answer.status, "does not match its SHA-256" in answer.reason) == (400, True)
    assert kept.approve(plan).status == 400
    assert kept.audits.plans == []


def test_a_ledger_is_explained(kept: Kept, plan: str) -> None:
    explained = kept.json("/ledgers/9")
    assert (explained["ledgerId"], explained["dump"]) == (9, None)
    assert "row 1 of the plan" in explained["explanation"]
    elsewhere = kept.ask("/ledgers/1?references=true")
    assert (elsewhere.status, "audit explain AUDIT 1 --dump DIR" in elsewhere.reason) == (409, True)


def test_references_are_found_in_the_audits_own_dump(kept: Kept) -> None:
    (kept.directory / "dumps").mkdir()
    cluster = AuditedCluster({TOPIC_NODE: managed_ledger_bytes([1, 2])})
    dump = cluster.dump(kept.directory / "dumps" / "monday")
    write_audit(kept.directory / "monday", inputs={"dump": Input(sha256_of(dump / MANIFEST_NAME), "zk zookeeper:2181")})
    explained = kept.json("/ledgers/2?references=true")
    assert explained["dump"] == str(dump)
    assert f"  - {TOPIC_NODE}" in explained["explanation"]


# --- a plan --------------------------------------------------------------------------------------------------------


def _state(kept: Kept) -> Callable[[], str]:
    return lambda: str(kept.json("/application")["state"])


def test_an_approved_plan_is_sent_and_followed(kept: Kept, plan: str) -> None:
    assert kept.json("/application") == {
        "state": "not-applied", "planSha256": plan, "rows": 2, "sent": 0, "changedMs": None, "failure": None,
    }  # fmt: skip
    kept.audits.go_on.clear()
    begun = kept.approve(plan, rate=10)
    assert (begun.status, begun.json["state"], begun.json["sent"]) == (202, "sending", 0)  # type: ignore[index]
    assert kept.approve(plan).status == 202
    kept.audits.go_on.set()
    until(lambda: _state(kept)() == "sent", "the plan is sent")
    assert kept.json("/application")["sent"] == 2
    assert kept.approve(plan).json["state"] == "sent"  # type: ignore[index]
    assert kept.audits.plans == [plan]


def test_a_plan_that_was_not_sent_to_its_end_reports_why_and_is_resumed(kept: Kept, plan: str) -> None:
    kept.audits.failure = TemporaryError("the brokers do not respond")
    assert kept.approve(plan).status == 202
    until(lambda: _state(kept)() == "incomplete", "it failed")
    assert kept.json("/application")["failure"] == "the brokers do not respond"
    kept.audits.failure = ValueError("a defect")
    assert kept.approve(plan).status == 202
    until(lambda: "log has the details" in (kept.json("/application")["failure"] or ""), "it failed again")
    kept.audits.failure = None
    kept.approve(plan)
    until(lambda: _state(kept)() == "sent", "the plan is sent")
    assert kept.json("/application")["failure"] is None


def test_a_sidecar_that_ends_leaves_the_rest_for_another_approval(kept: Kept, plan: str) -> None:
    kept.audits.go_on.clear()
    kept.approve(plan)
    kept.audits.sending.close()
    kept.audits.go_on.set()
    until(lambda: _state(kept)() == "incomplete", "it stopped")
    failure = kept.json("/application")["failure"]
    assert re.fullmatch(r"the sidecar ended after [01] of 2 rows; approve the plan again to resume", failure)


def test_unapproved_plan_is_not_sent(kept: Kept, plan: str) -> None:
    other = kept.approve("0" * 64)
    assert (other.status, f"the plan of this audit is {plan}" in other.reason) == (400, True)
    kept.audits.store.advance_ms(73 * 3_600_000)
    old = kept.approve(plan)
    assert (old.status, "raise --max-age-hours" in old.reason) == (409, True)
    assert kept.json("/application")["state"] == "not-applied"
    assert kept.audits.plans == []
    assert kept.approve(plan, maxAgeHours=100).status == 202


def test_an_audit_without_a_plan_has_none_to_send(kept: Kept) -> None:
    failed = GuardResult("share", False, "40 %", "10 %", "too many")
    write_audit(kept.directory / "a", _ORPHANS, plan=None, guards=(failed,))
    assert kept.json("/application")["state"] == "no-plan"
    answer = kept.approve("0" * 64)
    assert (answer.status, "share: too many" in answer.reason) == (409, True)


def test_a_sidecar_that_deletes_nothing_sends_nothing(kept: Kept, plan: str) -> None:
    kept.audits.reviews._deletes = False
    answer = kept.approve(plan)
    assert (answer.status, "topicTwoPhaseDeletionEnabled" in answer.reason) == (405, True)


# --- what is asked wrongly -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/tables/nodes", 400),
        ("/tables/orphans?limit=0", 400),
        ("/tables/orphans?offset=-1", 400),
        ("/tables/orphans?order=age", 400),
        ("/tables/orphans?audit=1", 400),
        ("/tables/orphans/groups", 400),
        ("/tables/orphans/groups?by=ledger_id", 400),
        ("/ledgers/-1", 400),
        ("/ledgers/x", 400),
        ("%2F..%2Fx", 400),
        ("x", 404),
    ],
)
def test_bad_input_is_refused(path: str, status: int, kept: Kept, plan: str) -> None:
    answer = kept.ask(path)
    assert (answer.status, bool(answer.reason)) == (status, True)


@pytest.mark.parametrize("body", [None, {}, {"plan": "x"}, {"plan": "0" * 64, "rate": 0}, {"plan": "0" * 64, "x": 1}])
def test_a_bad_approval_is_refused(body: object, kept: Kept, plan: str) -> None:
    assert kept.ask("/application", "POST", body).status == 400
    assert kept.audits.plans == []


def test_without_a_directory_every_route_names_the_setting(shared: tuple[Now, Served]) -> None:
    now, server = shared
    now.reviews = NoAudits(NO_DIRECTORY)
    for path in ("", f"/{AUDIT_ID}", f"/{AUDIT_ID}/tables/usage", f"/{AUDIT_ID}/application"):
        answer = server.ask("GET", f"{BASE}{path}")
        assert (answer.status, "set auditsDirectory" in answer.reason) == (405, True)
    assert server.ask("POST", f"{AUDIT}/application", {"plan": "0" * 64}).status == 405
