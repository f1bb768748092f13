"""A message to reschedule, and two sidecars."""

from pulsar_sidecar.backlog.ports import EntryFacts
from pulsar_sidecar.features.delayed_messages.cancel.requests import CancelOptions, Target
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus, Cause, RescheduleResult
from pulsar_sidecar.model.ids import Position

from tests.fakes.delayed_messages import TOPIC, FakeCluster, FakeSidecar, FakeSubscription, at

DUE_MS = 120_000
NEW_MS = 60_000


class Rescheduling:
    """A topic with a few messages, and two sidecars."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.subscription: FakeSubscription = self.cluster.subscribe()
        self.cluster.publish(2, DUE_MS)
        self.begin_ms = self.cluster.clock.now_ms()
        self.sidecar, self.other = FakeSidecar(self.cluster), FakeSidecar(self.cluster)

    def expedite(self, entry: int = 0) -> RescheduleResult:
        return self._reschedule(entry, None, None)

    def reschedule(self, entry: int = 0, sidecar: FakeSidecar | None = None, in_ms: int = NEW_MS) -> RescheduleResult:
        return self._reschedule(entry, self.begin_ms + in_ms, sidecar)

    def _reschedule(self, entry: int, deliver_at_ms: int | None, sidecar: FakeSidecar | None) -> RescheduleResult:
        target = Target(at(entry), self.begin_ms + DUE_MS)
        return (sidecar or self.sidecar).feature.reschedule(TOPIC, target, deliver_at_ms, CancelOptions())

    def live(self, milliseconds: int = DUE_MS + 20_000, step_ms: int = 1_000) -> None:
        for _ in range(0, milliseconds, step_ms):
            self.sidecar.live(step_ms, step_ms)
            self.other.round()

    @property
    def copies(self) -> list[Position]:
        return sorted(
            position
            for position, facts in self.cluster.entries.items()
            if isinstance(facts, EntryFacts) and "pulsar-sidecar-replaces" in facts.properties
        )


def only(done: RescheduleResult) -> tuple[CancellationStatus, Cause | None]:
    (verdict,) = done.outcome.verdicts
    return verdict.proof, verdict.cause
