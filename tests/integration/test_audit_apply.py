"""An approved plan reaches the deletion service row by row, once, however often `audit apply` is killed."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
from pulsar_sidecar.adapters.pulsar_client.clients import SEQUENCE_ID
from pulsar_sidecar.adapters.pulsar_topics.deletion_topics import topic_name
from pulsar_sidecar.adapters.pulsar_topics.pending_deletions import producer_name
from pulsar_sidecar.features.audit.plan_progress import progress_path
from pulsar_sidecar.features.audit.results.summaries import AuditSummary
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.record import parse_record
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.claims import LedgerKind
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, ledger_path, read_instance_id

from tests.cluster.choosing import PROJECT
from tests.cluster.deletion import Scene
from tests.cluster.patience import PATIENCE_SECONDS, until
from tests.cluster.sidecars import BASE, run_command
from tests.cluster.topics import TopicLedgers
from tests.unit.audit.findings import orphan
from tests.unit.audit.written import write_audit

_NOWHERE = 2**50
"""Ledgers from here on never existed: the service finds them gone."""
_ROWS = 1000
_KILLS = 3
_KINDS = {
    LedgerComponent.MANAGED_LEDGER: LedgerKind.DATA,
    LedgerComponent.MANAGED_CURSOR: LedgerKind.CURSOR,
    LedgerComponent.SCHEMA_STORAGE: LedgerKind.SCHEMA,
    LedgerComponent.COMPACTED_LEDGER: LedgerKind.COMPACTED,
    LedgerComponent.DELAYED_INDEX_BUCKET: LedgerKind.DELAYED_INDEX_BUCKET,
}


class Application:
    """An audit of a cluster, and the command that applies it."""

    def __init__(self, scene: Scene, directory: Path, rows: list[dict[str, Any]]) -> None:
        root = DEFAULT_LEDGERS_ROOT
        store = scene.workload.store
        self._scene = scene
        self._directory = directory
        self.summary: AuditSummary = write_audit(
            directory,
            rows,
            audit_id=scene.namespace.replace("/", "-"),
            instance_id=read_instance_id(store, root),
            store_time_ms=store.now_ms(),
        )

    @property
    def plan(self) -> str:
        assert self.summary.plan is not None
        return self.summary.plan.sha256

    def command(self, *more: str) -> list[str]:
        addresses = self._scene.cluster.addresses
        return [
            "audit", "apply", str(self._directory), "--format", "json",
            "--execute", "--plan", self.plan,
            "--metadata-store-url", addresses.metadata_store_url, "--broker-service-url", addresses.broker_service_url,
            *more,
        ]  # fmt: skip

    def run(self, *more: str) -> dict[str, Any]:
        ran = run_command(*self.command(*more))
        assert ran.exit_code == 0, ran.stderr
        return ran.json

    def done_rows(self) -> int:
        node = self._scene.workload.store.read(progress_path(self.plan))
        return 0 if node is None else int(json.loads(node.data)["doneRows"])

    def begin_and_kill(self) -> None:
        """Kill it as soon as more rows are done than before; others are on their way then."""
        before = self.done_rows()
        command = [sys.executable, "-m", "pulsar_sidecar", *self.command("--rate", "500")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=PROJECT) as process:
            until(lambda: self.done_rows() > before or process.poll() is not None, f"more than {before} rows are done")
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_SECONDS)
            assert process.returncode == -signal.SIGKILL
        for partition in self._partitions():
            until(lambda each=partition: self._is_stored(each), f"{partition} has stored what was on its way")

    def _partitions(self) -> list[str]:
        return self._scene.workload.client.get_topic_partitions(str(topic_name(DeletionTopic.PENDING)))

    def _is_stored(self, partition: str) -> bool:
        """Return True if the killed run's producer is gone, and no entry waits for bookies: now it can be read back."""
        workload, topic = self._scene.workload, parse_topic_name(partition)
        publishers = workload.admin("GET", workload.of_topic(topic, "stats"))["publishers"]
        if producer_name(self.plan) in {each["producerName"] for each in publishers}:
            return False
        return workload.admin("GET", workload.of_topic(topic, "internalStats"))["pendingAddEntriesCount"] == 0

    def messages(self) -> Iterator[tuple[int, int]]:
        """Return row and ledger id of every message that the plan's producer has stored."""
        client = self._scene.workload.client
        for partition in self._partitions():
            reader = client.create_reader(partition, pulsar.MessageId.earliest)
            while reader.has_message_available():
                message = reader.read_next(10_000)
                if message.producer_name() == producer_name(self.plan):
                    yield int(message.properties()[SEQUENCE_ID]), parse_record(message.data()).ledger_id
            reader.close()


def _rows_of(scene: Scene, left: TopicLedgers) -> list[dict[str, Any]]:
    """Return the rows that an audit would write about a topic's unreferenced ledgers."""
    nodes = scene.workload.ledger_nodes(left.all)
    return [
        orphan(
            record["ledgerId"],
            kind=_KINDS[LedgerComponent(record["ledgerComponent"])].value,
            topic=record["topicName"],
            cursor_name=record.get("cursorName"),
            schema_id=record.get("schemaId"),
            ctime_ms=nodes[record["ledgerId"]].created_ms,
        )
        for record in left.records()
    ]


def test_a_plan_is_sent_once_despite_kills_and_orphans_are_deleted(scene: Scene, tmp_path: Path) -> None:
    sidecar, workload = scene.sidecar, scene.workload
    topic = scene.topic("left")
    left = workload.fill_with_everything(topic)
    workload.leave_ledgers_behind(topic, left)
    assert left.all <= scene.oracles.reference_scan().orphans
    rows = _rows_of(scene, left)
    rows += [orphan(_NOWHERE + number, topic=f"{topic}-{number % 50}", ctime_ms=None) for number in range(_ROWS)]
    application = Application(scene, tmp_path / "audit", rows)

    # What was carried out, brokers may trim, and then it cannot be counted any more how often it was sent.
    sidecar.call("POST", f"{BASE}/pause")
    for _ in range(_KILLS):
        application.begin_and_kill()
    done_rows = application.done_rows()
    assert 0 < done_rows < len(rows)
    answer = application.run()
    assert answer["sent"] + answer["sentEarlier"] == len(rows)
    assert answer["sent"] <= len(rows) - done_rows

    assert Counter(application.messages()) == Counter(
        {(row, each["ledger_id"]): 1 for row, each in enumerate(sorted(rows, key=lambda each: each["ledger_id"]))}
    )
    sidecar.call("POST", f"{BASE}/resume")
    scene.oracles.add_accepted(left.all)
    finals = scene.oracles.wait_for_finals(left.all)
    assert {final.decision for final in finals.values()} == {"deleted"}
    assert not workload.existing(left.all)
    again = application.run()
    assert (again["sent"], again["sentEarlier"]) == (0, len(rows))
    scene.oracles.wait_until_drained(sidecar)


def test_ledgers_of_the_services_topics_are_deleted_only_if_unused(scene: Scene, tmp_path: Path) -> None:
    sidecar, workload = scene.sidecar, scene.workload
    own = topic_name(DeletionTopic.PENDING).partition(0)
    used = max(workload.ledgers(own).data)
    (node,) = workload.ledger_nodes([used]).values()
    # As a rollover leaves one that a broker had no time to link.
    stray = LedgerId(_NOWHERE - 1)
    workload.store.create(ledger_path(stray), node.data)
    nodes = workload.ledger_nodes([used, stray])
    rows = [orphan(each, topic=str(own), ctime_ms=nodes[each].created_ms) for each in (used, stray)]
    assert Application(scene, tmp_path / "audit", rows).run()["sent"] == len(rows)
    scene.oracles.add_accepted([used, stray])
    finals = scene.oracles.wait_for_finals([used, stray])
    assert (finals[stray].decision, finals[stray].reason) == ("deleted", "unreferenced")
    assert (finals[used].decision, finals[used].reason) == ("kept", "ledger-still-in-use")
    assert workload.existing([used, stray]) == {used}
    scene.oracles.wait_until_drained(sidecar)


def test_a_sidecar_sends_the_plan_that_is_approved_through_it(scene: Scene, tmp_path: Path) -> None:
    topic = scene.topic("leaked")
    workload = scene.workload
    left = workload.fill_with_everything(topic)
    workload.leave_ledgers_behind(topic, left)
    rows = _rows_of(scene, left)
    application = Application(scene, tmp_path / "nightly" / "audit", rows)
    sidecar = scene.start_alone(audits_directory=str(tmp_path))
    audit = f"/admin/v2/audits/{application.summary.audit_id}"
    assert sidecar.call("GET", "/admin/v2/audits")["audits"][0]["verdict"] == "plan"
    assert sidecar.call("GET", f"{audit}/tables/orphans", topic=str(topic))["total"] == len(rows)
    assert sidecar.call("GET", f"{audit}/application")["state"] == "not-applied"

    refused = sidecar.request("POST", f"{audit}/application", {"plan": "0" * 64})
    assert refused.status_code == 400
    assert list(application.messages()) == []

    assert sidecar.call("POST", f"{audit}/application", {"plan": application.plan})["rows"] == len(rows)
    until(lambda: sidecar.call("GET", f"{audit}/application")["state"] == "sent", "the plan is sent")
    scene.oracles.add_accepted(left.all)
    finals = scene.oracles.wait_for_finals(left.all)
    assert {final.decision for final in finals.values()} == {"deleted"}
    assert not workload.existing(left.all)
    assert application.run()["sentEarlier"] == len(rows)
    scene.oracles.wait_until_drained(sidecar)


def test_a_plan_for_another_cluster_or_not_approved_sends_nothing(scene: Scene, tmp_path: Path) -> None:
    application = Application(scene, tmp_path / "audit", [orphan(_NOWHERE), orphan(_NOWHERE + 1)])
    write_audit(tmp_path / "other", [orphan(_NOWHERE)], store_time_ms=application.summary.store_time_ms)
    other = application.command()
    other[other.index(str(tmp_path / "audit"))] = str(tmp_path / "other")
    for command, message in (
        (other, "not the approved one"),
        (application.command("--max-age-hours", "0"), "older than"),
    ):
        ran = run_command(*command)
        assert (ran.exit_code, message in ran.stderr) == (1, True), ran.stderr
    assert list(application.messages()) == []
