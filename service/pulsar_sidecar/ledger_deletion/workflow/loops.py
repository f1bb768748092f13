"""The loops of a sidecar: process batches, drive topic deletions, renew registration, controls, estimate, warnings."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import structlog

from pulsar_sidecar.ledger_deletion.ports import Delivery, PendingDeletions
from pulsar_sidecar.ledger_deletion.second_phase.processor import PendingDeletionProcessor
from pulsar_sidecar.ledger_deletion.service import OperationState
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import HeldOperation
from pulsar_sidecar.ledger_deletion.workflow.runtime import Runtime
from pulsar_sidecar.model.errors import ConflictError, PermanentError
from pulsar_sidecar.runtime.supervised_loops import SupervisedLoops

log = structlog.get_logger("ledger-deletion")

_PAUSED_LOOK_SECONDS = 0.2
_UPKEEP_SECONDS = 1.0
_DRIVER_LOOK_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 30.0


class Loops:
    """The threads of one sidecar."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._clock = runtime.ports.clock
        self._loops = SupervisedLoops(
            "ledger-deletion", self._clock, runtime.stop, self._note_failure, _LONGEST_BACKOFF_SECONDS
        )

    def start(self) -> None:
        """Start them; returns at once."""
        loops: dict[str, Callable[[], None]] = {"upkeep": self._upkeep, "shadow-topics": self._watch_shadows}
        if self._runtime.configuration.enabled:
            loops |= {
                "worker": self._work,
                "topic-deletions": self._drive_topic_deletions,
                "estimate": self._keep_estimate,
            }
        self._loops.start(loops)

    def join(self) -> None:
        """Wait until each has finished its work."""
        self._loops.join()

    def _note_failure(self, failure: str) -> None:
        self._runtime.last_error = failure

    # --- upkeep ----------------------------------------------------------------------------------------------------

    def _upkeep(self) -> None:
        runtime = self._runtime
        while not runtime.stop.is_set():
            runtime.control = runtime.service_control.read()
            runtime.registry.keep()
            runtime.running_topic_deletions = len(runtime.deleter.running())
            self._clock.wait_seconds(_UPKEEP_SECONDS, runtime.stop)

    def _watch_shadows(self) -> None:
        self._runtime.shadow_watch.run(self._runtime.stop)

    def _keep_estimate(self) -> None:
        self._runtime.backlog.keep_fresh(self._runtime.stop)

    # --- second phase ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        runtime = self._runtime
        mismatch = runtime.ports.brokers_metadata.mismatch()
        if mismatch is not None:
            raise ConflictError(f"nothing is deleted: {mismatch}")
        runtime.ports.topics.ensure()
        for warning in runtime.ports.topics.warnings():
            log.warning("a setting of the cluster hinders ledger deletion", warning=warning)
        processor = runtime.processor()
        pending = runtime.ports.topics.pending()
        runtime.control = runtime.service_control.read()
        runtime.last_error = None
        runtime.ready.set()
        log.info("consuming pending deletions", sidecar=runtime.instance.name)
        try:
            self._consume(processor, pending)
        finally:
            runtime.ready.clear()
            pending.close()

    def _consume(self, processor: PendingDeletionProcessor, pending: PendingDeletions) -> None:
        look_seconds = self._runtime.configuration.watchdog_late_ms / 1000
        next_look = self._clock.monotonic_seconds() + look_seconds
        while not self._runtime.stop.is_set():
            if self._is_paused():
                self._clock.wait_seconds(_PAUSED_LOOK_SECONDS, self._runtime.stop)
                continue
            deliveries = pending.receive()
            if self._is_paused():
                # The pause came while this sidecar was waiting for messages; they come again later.
                pending.postpone(deliveries)
                continue
            if deliveries:
                self._process(processor, pending, deliveries)
            if self._clock.monotonic_seconds() >= next_look:
                self._process_overdue(processor, pending)
                next_look = self._clock.monotonic_seconds() + look_seconds

    def _is_paused(self) -> bool:
        return self._runtime.control.paused

    def _process(
        self, processor: PendingDeletionProcessor, pending: PendingDeletions, deliveries: Sequence[Delivery]
    ) -> None:
        started = self._clock.monotonic_seconds()
        limit = self._runtime.ports.limit
        with nullcontext() if limit is None else limit.batch():
            report = processor.process(pending, deliveries)
        self._runtime.metrics.batch_seconds(self._clock.monotonic_seconds() - started)
        if report.mean_length_bytes is not None:
            self._runtime.learn_length(report.mean_length_bytes)
        log.info("batch processed", received=report.received, deleted=report.deleted, postponed=report.postponed)

    def _process_overdue(self, processor: PendingDeletionProcessor, pending: PendingDeletions) -> None:
        """The watchdog: retries that the delayed tracker should have delivered long ago go on without it."""
        configuration = self._runtime.configuration
        overdue = pending.overdue(configuration.watchdog_late_ms, configuration.batch_size)
        if overdue:
            log.warning("retries are overdue, the broker's delayed delivery stalls", overdue=len(overdue))
            self._process(processor, pending, overdue)

    # --- topic deletions -------------------------------------------------------------------------------------------

    def _drive_topic_deletions(self) -> None:
        runtime = self._runtime
        while not runtime.stop.is_set():
            may_work = runtime.ready.is_set() and not runtime.control.paused
            held = runtime.deleter.take_due() if may_work else None
            if held is None:
                self._clock.wait_seconds(_DRIVER_LOOK_SECONDS, runtime.stop)
            else:
                self._go_on(held)

    def _go_on(self, held: HeldOperation) -> None:
        operation = held.operation
        log.info("going on with a topic deletion", topic=str(operation.topic), operation=operation.operation_id)
        try:
            held, state = self._runtime.deleter.attempt(held)
        except PermanentError as error:
            self._runtime.note_end(operation.status(OperationState.REFUSED, str(error)))
            return
        if state is OperationState.DONE:
            self._runtime.note_end(held.operation.status(OperationState.DONE))
        else:
            self._runtime.deleter.release(held.operation)
