"""Rebuilding of last-sequence-persisted by the recovery of PIP-6: the snapshot, then every later entry.

Invariant: the map is the one that a broker of 4.0.8 would recover now, or the result has the reason why it is not. A
broker replaces each producer's sequence id by that of the next entry, whether it is larger or not, and counts markers
as well.
"""

from typing import Final

from pulsar_sidecar.features.deduplication.ports import ReplayedEntry, StoredMessages, UndecodableEntry
from pulsar_sidecar.features.deduplication.results import Replay, SequenceRow
from pulsar_sidecar.features.deduplication.snapshots import Snapshot
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import EntryId, Position
from pulsar_sidecar.model.ledgers import UnseenCause, UnseenEntries
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.reports.formatting import format_count

MOST_ENTRIES: Final = 500_000
_MOST_REASONS: Final = 10


def replay(messages: StoredMessages, topic: TopicName, snapshot: Snapshot, limit: int = MOST_ENTRIES) -> Replay:
    """Replay the entries after the snapshot, at most ``limit``.

    Raises:
        NotFoundError: the topic is gone.
        TemporaryError: the metadata store could not be read.
    """
    first = Position(snapshot.position.ledger_id, EntryId(snapshot.position.entry_id + 1))
    origins: dict[str, str | None] = {}
    found, problems = dict(snapshot.sequences), []
    entries = markers = 0
    last: Position | None = None
    for each in messages(topic, first):
        if isinstance(each, UndecodableEntry):
            # ``ManagedLedgerReplayTask`` ends there, and the broker enables deduplication all the same.
            problems.append(f"{each.position}: {each.reason}; a broker ends its replay there")
            break
        if isinstance(each, UnseenEntries):
            problems.append(_unseen(each))
            continue
        if entries == limit:
            problems.append(f"replayed {format_count(limit, 'entry')}, and there are more; raise the limit")
            break
        found[each.producer] = each.sequence_id
        origins[each.producer] = None if each.is_marker else each.replicated_from
        last, entries, markers = each.position, entries + 1, markers + each.is_marker
    if len(problems) > _MOST_REASONS:
        problems[_MOST_REASONS:] = [f"and {len(problems) - _MOST_REASONS:,} more"]
    stored = snapshot.sequences
    rows = tuple(
        SequenceRow(name, stored.get(name), sequence_id, origins.get(name))
        for name, sequence_id in sorted(found.items())
    )
    return Replay(not problems, entries, markers, None if last is None else str(last), tuple(problems), rows)


def published_at(messages: StoredMessages, topic: TopicName, position: Position) -> int | None:
    """Return when the message at a position was published, or None if it cannot be read.

    The result is in milliseconds by the producer's clock. Where brokers have deleted the ledger that a snapshot ends
    with, or it covers nothing yet, it is that of the first message after the position.

    Raises:
        TemporaryError: the metadata store could not be read.
    """
    first = Position(position.ledger_id, EntryId(max(0, position.entry_id)))
    try:
        found = next(messages(topic, first), None)
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
