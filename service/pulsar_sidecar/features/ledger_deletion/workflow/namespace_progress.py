"""Progress of one pass over a namespace, which the deletion's node shows to followers."""

import threading
from dataclasses import dataclass, field

from msgspec.structs import replace

from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_operation import (
    HeldNamespaceDeletion,
    NamespaceDeletion,
    write_deletion,
)
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.metadata import MetadataStore

_KEPT_EVERY_SECONDS = 1.0


@dataclass(slots=True)
class Progress:
    """Counts of one pass, stored in the deletion's node about once a second; thread-safe."""

    held: HeldNamespaceDeletion
    store: MetadataStore
    clock: Clock
    steps: Steps
    reason: str | None = None
    failed_in_a_row: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _kept_at: float = 0.0

    def found(self, topics_left: int) -> None:
        deletion = self.held.deletion
        self._keep(replace(deletion, topics_found=deletion.topics_deleted + topics_left))

    def keep(self) -> None:
        """Store the counts; raises `OperationEndedError` if the deletion has ended."""
        with self._lock:
            self._keep(self.held.deletion)

    def deleted(self, recorded_ledgers: int) -> None:
        """Count a deleted topic."""
        with self._lock:
            self.failed_in_a_row = 0
            deletion = self.held.deletion
            counted = replace(
                deletion,
                topics_found=max(deletion.topics_found, deletion.topics_deleted + 1),
                topics_deleted=deletion.topics_deleted + 1,
                recorded_ledgers=deletion.recorded_ledgers + recorded_ledgers,
            )
            self.held = HeldNamespaceDeletion(counted, self.held.version)
            if self.clock.monotonic_seconds() - self._kept_at >= _KEPT_EVERY_SECONDS:
                self._keep(counted)

    def not_deleted(self, reason: str | None) -> None:
        """Count a topic that is not deleted yet."""
        with self._lock:
            self.failed_in_a_row += 1
            self.reason = reason or self.reason

    def _keep(self, deletion: NamespaceDeletion) -> None:
        self._kept_at = self.clock.monotonic_seconds()
        now = replace(deletion, updated_ms=self.store.now_ms())
        with self.steps.taking(Step.NAMESPACE_PROGRESS_KEPT):
            self.held = write_deletion(self.store, now, self.held.version)
