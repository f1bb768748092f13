"""The pages of deletions, and each act to the call that it makes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from pulsar_sidecar.features.ledger_deletion.results import (
    Control,
    DeadLetter,
    DeletionTrend,
    EndedProtection,
    InflightEstimate,
    LimitReadings,
    OperationState,
    PendingRecord,
    RedriveResult,
    TopicDeletionStatus,
    TrendPoint,
    UndeleteResult,
)
from pulsar_sidecar.model.ids import LedgerId, OperationId

from tests.fakes.clock import START_MS
from tests.fakes.deletion_service import RECLAIM
from tests.fakes.rest_api import OPERATOR, FakeBrowser
from tests.unit.web.answers import deletion_status

BASE = "/admin/v2/ledger-deletion"
STATUS = f"GET {BASE}/status"
HOSTILE = "persistent://a/b/<script>alert(1)</script>"


STOPPED = "the topic has active producers"
ONE = TopicDeletionStatus(
    OperationId("op-1"), "topic-1", None, OperationState.RUNNING, 1_234, 1, START_MS - 60_000, STOPPED, "ops"
)
FOLLOWED = ONE.followed(driver="one", left_nodes=("/managed-ledgers/x",), left=(LedgerId(5), LedgerId(6)))


def running(number: int, **changed: Any) -> TopicDeletionStatus:
    topic = f"persistent://public/default/topic-{number}"
    return replace(ONE, operation_id=OperationId(f"op-{number}"), **{"topic": topic, **changed})


def dead_letter(number: int, **changed: Any) -> DeadLetter:
    record = {"ledgerId": number, "topicName": HOSTILE, "ledgerComponent": "MANAGED_LEDGER", "ledgerType": "LEDGER"}
    reason = "references-unknown: /managed-ledgers/x cannot be read"
    return replace(DeadLetter(f"7:{number}:0", record, "{}", reason, 11, START_MS - 3_600_000), **changed)


def trend(
    *pending: int, seconds_left: float | None = None, speeds: Sequence[float | None] = (None,) * 3
) -> DeletionTrend:
    """Return the trend of a point a minute."""
    minutes = enumerate(zip(pending, speeds, strict=False))
    points = (TrendPoint(START_MS + 60_000 * minute, left, speed, None) for minute, (left, speed) in minutes)
    return DeletionTrend(tuple(points), seconds_left)


@pytest.fixture
def deleting(browser: FakeBrowser) -> FakeBrowser:
    browser.api.answers |= {
        f"GET {BASE}/topic-deletions": [],
        f"GET {BASE}/namespace-deletions": [],
        f"GET {BASE}/dead-letters": [],
    }
    browser.get("/ui/sign-in")
    return browser


def test_page_shows_backlog_age_and_rate(deleting: FakeBrowser) -> None:
    shown = deleting.get("/ui/deletions")
    assert shown.status == 200
    for words in ("Pending ledgers ● 100,000", "Oldest 5 minutes", "Deleted per second 1,234.5", "1.5 GiB"):
        assert words in shown.words
    assert '<a href="/ui/deletions/dead-letters">3</a>' in shown.text
    assert "latency unknown, idle 1.5 ms (p99)" in shown.words


def test_page_names_what_blocks_deletions(deleting: FakeBrowser) -> None:
    deleting.api.answers[STATUS] = deletion_status(
        control=Control(True, "bookies are replaced", 500, "ops", START_MS),
        adaptive_limit=LimitReadings(1.0, 1.0, 250.0),
        last_error="no broker",
        last_error_at_ms=START_MS - 120_000,
    )
    shown = deleting.get("/ui/deletions").words
    for words in (
        "bookies are replaced",
        "at most 500 per second",
        "too slow, so one ledger is deleted at a time",
        "(paused by ops since 2023-11-14 22:13:20 UTC)",
        "Last error no broker (2 minutes ago)",
    ):
        assert words in shown
    assert "pulsar-sidecar ledger-deletion resume" in shown
    assert "ledger-deletion pause" not in shown


def test_page_shows_what_bookies_have_reclaimed(deleting: FakeBrowser) -> None:
    deleting.api.answers[STATUS] = deletion_status(reclaimed=RECLAIM)
    shown = deleting.get("/ui/deletions").words
    assert "Reclaimed by bookies ● 1 of 3 1000 B (one copy) deleted in a day, the last 4 hours before" in shown
    assert "the files of 1 have shrunk by 4.9 KiB since their start" in shown


def test_page_says_that_there_is_nothing_to_reclaim(deleting: FakeBrowser) -> None:
    deleting.api.answers[STATUS] = deletion_status(reclaimed=replace(RECLAIM, last_deleted_ms=None))
    assert "no recorded ledger was deleted in the last day" in deleting.get("/ui/deletions").words


def test_bytes_that_are_not_known_are_not_zero(deleting: FakeBrowser) -> None:
    deleting.api.answers[STATUS] = deletion_status(inflight=InflightEstimate(4, 1, 60_000, None))
    assert "Size of pending ledgers unknown Time left unknown Deleted per second" in deleting.get("/ui/deletions").words
    assert "oldest 1 minute, size unknown" in deleting.get("/ui/").words


def test_the_last_hour_and_the_time_left(deleting: FakeBrowser) -> None:
    found = trend(500, 499, 498, seconds_left=7_200.0, speeds=(None, 0.5, 1.25))
    deleting.api.answers[f"GET {BASE}/trend"] = found
    shown = deleting.get("/ui/deletions")
    assert "Time left 2 hours at the pace of the last ten minutes" in shown.words
    assert "highest 500 latest 498" in shown.words
    assert "Pending ledgers. 2023-11-14 22:13 UTC: 500; 2023-11-14 22:14 UTC: 499" in shown.text
    assert "2023-11-14 22:15 UTC: 1.2" in shown.text


@pytest.mark.parametrize(
    ("is_paused", "measured", "note"), [(True, 2, "paused"), (False, 2, "not decreasing"), (False, 1, "")]
)
def test_why_no_time_is_left_is_named_where_it_is_known(
    deleting: FakeBrowser, is_paused: bool, measured: int, note: str
) -> None:
    deleting.api.answers[STATUS] = deletion_status(control=Control(is_paused))
    deleting.api.answers[f"GET {BASE}/trend"] = trend(*[7] * measured)
    assert " ".join(["Time left unknown", note]).strip() + " Deleted per second" in deleting.get("/ui/deletions").words


def test_unchanged_backlog_is_text_instead_of_a_line(deleting: FakeBrowser) -> None:
    deleting.api.answers[f"GET {BASE}/trend"] = trend(7, 7, 7)
    assert "Pending ledgers 7, unchanged since 2023-11-14 22:13 UTC" in deleting.get("/ui/deletions").words


def test_pending_ledgers_are_listed_with_their_next_try(deleting: FakeBrowser) -> None:
    record = dead_letter(7).record
    waits = PendingRecord("1:7:0", "t", record, START_MS - 60_000, 2, START_MS + 60_000, "too-young", 2048)
    unread = replace(waits, record=None, next_try_ms=None, tries=0, length_bytes=None, reason=None)
    deleting.api.answers[f"GET {BASE}/pending"] = [waits, unread]
    shown = deleting.get("/ui/deletions/pending")
    assert "MANAGED_LEDGER 2.0 KiB 2023-11-14 22:12:20 UTC 1 minute ago 2" in shown.words
    assert "unreadable record" in shown.words
    assert "<script>" not in shown.text.split("<main")[1]
    assert 'data-label="next try"' in shown.text
    assert "pulsar-sidecar ledger-deletion pending --limit=50" in shown.words


def test_unknown_figures_are_shown_as_unknown(deleting: FakeBrowser) -> None:
    deleting.api.answers[STATUS] = deletion_status(inflight=None, dead_letters=None, deleted_per_second=None)
    shown = deleting.get("/ui/deletions").words
    assert "Pending ledgers ✕ unknown" in shown
    assert "Dead letters unknown" in shown
    deleting.api.answers[STATUS] = (503, {"reason": "no broker answers"})
    deleting.api.answers[f"GET {BASE}/topic-deletions"] = (503, {"reason": "the metadata store is away"})
    deleting.clock.advance_ms(600_000)
    shown = deleting.get("/ui/deletions").words
    assert "Not up to date no broker answers" in shown
    assert "Not up to date the metadata store is away" in shown
    assert shown.count("As of 2023-11-14 22:13:20 UTC 10 minutes ago") == 2  # of what cannot be read again
    assert shown.count("As of 2023-11-14 22:23:20 UTC") == 1  # of namespaces


def test_thousands_of_topic_deletions_come_in_pages_with_filters_in_the_address(deleting: FakeBrowser) -> None:
    found = [running(number) for number in range(9_999)] + [running(9_999, state=OperationState.STUCK, topic=HOSTILE)]
    deleting.api.answers[f"GET {BASE}/topic-deletions"] = found
    shown = deleting.get("/ui/deletions?offset=50")
    assert "51 to 100 of 10,000" in shown.words
    assert 'href="/ui/deletions?offset=100"' in shown.text
    assert "topic-99<" in shown.text
    assert "topic-100<" not in shown.text
    stuck = deleting.get("/ui/deletions?state=stuck&topic=script")
    assert "1 to 1 of 1" in stuck.words
    assert "<script>alert" not in stuck.text
    assert "&lt;script&gt;alert" in stuck.text


def test_a_list_that_became_shorter_than_the_place_in_it_still_has_its_rows(deleting: FakeBrowser) -> None:
    deleting.api.answers[f"GET {BASE}/topic-deletions"] = [running(number) for number in range(90)]
    shown = deleting.get("/ui/deletions?offset=200")
    assert "none here of 90" in shown.words
    assert '<a rel="prev" href="/ui/deletions?offset=50">' in shown.text


def test_topic_deletion_can_be_abandoned_after_confirmation(deleting: FakeBrowser) -> None:
    path = f"{BASE}/topic-deletions/op-1"
    deleting.api.answers |= {
        f"GET {path}": replace(FOLLOWED, remedy="repair the node", part="its schema"),
        f"POST {path}/abandon": replace(FOLLOWED, state=OperationState.ABANDONED, ended_ms=START_MS),
    }
    shown = deleting.get("/ui/deletions/topic?id=op-1")
    for words in (
        "/managed-ledgers/x",
        "its schema",
        "5 6",
        "repair the node",
        "pulsar-sidecar ledger-deletion abandon op-1",
    ):
        assert words in shown.words
    refused = deleting.post("/ui/deletions/abandon", {"id": "op-1", "confirmed": "op-2"})
    assert refused.status == 400
    assert "type op-1 to confirm" in refused.words
    assert deleting.api.calls("POST") == []
    done = deleting.post("/ui/deletions/abandon", {"id": "op-1", "confirmed": "op-1"})
    assert (done.status, done.header("location")) == (303, "/ui/deletions")
    assert deleting.api.calls("POST") == [(f"{path}/abandon", None)]
    assert "left: 2 ledgers" in deleting.get("/ui/deletions").words


def test_a_command_line_is_safe_for_a_shell(deleting: FakeBrowser) -> None:
    deleting.api.answers[f"GET {BASE}/topic-deletions/a%3Bb"] = FOLLOWED
    assert "ledger-deletion abandon &#39;a;b&#39;" in deleting.get("/ui/deletions/topic?id=a%3Bb").words


def test_a_deletion_that_is_not_known_is_a_page_with_that_status(deleting: FakeBrowser) -> None:
    deleting.api.answers[f"GET {BASE}/topic-deletions/a%2Fb"] = (404, {"reason": "it does not run"})
    shown = deleting.get("/ui/deletions/topic?id=a%2Fb")
    assert shown.status == 404
    assert "it does not run" in shown.words


@pytest.mark.parametrize(
    ("form", "fields", "call", "answer", "message"),
    [
        ("pause", {"reason": "bookies"}, ("POST", "pause", {"reason": "bookies"}), Control(), "Deletion is paused"),
        ("pause", {"reason": ""}, ("POST", "pause", {}), Control(), "Deletion is paused"),
        ("resume", {}, ("POST", "resume", None), Control(), "Deletion continues"),
        ("rate", {"rate": "500"}, ("PUT", "rate", {"ledgersPerSecond": 500.0}), Control(), "at most 500 per second"),
        ("rate", {"rate": ""}, ("PUT", "rate", {"ledgersPerSecond": None}), Control(), "has no limit"),
        (
            "undelete",
            {"ledger": "4711", "force": "true"},
            ("POST", "undelete", {"ledgerId": 4711, "force": True}),
            UndeleteResult(LedgerId(4711), readable=False, protected_until_ms=5),
            "Ledger 4711 is restored",
        ),
        (
            "end-protection",
            {"ledger": "4711", "confirmed": "4711"},
            ("POST", "end-protection", {"ledgerId": 4711}),
            EndedProtection(LedgerId(4711)),
            "Ledger 4711 may be deleted again",
        ),
        (
            "dead-letters/redrive",
            {"ledger": "7"},
            ("POST", "dead-letters/redrive", {"ledgerIds": [7]}),
            RedriveResult(1, 2),
            "1 dead letter sent back, 2 left",
        ),
        (
            "dead-letters/redrive",
            {"limit": "10000"},
            ("POST", "dead-letters/redrive", {"limit": 10_000}),
            RedriveResult(9_000, 0),
            "9,000 dead letters sent back",
        ),
    ],
)
def test_each_act_is_the_call_of_its_command(
    deleting: FakeBrowser,
    form: str,
    fields: dict[str, str],
    call: tuple[str, str, Any],
    answer: object,
    message: str,
) -> None:
    method, path, body = call
    deleting.api.answers[f"{method} {BASE}/{path}"] = answer
    done = deleting.post(f"/ui/deletions/{form}", fields)
    assert done.status == 303
    assert deleting.api.calls(method) == [(f"{BASE}/{path}", body)]
    assert message in deleting.get(str(done.header("location"))).words


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        ("rate", {"rate": "fast"}),
        ("rate", {"rate": "nan"}),
        ("rate", {"rate": "1e999"}),
        ("undelete", {"ledger": "-1"}),
        ("undelete", {"ledger": "99999999999999999999"}),
        ("undelete", {"ledger": "1" * 5000}),
        ("end-protection", {"ledger": "5", "confirmed": ""}),
        ("dead-letters/redrive", {"limit": "many"}),
        ("dead-letters/redrive", {"limit": "inf"}),
    ],
)
def test_bad_input_changes_nothing(deleting: FakeBrowser, form: str, fields: dict[str, str]) -> None:
    assert deleting.post(f"/ui/deletions/{form}", fields).status == 400
    assert deleting.api.calls("POST") + deleting.api.calls("PUT") == []


def test_page_explains_missing_rights(deleting: FakeBrowser) -> None:
    deleting.api.answers["GET /admin/v2/caller"] = replace(OPERATOR, role="viewer", operator=False)
    shown = deleting.get("/ui/deletions")
    assert "Requires the operator role." in shown.text
    deleting.api.answers[f"POST {BASE}/pause"] = (403, {"reason": "role 'viewer' may not do this"})
    assert deleting.post("/ui/deletions/pause").status == 303
    assert "Nothing was done (403): role 'viewer' may not do this" in deleting.get("/ui/deletions").text.replace(
        "&#39;", "'"
    )


def test_dead_letters_show_their_evidence_page_by_page(deleting: FakeBrowser) -> None:
    letters = [dead_letter(number) for number in range(49)] + [dead_letter(49, record=None, raw="\x00<b>")]
    deleting.api.answers[f"GET {BASE}/dead-letters"] = letters
    shown = deleting.get("/ui/deletions/dead-letters")
    assert "references-unknown: /managed-ledgers/x cannot be read" in shown.words
    assert "pulsar-sidecar ledger-deletion dlq redrive 7" in shown.words
    assert "<script>alert" not in shown.text
    assert "<b>" not in shown.text
    assert 'href="/ui/deletions/dead-letters?after=7%3A49%3A0"' in shown.text
    deleting.api.answers[f"GET {BASE}/dead-letters?limit=50&after=7%3A49%3A0"] = [dead_letter(77)]
    last = deleting.get("/ui/deletions/dead-letters?after=7%3A49%3A0")
    assert "Next" not in last.words
    assert "dlq redrive 77" in last.words
