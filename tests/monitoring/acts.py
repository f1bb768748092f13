"""The demo's acts, and what an operator does beside them; two sidecars watch what can be watched."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pulsar_sidecar.bootstrap.demo import open_inspector
from pulsar_sidecar.demo.auditing import AuditScenario, Commands
from pulsar_sidecar.demo.cancelling import cancel_half
from pulsar_sidecar.demo.deleting import DeletionScenario
from pulsar_sidecar.demo.environment import ClusterInspector, DemoEnvironment
from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE, DeletionTopic
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.ownership.paths import managed_ledger_path

from tests.cluster.acknowledging import Holes, every_other
from tests.cluster.choosing import local_cluster
from tests.cluster.dead_letters import listed, redrive
from tests.cluster.delays import SHARED, DelayedTopic, now_ms
from tests.cluster.deletion import BROKER_CONF
from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import BASE, SidecarProcess, Sidecars
from tests.cluster.topics import Workload, numbered_topics, record

_NAMESPACE: Final = "public/watched"
HOLES: Final = parse_topic_name(f"persistent://{_NAMESPACE}/orders")
DELAYED: Final = parse_topic_name(f"persistent://{_NAMESPACE}/reminders")
DEDUPLICATED: Final = parse_topic_name(f"persistent://{_NAMESPACE}/payments")
_TOPICS: Final = 40
_RANGES: Final = 200
_PENDING: Final = f"persistent://{SYSTEM_NAMESPACE}/{DeletionTopic.PENDING.value}"

_BROKERS: Final = {
    **BROKER_CONF,
    "managedLedgerMaxUnackedRangesToPersist": str(_RANGES),
    "brokerDeduplicationEntriesInterval": "20",
}
_SIDECARS: Final[Mapping[str, object]] = {
    "two_phase_deletion_reconsume_later_in_seconds": 2,
    "two_phase_deletion_max_retry_delete_count": 15,
    "ledger_deletion_watch": "append",
    "ledger_deletion_watch_settle_in_seconds": 30,
    "delayed_message_cancelling_enabled": "true",
    "delayed_message_reassert_in_seconds": 2,
    "ack_state_watched_topics": str(HOLES),
    "ack_state_watch_interval_in_seconds": 2,
    "delayed_index_watched_topics": str(DELAYED),
    "delayed_index_watch_interval_in_seconds": 2,
    "deduplication_watched_topics": str(DEDUPLICATED),
    "deduplication_watch_interval_in_seconds": 2,
}


class _WithoutSpark(Commands):
    def run_on_spark(self, *options: str) -> None:
        self.run("audit", "run", *options)


@dataclass
class Acts:
    """A cluster that has leaked, two sidecars beside it, and what is done there."""

    cluster: ClusterUnderTest
    environment: DemoEnvironment
    inspector: ClusterInspector
    deleting: DeletionScenario
    workload: Workload
    sidecars: tuple[SidecarProcess, SidecarProcess]
    leaked: tuple[frozenset[LedgerId], frozenset[LedgerId]]
    report: Report
    delayed: DelayedTopic = field(init=False)

    def __post_init__(self) -> None:
        self.delayed = DelayedTopic(self.cluster.addresses, DELAYED)

    def run(self) -> None:
        """Run all acts in turn, for some minutes."""
        for act in (
            self._watched_topics,
            self._deletion_under_kills,
            self._watched_topics,
            self._pause_and_limit,
            self._a_sidecar_dies,
            self._dead_letter,
            self._leaks,
            self._audits,
            self._watched_topics,
            self._cancellations,
        ):
            self.report(act.__name__.strip("_").replace("_", " "))
            act()
        time.sleep(5)  # so that the last values are scraped

    def _watched_topics(self) -> None:
        """More copies to refuse, more holes, more delayed messages; the second time dispatch pauses."""
        self.workload.produce(DEDUPLICATED, [b"payment"] * 50)
        holes = Holes(self.workload.client, HOLES)
        with holes.consumer() as consumer:
            holes.produce(_RANGES + 50)
            holes.acknowledge(consumer, every_other, 2_000)
        self.delayed.subscribe("senders", SHARED)
        with self.delayed.consuming("senders", SHARED, 1):
            self.delayed.send(40, now_ms() + 3_600_000)
            until(lambda: self.workload.ledgers(DELAYED).buckets.get("senders"), "the index has buckets")

    def _deletion_under_kills(self) -> None:
        self.deleting.with_sidecar(self.sidecars[0].url)

    def _pause_and_limit(self) -> None:
        sidecar = self.sidecars[0]
        topics = numbered_topics("public/paused", 30)
        self.workload.create_namespace("public/paused")
        for topic in topics:
            self.workload.fill(topic, 3)
        sidecar.call("POST", f"{BASE}/pause", {"reason": "an act"})
        for topic in topics:
            sidecar.call("DELETE", f"/admin/v2/{self.workload.of_topic(topic)}", force="true")
        until(lambda: sidecar.inflight() >= len(topics), "records wait")
        time.sleep(10)
        sidecar.call("PUT", f"{BASE}/rate", {"ledgersPerSecond": 4})
        sidecar.call("POST", f"{BASE}/resume")
        time.sleep(10)
        until(lambda: sidecar.inflight() == 0, "nothing waits")
        sidecar.call("PUT", f"{BASE}/rate", {"ledgersPerSecond": None})

    def _a_sidecar_dies(self) -> None:
        self.sidecars[0].kill()
        time.sleep(10)
        self.sidecars[0].restart()
        self.sidecars[0].wait_until_ready()

    def _dead_letter(self) -> None:
        """A record whose owner cannot be read is given up on, and redriven once it can."""
        topic = parse_topic_name(f"persistent://{_NAMESPACE}/unreadable")
        self.workload.fill(topic, 1)
        ledgers = self.workload.ledgers(topic)
        self.workload.leave_ledgers_behind(topic, ledgers)
        (ledger_id,) = ledgers.data
        owner = managed_ledger_path(topic.managed_ledger_name)
        self.workload.store.create(owner, b"\x00 not a ManagedLedgerInfo")
        producer = self.workload.client.create_producer(_PENDING, batching_enabled=False)
        producer.send(json.dumps(record(topic, LedgerComponent.MANAGED_LEDGER, ledger_id)).encode())
        producer.close()
        sidecar = self.sidecars[0]
        until(lambda: listed(sidecar, ledger_id), "it is given up", pause_seconds=2)
        time.sleep(5)
        self.workload.store.delete(owner)
        redrive(sidecar, ledger_id)
        until(lambda: not self.workload.existing([ledger_id]), "it is deleted")

    def _leaks(self) -> None:
        self.deleting.watched(self.sidecars[0].url)

    def _audits(self) -> None:
        environment = self.environment
        scenario = AuditScenario(
            _WithoutSpark(environment.audits, environment.report),
            self.cluster.addresses,
            environment.clock,
            environment.report,
            self.deleting.existing,
        )
        scenario.run(*self.leaked)

    def _cancellations(self) -> None:
        sent = self.delayed.sent[0]
        self.delayed.cancel(self.sidecars[0], sent)
        self.delayed.cancel_all(self.sidecars[0], self.delayed.sent[1:20])
        topic = self.delayed.path
        unknown = {"ledgerId": str(sent.ledger_id + 1_000_000), "entryId": "0", "deliverAt": str(sent.deliver_at)}
        self.sidecars[0].request("POST", f"{topic}/cancelDelayedMessage", None, **unknown)
        cancel_half(self.environment, self.inspector, self.sidecars[0].url)


@contextmanager
def prepared(directory: Path, report: Report) -> Iterator[Acts]:
    """Yield a cluster on which brokers alone leaked ledgers, and then two sidecars that share the work."""
    clock = SystemClock()
    spec = ClusterSpec(directory / "cluster", broker_conf=_BROKERS)
    with ExitStack() as stack:
        cluster = stack.enter_context(local_cluster(spec))
        addresses = cluster.addresses
        environment = DemoEnvironment(directory, clock, report)
        inspector = stack.enter_context(open_inspector(addresses, clock))
        workload = stack.enter_context(closing(Workload(cluster)))
        _make_watched(workload)
        deleting = DeletionScenario(environment, inspector, addresses.web_service_urls[0], _TOPICS)
        plain = deleting.without_sidecar()
        sidecars = stack.enter_context(closing(Sidecars(addresses, directory)))
        two = sidecars.launch(**_SIDECARS), sidecars.launch(**_SIDECARS)
        for sidecar in two:
            sidecar.wait_until_ready()
        acts = Acts(cluster, environment, inspector, deleting, workload, two, (plain.orphans, plain.dangling), report)
        stack.enter_context(closing(acts.delayed))
        yield acts


def _make_watched(workload: Workload) -> None:
    workload.create_namespace(_NAMESPACE)
    for topic in (HOLES, DELAYED, DEDUPLICATED):
        workload.admin("PUT", workload.of_topic(topic))
    workload.admin("POST", workload.of_topic(DEDUPLICATED, "deduplicationEnabled"), True)
    workload.admin("POST", workload.of_topic(HOLES, "dispatcherPauseOnAckStatePersistent"))
