"""What the loops and the operator's verbs share while a sidecar runs."""

import threading
from dataclasses import dataclass

import structlog

from pulsar_sidecar.ledger_deletion.control import ServiceControl, SidecarRegistry
from pulsar_sidecar.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.ledger_deletion.outcomes import note_message
from pulsar_sidecar.ledger_deletion.ports import (
    Backlog,
    BrokersMetadata,
    DeletionTopic,
    DeletionTopics,
    DirectLedgerDeletion,
    EndangeredSources,
    LiveOwners,
    OffloadedLedgers,
    OutgoingMessage,
    Publisher,
    ShadowAdmin,
    TopicAdmin,
)
from pulsar_sidecar.ledger_deletion.second_phase.adaptive_limit import AdaptiveLimit, LimitReadings
from pulsar_sidecar.ledger_deletion.second_phase.decide import Policy
from pulsar_sidecar.ledger_deletion.second_phase.delete import LedgerDeleter
from pulsar_sidecar.ledger_deletion.second_phase.gather import Gatherer
from pulsar_sidecar.ledger_deletion.second_phase.processor import PendingDeletionProcessor
from pulsar_sidecar.ledger_deletion.second_phase.publish import Publishers
from pulsar_sidecar.ledger_deletion.second_phase.rate_limit import RateLimiter
from pulsar_sidecar.ledger_deletion.second_phase.retry import RetryPolicy
from pulsar_sidecar.ledger_deletion.service import Control, InflightEstimate, SidecarInstance, TopicDeletionStatus
from pulsar_sidecar.ledger_deletion.shadow_deletion.deleter import ShadowDeleter
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.ledger_deletion.topic_deletion.driver import TopicDeleter
from pulsar_sidecar.ledger_deletion.topic_deletion.recorder import Recorder
from pulsar_sidecar.ledger_deletion.workflow.inflight import BacklogCache
from pulsar_sidecar.ledger_deletion.workflow.shadow_watch import ShadowWatch
from pulsar_sidecar.ledger_ownership.compaction import LedgerEntries
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.metadata import MetadataStore

log = structlog.get_logger("ledger-deletion")

_MEAN_WEIGHT = 0.2


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of the room, in its own words.

    Attributes:
        watchdog_late_ms: how late a retry must be before it is read beside the delayed tracker.
        topic_deletion_wait_ms: how long a call waits for a topic deletion before it answers RUNNING.
        undelete_lookback_ms: how far back `undelete` searches the outcome topic.
        undelete_protection_ms: how long nothing deletes a ledger that was brought back.
    """

    enabled: bool
    ledgers_root: str
    policy: Policy
    retry_policy: RetryPolicy
    rate_per_second: float | None
    watchdog_late_ms: int
    topic_deletion_wait_ms: int
    undelete_lookback_ms: int
    undelete_protection_ms: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class Ports:
    """The adapters that ledger deletion works with.

    Attributes:
        direct: only where deleting without the metadata store is wanted.
        limit: what the store's driver asks, to be shown; None when it is switched off.
    """

    clock: Clock
    store: MetadataStore
    entries: LedgerEntries
    owners: LiveOwners
    admin: TopicAdmin
    shadow_admin: ShadowAdmin
    shadows: EndangeredSources
    topics: DeletionTopics
    offloaded: OffloadedLedgers
    brokers_metadata: BrokersMetadata
    direct: DirectLedgerDeletion | None = None
    limit: AdaptiveLimit | None = None


class Runtime:
    """One running sidecar's state: its producers, pause and rate as last read, the backlog as last measured."""

    def __init__(
        self,
        configuration: Configuration,
        ports: Ports,
        instance: SidecarInstance,
        metrics: DeletionMetrics,
        steps: Steps | None = None,
    ) -> None:
        listener = steps or Steps()
        self.configuration = configuration
        self.ports = ports
        self.instance = instance
        self.metrics = metrics
        self.stop = threading.Event()
        self.ready = threading.Event()
        self.control = Control()
        self.running_topic_deletions = 0
        self.last_error: str | None = None
        self.service_control = ServiceControl(ports.store)
        self.registry = SidecarRegistry(ports.store, instance)
        root = configuration.ledgers_root
        recorder = Recorder(
            ports.store, ports.entries, ports.owners, ports.admin, ports.topics, root, metrics, listener
        )
        self.deleter = TopicDeleter(instance.name, ports.store, recorder, ports.admin, listener)
        self.shadow_deleter = ShadowDeleter(ports.store, ports.shadow_admin, ports.owners, root)
        self.shadow_watch = ShadowWatch(ports.store, ports.shadows, ports.clock, lambda: len(self.registry.instances()))
        self.steps = listener
        self._gatherer = Gatherer(ports.store, ports.entries, ports.owners, root)
        self._rate_limiter = RateLimiter(ports.clock, self.stop, self.rate_per_second, lambda: self.control.paused)
        self._publishers: dict[DeletionTopic, Publisher] = {}
        self._publishers_lock = threading.Lock()
        self.backlog = BacklogCache(ports.topics.backlog, ports.clock)
        self._mean_length_bytes = 0.0

    def processor(self) -> PendingDeletionProcessor:
        """What takes batches to their end."""
        return PendingDeletionProcessor(
            sidecar=self.instance.name,
            clock=self.ports.clock,
            deleter=LedgerDeleter(self.ports.store, self.ports.direct, self.ports.offloaded, self.steps, self.warn),
            gatherer=self._gatherer,
            publishers=Publishers(
                retry=self.publisher(DeletionTopic.RETRY),
                dead_letter=self.publisher(DeletionTopic.DEAD_LETTER),
                outcome=self.publisher(DeletionTopic.OUTCOME),
            ),
            policy=self.configuration.policy,
            retry_policy=self.configuration.retry_policy,
            metrics=self.metrics,
            steps=self.steps,
            rate_limiter=self._rate_limiter,
            warn=self.warn,
        )

    def publisher(self, topic: DeletionTopic) -> Publisher:
        """This sidecar's own producer on a topic, opened once."""
        with self._publishers_lock:
            if topic not in self._publishers:
                name = f"pulsar-sidecar-{self.instance.name}-{topic.name.lower().replace('_', '-')}"
                self._publishers[topic] = self.ports.topics.publisher(topic, name)
            return self._publishers[topic]

    def close_publishers(self) -> None:
        """Give the producers' names free."""
        with self._publishers_lock:
            for publisher in self._publishers.values():
                publisher.close()
            self._publishers.clear()

    def rate_per_second(self) -> float | None:
        """The limit in force: the shared one, or else this sidecar's setting."""
        shared = self.control.rate_per_second
        return self.configuration.rate_per_second if shared is None else shared

    def limit_readings(self) -> LimitReadings | None:
        """What the adaptive limit allows and why; None when it is switched off."""
        return None if self.ports.limit is None else self.ports.limit.readings()

    def learn_length(self, mean_length_bytes: float) -> None:
        """Keep a running mean of the ledgers' lengths, for the estimate of waiting bytes."""
        self._mean_length_bytes += _MEAN_WEIGHT * (mean_length_bytes - self._mean_length_bytes)

    def inflight(self) -> InflightEstimate:
        """The work that waits, measured again when the last measurement is over a second old."""
        return self._estimate(self.backlog.fresh())

    def cached_inflight(self) -> InflightEstimate | None:
        """The same without waiting for anything; None when there is no measurement of the last second."""
        backlog = self.backlog.cached()
        return None if backlog is None else self._estimate(backlog)

    def _estimate(self, backlog: Backlog) -> InflightEstimate:
        now_ms = self.ports.clock.now_ms()
        oldest = backlog.oldest_publish_ms
        return InflightEstimate(
            count=backlog.total,
            age_ms=max(0, now_ms - backlog.measured_ms),
            oldest_age_ms=None if oldest is None else max(0, now_ms - oldest),
            waiting_bytes=round(backlog.total * self._mean_length_bytes),
        )

    def inflight_or_none(self) -> InflightEstimate | None:
        """The same, None while brokers cannot be asked."""
        try:
            return self.inflight()
        except SidecarError as error:
            self.last_error = str(error)
            return None

    def warn(self, text: str) -> None:
        """Log a failure that the service survives, and show it in its status."""
        self.last_error = text
        log.warning(text)

    def note_end(self, status: TopicDeletionStatus) -> None:
        """Keep the end of a topic deletion on the outcome topic."""
        log.info("topic deletion ended", topic=str(status.topic), state=status.state.value, reason=status.reason)
        self.note(
            "topic-deletion",
            {
                "operationId": status.operation_id,
                "topicName": str(status.topic),
                "state": status.state.value,
                "recordedLedgers": status.recorded_ledgers,
                "attempts": status.attempts,
                "reason": status.reason,
            },
        )

    def note(self, step: str, document: dict[str, object]) -> None:
        """Keep something on the outcome topic; its failure is only a warning, since nothing depends on it."""
        message = OutgoingMessage(note_message(self.instance.name, self.ports.clock.now_ms(), step, document))
        try:
            publisher = self.publisher(DeletionTopic.OUTCOME)
            with self.steps.taking(Step.NOTE_KEPT):
                stored = all(result.stored for result in publisher.publish([message]))
        except SidecarError:
            stored = False
        if not stored:
            self.warn(f"a note about {step} could not be kept on the outcome topic")
