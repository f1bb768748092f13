"""What those who watch the metadata store need from it beside `model.metadata.MetadataStore`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pulsar_sidecar.model.errors import PermanentError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId

LedgerIds = npt.NDArray[np.int64]


class ChangesLostError(TemporaryError):
    """The connection broke, or an event that had to come did not: arm again, and read everything."""


class UnwatchableError(PermanentError):
    """The server has no persistent recursive watches (ZooKeeper before 3.6)."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What was heard since the last time, each node once.

    Attributes:
        nodes: nodes below ``/managed-ledgers`` and ``/schemas`` that were made, written or removed, in order of their
            first event.
        ledgers: ledgers whose node was made (True) or removed (False), by the last event.
    """

    nodes: Sequence[str] = ()
    ledgers: Mapping[LedgerId, bool] = field(default_factory=dict)


class StoreChanges(Protocol):
    """Persistent recursive watches on ledgers, managed ledgers and schemas, over one connection of their own.

    An event names a node and never its data. Invariant: between `arm` and the first `ChangesLostError`, `take` names
    every node that changed, after it changed.
    """

    def arm(self) -> None:
        """Begin to hear of changes, and forget those heard before.

        Raises:
            UnwatchableError: the server has no such watches.
            TemporaryError: it could not be asked.
        """

    def take(self, wait_seconds: float) -> Changes:
        """What was heard since the last call; waits at most so long for the first event.

        Raises:
            ChangesLostError: the connection broke since `arm`.
        """

    def echo_seconds(self) -> float:
        """Write a node of our own and wait for its event: proves that events come, and how late they are.

        Raises:
            ChangesLostError: the event did not come.
        """

    def close(self) -> None:
        """Let go of the connection; idempotent."""


class TopicChanges(Protocol):
    """Persistent recursive watches on topics' own nodes, over one connection of their own.

    These are the nodes of managed ledgers, not those of their cursors, and of partitioned topics
    (`ledger_ownership.paths.is_topic_node`). An event names a node and never its data. Invariant: between `arm` and the
    first `ChangesLostError`, `catch_up` names every node that changed.
    """

    def arm(self) -> None:
        """Begin to hear of changes, and forget those heard before; raises what `StoreChanges.arm` does."""

    def catch_up(self) -> Sequence[str]:
        """Every node that changed between the last call and this one, once; it asks the server and writes nothing.

        Raises:
            ChangesLostError: the connection broke since `arm`.
            TemporaryError: the server did not answer; the next call names what this one would have named.
        """

    def close(self) -> None:
        """Let go of the connection; idempotent."""


@dataclass(frozen=True, slots=True)
class WalkedNode:
    """A node below ``/managed-ledgers`` or ``/schemas``; ``unreadable`` is why it may not be read."""

    path: str
    data: bytes
    unreadable: str | None = None


class WholeStore(Protocol):
    """The metadata store read whole, at a bounded rate. Complete, or the iteration raises `TemporaryError`."""

    def ledger_ids(self) -> Iterator[LedgerIds]:
        """Every ledger that has a node, in pieces."""

    def nodes(self) -> Iterator[Sequence[WalkedNode]]:
        """Every node below ``/managed-ledgers`` and ``/schemas``, in pieces."""
