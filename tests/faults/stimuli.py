"""Stimuli for each step of a sidecar: topics to delete, ledgers to delete, dead letters to send back.

Callers do as callers of a service that may die: a request without a response is repeated, at last to a sidecar
without faults. So all of it was accepted when `finish` returns, and the oracles know what.
"""

import json
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import requests
from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE, DeletionTopic
from pulsar_sidecar.features.ledger_deletion.record import Mark, PendingDeleteLedgerInfo, record_document
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import RECONSUMETIMES
from pulsar_sidecar.features.ledger_deletion.steps import Step
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    Operation,
    driver_path,
    encode_operation,
    operation_path,
)
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType, OffloadContext
from pulsar_sidecar.model.metadata import DeletionResult
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import managed_ledger_path, under_replication_mark_path

from tests.cluster.background import in_parallel
from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.sidecars import BASE, QUICK, SidecarProcess
from tests.cluster.topics import record, unique
from tests.contract.offload_storages import DirectoryStorage

_Item = TypeVar("_Item")

_KEPT_LEDGERS = 12
_RECORDS = 1
"""With each call: any of the sidecars may get it, so one that is led to a deletion needs many calls."""
_TRIES = int(str(QUICK["two_phase_deletion_max_retry_delete_count"]))
_NEVER_SHRUNK = 1_000_000
THREADS = 6
_REQUEST_SECONDS = 40
_MARK = b'replica: "127.0.0.1:3181"\n'


class Stimuli:
    """A round's topics and ledgers; all methods are thread-safe."""

    def __init__(self, scene: Scene, rng: random.Random, directory: Path) -> None:
        self._scene = scene
        self._rng = random.Random(rng.random())
        self._lock = threading.Lock()
        self._storage = DirectoryStorage(directory / "offloaded")
        self._kept = scene.topic("kept")
        self._left = scene.topic("left")
        self._doomed: list[TopicName] = []
        self._referenced: dict[TopicName, frozenset[LedgerId]] = {}
        self._orphans: list[LedgerId] = []
        self._restorable: list[LedgerId] = []
        self._in_use: list[LedgerId] = []
        self._marked: set[LedgerId] = set()
        self._copies: list[tuple[LedgerId, OffloadContext]] = []
        self._unanswered: list[dict[str, Any]] = []
        self._appended: list[dict[str, Any]] = []
        self._dead: set[LedgerId] = set()
        self._deleting: set[TopicName] = set()
        self._left_deletions: dict[OperationId, str] = {}
        self._accepted: set[LedgerId] = set()
        self.settings = {
            "two_phase_deletion_in_use_settle_in_seconds": 1,
            "offload_allowed_locations": f"file://{directory / 'offloaded'}",
        }

    # --- before ----------------------------------------------------------------------------------------------------

    def prepare(self, topics: int, orphans: int) -> None:
        """Make them, while nothing is broken."""
        workload = self._scene.workload
        workload.switch_repair(on=False)
        doomed = [self._scene.topic(f"doomed-{number}") for number in range(topics)]
        in_parallel(lambda topic: workload.produce(topic, [b"first"]), doomed, THREADS)
        self._referenced = {topic: workload.ledgers(topic).all for topic in doomed}
        self._doomed = list(doomed)
        self._scene.oracles.keeps(self._kept, workload.fill(self._kept, _KEPT_LEDGERS))
        self._in_use = sorted(workload.ledgers(self._kept).data)
        self._orphans = sorted(self._scene.orphans(self._left, orphans).data)

    def delete_some(self, sidecar: SidecarProcess, count: int) -> None:
        """Have some ledgers deleted in peace, to bring them back later."""
        chosen = self._take(self._orphans, count)
        self._scene.append(sidecar, [self._orphan(ledger_id) for ledger_id in chosen])
        self._scene.oracles.wait_for_finals(chosen)
        self._restorable = chosen

    # --- triggers of steps -----------------------------------------------------------------------------------------

    def provoke(self, step: Step, sidecar: SidecarProcess) -> None:
        """Send the sidecar a request that takes the step; it may die over it."""
        calls = self._calls()
        for call in [calls[step]] if step in calls else dict.fromkeys([*calls.values(), self.append]):
            try:
                call(sidecar)
            except requests.RequestException:
                return

    def _calls(self) -> Mapping[Step, Callable[[SidecarProcess], None]]:
        """Return the calls that certainly cause each step; steps without one are provoked by everything there is."""
        append = (Step.RECORDS_APPENDED, Step.BATCH_RECEIVED, Step.FACTS_GATHERED, Step.JUDGEMENT_KEPT)
        append += (Step.LEDGERS_DELETED, Step.RETRIES_SENT, Step.OUTCOMES_KEPT, Step.ACKNOWLEDGED)
        delete = (Step.OPERATION_CREATED, Step.REFERENCES_GATHERED, Step.RECORDS_SENT, Step.TOPIC_LOADED)
        delete += (Step.BROKER_ASKED, Step.OPERATION_ENDED, Step.NOTE_KEPT)
        take_over = (Step.OPERATION_HELD, Step.ATTEMPT_PUT_OFF, Step.OPERATION_RELEASED)
        return {
            **dict.fromkeys(append, self.append),
            **dict.fromkeys(delete, self.delete_topic),
            **dict.fromkeys(take_over, self.leave_deletion),
            Step.UNDER_REPLICATION_CLEARED: self.append_under_replicated,
            Step.OFFLOADED_DELETED: self.append_offloaded,
            Step.DEAD_LETTERS_SENT: self.exhaust,
            Step.DEAD_LETTERS_REDRIVEN: self.redrive,
            Step.DEAD_LETTERS_ACKNOWLEDGED: self.redrive,
            Step.LEDGER_PROTECTED: self.undelete,
            Step.LEDGER_BROUGHT_BACK: self.undelete,
            Step.PROTECTION_ENDED: self.end_protection,
        }

    def append(self, sidecar: SidecarProcess) -> None:
        """Append records of leaked ledgers, and one of a referenced ledger, which is retried."""
        records = [self._orphan(ledger_id) for ledger_id in self._take(self._orphans, _RECORDS)]
        self._append(sidecar, [*records, self._of_kept(self._in_use[0])])

    def append_under_replicated(self, sidecar: SidecarProcess) -> None:
        """Append records of ledgers that auto-recovery has noted as lacking copies."""
        chosen = self._take(self._orphans, 2)
        for ledger_id in chosen:
            until(lambda wanted=ledger_id: self._note_as_under_replicated(wanted), f"ledger {ledger_id} is noted")
            with self._lock:
                self._marked.add(ledger_id)
        self._append(sidecar, [self._orphan(ledger_id) for ledger_id in chosen])

    def _note_as_under_replicated(self, ledger_id: LedgerId) -> bool:
        try:
            self._scene.workload.store.create(under_replication_mark_path(ledger_id), _MARK)
        except TemporaryError:  # its parents are removed when the last note in them goes
            return False
        return True

    def append_offloaded(self, sidecar: SidecarProcess) -> None:
        """Append records of a ledger's copy in tiered storage, and of the ledger."""
        for ledger_id in self._take(self._orphans, 1):
            with self._lock:
                context = self._storage.context(self._rng.getrandbits(62), self._rng.getrandbits(62))
                self._copies.append((ledger_id, context))
            self._storage.put(ledger_id, context, self._left.managed_ledger_name)
            copy = PendingDeleteLedgerInfo(
                self._left,
                LedgerComponent.MANAGED_LEDGER,
                LedgerType.OFFLOAD_LEDGER,
                ledger_id,
                offload_context=context,
            )
            self._append(sidecar, [record_document(copy), self._orphan(ledger_id)])

    def exhaust(self, sidecar: SidecarProcess) -> None:
        """Send a record that has used up its tries to the retry topic, as a Java consumer would."""
        hopeless = self._of_kept(self._in_use[1], Mark(marked_version=_NEVER_SHRUNK))
        self._publish(DeletionTopic.RETRY, hopeless, {RECONSUMETIMES: str(_TRIES)})

    def redrive(self, sidecar: SidecarProcess) -> None:
        """Send a dead letter back."""
        with self._lock:
            ledger_id = self._rng.choice(self._in_use[2:])
            self._dead.add(ledger_id)
        self._publish(DeletionTopic.DEAD_LETTER, self._of_kept(ledger_id), {})
        self._ask(sidecar, "POST", f"{BASE}/dead-letters/redrive", {"ledgerIds": [ledger_id]})

    def undelete(self, sidecar: SidecarProcess) -> None:
        """Bring a deleted ledger back."""
        with self._lock:
            ledger_id = self._rng.choice(self._restorable)
        self._ask(sidecar, "POST", f"{BASE}/undelete", {"ledgerId": ledger_id})

    def end_protection(self, sidecar: SidecarProcess) -> None:
        """End a protection, or fail to."""
        with self._lock:
            ledger_id = self._rng.choice(self._restorable)
        self._ask(sidecar, "POST", f"{BASE}/end-protection", {"ledgerId": ledger_id})

    def delete_topic(self, sidecar: SidecarProcess) -> None:
        """Delete a topic in two phases."""
        for topic in self._take(self._doomed, 1):
            with self._lock:
                self._deleting.add(topic)
            if self._delete(sidecar, topic):
                with self._lock:
                    self._deleting.discard(topic)

    def leave_deletion(self, _: SidecarProcess) -> None:
        """Leave a dead sidecar's deletion of a topic whose list is damaged: it is held, postponed and released."""
        store, name = self._scene.workload.store, f"damaged-{unique()}"
        topic = self._scene.topic(name)
        damaged = store.create(managed_ledger_path(topic.managed_ledger_name), b"not a list")
        operation = Operation(
            operation_id=OperationId(name),
            topic_name=str(topic),
            partitions=None,
            force=True,
            requested_by=None,
            requested_ms=store.now_ms(),
            incarnations={damaged.path: damaged.created_order},
            recorded=(),
            attempts=0,
            last_reason=None,
            not_before_ms=0,
        )
        store.create(operation_path(operation.operation_id), encode_operation(operation))
        with self._lock:
            self._left_deletions[operation.operation_id] = damaged.path

    def ask_again(self, sidecar: SidecarProcess) -> None:
        """Repeat all requests so far to another sidecar."""
        with self._lock:
            records, deleting = list(self._appended), list(self._deleting)
        self._append(sidecar, records)
        in_parallel(lambda topic: self._delete(sidecar, topic), deleting, THREADS)

    # --- afterwards ------------------------------------------------------------------------------------------------

    def finish(self, sidecar: SidecarProcess) -> None:
        """Repeat requests without a response to a sidecar without faults; then state their required outcome."""
        for topic in self._deleting:
            until(lambda asked=topic: self._delete(sidecar, asked), f"{topic} is deleted")
        if self._unanswered:
            self._scene.append(sidecar, self._unanswered)
        if self._dead:
            sidecar.call("POST", f"{BASE}/dead-letters/redrive", {"ledgerIds": sorted(self._dead)})
        self._scene.oracles.add_accepted(self._accepted)
        self._delete_restored_ledgers()
        self._end_left_deletions()
        self._scene.workload.switch_repair(on=True)

    def check(self) -> None:
        """Demand, once all work has ended, that nothing is left that had to go."""
        store = self._scene.workload.store
        marks = [ledger_id for ledger_id in self._marked if store.read(under_replication_mark_path(ledger_id))]
        assert not marks, f"auto-recovery is still told about deleted ledgers: {marks}"
        name = self._left.managed_ledger_name
        copies = [ledger_id for ledger_id, context in self._copies if self._storage.parts(ledger_id, context, name)]
        assert not copies, f"copies in tiered storage are left of ledgers {copies}"

    def _delete_restored_ledgers(self) -> None:
        workload = self._scene.workload
        for node in workload.ledger_nodes(self._restorable).values():
            workload.store.delete(node.path)

    def _end_left_deletions(self) -> None:
        store = self._scene.workload.store
        for operation_id, damaged in self._left_deletions.items():
            until(partial(self._is_ended, operation_id), f"the deletion {operation_id} is ended")
            store.delete(damaged)

    def _is_ended(self, operation_id: OperationId) -> bool:
        store = self._scene.workload.store
        store.delete(driver_path(operation_id))
        return store.delete(operation_path(operation_id)) in (DeletionResult.DELETED, DeletionResult.GONE)

    # --- asking ----------------------------------------------------------------------------------------------------

    def _append(self, sidecar: SidecarProcess, records: Sequence[dict[str, Any]]) -> None:
        with self._lock:
            self._accepted.update(each["ledgerId"] for each in records)
            self._unanswered += records
            self._appended += [each for each in records if each not in self._appended]
        answer = self._ask(sidecar, "POST", f"{BASE}/pending", {"ledgers": list(records)})
        if answer.ok and not answer.json()["notSent"]:
            with self._lock:
                self._unanswered = [each for each in self._unanswered if each not in records]

    def _delete(self, sidecar: SidecarProcess, topic: TopicName) -> bool:
        with self._lock:
            self._accepted |= self._referenced[topic]
        path = f"/admin/v2/{self._scene.workload.of_topic(topic)}"
        return self._ask(sidecar, "DELETE", path, force="true").status_code in (204, 404)

    def _ask(
        self, sidecar: SidecarProcess, method: str, path: str, body: object = None, **params: str
    ) -> requests.Response:
        answer = requests.request(method, sidecar.url + path, json=body, params=params, timeout=_REQUEST_SECONDS)
        assert answer.status_code != 500, f"{method} {path}: {answer.text[:500]}\n{sidecar.log()}"
        return answer

    def _publish(self, topic: DeletionTopic, document: dict[str, Any], properties: dict[str, str]) -> None:
        client = self._scene.workload.client
        producer = client.create_producer(f"persistent://{SYSTEM_NAMESPACE}/{topic.value}")
        producer.send(json.dumps(document).encode(), properties=properties, partition_key=document["topicName"])
        producer.close()
        with self._lock:
            self._accepted.add(document["ledgerId"])

    # --- ledgers ---------------------------------------------------------------------------------------------------

    def _take(self, pool: list[_Item], count: int) -> list[_Item]:
        with self._lock:
            taken, pool[:] = pool[:count], pool[count:]
        return taken

    def _orphan(self, ledger_id: LedgerId) -> dict[str, Any]:
        return record(self._left, LedgerComponent.MANAGED_LEDGER, ledger_id)

    def _of_kept(self, ledger_id: LedgerId, mark: Mark | None = None) -> dict[str, Any]:
        found = PendingDeleteLedgerInfo(
            self._kept, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, ledger_id, mark=mark or Mark()
        )
        return record_document(found)
