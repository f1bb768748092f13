"""What several rooms ask about topics as they are stored, and about brokers, without loading a topic."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from pulsar_sidecar.ledger_ownership.references import LedgerReference
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges

EveryLedger = Callable[[], Iterator[tuple[LedgerId, bytes]]]
"""Reads each ledger's node, whatever is looked for: its id and its bytes; complete, or `TemporaryError`."""


class CursorPositions(Protocol):
    """What is stored of cursors' acknowledgements."""

    def acknowledged(
        self, cursors: Sequence[bytes], lengths: Mapping[LedgerId, int]
    ) -> Sequence[PositionRanges | Unreadable]:
        """What a broker that recovers now would hold of each, in order: from its node or its ledger's last entry.

        What a loaded topic has acknowledged since its broker last wrote is not in it. A cursor whose ledger is gone is
        unreadable: it may have moved to another one just now. Raises nothing.

        Args:
            cursors: the data of cursors' nodes, all of one topic.
            lengths: the entries of each of the topic's ledgers, for ranges over several of them.
        """


class LedgerLengths(Protocol):
    """How many entries a topic's ledgers have, the one that is written to included."""

    def measured(self, ledgers: Mapping[LedgerId, LedgerReference]) -> Mapping[LedgerId, LedgerReference] | Unreadable:
        """The list with the entries and bytes of the last ledger as bookies have them. Raises nothing."""

    def lengths(self, ledgers: Mapping[LedgerId, LedgerReference]) -> Mapping[LedgerId, int] | Unreadable:
        """The entries of each, in order; of the last one those that bookies report as stored. Raises nothing.

        Args:
            ledgers: a managed ledger's list.
        """


class LoadedTopics(Protocol):
    """Which broker has a topic loaded right now."""

    def loaded_by(self, topic: TopicName) -> str | None:
        """The id of the broker that has loaded the topic (a partition, or a topic without), None when none has.

        Loads nothing. A broker that is still loading the topic is not seen. Raises `TemporaryError` unless every live
        broker was asked.
        """
