"""Cost of each part of a drain alone, for each ledger: reads, questions to brokers, outcomes, messages, deletions.

Each part does with the sidecar's own adapters what a drain does with all records, a batch at a time. Nothing else runs
meanwhile, so the members' processor time is the part's own, apart from what they spend at rest.
"""

import argparse
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing

from pulsar_sidecar.adapters.pulsar_client.clients import opened_client
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.adapters.pulsar_topics.deletion_topics import PulsarDeletionTopics
from pulsar_sidecar.adapters.pulsar_topics.pending_consumer import ConsumerSettings
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.features.ledger_deletion.outcomes import (
    Decision,
    RecordOutcome,
    judged_messages,
    settled_messages,
)
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic, OutgoingMessage
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo, encode_record
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    Delete,
    DeletionPolicy,
    Facts,
    OutcomeReason,
    decide,
)
from pulsar_sidecar.features.ledger_deletion.second_phase.gather import Gatherer
from pulsar_sidecar.features.ledger_deletion.second_phase.only_copies import OnlyCopies
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import TopicInternalStats

from tests.benchmarks.clusters import ProcessorTime, add_drain_arguments, benchmark_sidecars, wait_until_quiet
from tests.benchmarks.drain import backlog_gauge, delete_barely
from tests.benchmarks.made_nodes import requests_to
from tests.cluster.orphans import Orphan, OrphanMaker
from tests.fakes.bookkeeper import FakeLedgerEntries
from tests.reporting import Table

NAME = "drain-parts"
_BATCH = 5_000
_CLOCK = SystemClock()
_POLICY = DeletionPolicy(3_600_000, 3_600_000, 600_000, bookkeeper_exclusive=True)
_REST_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_PARTS = ("zookeeper", "bookie", "broker")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ledgers", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3, help="only the last one is shown, the others warm up")
    add_drain_arguments(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with ExitStack() as stack:
        addresses, sidecars = stack.enter_context(benchmark_sidecars(arguments.cluster))
        sidecars.start_with_defaults()  # it makes the topics
        sidecars.end_all()
        maker = stack.enter_context(closing(OrphanMaker(addresses, arguments.topics)))
        drain = stack.enter_context(closing(_Drain(addresses, stack)))
        for _ in range(arguments.rounds):
            rows = drain.parts(maker.make(arguments.ledgers))
    header = ("", "ms a ledger: itself", "ZooKeeper", "bookies", "brokers", "requests to ZooKeeper")
    load = f"Load of this machine over the last minute: {os.getloadavg()[0]:.1f}."
    return [Table(f"Parts of a drain of {arguments.ledgers:,} ledgers, each alone", header, rows, [load])]


class _NoOwners:
    def views(self, topics: Sequence[TopicName]) -> Mapping[TopicName, TopicInternalStats]:
        return {}


class _Drain:
    """What a sidecar does with records, part by part."""

    def __init__(self, addresses: ClusterAddresses, stack: ExitStack) -> None:
        self._addresses = addresses
        self._backlog = backlog_gauge(addresses)
        self._store = stack.enter_context(ZooKeeperMetadataStore(addresses.metadata_store_url, _CLOCK))
        client = stack.enter_context(opened_client(addresses.broker_service_url))
        rest = AdminRest(addresses.web_service_urls, store=self._store)
        self._owners = stack.enter_context(closing(BrokerLiveOwners(rest, self._store)))
        self._topics = PulsarDeletionTopics(client, rest, _CLOCK, consumer=ConsumerSettings(max_messages=_BATCH))
        self._outcomes = self._topics.publisher(DeletionTopic.OUTCOME, f"parts-{secrets.token_hex(3)}")
        only_copies = OnlyCopies(lambda *_: True, _CLOCK)
        self._gatherer = Gatherer(self._store, FakeLedgerEntries(), _NoOwners(), only_copies, "/ledgers")

    def close(self) -> None:
        self._outcomes.close()

    def parts(self, orphans: Sequence[Orphan]) -> list[tuple[str, ...]]:
        """Measure each part; a row each, in milliseconds a ledger."""
        records = [
            PendingDeleteLedgerInfo(each.topic, LedgerComponent.MANAGED_LEDGER, LedgerType.LEDGER, each.ledger_id)
            for each in orphans
        ]
        batches = [records[start : start + _BATCH] for start in range(0, len(records), _BATCH)]
        facts: list[list[Facts]] = []
        self._append(batches)
        with closing(self._topics.pending()) as consumer:

            def consume() -> None:
                received = 0
                while received < len(records):
                    deliveries = consumer.receive()
                    consumer.acknowledge(deliveries)
                    received += len(deliveries)
                while self._backlog.measure().total:
                    time.sleep(_LOOK_SECONDS)

            parts: dict[str, Callable[[], object]] = {
                f"at rest for {_REST_SECONDS:.0f} s": lambda: time.sleep(_REST_SECONDS),
                "reads": lambda: facts.extend(self._gatherer.gather([(each, None) for each in b]) for b in batches),
                "questions to brokers": lambda: [self._owners.views({each.topic for each in b}) for b in batches],
                "outcomes": lambda: [self._publish_outcomes(each) for each in facts],
                "receiving and acknowledging": consume,
                "bare deletions": lambda: delete_barely(self._store, orphans),
            }
            return [self._measured(name, part, len(records)) for name, part in parts.items()]

    def _measured(self, name: str, part: Callable[[], object], ledgers: int) -> tuple[str, ...]:
        wait_until_quiet(self._addresses)
        asked = requests_to(self._addresses.metadata_store_url)
        used, began = ProcessorTime({**self._addresses.members, "itself": os.getpid()}), time.monotonic()
        part()
        seconds, spent = time.monotonic() - began, used.used()
        shares = (sum(s for process, s in spent.items() if process.startswith(each)) for each in ("itself", *_PARTS))
        requests = requests_to(self._addresses.metadata_store_url) - asked
        return (f"{name}, {seconds:.1f} s", *(f"{1000 * share / ledgers:.3f}" for share in shares), f"{requests:,}")

    def _append(self, batches: Sequence[Sequence[PendingDeleteLedgerInfo]]) -> None:
        with closing(self._topics.publisher(DeletionTopic.PENDING, f"parts-{secrets.token_hex(3)}")) as publisher:
            for batch in batches:
                publisher.publish([OutgoingMessage(encode_record(each), key=str(each.topic)) for each in batch])

    def _publish_outcomes(self, facts: Sequence[Facts]) -> None:
        verdicts = [decide(each, _POLICY) for each in facts]
        judged = [(str(each.record.ledger_id), each, v) for each, v in zip(facts, verdicts, strict=True)]
        deletions = [(place, each, verdict) for place, each, verdict in judged if isinstance(verdict, Delete)]
        if len(deletions) < len(facts):
            raise RuntimeError("not every ledger may be deleted; the figures are worthless")
        settled = [
            RecordOutcome(
                Decision.DELETED, OutcomeReason.UNREFERENCED, "nothing references it", place, each.record, each
            )
            for place, each, _ in deletions
        ]
        now_ms = _CLOCK.now_ms()
        for payloads in (
            judged_messages("sidecar-1", now_ms, deletions),
            settled_messages("sidecar-1", now_ms, settled),
        ):
            self._outcomes.publish([OutgoingMessage(each) for each in payloads])
