"""Space that bookies have reclaimed from deleted ledgers.

A bookie gives space back in two steps. A collection removes ledgers without metadata from its index, and deletes the
entry-log files in which no ledger is left; compaction rewrites the others. The first step is proven once the
bookie has no entry of a ledger left; of the second it reports the bytes by which its files shrank, for all ledgers.
Invariant: a bookie that does not respond has collected nothing as far as is known.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import structlog

from pulsar_sidecar.features.ledger_deletion.outcomes import SETTLED, Decision, notes
from pulsar_sidecar.features.ledger_deletion.ports import BookieCollections, Collected, DeletionTopics
from pulsar_sidecar.features.ledger_deletion.results import BookieReclaim, Reclaim
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import OutcomeReason
from pulsar_sidecar.model.clocks import Clock, StopSignal
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import BookieId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerType
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.ownership.paths import ledger_path

_HOUR_MS: Final = 3_600_000
_ASKED: Final = 100
"""Number of the last deleted ledgers that each bookie is queried for."""
COUNTED: Final = 100_000
"""Number of the last deleted ledgers that are counted, which bounds the memory."""
_STATUS_HOURS: Final = 24.0
_STATUS_PERIOD_SECONDS: Final = 900.0
"""Bookies collect no more often by default (``gcWaitTime``), and a reading of 100,000 ledgers takes seconds."""
_LONGEST_SHARE: Final = 20
"""The status's readings take at most this part of the time, however much the outcome topic holds."""

log = structlog.get_logger("ledger-deletion")


@dataclass(frozen=True, slots=True)
class DeletedLedger:
    """Recorded ledger that the sidecar, or a broker before it, deleted from BookKeeper.

    Attributes:
        ended_ms: time at which a sidecar deleted it, or found it deleted.
        length_bytes: size of one copy; None if the record did not have it.
    """

    ledger_id: LedgerId
    ended_ms: int
    length_bytes: int | None


class Reclaiming:
    """Reader of deletions from the outcome topic, and of collections from bookies.

    Attributes:
        last: last reading of `run`; None before the first.
    """

    def __init__(
        self, topics: DeletionTopics, store: MetadataStore, bookies: BookieCollections, clock: Clock, root: str
    ) -> None:
        self._topics, self._store, self._bookies, self._clock, self._root = topics, store, bookies, clock, root
        self.last: Reclaim | None = None

    def run(self, stop: StopSignal) -> None:
        """Refresh the readings for the status until stopped, so that no caller waits for bookies."""
        while not stop.is_set():
            began = self._clock.monotonic_seconds()
            try:
                self.last = self.reclaimed(_STATUS_HOURS, stop)
            except SidecarError as error:
                log.warning("what bookies have reclaimed is unknown", error=str(error))
            took = self._clock.monotonic_seconds() - began
            self._clock.wait_seconds(max(_STATUS_PERIOD_SECONDS, took * _LONGEST_SHARE), stop)

    def reclaimed(self, hours: float, stop: StopSignal) -> Reclaim:
        """Return the space that bookies have reclaimed from recorded ledgers deleted in the last ``hours``.

        Raises:
            TemporaryError: the outcome topic or the metadata store could not be read.
        """
        as_of_ms = self._clock.now_ms()
        since_ms = as_of_ms - round(hours * _HOUR_MS)
        deleted = deleted_ledgers(takewhile(lambda _: not stop.is_set(), self._topics.outcomes_since(since_ms)))
        if len(deleted) == COUNTED:
            since_ms = max(since_ms, deleted[0].ended_ms)
        nodes = self._store.read_many([ledger_path(each.ledger_id, self._root) for each in deleted])
        deleted = [each for each, node in zip(deleted, nodes, strict=True) if node is None]
        asked = [each.ledger_id for each in deleted[-_ASKED:]]
        bookies = tuple(_of_bookie(*each) for each in self._bookies.collected(asked).items()) if asked else ()
        lengths = [each.length_bytes for each in deleted if each.length_bytes is not None]
        return Reclaim(
            since_ms=since_ms,
            ledgers=len(deleted),
            unmeasured_ledgers=len(deleted) - len(lengths),
            deleted_bytes=sum(lengths),
            last_deleted_ms=deleted[-1].ended_ms if deleted else None,
            asked_ledgers=len(asked),
            collected_bookies=sum(each.waiting_ledgers == 0 for each in bookies),
            bookies=bookies,
            as_of_ms=as_of_ms,
        )


def deleted_ledgers(outcomes: Iterable[bytes]) -> list[DeletedLedger]:
    """Return the last ledgers that these messages report as deleted from BookKeeper, by the time of that report."""
    found: OrderedDict[LedgerId, DeletedLedger] = OrderedDict()
    for note in (each for payload in outcomes for each in notes(payload, SETTLED)):
        entry = note.document
        by_whom = entry.get("decision"), entry.get("reason")
        is_gone = by_whom[0] == Decision.DELETED.value or by_whom[1] == OutcomeReason.ALREADY_GONE.value
        ledger_id, length = entry.get("ledgerId"), entry.get("lengthBytes")
        if is_gone and entry.get("ledgerType") == LedgerType.LEDGER.value and isinstance(ledger_id, int):
            size = length if isinstance(length, int) else None
            found.setdefault(LedgerId(ledger_id), DeletedLedger(LedgerId(ledger_id), note.at_ms, size))
            if len(found) > COUNTED:
                found.popitem(last=False)
    return sorted(found.values(), key=lambda each: each.ended_ms)


def _of_bookie(bookie: BookieId, found: Collected) -> BookieReclaim:
    waiting = None if isinstance(found.waiting, Unreadable) else found.waiting
    space = None if isinstance(found.space, Unreadable) else found.space
    return BookieReclaim(
        bookie=bookie,
        waiting_ledgers=None if waiting is None else len(waiting),
        waiting_bytes=None if waiting is None else sum(waiting.values()),
        reclaimed_bytes=None if space is None else space.size_bytes,
        reclaimed_since_ms=None if space is None else space.since_ms,
        problems=tuple(each.reason for each in (found.waiting, found.space) if isinstance(each, Unreadable)),
    )
