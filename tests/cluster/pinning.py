"""Every cause that keeps bytes on bookies, on a real cluster, and the printed remedies.

Commands are split like in a shell, and pulsar-admin is Pulsar's own, in one process.
"""

import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.admin_clients.java_admin import Caller, JavaAdmin
from tests.cluster.buckets import BUCKETS
from tests.cluster.delays import now_ms
from tests.cluster.offloading import offload_closed_ledgers, offload_to_directory
from tests.cluster.patience import OPERATION_SECONDS, until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import SidecarProcess
from tests.cluster.topics import Workload, unique

ENTRIES_PER_LEDGER = 10
ENTRY_BYTES = 20_000
CLOSED = 3
COPIES = 2
BROKER_CONF = {
    **BUCKETS,
    "delayedDeliveryMinIndexCountPerBucket": "5",
    "managedLedgerMaxEntriesPerLedger": str(ENTRIES_PER_LEDGER),
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    # A snapshot at the first check after a load of the topic, and the next one in an hour.
    "brokerDeduplicationSnapshotFrequencyInSeconds": "3",
    "brokerDeduplicationSnapshotIntervalSeconds": "3600",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "retentionCheckIntervalInSeconds": "2",
}
BOOKIE_CONF = {
    # Bookies collect only on request, and then every entry log that is not quite full.
    "flushInterval": "1000",
    "gcWaitTime": "3600000",
    "logSizeLimit": "1048576",
    "majorCompactionThreshold": "0.95",
}
MIB = 1024 * 1024
BEYOND = "beyond"
"""An unreachable cluster."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """A topic whose closed ledgers, or other ledgers, one cause pins.

    Attributes:
        ledger_id: ledger to request if the topic does not list it.
        ends_ms: bounds of the time at which the pin expires.
        loaded: True if a broker has the topic loaded.
    """

    topic: TopicName
    cause: str
    holder: str = ""
    ledger_id: LedgerId | None = None
    ends_ms: tuple[int, int] | None = None
    loaded: bool = True


class Pins:
    """A cluster, a sidecar and pinned topics."""

    def __init__(
        self, cluster: ClusterUnderTest, workload: Workload, sidecar: SidecarProcess, java: JavaAdmin, files: Path
    ) -> None:
        self.cluster, self.workload, self.sidecar, self.java = cluster, workload, sidecar, java
        self.files = files
        self.namespace = self.new_namespace()

    def run(self, line: str, *more: str) -> None:
        """Run a remedy's command line like an operator, each command after the success of the previous one."""
        for command in line.split(" && "):
            program, *arguments = shlex.split(command)
            if program == "pulsar-admin":
                url = self.cluster.addresses.web_service_urls[0]
                outcome = self.java.command(Caller(url, "none"), arguments)
                assert not outcome.failed, f"{command}: {outcome}"
            elif program == "pulsar-sidecar":
                ran = self.sidecar.command(*arguments, *more)
                assert ran.exit_code == 0, f"{command}: {ran.stderr} {ran.stdout}"
            else:
                assert program == "curl", command
                url_and_options = [program, "--silent", "--show-error", "--fail", *arguments]
                subprocess.run(url_and_options, check=True, capture_output=True, timeout=OPERATION_SECONDS)

    def new_namespace(self, retention_minutes: int = 0) -> str:
        name = f"public/pins-{unique()}"
        policy = {"retentionTimeInMinutes": retention_minutes, "retentionSizeInMB": -1 if retention_minutes else 0}
        self.workload.admin("PUT", f"namespaces/{name}", {"retention_policies": policy})
        return name

    def topic(self, name: str, namespace: str | None = None) -> TopicName:
        return parse_topic_name(f"persistent://{namespace or self.namespace}/{name}")

    def of(self, topic: TopicName, verb: str) -> str:
        return self.workload.of_topic(topic, verb)

    def fill(self, topic: TopicName, *, deliver_after: timedelta | None = None, keys: int = 0) -> None:
        """Write three closed ledgers, and an entry of the next one."""
        producer = self.workload.client.create_producer(str(topic), batching_enabled=False)
        for number in range(CLOSED * ENTRIES_PER_LEDGER + 1):
            payload = b"%d" % number + bytes(ENTRY_BYTES)
            key = f"key-{number % keys}" if keys else None
            producer.send(payload, deliver_after=deliver_after, partition_key=key)
        producer.close()

    def subscribed(self, topic: TopicName, subscription: str) -> pulsar.Consumer:
        return self.workload.client.subscribe(
            str(topic), subscription, consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )  # fmt: skip

    def pins(self, topic: TopicName) -> dict[str, Any]:
        path = f"/admin/v2/pins/persistent/{topic.namespace}/{topic.local_name}"
        (found,) = self.sidecar.call("GET", path)
        return dict(found)

    def of_ledger(self, ledger_id: LedgerId) -> dict[str, Any]:
        return dict(self.sidecar.call("GET", f"/admin/v2/pins/ledgers/{ledger_id}"))

    def pin(self, pinned: Pinned) -> dict[str, Any]:
        found = self.pins(pinned.topic) if pinned.ledger_id is None else self.of_ledger(pinned.ledger_id)
        pins = [pin for pin in found["pins"] if (pin["cause"], pin["holder"]) == (pinned.cause, pinned.holder)]
        assert len(pins) == 1, found
        return dict(pins[0])

    def bookies(self) -> list[dict[str, Any]]:
        return list(self.sidecar.call("GET", "/admin/v2/pins/bookies"))

    def entry_logs(self) -> int:
        """Return the bytes of the files, which no bookie reports."""
        directory = self.cluster.addresses.directory
        assert directory is not None
        return sum(log.stat().st_size for log in directory.glob("bookie-*/ledgers/current/*.log"))

    def collect(self, *, compact: bool = True) -> None:
        """Make every bookie collect, and compact, like the remedy."""
        for bookie in self.bookies():
            command = bookie["remedies"][-1]["command"]
            self.run(command if compact else command.replace("true", "false"))
        until(lambda: not any(bookie["figures"]["isCollecting"] for bookie in self.bookies()), "bookies have collected")


# --- the causes ----------------------------------------------------------------------------------------------------


def retention(pins: Pins, name: str) -> Pinned:
    topic = pins.topic(name, pins.new_namespace(retention_minutes=60))
    began = now_ms()
    pins.fill(topic)
    hour = 3_600_000
    return Pinned(topic, "retention", ends_ms=(began + hour, now_ms() + hour))


def backlog(pins: Pins, name: str) -> Pinned:
    topic = pins.topic(name)
    pins.subscribed(topic, "slow").close()
    pins.fill(topic)
    return Pinned(topic, "backlog", "slow")


def holes(pins: Pins, name: str) -> Pinned:
    topic = pins.topic(name)
    consumer = pins.subscribed(topic, "holes")
    pins.fill(topic)
    _, *rest = [consumer.receive(60_000) for _ in range(CLOSED * ENTRIES_PER_LEDGER + 1)]
    for message in rest:
        consumer.acknowledge(message)
    acknowledged = f"{len(rest)} entries acknowledged beyond it"
    until(lambda: acknowledged in str(pins.pins(topic)["pins"]), "the broker has the acknowledgements")
    consumer.close()
    return Pinned(topic, "acknowledgement-holes", "holes")


def delayed(pins: Pins, name: str) -> Pinned:
    topic = pins.topic(name)
    consumer = pins.subscribed(topic, "delayed")
    delay, began = timedelta(hours=2), now_ms()
    pins.fill(topic, deliver_after=delay)
    length = int(delay.total_seconds() * 1000)
    until(lambda: pins.workload.ledgers(topic).buckets.get("delayed"), "the delayed index has buckets")
    consumer.close()
    return Pinned(topic, "delayed-messages", "delayed", ends_ms=(began + length, now_ms() + length))


def delayed_index(pins: Pins, name: str) -> Pinned:
    return replace(delayed(pins, name), cause="delayed-index")


def deduplication(pins: Pins, name: str) -> Pinned:
    """Pin by deduplication: a first snapshot, and then messages without one for an hour."""
    topic = pins.topic(name)
    pins.workload.admin("PUT", pins.of(topic, ""))
    pins.workload.admin("POST", pins.of(topic, "deduplicationEnabled"), True)
    stats = pins.of(topic, "stats")
    until(lambda: pins.workload.admin("GET", stats)["deduplicationStatus"] == "Enabled", "the topic is deduplicated")
    pins.workload.produce(topic, [b"first"])

    def has_snapshot() -> bool:
        found = pins.workload.admin("GET", pins.of(topic, "internalStats"))
        return bool(found["cursors"]["pulsar.dedup"]["markDeletePosition"] == found["lastConfirmedEntry"])

    until(has_snapshot, "the broker has taken a snapshot")
    pins.fill(topic)
    return Pinned(topic, "deduplication-snapshot", "pulsar.dedup")


def offloaded(pins: Pins, name: str) -> Pinned:
    base = pins.files / name
    base.mkdir()
    namespace = offload_to_directory(pins.cluster, f"file://{base}", pins.files / f"{name}.xml")
    topic = pins.topic(name, namespace)
    pins.subscribed(topic, "reads-all").close()
    pins.fill(topic)
    began = now_ms()
    offload_closed_ledgers(pins.cluster, topic)
    four_hours = 4 * 3_600_000
    return Pinned(topic, "offload-deletion-lag", ends_ms=(began + four_hours, now_ms() + four_hours))


def compacted(pins: Pins, name: str) -> Pinned:
    topic = pins.topic(name, pins.new_namespace(retention_minutes=60))
    pins.fill(topic, keys=CLOSED * ENTRIES_PER_LEDGER + 1)
    pins.workload.compact(topic)
    return Pinned(topic, "compacted-ledger")


def compaction(pins: Pins, name: str) -> Pinned:
    """Pin by compaction: a topic compacted once and written to since."""
    topic = pins.topic(name)
    pins.workload.produce(topic, [b"small"], key="key")
    pins.workload.compact(topic)
    pins.fill(topic, keys=1)
    return Pinned(topic, "compaction", "__compaction")


def replication(pins: Pins, name: str) -> Pinned:
    """Pin by replication to an unreachable cluster."""
    here, admin = pins.cluster.addresses.cluster_name, pins.workload.admin
    admin("PUT", f"clusters/{BEYOND}", {"serviceUrl": "http://127.0.0.1:1", "brokerServiceUrl": "pulsar://127.0.0.1:1"})
    tenant = admin("GET", "tenants/public")
    admin("POST", "tenants/public", {**tenant, "allowedClusters": [here, BEYOND]})
    namespace = pins.new_namespace()
    admin("POST", f"namespaces/{namespace}/replication", [here, BEYOND])
    topic = pins.topic(name, namespace)
    pins.fill(topic)
    return Pinned(topic, "replication", f"pulsar.repl.{BEYOND}")


def last_ledger(pins: Pins, name: str) -> Pinned:
    topic = pins.topic(name)
    pins.workload.produce(topic, [bytes(ENTRY_BYTES)] * 5)
    return Pinned(topic, "last-ledger")


def terminated(pins: Pins, name: str) -> Pinned:
    pinned = last_ledger(pins, name)

    # A broker that trims now fails, and does not respond for the topic until the next load.
    def is_terminated() -> bool:
        if pins.workload.request("POST", pins.of(pinned.topic, "terminate")).ok:
            return True
        pins.workload.unload(pinned.topic)
        return False

    until(is_terminated, "the topic is terminated")
    return pinned


def not_loaded(pins: Pins, name: str) -> Pinned:
    """Pin by a retention that ended while no broker had the topic loaded."""
    pinned = unloaded(retention)(pins, name)
    zero = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    pins.workload.admin("POST", f"namespaces/{pinned.topic.namespace}/retention", zero)
    until(lambda: "not-loaded" in str(pins.pins(pinned.topic)), "the retention is gone")
    return replace(pinned, cause="not-loaded")


def schema(pins: Pins, name: str) -> Pinned:
    topic = pins.topic(name)
    pins.workload.store_schemas(topic, 1)
    return Pinned(topic, "schema", ledger_id=next(iter(pins.workload.ledgers(topic).schema)))


def cursor_ledger(pins: Pins, name: str) -> Pinned:
    topic = pins.topic(name)
    pins.workload.produce(topic, [b"one", b"two"])
    pins.workload.subscribe(topic, "s", acknowledge=1)
    return Pinned(topic, "cursor-ledger", "s", pins.workload.ledgers(topic).cursors["s"])


def unreferenced(pins: Pins, name: str) -> Pinned:
    topic = pins.topic(name)
    pins.subscribed(topic, "s").close()
    pins.fill(topic)
    left = pins.workload.leave_ledgers_behind(topic, pins.workload.ledgers(topic))
    return Pinned(topic, "unreferenced", ledger_id=min(left))


def unloaded(made: "Cause") -> "Cause":
    """Return a cause for an unloaded topic, whose pin does not expire."""

    def cause(pins: Pins, name: str) -> Pinned:
        pinned = made(pins, name)
        pins.workload.unload(pinned.topic)
        return replace(pinned, ends_ms=None, loaded=False)

    return cause


Cause = Callable[[Pins, str], Pinned]
ADMIN, SIDECAR = "pulsar-admin", "pulsar-sidecar"
SCENES: tuple[tuple[Cause, str], ...] = (
    (backlog, f"{ADMIN} topics clear-backlog"),
    (unloaded(backlog), f"{ADMIN} topics clear-backlog"),
    (backlog, f"{ADMIN} topics unsubscribe"),
    (holes, f"{ADMIN} topics clear-backlog"),
    (holes, f"{ADMIN} topics unsubscribe"),
    (delayed, f"{SIDECAR} topics cancel-delayed-messages"),
    (delayed, f"{ADMIN} topics clear-backlog"),
    (delayed_index, f"{ADMIN} topics unsubscribe"),
    (deduplication, f"{ADMIN} topicPolicies set-deduplication"),
    (unloaded(deduplication), f"{ADMIN} topicPolicies set-deduplication"),
    (unloaded(deduplication), f"{ADMIN} topics trim-topic"),
    (retention, f"{ADMIN} topicPolicies set-retention"),
    (unloaded(retention), f"{ADMIN} topicPolicies set-retention"),
    (offloaded, f"{ADMIN} namespaces set-offload-deletion-lag"),
    (unloaded(offloaded), f"{ADMIN} namespaces set-offload-deletion-lag"),
    (compacted, f"{ADMIN} topics unsubscribe"),
    (compaction, f"{ADMIN} topics compact"),
    (unloaded(compaction), f"{ADMIN} topics compact"),
    (replication, f"{ADMIN} topics set-replication-clusters"),
    (last_ledger, f"{ADMIN} topics unload"),
    (terminated, f"{SIDECAR} topics delete"),
    (not_loaded, f"{ADMIN} topics trim-topic"),
    (schema, f"{ADMIN} schemas delete"),
    (cursor_ledger, f"{ADMIN} topics unload"),
    (unreferenced, f"{SIDECAR} topics delete-ledger"),
)
"""Causes with the commands that free bytes directly; other remedies are to wait or to investigate."""
LOOKS = re.compile("pulsar-sidecar (subscriptions ack-state|deduplication show|pins topic) .*")
