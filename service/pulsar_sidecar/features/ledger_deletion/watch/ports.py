"""Ports for watching the metadata store, beside `model.metadata.MetadataStore`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pulsar_sidecar.model.clocks import StopSignal
from pulsar_sidecar.model.errors import PermanentError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId

LedgerIds = npt.NDArray[np.int64]


class ChangesLostError(TemporaryError):
    """Raised when the connection broke or an expected event did not arrive: arm again, and read everything."""


class UnwatchableError(PermanentError):
    """Raised when the server has no persistent recursive watches (ZooKeeper before 3.6)."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes since the last call, each node once.

    Attributes:
        nodes: nodes below ``/managed-ledgers`` and ``/schemas`` that were created, written or removed, in order of
            their first event.
        ledgers: ledgers whose node was created (True) or removed (False), by the last event.
    """

    nodes: Sequence[str] = ()
    ledgers: Mapping[LedgerId, bool] = field(default_factory=dict)


class StoreChanges(Protocol):
    """Persistent recursive watches on ledgers, managed ledgers and schemas, over a connection of their own.

    An event names a node and never its data. Invariant: between `arm` and the first `ChangesLostError`, `take` names
    every node that changed, after it changed.
    """

    def arm(self) -> None:
        """Begin to collect changes, and drop earlier ones.

        Raises:
            UnwatchableError: the server has no such watches.
            TemporaryError: the server could not be reached.
        """

    def take(self, wait_seconds: float) -> Changes:
        """Return the changes since the last call; waits at most so long for the first event.

        Raises:
            ChangesLostError: the connection broke since `arm`.
        """

    def echo_seconds(self) -> float:
        """Write the sidecar's own node and return the delay of its event, which proves that events arrive.

        Raises:
            ChangesLostError: the event did not arrive.
        """

    def close(self) -> None:
        """Close the connection; idempotent."""


class TopicChanges(Protocol):
    """Persistent recursive watches on topics' own nodes, over a connection of their own.

    These are the nodes of managed ledgers, not those of their cursors, and of partitioned topics
    (`ownership.paths.is_topic_node`). An event names a node and never its data. Invariant: between `arm` and the
    first `ChangesLostError`, `catch_up` names every node that changed.
    """

    def arm(self) -> None:
        """Begin to collect changes, and drop earlier ones; raises as `StoreChanges.arm` does."""

    def catch_up(self) -> Sequence[str]:
        """Return each node that changed between the last call and this one, once; reads the server, writes nothing.

        Raises:
            ChangesLostError: the connection broke since `arm`.
            TemporaryError: the server did not respond; the next call returns these changes too.
        """

    def close(self) -> None:
        """Close the connection; idempotent."""


@dataclass(frozen=True, slots=True)
class WalkedNode:
    """Node below ``/managed-ledgers`` or ``/schemas``; ``unreadable`` is why it may not be read."""

    path: str
    data: bytes
    unreadable: str | None = None


class WholeStore(Protocol):
    """Walk of the whole metadata store at a bounded rate; an incomplete iteration raises `TemporaryError`."""

    def ledger_ids(self) -> Iterator[LedgerIds]:
        """Yield every ledger that has a node, in pieces."""

    def nodes(self) -> Iterator[Sequence[WalkedNode]]:
        """Yield every node below ``/managed-ledgers`` and ``/schemas``, in pieces."""

    def possible_shadows(self, hurry: StopSignal) -> Iterator[tuple[int, Sequence[tuple[str, bytes]]]]:
        """Yield, of all topics' own nodes, those that may be a shadow's, path and data, in small pieces.

        Each piece comes with the number of nodes that were read for it. Some are no topic's
        (`ownership.paths.is_topic_node`). The rate has no bound while ``hurry`` is set. A piece may be older than
        changes that were received before it.

        Raises:
            TemporaryError: also where a node may not be read.
        """
