"""Leaks and audits in a real browser against a real cluster: each act to its effect."""

from pathlib import Path
from urllib.parse import quote

import pytest
from pulsar_sidecar.ownership.paths import managed_ledger_path

from tests.browser.looking import Look, act, wait_for
from tests.cluster.audits import Audits
from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.integration.test_leak_watch import WATCH, start_watching, wait_until_reported

pytestmark = pytest.mark.browser


def test_a_leak_is_seen_held_and_handed_on(scene: Scene, look: Look) -> None:
    topic = scene.topic("torn-out")
    scene.workload.fill(topic, 3)
    scene.workload.unload(topic)
    leaked = scene.workload.ledgers(topic).data
    sidecar = start_watching(scene, "report")
    scene.workload.store.delete(managed_ledger_path(topic.managed_ledger_name))
    wait_until_reported(sidecar, leaked)
    first = min(leaked)
    look.open(f"{sidecar.url}/ui/leaks?state=leaked")
    assert look.serious() == []
    row = look.page.locator("tr", has=look.page.locator(f"a:text-is('{first}')"))
    assert scene.namespace in row.inner_text()
    assert "appends nothing" in row.inner_text()
    row.locator("a").click()
    assert look.serious() == []
    assert "it may be deleted, and is not appended" in look.page.inner_text("#ledger")

    assert f"{first} is on the hold list" in act(look, "Hold this ledger")
    until(lambda: str(first) in sidecar.call("GET", WATCH)["holds"], "it is held")
    until(lambda: "Refused" in act(look, "Hand over to the deletion service"), "the watch knows of the hold")
    assert scene.workload.existing(leaked) == leaked
    look.open(f"{sidecar.url}/ui/leaks")
    assert f"{first} is off the hold list" in act(look, "Remove")
    look.open(f"{sidecar.url}/ui/leaks/ledger?id={first}")
    until(lambda: "Done" in act(look, "Hand over to the deletion service"), "the watch knows that it is not held")
    scene.oracles.add_accepted([first])
    assert scene.oracles.wait_for_finals([first])[first].decision == "deleted"
    wait_for(look, "#ledger", "it is gone")
    assert scene.workload.existing(leaked) == leaked - {first}

    look.open(f"{sidecar.url}/ui/leaks")
    assert "the watch appends nothing" in act(look, "Engage the brake", reason="a test <b>")
    assert sidecar.call("GET", WATCH)["braked"] == "a test <b>"
    assert "Brake engaged" in look.page.inner_text("main")
    assert "The brake is released" in act(look, "Release the brake")
    assert sidecar.call("GET", WATCH)["braked"] is None


def test_an_audit_is_gone_down_into_and_its_plan_approved(scene: Scene, look: Look, tmp_path: Path) -> None:
    topic, workload = scene.topic("left <b>behind"), scene.workload
    left = workload.fill_with_everything(topic)
    workload.leave_ledgers_behind(topic, left)
    audits = Audits(scene.cluster.addresses, tmp_path)
    audits.look()
    audits.wait_between_looks()
    audit = audits.look()
    assert left.all <= audit.deletable
    sidecar = scene.start_alone(audits_directory=str(tmp_path))

    look.open(f"{sidecar.url}/ui/audits")
    assert look.serious() == []
    look.page.click(f"text={audit.summary.audit_id}")
    assert look.serious() == []
    look.page.locator("main dl a", has_text=f"{len(audit.orphans):,}").first.click()
    for owner in (topic.tenant, topic.namespace, str(topic)):
        look.page.locator("section", has_text="By t" if owner != topic.namespace else "By namespace").locator(
            f"a:text-is('{owner}')"
        ).first.click()
        assert look.serious() == []
    assert look.page.inner_text(".crumbs [aria-current]") == str(topic)
    ledger_id = max(left.data)
    look.page.click(f"a:text-is('{ledger_id}')")
    assert "nothing in the dump references it" in look.page.inner_text(".sentences")
    look.page.click("button:text-is('Search the dump for references')")
    assert look.page.url.endswith("references=true")
    assert "report this as a defect" not in look.page.inner_text(".sentences")

    assert audit.summary.plan is not None
    plan = audit.summary.plan
    look.open(f"{sidecar.url}/ui/audits/{quote(audit.summary.audit_id)}")
    label = f"Approve and send: {plan.rows:,} ledgers"
    assert "is sen" in act(look, label, confirmed=plan.sha256)
    wait_for(look, "#application", f"{plan.rows:,} of {plan.rows:,} ledgers sent to the deletion service")
    scene.oracles.add_accepted(left.all)
    finals = scene.oracles.wait_for_finals(left.all)
    assert {final.decision for final in finals.values()} == {"deleted"}
    assert not workload.existing(left.all)
    scene.oracles.wait_until_drained(sidecar)
