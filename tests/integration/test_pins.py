"""Every cause that keeps bytes on bookies, made for real: each is named with its bytes, and its remedy frees them.

What a topic keeps is known from its broker, and what is free from the bookies: their entry logs, and which of them
still answer with an entry of a ledger.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pulsar
import pytest
import requests
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.cluster.buckets import BUCKETS
from tests.cluster.delays import now_ms
from tests.cluster.offloading import offload_closed_ledgers, offload_to_directory
from tests.cluster.patience import OPERATION_SECONDS, until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import SidecarProcess, Sidecars
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
    "brokerDeduplicationSnapshotFrequencyInSeconds": "0",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "retentionCheckIntervalInSeconds": "2",
}
BOOKIE_CONF = {
    # Bookies collect when they are asked to, and then every entry log that is not quite full.
    "flushInterval": "1000",
    "gcWaitTime": "3600000",
    "logSizeLimit": "1048576",
    "majorCompactionThreshold": "0.95",
}
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Pinned:
    """A topic whose closed ledgers, or other ledgers, one cause holds.

    Attributes:
        ends_ms: between which times it ends by itself.
        loaded: whether a broker has the topic loaded.
        also: causes that hold other ledgers of the topic.
    """

    topic: TopicName
    cause: str
    remedy: Callable[[], object]
    holder: str = ""
    ends_ms: tuple[int, int] | None = None
    loaded: bool = True
    also: tuple[str, ...] = ()


class Pins:
    """A cluster, a sidecar that is asked, and topics that something pins."""

    def __init__(self, cluster: ClusterUnderTest, workload: Workload, sidecar: SidecarProcess, files: Path) -> None:
        self.cluster, self.workload, self.sidecar, self.files = cluster, workload, sidecar, files
        self.namespace = self.new_namespace()

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
        """Three closed ledgers, and one entry in the next one."""
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

    def skip(self, topic: TopicName, subscription: str) -> None:
        self.workload.admin("POST", self.of(topic, f"subscription/{subscription}/skip_all"))

    def drop(self, topic: TopicName, subscription: str) -> None:
        self.workload.admin("DELETE", self.of(topic, f"subscription/{subscription}"))

    def pins(self, topic: TopicName) -> dict[str, Any]:
        path = f"/admin/v2/pins/persistent/{topic.namespace}/{topic.local_name}"
        (found,) = self.sidecar.call("GET", path)
        return dict(found)

    def pin(self, pinned: Pinned) -> dict[str, Any]:
        found = self.pins(pinned.topic)
        pins = [pin for pin in found["pins"] if (pin["cause"], pin["holder"]) == (pinned.cause, pinned.holder)]
        assert len(pins) == 1, found
        return dict(pins[0])

    def bookies(self) -> list[dict[str, Any]]:
        return list(self.sidecar.call("GET", "/admin/v2/pins/bookies"))

    def entry_logs(self) -> int:
        """Bytes of the files, which no bookie tells."""
        directory = self.cluster.addresses.directory
        assert directory is not None
        return sum(log.stat().st_size for log in directory.glob("bookie-*/ledgers/current/*.log"))

    def collect(self) -> None:
        """Have every bookie collect and compact, as the remedy does."""
        for url in self.cluster.addresses.bookie_http_urls:
            body = {"forceMajor": True, "forceMinor": True}
            requests.put(f"{url}/api/v1/bookie/gc", json=body, timeout=OPERATION_SECONDS).raise_for_status()
        until(lambda: not any(bookie["figures"]["isCollecting"] for bookie in self.bookies()), "bookies have collected")


@pytest.fixture(scope="module")
def pins(special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pins]:
    directory = tmp_path_factory.mktemp("pins")
    with ExitStack() as stack:
        cluster = stack.enter_context(
            special_cluster(bookies=COPIES, offloaders=True, broker_conf=BROKER_CONF, bookie_conf=BOOKIE_CONF)
        )
        workload = stack.enter_context(closing(Workload(cluster)))
        sidecars = stack.enter_context(closing(Sidecars(cluster.addresses, directory)))
        yield Pins(cluster, workload, sidecars.start(), directory)


# --- the causes, each made for real --------------------------------------------------------------------------------


def retention(pins: Pins) -> Pinned:
    topic = pins.topic("retained", pins.new_namespace(retention_minutes=60))
    began = now_ms()
    pins.fill(topic)
    zero = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    hour = 3_600_000
    return Pinned(
        topic,
        "retention",
        partial(pins.workload.admin, "POST", pins.of(topic, "retention"), zero),
        ends_ms=(began + hour, now_ms() + hour),
    )


def backlog(pins: Pins) -> Pinned:
    topic = pins.topic("slow")
    pins.subscribed(topic, "slow").close()
    pins.fill(topic)
    return Pinned(topic, "backlog", partial(pins.skip, topic, "slow"), "slow")


def holes(pins: Pins) -> Pinned:
    topic = pins.topic("holes")
    consumer = pins.subscribed(topic, "holes")
    pins.fill(topic)
    first, *rest = [consumer.receive(60_000) for _ in range(CLOSED * ENTRIES_PER_LEDGER + 1)]
    for message in rest:
        consumer.acknowledge(message)
    acknowledged = f"{len(rest)} entries acknowledged beyond it"
    pinned = Pinned(topic, "acknowledgement-holes", partial(consumer.acknowledge, first), "holes")
    until(lambda: acknowledged in str(pins.pins(topic)["pins"]), "the broker has the acknowledgements")
    return pinned


def delayed(pins: Pins) -> Pinned:
    topic = pins.topic("delayed")
    consumer = pins.subscribed(topic, "delayed")
    delay, began = timedelta(hours=2), now_ms()
    pins.fill(topic, deliver_after=delay)
    length = int(delay.total_seconds() * 1000)
    until(lambda: pins.workload.ledgers(topic).buckets.get("delayed"), "the delayed index has buckets")
    consumer.close()
    return Pinned(
        topic,
        "delayed-messages",
        partial(pins.skip, topic, "delayed"),
        "delayed",
        ends_ms=(began + length, now_ms() + length),
        also=("delayed-index",),
    )


def deduplication(pins: Pins) -> Pinned:
    topic = pins.topic("deduplicated")
    pins.workload.admin("PUT", pins.of(topic, ""))
    pins.workload.admin("POST", pins.of(topic, "deduplicationEnabled"), True)
    stats = pins.of(topic, "stats")
    until(lambda: pins.workload.admin("GET", stats)["deduplicationStatus"] == "Enabled", "the topic is deduplicated")
    pins.fill(topic)
    disable = partial(pins.workload.admin, "POST", pins.of(topic, "deduplicationEnabled"), False)
    return Pinned(topic, "deduplication-snapshot", disable, "pulsar.dedup")


def offloaded(pins: Pins) -> Pinned:
    base = pins.files / "base"
    base.mkdir()
    namespace = offload_to_directory(pins.cluster, f"file://{base}", pins.files / "profile.xml")
    topic = pins.topic("offloaded", namespace)
    pins.subscribed(topic, "reads-all").close()
    pins.fill(topic)
    began = now_ms()
    offload_closed_ledgers(pins.cluster, topic)
    four_hours = 4 * 3_600_000
    lag = partial(pins.workload.admin, "PUT", f"namespaces/{namespace}/offloadDeletionLagMs", 0)
    return Pinned(topic, "offload-deletion-lag", lag, ends_ms=(began + four_hours, now_ms() + four_hours))


def compacted(pins: Pins) -> Pinned:
    topic = pins.topic("compacted", pins.new_namespace(retention_minutes=60))
    pins.fill(topic, keys=CLOSED * ENTRIES_PER_LEDGER + 1)
    pins.workload.compact(topic)
    return Pinned(topic, "compacted-ledger", partial(pins.drop, topic, "__compaction"))


def compaction(pins: Pins) -> Pinned:
    """A topic that was compacted once, and has been written to since."""
    topic = pins.topic("not-compacted")
    pins.workload.produce(topic, [b"small"], key="key")
    pins.workload.compact(topic)
    pins.fill(topic, keys=1)
    return Pinned(topic, "compaction", partial(pins.workload.compact, topic), "__compaction")


def not_loaded(pins: Pins) -> Pinned:
    """Its retention ended while no broker had it loaded."""
    namespace = pins.new_namespace(retention_minutes=60)
    topic = pins.topic("not-loaded", namespace)
    pins.fill(topic)
    pins.workload.unload(topic)
    zero = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    pins.workload.admin("POST", f"namespaces/{namespace}/retention", zero)
    return Pinned(topic, "not-loaded", partial(pins.workload.admin, "POST", pins.of(topic, "trim")), loaded=False)


CAUSES = (retention, backlog, holes, delayed, deduplication, offloaded, compacted, compaction, not_loaded)


# --- the tests -----------------------------------------------------------------------------------------------------


def test_each_cause_is_named_with_its_bytes_and_its_remedy_frees_them(pins: Pins) -> None:
    made = [cause(pins) for cause in CAUSES]
    found = {pinned: pins.pin(pinned) for pinned in made}
    for pinned, pin in found.items():
        check(pins, pinned, pin)
    largest = pins.sidecar.call("GET", f"/admin/v2/pins/namespaces/{pins.namespace}")["largest"]
    ours = {str(pinned.topic) for pinned in made if pinned.topic.namespace == pins.namespace}
    assert ours <= {each["topic"] for each in largest}
    pins.collect()
    before = pins.entry_logs()

    going: dict[LedgerId, int] = {}
    for pinned, pin in found.items():
        pinned.remedy()
        ids = freed(pin)
        until(partial(gone, pins, ids), f"{pinned.cause}: {ids} are deleted")
        going |= dict.fromkeys(ids, 0)
    promised = sum(pin["freesOnBookiesBytes"] for pin in found.values())
    assert promised > len(CAUSES) * MIB

    for ledger_id in going:
        left = pins.sidecar.call("GET", f"/admin/v2/pins/ledgers/{ledger_id}")
        assert [pin["cause"] for pin in left["pins"]] == ["not-collected"], left
        assert len(left["bookies"]) == COPIES
        going[ledger_id] = left["onBookiesBytes"]
    assert sum(going.values()) == promised
    assert pins.entry_logs() == before

    def all_collected() -> bool:
        pins.collect()
        path = "/admin/v2/pins/ledgers"
        return all(pins.sidecar.request("GET", f"{path}/{one}").status_code == 404 for one in going)

    until(all_collected, "no bookie has an entry of what was freed")
    until(lambda: before - pins.entry_logs() > 0.9 * promised, "the bookies' entry logs are that much smaller")


def test_a_terminated_topic_keeps_its_last_ledger_and_a_command_shows_it(pins: Pins) -> None:
    topic = pins.topic("terminated")
    until(lambda: _terminated(pins, topic), "the topic is terminated")
    pins.workload.admin("POST", pins.of(topic, "trim"))

    def only_the_last() -> bool:
        return [pin["cause"] for pin in pins.pins(topic)["pins"]] == ["last-ledger"]

    until(only_the_last, "everything but the last ledger is trimmed")
    shown = pins.sidecar.command("pins", "topic", str(topic))
    assert shown.exit_code == 0, shown.stderr
    assert f"pulsar-sidecar topics delete {topic}" in shown.stdout


def _terminated(pins: Pins, topic: TopicName) -> bool:
    pins.fill(topic)
    if pins.workload.request("POST", pins.of(topic, "terminate")).ok:
        return True
    # A broker that trims at this moment fails, and answers nothing about the topic before it is loaded again.
    pins.workload.unload(topic)
    return False


def check(pins: Pins, pinned: Pinned, pin: Mapping[str, Any]) -> None:
    """One pin against what brokers and bookies have."""
    lengths = {ledger_id: pins.workload.metadata(ledger_id).length_bytes for ledger_id in freed(pin)}
    assert pin["freesBytes"] == sum(lengths.values()) > MIB // 2, pin
    assert pin["freesOnBookiesBytes"] == COPIES * pin["freesBytes"]
    assert pin["remedies"]
    if pinned.ends_ms is None:
        assert pin["endsMs"] is None
    else:
        assert pinned.ends_ms[0] <= pin["endsMs"] <= pinned.ends_ms[1]
    topic = pins.pins(pinned.topic)
    assert (topic["loadedBy"] is not None) == pinned.loaded, "it was not loaded for the question"
    assert {*pinned.also} <= {each["cause"] for each in topic["pins"]}


def freed(pin: Mapping[str, Any]) -> set[LedgerId]:
    """Its ledgers, but the one that the topic writes to."""
    ids = [LedgerId(ledger_id) for ledger_id in pin["ledgerIds"]]
    return {*ids} if "last-ledger" not in pin["alsoHeldBy"] else {*ids[:-1]}


def gone(pins: Pins, ids: Collection[LedgerId]) -> bool:
    return not pins.workload.existing(ids)
