"""`DelayedDelivery` in memory, for tests of its doors: it cancels whatever it is asked to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pulsar_sidecar.delayed_delivery.backlog import Preview, Selected, Selection, preview
from pulsar_sidecar.delayed_delivery.cancel.requests import (
    Cancellation,
    CancellationStatus,
    CancelOptions,
    Outcome,
    Reissued,
    Target,
    Verdict,
)
from pulsar_sidecar.delayed_delivery.workflow.service import CancelStatus
from pulsar_sidecar.model.errors import ConflictError, SidecarError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName


@dataclass(slots=True)
class FakeDelayedDelivery:
    """``verdicts`` are what every target gets; ``fails`` is raised instead; ``asked`` is what came."""

    verdicts: tuple[Verdict, ...] = (Verdict("s", CancellationStatus.ACKED),)
    warnings: tuple[str, ...] = ("a warning",)
    fails: SidecarError | None = None
    asked: list[tuple[TopicName, Target, CancelOptions]] = field(default_factory=list)
    new_due_times: list[int | None] = field(default_factory=list)

    def cancel(self, topic: TopicName, targets: Sequence[Target], options: CancelOptions) -> list[Outcome]:
        if self.fails is not None:
            raise self.fails
        self.asked += [(topic, target, options) for target in targets]
        return [Outcome(topic, target, self.verdicts, self.warnings) for target in targets]

    def cancellations(self, topic: TopicName, position: Position) -> list[Cancellation]:
        if self.fails is not None:
            raise self.fails
        return [Cancellation(topic, "s", position, 1_800_000_000_000, 1_700_000_000_000, CancellationStatus.PERSISTED)]

    def preview(self, topic: TopicName, selection: Selection) -> Preview:
        selection.check()
        return preview(selection, self._found(topic), 0)

    def cancel_selected(
        self, topic: TopicName, selection: Selection, confirmed_hash: str, options: CancelOptions
    ) -> Iterator[Outcome]:
        selection.check()
        if confirmed_hash == "stale":
            raise ConflictError("the selection finds other messages now")
        targets = [Target(one.position, one.deliver_at_ms) for one in self._found(topic)]
        return iter(self.cancel(topic, targets, options))

    def reissue(self, topic: TopicName, target: Target, deliver_at_ms: int | None, options: CancelOptions) -> Reissued:
        self.new_due_times.append(deliver_at_ms)
        (outcome,) = self.cancel(topic, [target], options)
        return Reissued("7:9:-1", deliver_at_ms, outcome)

    def cancelling_status(self) -> CancelStatus:
        return CancelStatus(True, True, 3, True, None)

    def _found(self, topic: TopicName) -> list[Selected]:
        return [Selected(topic, Position(LedgerId(7), EntryId(n)), 1_800_000_000_000 + n, "k") for n in range(3)]
