"""The first phase by observation: what brokers leave behind is found and deleted, without a call to the sidecar."""

from collections.abc import Iterable, Mapping
from typing import Any

from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import SCHEMAS, managed_ledger_path

from tests.cluster.deletion import Scene
from tests.cluster.leaking import LeakingBrokers
from tests.cluster.patience import NotInTime, until
from tests.cluster.sidecars import WATCH, SidecarProcess
from tests.cluster.transaction_log import demand_nothing_referenced_was_deleted

SETTLE_SECONDS = 10
AFTER_SETTLING_SECONDS = 60
# Rollovers need brokers that begin a cursor's next ledger early: `tests.faults.test_leaks`.
CAUSES = (
    LeakCause.TRIM,
    LeakCause.CURSOR_SWITCH,
    LeakCause.COMPACTION,
    LeakCause.SUBSCRIPTION,
    LeakCause.SCHEMA,
    LeakCause.TOPIC_DELETION,
    LeakCause.NAMESPACE_DELETION,
)
DELETIONS = (LeakCause.TOPIC_DELETION, LeakCause.NAMESPACE_DELETION)


def start_watching(scene: Scene, mode: str, **settings: object) -> SidecarProcess:
    """Start a sidecar that watches every change."""
    options = {"ledger_deletion_watch": mode, "ledger_deletion_watch_settle_in_seconds": SETTLE_SECONDS, **settings}
    sidecar = scene.start_alone(**options)
    until(lambda: sidecar.call("GET", WATCH)["state"] == "watching", f"the sidecar watches\n{sidecar.log()}")
    return sidecar


def leaks(sidecar: SidecarProcess) -> Mapping[LedgerId, dict[str, Any]]:
    answer = sidecar.call("GET", f"{WATCH}/leaks", limit="10000", ended="true")
    return {LedgerId(leak["ledgerId"]): leak for leak in answer["leaks"]}


def test_leaks_of_killed_brokers_are_reported_and_then_deleted(scene: Scene) -> None:
    reporting = start_watching(scene, "report")
    brokers = LeakingBrokers(scene, reporting)
    left = brokers.leak(CAUSES)
    never_named = brokers.lose_schema_races()
    everything = frozenset[LedgerId]().union(*left.values())

    wait_until_reported(reporting, everything)
    found = leaks(reporting)
    # A broker that died while it deleted a topic has emptied the list and left the node, which looks like a trim.
    for cause, ledger_ids in left.items():
        looks_like = {cause, LeakCause.TRIM} if cause in DELETIONS else {cause}
        assert looks_like & {found[ledger_id]["cause"] for ledger_id in ledger_ids}, cause
    assert scene.workload.existing(everything) == everything, "report deletes nothing"
    reporting.kill()

    appending = start_watching(scene, "append")
    # So many in a cluster of this size are for an operator to look at first.
    until(lambda: appending.call("GET", WATCH)["braked"], "the watch brakes")
    assert scene.workload.existing(everything) == everything
    appending.call("POST", f"{WATCH}/resume")
    until(
        lambda: not scene.workload.existing(everything),
        f"what leaked is deleted\n{appending.log()}",
        SETTLE_SECONDS + AFTER_SETTLING_SECONDS,
    )
    demand_waits_for_an_audits_ages(scene, appending, never_named)
    scene.oracles.add_accepted(everything)
    finals = scene.oracles.wait_for_finals(everything)
    assert {final.decision for final in finals.values()} == {"deleted"}
    demand_nothing_referenced_was_deleted(scene.cluster, everything)


def wait_until_reported(sidecar: SidecarProcess, ledger_ids: frozenset[LedgerId]) -> None:
    def missing() -> list[LedgerId]:
        found = leaks(sidecar)
        return [ledger_id for ledger_id in ledger_ids if found.get(ledger_id, {}).get("state") != "leaked"]

    try:
        until(lambda: not missing(), "every leak is reported", SETTLE_SECONDS + AFTER_SETTLING_SECONDS)
    except NotInTime as error:
        explained = [sidecar.call("GET", f"{WATCH}/leaks/{ledger_id}") for ledger_id in missing()]
        raise NotInTime(f"{error}, and not these: {explained}\n{sidecar.log()}") from None


def demand_waits_for_an_audits_ages(scene: Scene, sidecar: SidecarProcess, never_named: frozenset[LedgerId]) -> None:
    """Demand that the watch counts and explains never-named ledgers, but does not list or delete them for 12 hours."""
    assert scene.workload.existing(never_named) == never_named
    assert leaks(sidecar).keys().isdisjoint(never_named)
    assert sidecar.call("GET", WATCH)["unlinked"] >= len(never_named)
    for ledger_id in never_named:
        explained = sidecar.call("GET", f"{WATCH}/leaks/{ledger_id}")
        assert (explained["namedBy"], explained["leak"]) == ([], None)
        assert explained["owner"].startswith(SCHEMAS)


def filled(scene: Scene, name: str, ledgers: int) -> tuple[TopicName, frozenset[LedgerId]]:
    """Return a topic that is kept and that no broker has loaded, and the ledgers in its list."""
    topic = scene.topic(name)
    scene.oracles.keeps(topic, scene.workload.fill(topic, ledgers))
    scene.workload.unload(topic)
    return topic, scene.workload.ledgers(topic).data


def take_nodes_away(scene: Scene, topics: Iterable[TopicName]) -> list[Node]:
    """Delete nodes like a foreign ``deleteall``, and return them."""
    nodes = scene.workload.store.read_many([managed_ledger_path(topic.managed_ledger_name) for topic in topics])
    found = [node for node in nodes if node is not None]
    for node in found:
        scene.workload.store.delete(node.path)
    return found


def states_of(sidecar: SidecarProcess, ledger_ids: frozenset[LedgerId]) -> set[str]:
    found = leaks(sidecar)
    return {found[ledger_id]["state"] if ledger_id in found else "unknown" for ledger_id in ledger_ids}


def test_a_foreign_deleteall_brakes_and_nothing_is_appended(scene: Scene) -> None:
    kept = [filled(scene, f"kept-{number}", 6) for number in range(12)]
    referenced = frozenset[LedgerId]().union(*(ledger_ids for _, ledger_ids in kept))
    assert len(referenced) > 50
    sidecar = start_watching(scene, "append", ledger_deletion_watch_brake_references=50)
    nodes = take_nodes_away(scene, [topic for topic, _ in kept])
    until(lambda: sidecar.call("GET", WATCH)["braked"], "the watch brakes")
    until(lambda: states_of(sidecar, referenced) == {"leaked"}, "they are reported, and stay")
    assert scene.workload.existing(referenced) == referenced
    for node in nodes:
        scene.workload.store.create(node.path, node.data)
    until(lambda: states_of(sidecar, referenced) == {"linked"}, "the ledgers are referenced again")
    assert sidecar.call("POST", f"{WATCH}/resume")["braked"] is None
    assert sidecar.call("GET", WATCH)["appended"] == 0


def test_held_leaks_stay_until_the_hold_is_removed(scene: Scene) -> None:
    topic = scene.topic("held")
    scene.workload.fill(topic, 1)
    scene.workload.unload(topic)
    held = scene.workload.ledgers(topic).data
    sidecar = start_watching(scene, "append")
    hold = scene.namespace
    assert hold in sidecar.call("POST", f"{WATCH}/holds", {"hold": hold})["holds"]
    take_nodes_away(scene, [topic])
    until(lambda: states_of(sidecar, held) == {"leaked"}, "it is reported, and stays")
    explained = sidecar.call("GET", f"{WATCH}/leaks/{min(held)}")
    assert (explained["hold"], explained["leak"]["cause"]) == (hold, "topic-deletion")
    sidecar.call("DELETE", f"{WATCH}/holds", hold=hold)
    until(lambda: not scene.workload.existing(held), "it is deleted then")
    scene.oracles.add_accepted(held)
