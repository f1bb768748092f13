"""What previews read, kept for their confirmations."""

import threading
from contextlib import suppress
from typing import Final

from cachetools import LRUCache

from pulsar_sidecar.delayed_delivery.selecting import Preview, Reading, Selection
from pulsar_sidecar.model.names import TopicName

_MOST_ROWS: Final = 2_000_000
"""Of all previews together, 66 MB; the oldest ones go first, and are then read again when they are confirmed."""
_MOST_PREVIEWS: Final = 32

_Preview = tuple[Selection, Reading]


class PreviewCache:
    """The readings of the last previews, each given out once; any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._previews: LRUCache[tuple[TopicName, str], _Preview] = LRUCache(_MOST_ROWS, getsizeof=_weight)

    def keep(self, topic: TopicName, shown: Preview, reading: Reading) -> None:
        """Until the preview is confirmed, or others take its place."""
        with self._lock, suppress(ValueError):  # one that is larger than the cache is not kept
            self._previews[topic, shown.hash] = shown.selection, reading

    def take(self, topic: TopicName, selection: Selection, confirmed_hash: str) -> Reading:
        """What was read for exactly this selection; empty where nothing is kept."""
        with self._lock:
            kept = self._previews.pop((topic, confirmed_hash), None)
        return kept[1] if kept is not None and kept[0] == selection else {}


def _weight(preview: _Preview) -> int:
    return max(sum(len(part.rows) for part in preview[1].values()), _MOST_ROWS // _MOST_PREVIEWS)
