"""How far one pass over a namespace is, as its deletion's node shows it to those who follow it."""

import threading
from dataclasses import dataclass, field

from msgspec.structs import replace

from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.ledger_deletion.topic_deletion.namespace_operation import (
    HeldNamespaceDeletion,
    NamespaceDeletion,
    write_deletion,
)
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.metadata import MetadataStore

_KEPT_EVERY_SECONDS = 1.0


@dataclass(slots=True)
class Progress:
    """The counts of one pass, kept in the deletion's node about once a second; for any number of threads."""

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
        """Store the counts; `OperationEndedError` if the deletion has ended."""
        with self._lock:
            self._keep(self.held.deletion)

    def deleted(self, recorded_ledgers: int) -> None:
        """One topic is gone."""
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

    def left(self, reason: str | None) -> None:
        """One topic is not deleted yet."""
        with self._lock:
            self.failed_in_a_row += 1
            self.reason = reason or self.reason

    def _keep(self, deletion: NamespaceDeletion) -> None:
        self._kept_at = self.clock.monotonic_seconds()
        now = replace(deletion, updated_ms=self.store.now_ms())
        with self.steps.taking(Step.NAMESPACE_PROGRESS_KEPT):
            self.held = write_deletion(self.store, now, self.held.version)
