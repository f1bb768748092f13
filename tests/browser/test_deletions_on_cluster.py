"""Deletions in a real browser: a hundred thousand, brokers killed, each act to its effect, rights refused."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.names import java_url_encode
from pulsar_sidecar.ownership.paths import managed_ledger_path

from tests.browser.looking import SHOWN_WITHIN_MS, Look, act, looking, send, wait_for
from tests.cluster.cancelling import CANCELLING
from tests.cluster.dead_letters import giving_up_after, listed
from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.running import BROKERS
from tests.cluster.sidecars import BASE, SidecarProcess
from tests.cluster.tokens import TOKEN_CONF, token
from tests.cluster.topics import record
from tests.integration.test_deletion_followed import damaged, deletion_of

pytestmark = pytest.mark.browser

PENDING = 100_000
FIRST_UNUSED_LEDGER = 2**40


def pending_shown(look: Look) -> int:
    """Return the number of pending ledgers on the page; 0 if it is unknown."""
    shown = look.page.locator("#now dl > div", has_text="Pending ledgers").locator("dd").first.inner_text()
    digits = "".join(filter(str.isdigit, shown))
    return int(digits) if digits else 0


def test_a_hundred_thousand_pending_deletions_and_brokers_that_are_killed(scene: Scene, look: Look) -> None:
    topic, sidecar = scene.topic("many"), scene.start_alone()
    sidecar.call("POST", f"{BASE}/pause", {"reason": "a hundred thousand"})
    numbers = range(FIRST_UNUSED_LEDGER, FIRST_UNUSED_LEDGER + PENDING)
    for start in range(0, PENDING, 10_000):
        sidecar.append(
            [record(topic, LedgerComponent.MANAGED_LEDGER, each) for each in numbers[start : start + 10_000]]
        )
    until(lambda: sidecar.inflight() >= PENDING / 2, "they are counted, as far as an estimate of entries counts them")
    began = time.monotonic()
    look.open(f"{sidecar.url}/ui/deletions")
    seconds = time.monotonic() - began
    assert pending_shown(look) >= PENDING / 2
    assert seconds < SHOWN_WITHIN_MS / 1000, seconds
    assert look.serious() == []
    for broker in BROKERS:
        scene.cluster.kill(broker)
    try:
        wait_for(look, "#now", "unknown")  # the backlog is the brokers' figure
        look.open(f"{sidecar.url}/ui/")
        assert look.page.locator("main table, main dl").count() > 0
    finally:
        for broker in BROKERS:
            scene.cluster.restart(broker)
    look.open(f"{sidecar.url}/ui/deletions")
    until(lambda: pending_shown(look) >= PENDING / 2, "the figure is back by itself", seconds=120)
    assert "Deletion continues" in act(look, "Resume")
    until(lambda: sidecar.inflight() == 0, "ledgers that do not exist are soon done")
    wait_for(look, "#now dl", "none")


def test_a_stuck_topic_deletion_is_abandoned_by_its_typed_name(scene: Scene, look: Look) -> None:
    topic, sidecar = scene.topic("damaged"), scene.sidecar
    with damaged(scene, topic) as before:
        location = deletion_of(scene, sidecar, topic)
        until(lambda: sidecar.call("GET", location)["state"] == "stuck", "it is stuck")
        look.open(f"{sidecar.url}/ui/")
        look.page.click("text=1 topic deletion cannot continue")
        look.page.select_option("[name=state]", "stuck")
        look.page.click("button:text-is('Show')")
        look.page.click(f"#topics a:text-is('{topic}')")
        operation_id = location.rpartition("/")[2]
        look.page.wait_for_url(f"**/ui/deletions/topic?id={operation_id}")
        assert look.serious() == []
        assert "The deletion is abandoned" in act(look, "Abandon", confirmed=operation_id)
        assert sidecar.call("GET", f"{BASE}/topic-deletions") == []
    assert scene.workload.existing(before.data) == before.data


def test_pause_rate_resume_undelete_and_the_end_of_a_protection(scene: Scene, look: Look) -> None:
    sidecar = scene.start_alone(two_phase_deletion_undelete_protection_in_seconds=600)
    left = scene.orphans(scene.topic("paused"), 3)
    look.open(f"{sidecar.url}/ui/deletions")
    assert "Deletion is paused on all sidecars." in act(look, "Pause", reason="bookies are <replaced>")
    control = sidecar.status()["control"]
    assert (control["paused"], control["pausedReason"]) == (True, "bookies are <replaced>")
    assert "bookies are <replaced>" in look.page.inner_text("#now")
    scene.append(sidecar, left.records())
    until(lambda: sidecar.inflight() > 0, "what waits is counted")
    wait_for(look, "#now dl > div", "Oldest")
    assert scene.workload.existing(left.data) == left.data

    assert "at most 500 per second" in act(look, "Limit the rate", rate="500")
    assert sidecar.status()["control"]["ratePerSecond"] == 500
    assert "The rate has no limit." in act(look, "Limit the rate", rate="")
    assert "Deletion continues" in act(look, "Resume")
    scene.oracles.wait_for_finals(left.data)
    assert not scene.workload.existing(left.data)

    ledger_id = min(left.data)
    assert f"Ledger {ledger_id} is restored" in act(look, "Undelete a ledger", ledger=str(ledger_id))
    assert scene.workload.existing(left.data) == {ledger_id}
    assert "Refused" in act(look, "Undelete a ledger", ledger=str(ledger_id))
    assert "may be deleted again" in act(look, "End the protection", confirmed=str(ledger_id))
    assert sidecar.status()["protectedLedgers"] == []
    scene.append(sidecar, left.records())
    until(lambda: not scene.workload.existing(left.data), "it is deleted again")


def test_a_dead_letter_shows_its_evidence_and_is_redriven(scene: Scene, look: Look) -> None:
    topic, store = scene.topic("unreadable"), scene.workload.store
    (ledger_id,) = scene.orphans(topic, 1).data
    sidecar = scene.start_alone(**giving_up_after(2))
    owner = managed_ledger_path(topic.managed_ledger_name)
    store.create(owner, b"\x00 not a ManagedLedgerInfo")
    scene.append(sidecar, [record(topic, LedgerComponent.MANAGED_LEDGER, ledger_id)])
    assert scene.oracles.wait_for_finals([ledger_id])[ledger_id].decision == "dead-letter"
    look.open(f"{sidecar.url}/ui/deletions/dead-letters")
    row = look.page.locator("tr", has=look.page.locator(f"td.number:text-is('{ledger_id}')"))
    assert owner in row.inner_text()
    row.locator("summary:text-is('Record')").click()
    assert f'"ledgerId": {ledger_id}' in row.locator("pre").inner_text()
    assert look.serious() == []
    store.delete(owner)
    row.locator("summary:text-is('Redrive')").click()
    row.locator("button").click()
    assert "1 dead letter sent back" in look.page.inner_text("p[role=status]")
    until(lambda: scene.oracles.finals(ledger_id)[-1].decision == "deleted", "the redriven record is done")
    assert listed(sidecar, ledger_id) == []


ACTS = (
    ("/ui/deletions", "Pause", {"reason": "seen"}),
    ("/ui/deletions", "Limit the rate", {"rate": "5"}),
    ("/ui/deletions", "Undelete a ledger", {"ledger": "1"}),
    ("/ui/deletions/dead-letters", "Redrive dead letters", {"limit": "1"}),
    ("/ui/leaks", "Engage the brake", {"reason": "seen"}),
    ("/ui/leaks", "Hold", {"hold": "1"}),
    ("/ui/delayed/topic?topic={topic}", "Preview a selection to cancel", {}),
    ("/ui/delayed/topic?topic={topic}", "Expedite a message", {"message": "1:1"}),
    ("/ui/delayed/topic?topic={topic}", "Reschedule a message", {"message": "1:1", "due": "2099-01-01T00:00"}),
)
"""A page, the label of a form there, and what is filled in."""


def test_a_viewer_sees_and_is_refused_each_act_and_an_operator_s_is_in_the_audit_lines(
    scene: Scene, launched: Any
) -> None:
    topic = scene.topic("seen")
    scene.workload.fill(topic)
    guarded = scene.start_alone(
        authentication_enabled="true",
        super_user_roles="admin",
        token_secret_key=TOKEN_CONF["tokenSecretKey"],
        viewer_roles="watcher",
        operator_roles="operator",
        log_format="json",
        **CANCELLING,
    )
    with signed_in(launched, guarded, "watcher") as look:
        assert look.page.locator("form[action='/ui/deletions/pause'] button").is_disabled()
        for page, label, fields in ACTS:
            look.open(guarded.url + page.format(topic=java_url_encode(str(topic))))
            look.page.evaluate("document.querySelectorAll('button:disabled').forEach(each => each.disabled = false)")
            send(look, label, **fields)
            wait_for(look, "main", "may not do this")
        look.complaints.clear()  # Chromium's of the preview, whose page has the status 403
    with signed_in(launched, guarded, "operator") as look:
        assert "Done" in act(look, "Pause", reason="seen")
    changes = guarded.changes()
    found = [(each["role"], each["status"], each["address"]) for each in changes]
    refused = len(ACTS) - 1  # a preview changes nothing
    assert found == [("watcher", 403, "127.0.0.1")] * refused + [("operator", 200, "127.0.0.1")]
    assert len({each["operation"] for each in changes}) == refused
    assert token("operator") not in guarded.whole_log
    scene.sidecars.end_all()
    scene.sidecar.call("POST", f"{BASE}/resume")


@contextmanager
def signed_in(launched: Any, sidecar: SidecarProcess, role: str) -> Iterator[Look]:
    """Yield a tab at the page of deletions."""
    with looking(launched) as look:
        look.open(f"{sidecar.url}/ui/deletions")
        look.page.fill("#token", token(role))
        look.page.click("main button")
        assert look.page.url == f"{sidecar.url}/ui/deletions"
        yield look
