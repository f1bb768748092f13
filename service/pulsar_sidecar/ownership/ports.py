"""Ports of several features to stored topics, and to brokers, that never load a topic."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.ownership.references import LedgerReference

EveryLedger = Callable[[], Iterator[tuple[LedgerId, bytes]]]
"""Reads the id and the bytes of every ledger's node; complete, or `TemporaryError`."""


class CursorPositions(Protocol):
    """Stored acknowledgements of cursors."""

    def acknowledged(
        self, cursors: Sequence[bytes], lengths: Mapping[LedgerId, int]
    ) -> Sequence[PositionRanges | Unreadable]:
        """Return what a recovering broker would restore of each, in order: from its node or its ledger's last entry.

        Acknowledgements since a loaded topic's broker last wrote are not included. A cursor whose ledger is gone is
        unreadable: it may have just moved to another ledger. Raises nothing.

        Args:
            cursors: the data of cursors' nodes, all of one topic.
            lengths: the entries of each of the topic's ledgers, for ranges over several of them.
        """


class LedgerLengths(Protocol):
    """Numbers of entries in a topic's ledgers, including the one that is written to."""

    def measured(self, ledgers: Mapping[LedgerId, LedgerReference]) -> Mapping[LedgerId, LedgerReference] | Unreadable:
        """Return the list with the last ledger's entries and bytes as the bookies have them. Raises nothing."""

    def lengths(self, ledgers: Mapping[LedgerId, LedgerReference]) -> Mapping[LedgerId, int] | Unreadable:
        """Return the entries of each, in order; for the last one, those that bookies report as stored. Raises nothing.

        Args:
            ledgers: a managed ledger's list.
        """
        measured = self.measured(ledgers)
        if isinstance(measured, Unreadable):
            return measured
        return {ledger_id: reference.entries for ledger_id, reference in measured.items()}


class LoadedTopics(Protocol):
    """Brokers that have topics loaded right now."""

    def loaded_by(self, topic: TopicName) -> str | None:
        """Return the id of the broker that has loaded the topic (a partition, or a topic without); None if none has.

        Loads nothing. A broker that is still loading the topic is not seen. Raises `TemporaryError` unless every
        live broker responded.
        """
