"""Entries of buckets' ledgers, from many ledgers at a time."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.delayed_delivery.index.ports import EntryPayload
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.lookups import Absent, Unreadable

_THREADS: Final = 4
"""As many as connections are kept to a bookie: an entry of a thousand ledgers is a thousand waits."""


class BookieBucketEntries:
    """The index's `BucketEntries`; safe for use by several threads."""

    def __init__(self, entries: BookieEntries) -> None:
        self._entries = entries
        self._threads = ThreadPoolExecutor(_THREADS, "bucket-entries")

    def read(
        self, ledgers: Mapping[LedgerId, LedgerMetadata], positions: Collection[Position]
    ) -> Mapping[Position, EntryPayload]:
        wanted: dict[LedgerId, list[EntryId]] = defaultdict(list)
        for ledger_id, entry_id in positions:
            wanted[ledger_id].append(entry_id)
        answers: dict[Position, EntryPayload] = {}
        for found in self._threads.map(lambda one: self._of(one, ledgers[one], wanted[one]), wanted):
            answers |= found
        return answers

    def close(self) -> None:
        """Let the threads go; idempotent."""
        self._threads.shutdown(cancel_futures=True)

    def _of(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, wanted: Sequence[EntryId]
    ) -> dict[Position, EntryPayload]:
        answers: dict[Position, EntryPayload] = {Position(ledger_id, entry_id): Absent() for entry_id in wanted}
        try:
            read = self._entries.read_many(ledger_id, metadata, wanted, bytes)
        except SidecarError as error:
            return dict.fromkeys(answers, Unreadable(str(error)))
        answers.update({Position(ledger_id, entry_id): payload for entry_id, payload in read.found.items()})
        answers.update((Position(ledger_id, id_), Unreadable(reason)) for id_, reason in read.unreadable.items())
        return answers
