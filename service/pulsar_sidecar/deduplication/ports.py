"""What deduplication's inspection needs from outside.

Every method raises `TemporaryError` when the other side could not be asked; what was asked and cannot be known is an
`Unreadable`.
"""

from collections.abc import Sequence
from typing import Protocol

from pulsar_sidecar.deduplication.snapshots import Snapshot
from pulsar_sidecar.model.lookups import Unreadable


class StoredSnapshots(Protocol):
    """Snapshots that brokers wrote with deduplication cursors."""

    def snapshots(self, cursors: Sequence[bytes]) -> Sequence[Snapshot | Unreadable]:
        """What a broker that recovers now would begin with, for each in order. Raises nothing.

        Args:
            cursors: the data of deduplication cursors' nodes.
        """
        ...
