"""Brokers and sidecars killed in the middle of deletions: without the sidecar that leaks, with it nothing is lost."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from pulsar_sidecar.demo.deleting import delete_again, delete_topics, make_topics
from pulsar_sidecar.features.ledger_deletion.steps import Step
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS

from tests.cluster.audits import Audits
from tests.cluster.deletion import Scene
from tests.cluster.patience import PATIENCE_SECONDS, until
from tests.cluster.running import BROKERS
from tests.cluster.sidecars import BASE, SidecarProcess

TOPICS, TOPICS_WITHOUT_A_LEAK = 40, 20
"""A plain deletion leaks only if a broker dies within it, which takes many; one in two phases leaks none of any."""

KILL_AFTER_ANSWERS = 8
TRIES_TO_LEAK = 8
SLOWLY = 4
RECORDS = 30
RATE_LIMIT = "pulsar_ledger_deletion_rate_limit_per_second"


def wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def delete_while_brokers_die(scene: Scene, url: str, namespace: str, names: Sequence[str]) -> None:
    """Delete all topics at once, kill both brokers in the middle, start them again, delete again what failed."""
    answers = threading.Semaphore(0)
    with ThreadPoolExecutor(1 + len(BROKERS)) as pool:
        run = pool.submit(delete_topics, url, namespace, names, answers.release)
        for _ in range(KILL_AFTER_ANSWERS):
            assert answers.acquire(timeout=PATIENCE_SECONDS)
        # At the same moment: the second would otherwise finish its work while the first one ends.
        list(pool.map(scene.cluster.kill, BROKERS))
        list(pool.map(scene.cluster.restart, BROKERS))
        failed = run.result()
    assert delete_again(url, namespace, failed, wait, rounds=60) == []


def test_audits_find_ledgers_that_plain_deletions_leak_when_brokers_are_killed(scene: Scene, tmp_path: Path) -> None:
    for attempt in range(TRIES_TO_LEAK):
        namespace = f"{scene.namespace}-plain-{attempt}"
        scene.oracles.expect_broken_topics_in(namespace)
        url = scene.cluster.addresses.web_service_urls[0]
        names = make_topics(scene.workload.client, url, namespace, TOPICS)
        delete_while_brokers_die(scene, url, namespace, names)
        # A broker may keep a topic loaded whose deletion broke off, and then the ledgers that it lists are not ours.
        scene.workload.unload_namespace(namespace)
        orphans, dangling = scene.oracles.leaks_in(namespace)
        if orphans:
            # Beside more ledgers that are in use: an audit plans nothing where most are unreferenced.
            make_topics(scene.workload.client, url, f"{namespace}-kept", TOPICS)
            demand_found_and_deleted(scene, namespace, orphans, Audits(scene.cluster.addresses, tmp_path))
        if orphans or dangling:
            return
    pytest.fail(f"{TRIES_TO_LEAK} times {TOPICS} deletions leaked nothing: then this service would not be needed")


def demand_found_and_deleted(scene: Scene, namespace: str, orphans: frozenset[LedgerId], audits: Audits) -> None:
    """Demand that the second of two audits plans to delete exactly these ledgers of the namespace."""
    sidecar = scene.sidecar
    audits.look()
    audits.wait_between_looks()
    look = audits.look()
    rows = [row for row in look.orphans.values() if row["namespace"] == namespace and row["kind"] in ("data", "cursor")]
    assert {row["ledger_id"] for row in rows} == orphans <= look.deletable
    # Of the topics that were deleted, not of the namespace's own.
    assert {row["cause"] for row in rows if "/topic-" in row["topic"]} <= {"half-deleted-topic"}
    assert audits.apply(look).sent == len(look.deletable), sidecar.log()
    scene.oracles.add_accepted(orphans)
    finals = scene.oracles.wait_for_finals(orphans)
    others = [str(final) for final in finals.values() if final.decision != "deleted"]
    assert {final.decision for final in finals.values()} == {"deleted"}, others
    assert not scene.workload.existing(orphans)


def test_two_phase_deletions_leak_nothing_when_brokers_are_killed(scene: Scene) -> None:
    namespace = f"{scene.namespace}-two-phase"
    sidecar, workload = scene.sidecar, scene.workload
    url = scene.cluster.addresses.web_service_urls[0]
    names = make_topics(workload.client, url, namespace, TOPICS_WITHOUT_A_LEAK)
    topics = [parse_topic_name(f"persistent://{namespace}/{name}") for name in names]
    before = frozenset().union(*(workload.ledgers(topic).all for topic in topics))
    assert len(before) >= 5 * TOPICS_WITHOUT_A_LEAK
    delete_while_brokers_die(scene, sidecar.url, namespace, names)
    scene.oracles.wait_until_drained(sidecar)
    assert scene.oracles.leaks_in(namespace) == (frozenset(), frozenset())
    assert not workload.existing(before)
    assert not set(names) & set(workload.store.children(f"{MANAGED_LEDGERS}/{namespace}/persistent") or [])


# --- sidecars killed -----------------------------------------------------------------------------------------------


def judged(scene: Scene) -> dict[LedgerId, str]:
    """Return the sidecar that announced each ledger's deletion."""
    return {
        outcome.ledger_id: outcome.sidecar
        for outcome in scene.oracles.outcomes
        if outcome.step == "judged" and outcome.ledger_id is not None
    }


def limit_rate(sidecars: Sequence[SidecarProcess], ledgers_per_second: float | None) -> None:
    """Set the limit, and wait until each sidecar has taken note of it."""
    sidecars[0].call("PUT", f"{BASE}/rate", {"ledgersPerSecond": ledgers_per_second})
    for sidecar in sidecars:
        until(lambda each=sidecar: each.metrics().get(RATE_LIMIT) == ledgers_per_second, "the limit is in force")


def wait_for_busy_sidecar(
    scene: Scene, sidecars: Sequence[SidecarProcess], records: Sequence[dict[str, object]]
) -> SidecarProcess:
    """Wait for the sidecar that works on a batch, and has deleted some of its ledgers but not all."""
    ledger_ids = [LedgerId(record["ledgerId"]) for record in records]
    until(lambda: len(scene.workload.existing(ledger_ids)) <= RECORDS - 5, "a sidecar has deleted some")
    names = set(judged(scene).values())
    assert scene.workload.existing(ledger_ids)
    return next(sidecar for sidecar in sidecars if sidecar.name in names)


def orphans_of(scene: Scene, name: str) -> list[dict[str, object]]:
    return scene.orphans(scene.topic(name), RECORDS).records()


def test_a_killed_sidecar_leaves_its_records_to_the_other(scene: Scene) -> None:
    records = orphans_of(scene, "killed")
    sidecars = scene.start_together({}, {})
    limit_rate(sidecars, SLOWLY)
    scene.append(sidecars[0], records)
    busy = wait_for_busy_sidecar(scene, sidecars, records)
    busy.kill()
    (other,) = (sidecar for sidecar in sidecars if sidecar is not busy)
    limit_rate([other], None)
    finals = scene.oracles.wait_for_finals(record["ledgerId"] for record in records)
    assert other.name in {final.sidecar for final in finals.values()}
    assert {final.reason for final in finals.values()} <= {"unreferenced", "already-gone"}
    assert not scene.workload.existing(finals)


def test_a_terminated_sidecar_ends_in_order_and_loses_nothing(scene: Scene) -> None:
    records = orphans_of(scene, "terminated")
    sidecar = scene.start_alone()
    limit_rate([sidecar], SLOWLY)
    scene.append(sidecar, records)
    assert wait_for_busy_sidecar(scene, [sidecar], records) is sidecar
    assert sidecar.terminate() == 0
    assert "Traceback" not in sidecar.log(1000)
    other = scene.start_alone()
    limit_rate([other], None)
    finals = scene.oracles.wait_for_finals(record["ledgerId"] for record in records)
    assert not scene.workload.existing(finals)


def delete_quietly(sidecar: SidecarProcess, scene: Scene, topic: TopicName) -> None:
    try:
        sidecar.request("DELETE", f"/admin/v2/{scene.workload.of_topic(topic)}")
    except requests.RequestException:
        return


def test_a_topic_deletion_is_taken_over_from_a_sidecar_that_died_after_its_promise(scene: Scene) -> None:
    topic = scene.topic("promised")
    before = scene.workload.fill_with_everything(topic)
    scene.sidecars.end_all()
    caller = scene.sidecars.launch_failing(f"crash:after:{Step.OPERATION_CREATED.value}:1")
    other = scene.sidecars.launch()
    for sidecar in (caller, other):
        sidecar.wait_until_ready()
    delete_quietly(caller, scene, topic)
    until(lambda: not scene.workload.ledgers(topic).all, "the topic is gone")
    scene.oracles.add_accepted(before.all)
    finals = scene.oracles.wait_for_finals(before.all)
    assert {final.sidecar for final in finals.values()} == {other.name}
    ends = [outcome for outcome in scene.oracles.outcomes if outcome.step == "topic-deletion"]
    assert [(end.sidecar, end.entry["state"]) for end in ends] == [(other.name, "done")]
    assert not scene.workload.existing(before.all)
