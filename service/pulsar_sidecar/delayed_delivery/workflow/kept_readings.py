"""What previews read, kept for their confirmations."""

import threading
from typing import Final

from pulsar_sidecar.delayed_delivery.selecting import Preview, Reading, Selection
from pulsar_sidecar.model.names import TopicName

_MOST_ROWS: Final = 2_000_000
"""Of all previews together, 66 MB; the oldest ones go first, and are then read again when they are confirmed."""
_MOST_PREVIEWS: Final = 32


class KeptReadings:
    """The readings of the last previews, each given out once; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[TopicName, str], tuple[Selection, Reading]] = {}

    def keep(self, topic: TopicName, shown: Preview, reading: Reading) -> None:
        """Until the preview is confirmed, or others take its place."""
        with self._lock:
            self._kept.pop((topic, shown.hash), None)
            self._kept[topic, shown.hash] = shown.selection, reading
            while len(self._kept) > _MOST_PREVIEWS or self._rows() > _MOST_ROWS:
                del self._kept[next(iter(self._kept))]

    def take(self, topic: TopicName, selection: Selection, confirmed_hash: str) -> Reading:
        """What was read for exactly this selection; empty where nothing is kept."""
        with self._lock:
            kept = self._kept.pop((topic, confirmed_hash), None)
        return kept[1] if kept is not None and kept[0] == selection else {}

    def _rows(self) -> int:
        return sum(len(part.rows) for _, reading in self._kept.values() for part in reading.values())
