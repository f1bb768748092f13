"""Reads the ends of ledgers from bookies, of open ledgers too, without fencing and without recovery.

The invariant of `BookieEntries.read_tail`: an entry that was ever acknowledged to its writer and lies in the asked-for
tail is in the answer, or the call raises. An acknowledged entry is on ``ack_quorum_size`` members of its write set,
so it is seen as long as fewer than that many members of every write set fail to answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import LAST_STORED, BookieConnections
from pulsar_sidecar.adapters.bookkeeper.digests import StoredEntry, checked_entry
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerEntry, LedgerMetadata, LedgerSegment, LedgerState

_FIRST = EntryId(0)
_BEFORE_FIRST = EntryId(-1)


@dataclass(slots=True)
class _Answers:
    """What some members of an ensemble said: entries found, and who could not say anything (by index)."""

    found: list[StoredEntry] = field(default_factory=list)
    failures: dict[int, TemporaryError] = field(default_factory=dict)

    def reason(self) -> str:
        return "; ".join(str(error) for error in self.failures.values()) or "every bookie says it has no such entry"


class BookieEntries:
    """`LedgerEntries` over the bookies themselves."""

    def __init__(self, bookies: BookieConnections) -> None:
        self._bookies = bookies

    def read_tail(self, ledger_id: LedgerId, metadata: LedgerMetadata, count: int) -> tuple[LedgerEntry, ...]:
        """The ``count`` highest entries, ascending; see `LedgerEntries.read_tail`."""
        if metadata.state is LedgerState.CLOSED:
            first = EntryId(max(_FIRST, metadata.last_entry_id - count + 1))
            wanted = _ids(first, metadata.last_entry_id)
            return tuple(self._demand(ledger_id, metadata, entry_id).entry for entry_id in wanted)
        return tuple(self._unsealed_tail(ledger_id, metadata, count))

    def read(self, ledger_id: LedgerId, metadata: LedgerMetadata, entry_id: EntryId) -> LedgerEntry:
        """One entry that its writer is was told to be stored; TemporaryError when no bookie delivers it."""
        return self._demand(ledger_id, metadata, entry_id).entry

    def readable(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> bool:
        """Whether first and last entry are there; see `LedgerEntries.readable`.

        Of a ledger that was never closed only the present end can be asked for.

        Raises:
            TemporaryError: one was not found, but a bookie that should hold it did not answer.
        """
        if metadata.state is not LedgerState.CLOSED:
            return bool(self.read_tail(ledger_id, metadata, 1))
        ends = {_FIRST, metadata.last_entry_id} if metadata.last_entry_id >= _FIRST else set()
        return all(self._is_stored(ledger_id, metadata, entry_id) for entry_id in sorted(ends))

    def close(self) -> None:
        """Close the connections; idempotent."""
        self._bookies.close()

    def _unsealed_tail(self, ledger_id: LedgerId, metadata: LedgerMetadata, count: int) -> Iterator[LedgerEntry]:
        last_segment = metadata.segments[-1]
        last_stored = self._ask(ledger_id, metadata, last_segment, LAST_STORED, range(metadata.ensemble_size))
        if not _every_write_set_answered(metadata, last_stored.failures):
            raise TemporaryError(
                f"too few bookies answered to know the end of ledger {ledger_id}: {last_stored.reason()}; try again"
            )
        known = {stored.entry.entry_id: stored for stored in last_stored.found}
        # An ensemble is replaced only after everything before its first entry was acknowledged.
        confirmed = max([last_segment.first_entry_id - 1, *(stored.last_confirmed for stored in known.values())])
        highest = max([EntryId(confirmed), *known])
        for entry_id in _ids(EntryId(max(_FIRST, highest - count + 1)), highest):
            stored = known.get(entry_id) or self._find(ledger_id, metadata, entry_id, confirmed=entry_id <= confirmed)
            if stored is not None:
                yield stored.entry

    def _find(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, entry_id: EntryId, *, confirmed: bool
    ) -> StoredEntry | None:
        """The entry; None only if it was certainly never acknowledged."""
        answers = self._ask_write_set(ledger_id, metadata, entry_id)
        if answers.found:
            return answers.found[0]
        if confirmed or len(answers.failures) >= metadata.ack_quorum_size:
            raise _not_delivered(ledger_id, entry_id, answers)
        return None

    def _demand(self, ledger_id: LedgerId, metadata: LedgerMetadata, entry_id: EntryId) -> StoredEntry:
        answers = self._ask_write_set(ledger_id, metadata, entry_id)
        if not answers.found:
            raise _not_delivered(ledger_id, entry_id, answers)
        return answers.found[0]

    def _is_stored(self, ledger_id: LedgerId, metadata: LedgerMetadata, entry_id: EntryId) -> bool:
        answers = self._ask_write_set(ledger_id, metadata, entry_id)
        if not answers.found and answers.failures:
            raise _not_delivered(ledger_id, entry_id, answers)
        return bool(answers.found)

    def _ask_write_set(self, ledger_id: LedgerId, metadata: LedgerMetadata, entry_id: EntryId) -> _Answers:
        """Ask one member after the other until one delivers."""
        segment = _segment_of(metadata, entry_id)
        write_set = [(entry_id + i) % metadata.ensemble_size for i in range(metadata.write_quorum_size)]
        answers = _Answers()
        for index in write_set:
            one = self._ask(ledger_id, metadata, segment, entry_id, [index])
            answers.failures.update(one.failures)
            if one.found:
                return _Answers(one.found, answers.failures)
        return answers

    def _ask(
        self,
        ledger_id: LedgerId,
        metadata: LedgerMetadata,
        segment: LedgerSegment,
        entry_id: EntryId,
        indexes: range | list[int],
    ) -> _Answers:
        answers = _Answers()
        for index in indexes:
            try:
                stored = self._read(segment.ensemble[index], ledger_id, entry_id, metadata)
            except TemporaryError as error:
                answers.failures[index] = error
            else:
                answers.found.extend([stored] if stored else [])
        return answers

    def _read(
        self, bookie: BookieId, ledger_id: LedgerId, entry_id: EntryId, metadata: LedgerMetadata
    ) -> StoredEntry | None:
        data = self._bookies.read(bookie, ledger_id, entry_id)
        if data is None:
            return None
        stored = checked_entry(data, metadata.digest_type, metadata.password)
        if stored.entry.ledger_id != ledger_id or entry_id not in (LAST_STORED, stored.entry.entry_id):
            raise TemporaryError(f"bookie {bookie} answered with another entry than {ledger_id}:{entry_id}; try again")
        return stored


def _ids(first: EntryId, last: EntryId) -> Iterator[EntryId]:
    return map(EntryId, range(first, last + 1))


def _segment_of(metadata: LedgerMetadata, entry_id: EntryId) -> LedgerSegment:
    return [segment for segment in metadata.segments if segment.first_entry_id <= entry_id][-1]


def _every_write_set_answered(metadata: LedgerMetadata, failures: dict[int, TemporaryError]) -> bool:
    """Whether in every write set fewer than ``ack_quorum_size`` members failed (``RoundRobinDistributionSchedule``)."""
    size = metadata.ensemble_size
    return all(
        sum((start + i) % size in failures for i in range(metadata.write_quorum_size)) < metadata.ack_quorum_size
        for start in range(size)
    )


def _not_delivered(ledger_id: LedgerId, entry_id: EntryId, answers: _Answers) -> TemporaryError:
    return TemporaryError(f"no bookie delivers entry {ledger_id}:{entry_id} ({answers.reason()}); try again")
