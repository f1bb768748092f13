"""Last-sequence-persisted, rebuilt by the recovery of PIP-6: the snapshot, then every later entry.

Invariant: the map is what a broker of 4.0.8 would recover now, or the answer has the reason why it is not. A broker
puts each entry's sequence id in place of the one before, whether it is larger or not, and markers' as well.
"""

from dataclasses import dataclass
from typing import Final

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.deduplication.ports import ReplayedEntry, StoredMessages, UndecodableEntry
from pulsar_sidecar.deduplication.snapshots import Snapshot
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import EntryId, Position
from pulsar_sidecar.model.ledgers import UnseenCause, UnseenEntries
from pulsar_sidecar.model.names import TopicName

MOST_ENTRIES: Final = 500_000
_MOST_REASONS: Final = 10


@dataclass(frozen=True, slots=True)
class SequenceRow:
    """One name: the id of the snapshot and the one after the replay, None where there is none."""

    name: str
    stored: int | None
    replayed: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay came to.

    Attributes:
        rows: every name of both maps, sorted.
        entries: how many were replayed.
        markers: those of them that brokers wrote themselves.
        last: the last entry that was replayed, None if there was none.
        problems: why the map may be another one than a broker's; nothing if it is the same.
    """

    rows: tuple[SequenceRow, ...]
    entries: int
    markers: int
    last: Position | None
    problems: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether a broker that loads and deduplicates the topic now gets this map."""
        return not self.problems


def replay(messages: StoredMessages, topic: TopicName, snapshot: Snapshot, limit: int = MOST_ENTRIES) -> Replay:
    """Replay what comes after the snapshot, ``limit`` entries at most.

    Raises:
        NotFoundError: the topic is gone.
        TemporaryError: the metadata store could not be asked.
    """
    first = Position(snapshot.position.ledger_id, EntryId(snapshot.position.entry_id + 1))
    found, problems = dict(snapshot.sequences), []
    entries = markers = 0
    last: Position | None = None
    for each in messages.read(topic, first):
        if isinstance(each, UndecodableEntry):
            # ``ManagedLedgerReplayTask`` ends there, and deduplication is enabled all the same.
            problems.append(f"{each.position}: {each.reason}; a broker ends its replay there")
            break
        if isinstance(each, UnseenEntries):
            problems.append(_unseen(each))
            continue
        if entries == limit:
            problems.append(f"replayed {format_count(limit, 'entry')}, and there are more; raise the limit")
            break
        found[each.producer] = each.sequence_id
        last, entries, markers = each.position, entries + 1, markers + each.is_marker
    if len(problems) > _MOST_REASONS:
        problems[_MOST_REASONS:] = [f"and {len(problems) - _MOST_REASONS:,} more"]
    stored = snapshot.sequences
    rows = tuple(SequenceRow(name, stored.get(name), sequence_id) for name, sequence_id in sorted(found.items()))
    return Replay(rows, entries, markers, last, tuple(problems))


def published_at(messages: StoredMessages, topic: TopicName, position: Position) -> int | None:
    """When the message at a position was published, milliseconds by its producer's clock; None if it cannot be read.

    Where brokers have deleted the ledger that a snapshot ends with, or it covers nothing yet, it is that of the first
    message after it.

    Raises:
        TemporaryError: the metadata store could not be asked.
    """
    first = Position(position.ledger_id, EntryId(max(0, position.entry_id)))
    try:
        found = next(messages.read(topic, first), None)
    except NotFoundError:
        return None
    return found.publish_time_ms if isinstance(found, ReplayedEntry) else None


def _unseen(unseen: UnseenEntries) -> str:
    last = "the end" if unseen.last_entry_id is None else unseen.last_entry_id
    entries = f"{unseen.ledger_id}:{unseen.first_entry_id} to {last}"
    match unseen.cause:
        case UnseenCause.OFFLOADED:
            return (
                f"{entries} is in tiered storage, where a broker replays it and the sidecar does not: {unseen.reason}"
            )
        case UnseenCause.UNREADABLE | UnseenCause.TRIMMED:
            return f"{entries} was not read: {unseen.reason}"
