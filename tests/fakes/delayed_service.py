"""`DelayedDelivery` in memory, for tests of the server and the CLI, which cancels every target."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from pulsar_sidecar.backlog.ports import EntryAnswer, EntryFacts
from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation, CancelOptions, Target
from pulsar_sidecar.features.delayed_messages.results import (
    CancellationStatus,
    CancelStatus,
    DelayedMessage,
    KnownCancellation,
    MessageOutcome,
    Preview,
    RescheduleResult,
    Verdict,
    message_outcome,
)
from pulsar_sidecar.features.delayed_messages.selecting import (
    PartitionReading,
    SelectedBatch,
    Selection,
    batches_of,
    preview,
)
from pulsar_sidecar.model.errors import ConflictError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName


@dataclass(slots=True)
class FakeDelayedDelivery:
    """Fake service; each target gets ``verdicts`` unless ``fails`` is raised; ``asked`` has the requests."""

    verdicts: tuple[Verdict, ...] = (Verdict("s", CancellationStatus.ACKED),)
    warnings: tuple[str, ...] = ("a warning",)
    fails: SidecarError | None = None
    unreadable: int = 0
    """Number of entries that a preview could not read."""
    published_later: int = 0
    fails_at: int | None = None
    """First entry of the batch of a selection that fails."""
    holds_at: int | None = None
    """First entry of the batch that waits until it is ``released``."""
    released: threading.Event = field(default_factory=threading.Event)
    batch_seconds: float = 0.0
    batches_running: int = 0
    most_batches_running: int = 0
    asked: list[tuple[TopicName, Target, CancelOptions]] = field(default_factory=list)
    new_due_times: list[int | None] = field(default_factory=list)
    status: CancelStatus = field(default_factory=lambda: CancelStatus(True, True, 3, True, None, None))

    def cancel(self, topic: TopicName, targets: Sequence[Target], options: CancelOptions) -> list[MessageOutcome]:
        if self.fails is not None:
            raise self.fails
        self.asked += [(topic, target, options) for target in targets]
        return [message_outcome(topic, target.position, self.verdicts, self.warnings) for target in targets]

    def cancellations(self, topic: TopicName, position: Position) -> list[KnownCancellation]:
        if self.fails is not None:
            raise self.fails
        found = Cancellation(topic, "s", position, 1_800_000_000_000, 1_700_000_000_000, CancellationStatus.PERSISTED)
        return [found.known()]

    def message(self, topic: TopicName, position: Position) -> DelayedMessage:
        return DelayedMessage(str(topic), *position, 1_800_000_000_000, "k", "p", 41, 1_700_000_000_000)

    def preview(self, topic: TopicName, selection: Selection) -> Preview:
        selection.check()
        reading = self._read(topic)
        reading.unreadable, reading.published_later = self.unreadable, self.published_later
        return preview(selection, {topic: reading.rows}, {topic: reading})

    def confirm_selected(self, topic: TopicName, selection: Selection, confirmed_hash: str) -> list[SelectedBatch]:
        selection.check()
        if confirmed_hash == "stale":
            raise ConflictError("the selection finds other messages now")
        return list(batches_of(selection, {topic: self._read(topic).rows}, 2))

    def cancel_batch(self, batch: SelectedBatch, options: CancelOptions) -> list[MessageOutcome]:
        if self.fails_at == batch.targets()[0].position.entry_id:
            raise TemporaryError("the brokers are gone")
        if self.holds_at == batch.targets()[0].position.entry_id:
            assert self.released.wait(10), "nobody came for what was done before"
        self.batches_running += 1
        self.most_batches_running = max(self.most_batches_running, self.batches_running)
        threading.Event().wait(self.batch_seconds)
        self.batches_running -= 1
        return self.cancel(batch.topic, batch.targets(), options)

    def reschedule(
        self, topic: TopicName, target: Target, deliver_at_ms: int | None, options: CancelOptions
    ) -> RescheduleResult:
        self.new_due_times.append(deliver_at_ms)
        (outcome,) = self.cancel(topic, [target], options)
        return RescheduleResult("7:9:-1", deliver_at_ms, outcome)

    def cancelling_status(self) -> CancelStatus:
        return self.status

    def _read(self, topic: TopicName) -> PartitionReading:
        reading = PartitionReading(topic)
        answers: dict[Position, EntryAnswer] = {
            Position(LedgerId(7), EntryId(n)): EntryFacts(1_800_000_000_000 + n, 1_700_000_000_000, key="k")
            for n in range(3)
        }
        reading.learn(Selection(key="k"), answers)
        return reading
