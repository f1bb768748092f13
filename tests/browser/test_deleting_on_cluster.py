"""Deletions by an operator in a real browser, to their effect in a real cluster."""

import pytest
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.ownership.paths import managed_ledger_path

from tests.browser.looking import Look, act, wait_for
from tests.cluster.dead_letters import giving_up_after, listed
from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.topics import record

pytestmark = pytest.mark.browser


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

    assert "at most 500 a second" in act(look, "Limit the rate", rate="500")
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
