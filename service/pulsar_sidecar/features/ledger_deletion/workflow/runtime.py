"""Runtime of one sidecar: its loops, and the state that they share with the operator's calls.

The loops process batches, drive topic deletions, and renew the registration, pause and rate, the estimate and the
warnings.
"""

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext

import structlog

from pulsar_sidecar.features.ledger_deletion.control import ServiceControl, SidecarRegistry
from pulsar_sidecar.features.ledger_deletion.grouping import GroupedPublisher, GroupedStore
from pulsar_sidecar.features.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.features.ledger_deletion.ports import (
    Backlog,
    DeletionTopic,
    Delivery,
    PendingDeletions,
    Publisher,
)
from pulsar_sidecar.features.ledger_deletion.results import Control, InflightEstimate, LimitReadings, SidecarInstance
from pulsar_sidecar.features.ledger_deletion.second_phase.gather import Gatherer
from pulsar_sidecar.features.ledger_deletion.second_phase.limits import RateLimiter
from pulsar_sidecar.features.ledger_deletion.second_phase.only_copies import OnlyCopies
from pulsar_sidecar.features.ledger_deletion.second_phase.processor import PendingDeletionProcessor
from pulsar_sidecar.features.ledger_deletion.steps import Steps
from pulsar_sidecar.features.ledger_deletion.topic_deletion.driver import TopicDeleter
from pulsar_sidecar.features.ledger_deletion.topic_deletion.durable_operations import DurableOperations
from pulsar_sidecar.features.ledger_deletion.topic_deletion.recorder import Recorder
from pulsar_sidecar.features.ledger_deletion.topic_deletion.shadow_deleter import ShadowDeleter
from pulsar_sidecar.features.ledger_deletion.watch.assess import Assessor
from pulsar_sidecar.features.ledger_deletion.watch.leaks import LeakStore
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakState, WatchMode
from pulsar_sidecar.features.ledger_deletion.workflow.backlog_cache import BacklogCache
from pulsar_sidecar.features.ledger_deletion.workflow.configuration import Configuration, Ports, WatchPorts
from pulsar_sidecar.features.ledger_deletion.workflow.namespace_deleter import NamespaceDeleter
from pulsar_sidecar.features.ledger_deletion.workflow.namespace_deletions import NamespaceDeletions
from pulsar_sidecar.features.ledger_deletion.workflow.notes import Notes
from pulsar_sidecar.features.ledger_deletion.workflow.reclaiming import Reclaiming
from pulsar_sidecar.features.ledger_deletion.workflow.shadow_index import ShadowIndex
from pulsar_sidecar.features.ledger_deletion.workflow.shadow_watch import ShadowWatch
from pulsar_sidecar.features.ledger_deletion.workflow.topic_driving import TopicDeletionDriver, TopicDeletions
from pulsar_sidecar.features.ledger_deletion.workflow.trend import Throughput, Trend
from pulsar_sidecar.features.ledger_deletion.workflow.watching import LeakWatch
from pulsar_sidecar.model.clocks import rest_seconds
from pulsar_sidecar.model.errors import ConflictError, DisabledError, SidecarError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.observability.tracing import record_share, span
from pulsar_sidecar.ownership.migration import MIGRATION, migration_of
from pulsar_sidecar.runtime import SupervisedLoops

log = structlog.get_logger("ledger-deletion")

_SCRAPE_SECONDS = 3.0
_SHOWN_SECONDS = 1.0
_PAUSED_LOOK_SECONDS = 0.2
_UPKEEP_SECONDS = 1.0
_NAMESPACES_AT_ONCE = 2
_LONGEST_BACKOFF_SECONDS = 10.0
_MEAN_WEIGHT = 0.2
_LOGGED_LEDGERS = 20
_RECORDED_SECONDS = 600.0
"""Time after its end for which a topic's deletion still explains vanished references: records wait for their retry."""


class Runtime:
    """State of one running sidecar: its producers, pause and rate as last read, the backlog as last measured.

    Attributes:
        ready: set while the sidecar can append and evaluate records.
        was_ready: set from then on, until the sidecar finds that its metadata store is not the brokers' own.
    """

    _migration: str | None = None

    def __init__(
        self,
        configuration: Configuration,
        ports: Ports,
        instance: SidecarInstance,
        metrics: DeletionMetrics,
        steps: Steps | None = None,
    ) -> None:
        root, clock, store, owners = configuration.ledgers_root, ports.clock, ports.store, ports.owners
        self.configuration = configuration
        self.ports = ports
        self.instance = instance
        self.metrics = metrics
        self.steps = steps or Steps()
        self.stop = threading.Event()
        self.ready = threading.Event()
        self.was_ready = threading.Event()
        self.control = Control()
        self.running_topic_deletions = 0
        self.stuck_topic_deletions = 0
        self.oldest_topic_deletion_since_ms: int | None = None
        self.running_namespace_deletions = 0
        self.last_error: str | None = None
        self.last_error_at_ms: int | None = None
        self.service_control = ServiceControl(store)
        self.registry = SidecarRegistry(store, instance)
        self.shadows = ShadowIndex(store, ports.whole, ports.topic_changes, clock, self.stop)
        shared = GroupedStore(store)
        records = GroupedPublisher(lambda: self.publisher(DeletionTopic.PENDING))
        self.notes = Notes(
            instance.name, GroupedPublisher(lambda: self.publisher(DeletionTopic.OUTCOME)), clock, self.steps, self.warn
        )
        recorder = Recorder(shared, ports.entries, owners, ports.admin, records, root, metrics, self.steps)
        self.deleter = TopicDeleter(
            DurableOperations(instance.name, shared, self.steps),
            shared,
            recorder,
            ports.admin,
            self.shadows,
            self.steps,
        )
        self.driver = TopicDeletionDriver(self.deleter, clock, self.stop, self._may_delete_topics, self.notes)
        self.shadow_deleter = ShadowDeleter(store, ports.admin, owners, root)
        self.shadow_watch = ShadowWatch(self.shadows, ports.endangered_source, clock)
        self.namespaces = self._namespace_deletions(shared, recorder)
        self._gatherer = Gatherer(store, ports.entries, owners, OnlyCopies(ports.offloaded.is_whole, clock), root)
        self._rate_limiter = RateLimiter(clock, self.stop, self.rate_per_second, self._is_held)
        self._publishers: dict[DeletionTopic, Publisher] = {}
        self._publishers_lock = threading.Lock()
        self._backlog = BacklogCache(self._measure_backlog, clock)
        self._mean_length_bytes: float | None = None
        self.throughput = Throughput(clock, lambda: metrics.deleted_ledgers)
        self.leak_watch = self._leak_watch()
        self.trend = Trend(clock, lambda: self._backlog.fresh().total, lambda: metrics.deleted_ledgers, self._leaked)
        self.reclaiming = Reclaiming(ports.topics, store, ports.bookies, clock, root)
        self._recorded: dict[TopicName, float] = {}
        self._loops = SupervisedLoops("ledger-deletion", clock, self.stop, self._note_failure, _LONGEST_BACKOFF_SECONDS)

    def start(self) -> None:
        """Start the loops and return at once."""
        loops = {
            "upkeep": self._upkeep,
            "shadow-index": self.shadows.run,
            "shadow-topics": lambda: self.shadow_watch.run(self.stop),
        }
        if self.configuration.enabled:
            loops["worker"] = self._work
            loops["topic-deletions"] = self.driver.run
            loops |= {f"namespace-deletions-{each}": self.namespaces.run for each in range(_NAMESPACES_AT_ONCE)}
            loops["trend"] = lambda: self.trend.run(self.stop)
            loops["reclaimed"] = self._read_reclaimed
            loops["estimate"] = lambda: self._backlog.keep_fresh(self.stop)
            if (watch := self.leak_watch) is not None:
                loops["leak-watch"] = lambda: watch.run(self.stop)
        self._loops.start(loops)

    def close(self) -> None:
        """Wait until each loop has finished its work, and release the producers' names."""
        self.stop.set()
        self.shadows.wake()
        self.namespaces.close()
        self._loops.join()
        with self._publishers_lock:
            for publisher in self._publishers.values():
                publisher.close()
            self._publishers.clear()

    def _read_reclaimed(self) -> None:
        while not self.ready.is_set() and not self.stop.is_set():
            self.ports.clock.wait_seconds(_UPKEEP_SECONDS, self.stop)
        self.reclaiming.run(self.stop)

    def _namespace_deletions(self, store: MetadataStore, recorder: Recorder) -> NamespaceDeletions:
        ports = self.ports
        deleter = NamespaceDeleter(
            DurableOperations(self.instance.name, store, self.steps, of_namespaces=True),
            store,
            ports.namespaces,
            TopicDeletions(self.deleter, self.shadow_deleter, self.driver.drive),
            self.shadows,
            recorder,
            ports.clock,
            self.steps,
            self._may_delete_topics,
        )
        return NamespaceDeletions(
            deleter, ports.store, ports.clock, self.stop, self._may_delete_topics, self.notes.end_of_namespace
        )

    def _may_delete_topics(self) -> bool:
        return self.ready.is_set() and not self._is_held() and not self.stop.is_set()

    def _leak_watch(self) -> LeakWatch | None:
        ports, configuration = self.ports, self.configuration
        if ports.changes is None or configuration.watch.mode is WatchMode.OFF:
            return None
        assessor = Assessor(
            ports.store,
            self._gatherer,
            configuration.policy,
            LeakStore(ports.store, self.steps),
            configuration.ledgers_root,
        )
        watch_ports = WatchPorts(
            ports.clock,
            ports.store,
            ports.changes,
            ports.whole,
            assessor,
            self._pending_publisher,
            lambda: frozenset(self._recorded),
            ports.offloaded.exists,
            self.shadows.holds_up_deletions,
        )
        return LeakWatch(configuration.watch, watch_ports, self.instance, self.steps)

    def _leaked(self) -> int | None:
        found = None if self.leak_watch is None else self.leak_watch.readings().leaks
        return None if found is None else found.get(LeakState.LEAKED, 0)

    def _pending_publisher(self) -> Publisher:
        if not self.ready.is_set():
            raise TemporaryError(self.not_ready_reason())
        return self.publisher(DeletionTopic.PENDING)

    def processor(self) -> PendingDeletionProcessor:
        topics = (DeletionTopic.RETRY, DeletionTopic.DEAD_LETTER, DeletionTopic.OUTCOME)
        return PendingDeletionProcessor(
            sidecar=self.instance.name,
            clock=self.ports.clock,
            store=self.ports.store,
            offloaded=self.ports.offloaded,
            gatherer=self._gatherer,
            publishers={topic: self.publisher(topic) for topic in topics},
            policy=self.configuration.policy,
            retry_policy=self.configuration.retry_policy,
            metrics=self.metrics,
            steps=self.steps,
            rate_limiter=self._rate_limiter,
            warn=self.warn,
        )

    def publisher(self, topic: DeletionTopic) -> Publisher:
        """Return this sidecar's own producer on a topic, which is opened once."""
        with self._publishers_lock:
            if topic not in self._publishers:
                name = f"pulsar-sidecar-{self.instance.name}-{topic.name.lower().replace('_', '-')}"
                self._publishers[topic] = self.ports.topics.publisher(topic, name)
            return self._publishers[topic]

    def require_enabled(self) -> None:
        """Raise `DisabledError` while two-phase deletion is switched off."""
        if not self.configuration.enabled:
            raise DisabledError("two-phase deletion is switched off: set topicTwoPhaseDeletionEnabled=true")

    def rate_per_second(self) -> float | None:
        """Return the limit in force: the shared one, or else this sidecar's setting."""
        shared = self.control.rate_per_second
        return self.configuration.rate_per_second if shared is None else shared

    def limit_readings(self) -> LimitReadings | None:
        """Return the adaptive limit's readings; None when it is switched off."""
        return None if self.ports.limit is None else self.ports.limit.readings()

    def _measure_backlog(self) -> Backlog:
        try:
            return self.ports.topics.backlog()
        except SidecarError as error:
            self._note_failure(str(error))
            raise

    # --- pending records -------------------------------------------------------------------------------------------

    def inflight(self) -> InflightEstimate:
        """Return the estimate of pending records, measured again if it is over a second old."""
        return self._estimate(self._backlog.fresh())

    def cached_inflight(self) -> InflightEstimate | None:
        """Return the estimate without waiting; None without a measurement of the last second."""
        backlog = self._backlog.cached()
        return None if backlog is None else self._estimate(backlog)

    def last_inflight(self) -> InflightEstimate | None:
        """Return the last estimate of any age; None before the first measurement."""
        backlog = self._backlog.last()
        return None if backlog is None else self._estimate(backlog)

    def inflight_or_last(self) -> tuple[InflightEstimate | None, int | None]:
        """Return the estimate and the number of dead letters; the last known ones while brokers do not respond."""
        backlog = self._backlog.within(_SHOWN_SECONDS, self.stop) or self._backlog.last()
        return (None, None) if backlog is None else (self._estimate(backlog), backlog.dead_letters)

    def inflight_within_timeout(self) -> tuple[InflightEstimate | None, int | None]:
        """Return the estimate and the number of dead letters, each None unless brokers report it soon."""
        backlog = self._backlog.within(_SCRAPE_SECONDS, self.stop)
        return (None, None) if backlog is None else (self._estimate(backlog), backlog.dead_letters)

    def oldest_topic_deletion_ms(self) -> int | None:
        """Return the age of the oldest running topic deletion; None where none runs."""
        since_ms = self.oldest_topic_deletion_since_ms
        return None if since_ms is None else max(0, self.ports.clock.now_ms() - since_ms)

    def _estimate(self, backlog: Backlog) -> InflightEstimate:
        now_ms, oldest, mean = self.ports.clock.now_ms(), backlog.oldest_publish_ms, self._mean_length_bytes
        return InflightEstimate(
            count=backlog.total,
            age_ms=max(0, now_ms - backlog.measured_ms),
            oldest_age_ms=None if oldest is None else max(0, now_ms - oldest),
            waiting_bytes=None if mean is None and backlog.total else round(backlog.total * (mean or 0)),
        )

    # --- failures --------------------------------------------------------------------------------------------------

    def not_ready_reason(self) -> str:
        """Return why no record can be accepted while ``ready`` is not set."""
        return self.last_error or "the system topics are not ready yet"

    def _note_failure(self, failure: str) -> None:
        self.last_error, self.last_error_at_ms = failure, self.ports.clock.now_ms()

    def warn(self, text: str) -> None:
        """Log a failure that the service survives, and show it in its status."""
        self._note_failure(text)
        log.warning("ledger deletion degraded", error=text)

    # --- loops -----------------------------------------------------------------------------------------------------

    def _upkeep(self) -> None:
        clock, next_look = self.ports.clock, -math.inf
        while not self.stop.is_set():
            self.control = self.service_control.read()
            self._look_for_migration()
            self.registry.keep()
            began = clock.monotonic_seconds()
            if began >= next_look:
                self._look_at_running()
                ended = clock.monotonic_seconds()
                next_look = ended + rest_seconds(0, ended - began)
            clock.wait_seconds(_UPKEEP_SECONDS, self.stop)

    def _look_at_running(self) -> None:
        running = self.deleter.running()
        self.running_topic_deletions = len(running)
        self.stuck_topic_deletions = sum(status.remedy is not None for status in running)
        self.oldest_topic_deletion_since_ms = min((status.requested_ms for status in running), default=None)
        self.running_namespace_deletions = len(self.namespaces.running())
        now = self.ports.clock.monotonic_seconds()
        kept = {topic: at for topic, at in self._recorded.items() if now - at < _RECORDED_SECONDS}
        self._recorded = {
            **kept,
            **{topic.base: now for status in running if (topic := status.topic_name) is not None},
        }

    def _work(self) -> None:
        try:
            self._consume_when_ready()
        except ConflictError:
            self.was_ready.clear()
            raise

    def _consume_when_ready(self) -> None:
        self.check_migration()
        mismatch = self.ports.metadata_mismatch()
        if mismatch is not None:
            raise ConflictError(f"nothing is deleted: {mismatch}")
        self.ports.topics.ensure()
        for warning in self.ports.topics.warnings():
            log.warning("cluster configuration impairs ledger deletion", warning=warning)
        if not self.instance.consumes:
            with self._ready():
                log.info("leaving pending deletions to other sidecars", instance=self.instance.name)
                self._serve_without_consuming()
            return
        processor = self.processor()
        with closing(self.ports.topics.pending()) as pending, self._ready():
            log.info("consuming pending deletions", instance=self.instance.name)
            self._consume(processor, pending)

    @contextmanager
    def _ready(self) -> Iterator[None]:
        self.control = self.service_control.read()
        self.last_error = self.last_error_at_ms = None
        self.ready.set()
        self.was_ready.set()
        try:
            yield
        finally:
            self.ready.clear()

    def _serve_without_consuming(self) -> None:
        while not self.stop.is_set():
            self._refuse_seen_migration()
            self.ports.clock.wait_seconds(_UPKEEP_SECONDS, self.stop)

    def _consume(self, processor: PendingDeletionProcessor, pending: PendingDeletions) -> None:
        clock, late_ms = self.ports.clock, self.configuration.watchdog_late_ms
        next_look = clock.monotonic_seconds() + late_ms / 1000
        while not self.stop.is_set():
            # Also while this sidecar is paused or has no records: calls delete and restore as long as it is ready.
            self._refuse_seen_migration()
            if self._is_held():
                clock.wait_seconds(_PAUSED_LOOK_SECONDS, self.stop)
                continue
            deliveries = pending.receive()
            if self._is_held():
                # The pause came while this sidecar was waiting for messages; brokers redeliver them later.
                pending.postpone(deliveries)
                continue
            if deliveries:
                self._process(processor, pending, deliveries)
            if clock.monotonic_seconds() >= next_look:
                # The watchdog continues retries that the delayed tracker should have delivered long ago.
                overdue = pending.overdue(late_ms, self.configuration.batch_size)
                if overdue:
                    log.warning("retries are overdue: the broker's delayed delivery has stalled", overdue=len(overdue))
                    self._process(processor, pending, overdue)
                next_look = clock.monotonic_seconds() + late_ms / 1000

    def check_migration(self) -> None:
        """Raise before deciding on a store that the brokers are migrating away from, as they may at any time."""
        self._look_for_migration()
        self._refuse_seen_migration()

    def _refuse_seen_migration(self) -> None:
        if self._migration is not None:
            raise ConflictError(f"nothing is deleted or restored: {self._migration}")

    def _look_for_migration(self) -> None:
        node = self.ports.store.read(MIGRATION)
        self._migration = migration_of(None if node is None else node.data)

    def _is_held(self) -> bool:
        # A batch under a rate limit and the loops that delete topics and namespaces run on after a check.
        return self.control.paused or self._migration is not None

    def _process(
        self, processor: PendingDeletionProcessor, pending: PendingDeletions, deliveries: Sequence[Delivery]
    ) -> None:
        self.check_migration()
        started = self.ports.clock.monotonic_seconds()
        limit = self.ports.limit
        with span("second phase", {"messaging.batch.message_count": len(deliveries)}):
            with nullcontext() if limit is None else limit.batch():
                report = processor.process(pending, deliveries)
            seconds = self.ports.clock.monotonic_seconds() - started
            for alike in report.decided:
                record_share(alike.trace, "records decided", seconds, alike.facts())
        self.metrics.batch_seconds.observe(seconds)
        self.throughput.per_second()
        if report.mean_length_bytes is not None:
            # Running mean of the ledgers' lengths, for the estimate of waiting bytes.
            mean = report.mean_length_bytes if self._mean_length_bytes is None else self._mean_length_bytes
            self._mean_length_bytes = mean + _MEAN_WEIGHT * (report.mean_length_bytes - mean)
        log.info("batch processed", received=len(deliveries), deleted=report.deleted, postponed=report.postponed)
        for alike in report.decided:
            # An audit's plan has a million ledgers and no request; operators look for the ledgers of a request.
            (log.info if alike.trace.request_id is not None else log.debug)(
                "records decided",
                request_id=alike.trace.request_id,
                **alike.facts(),
                ledger_ids=alike.ledger_ids[:_LOGGED_LEDGERS],
            )
