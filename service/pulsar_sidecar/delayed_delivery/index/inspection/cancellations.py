"""What a restart would forget of cancellations, if brokers ran the tracker of PIP-423, from a topic's real messages.

Each cancellation comes right after its message, as early as can be: one that comes later is in no bucket before the
next is sealed. The sidecar's own cancellations acknowledge, so a restart forgets none of them.
"""

from collections.abc import Collection
from dataclasses import dataclass

from pulsar_sidecar.delayed_delivery.index.settings import TrackerSettings
from pulsar_sidecar.delayed_delivery.index.snapshot import DelayedIndexes
from pulsar_sidecar.delayed_delivery.index.tracker.memory_storage import MemoryOperationSnapshots
from pulsar_sidecar.delayed_delivery.index.tracker.operations import CancellableTracker
from pulsar_sidecar.model.ids import Position


@dataclass(frozen=True, slots=True)
class SimulatedCancellations:
    """What became of cancellations.

    Attributes:
        outlived: a bucket holds them, so their messages are not delivered after a restart either.
        forgotten: their messages are delivered after a restart.
        unknown: of no delayed message that waits.
    """

    outlived: tuple[Position, ...]
    forgotten: tuple[Position, ...]
    unknown: tuple[Position, ...]


def cancellations_after_restart(
    indexes: DelayedIndexes, cancelled: Collection[Position], settings: TrackerSettings, now_ms: int
) -> SimulatedCancellations:
    """Cancel messages as they come, restart, add all again as a dispatcher does, and deliver everything.

    Args:
        indexes: not due at ``now_ms``, in order of their entries.
        cancelled: messages to cancel.
        settings: the tracker's.
        now_ms: when everything but the deliveries happens.
    """
    rows = {position: row for row, position in enumerate(indexes.positions()) if position in cancelled}
    snapshots, times = MemoryOperationSnapshots(), [now_ms]
    tracker = CancellableTracker(settings, snapshots, lambda: times[-1])
    begun = 0
    for position, row in rows.items():
        tracker.add_messages(indexes[begun : row + 1])
        tracker.cancel_message(*position, int(indexes.deliver_at_ms[row]))
        begun = row + 1
    tracker.add_messages(indexes[begun:])
    tracker.close()
    restarted = CancellableTracker(settings, snapshots, lambda: times[-1])
    restarted.recover()
    restarted.add_messages(indexes)
    times.append(int(indexes.deliver_at_ms.max(initial=now_ms)))
    delivered = set(restarted.pop_scheduled(len(indexes)).positions())
    return SimulatedCancellations(
        outlived=tuple(position for position in rows if position not in delivered),
        forgotten=tuple(position for position in rows if position in delivered),
        unknown=tuple(sorted(set(cancelled) - rows.keys())),
    )
