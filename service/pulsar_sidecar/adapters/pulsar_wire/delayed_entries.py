"""Entries' metadata in bulk: from the bookies themselves, and otherwise from a broker.

A broker's ``getMessageById`` returns some hundred entries a second, bookies return tens of thousands.

Invariant: an entry comes only from a ledger that the topic's own managed ledger lists, so no caller reads another topic
through a position; `Absent` means that this list, or the end of the ledger, was read.

Due times come only from the bookies (`BookieDelayTimes`, `StoredDueTimes`): a broker would load the topic.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pyroaring import BitMap

from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest, topic_path
from pulsar_sidecar.adapters.pulsar_wire.encoding import (
    decisive_facts,
    entry_facts,
    entry_facts_in_headers,
    metadata_of,
)
from pulsar_sidecar.backlog.ports import EntryAnswer, EntryFacts
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes
from pulsar_sidecar.features.delayed_index.stored import StoredIndexes
from pulsar_sidecar.features.pins.facts import DueSpan
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path
from pulsar_sidecar.ownership.references import ManagedLedgerReferences, managed_ledger_references
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

_MOST_KNOWN: Final = 10_000

_Wanted = dict[LedgerId, dict[EntryId, Position]]
"""Positions by ledger and entry: the answers have the caller's own."""
_Keep = Callable[[bytes], EntryAnswer]


def _kept(read: Callable[[bytes], EntryFacts], payload: bytes) -> EntryAnswer:
    try:
        return read(payload)
    except UndecodableError as error:
        return Unreadable(str(error))


@dataclass(frozen=True, slots=True)
class BulkDelayedEntries:
    """`backlog.ports.DelayedEntries`, over the metadata store, the bookies and a broker.

    Without a broker, which would load the topic, entries that the bookies lack are unreadable.
    """

    _store: MetadataStore
    _entries: BookieEntries
    _rest: AdminRest | None
    _root: str
    _clock: Clock
    _known: dict[tuple[TopicName, LedgerId], tuple[float, LedgerMetadata]] = field(default_factory=dict)

    def read(
        self,
        topic: TopicName,
        positions: Collection[Position],
        *,
        only_decisive: bool = False,
        max_age_seconds: float = 0.0,
    ) -> Mapping[Position, EntryAnswer]:
        # Only ledgers' metadata is cached: an entry's digest and its own position prove its identity, no entry ever
        # changes, and no ledger id is reused. Entries that are not found this way are read with fresh metadata.
        wanted: _Wanted = defaultdict(dict)
        for position in positions:
            wanted[position.ledger_id][position.entry_id] = position
        keep = partial(_kept, decisive_facts if only_decisive else entry_facts)
        remembered = self._read_cached(topic, wanted, keep, max_age_seconds) if max_age_seconds > 0 else None
        return self._read_freshly(topic, wanted, keep) if remembered is None else remembered

    def _read_cached(
        self, topic: TopicName, wanted: _Wanted, keep: _Keep, max_age_seconds: float
    ) -> dict[Position, EntryAnswer] | None:
        """Return all entries by cached ledger metadata; None if one of them is not there."""
        youngest = self._clock.monotonic_seconds() - max_age_seconds
        answers: dict[Position, EntryAnswer] = {}
        for ledger_id, inside in wanted.items():
            read_at, metadata = self._known.get((topic, ledger_id), (float("-inf"), None))
            if metadata is None or read_at <= youngest or min(inside) < 0:
                return None
            found = self._entries.read_many(ledger_id, metadata, inside, keep).found
            if len(found) < len(inside):
                return None
            answers.update((inside[entry_id], answer) for entry_id, answer in found.items())
        return answers

    def _read_freshly(self, topic: TopicName, wanted: _Wanted, keep: _Keep) -> dict[Position, EntryAnswer]:
        paths = [ledger_path(ledger_id, self._root) for ledger_id in wanted]
        managed_ledger, *nodes = self._store.read_many([managed_ledger_path(topic.managed_ledger_name), *paths])
        if managed_ledger is None:
            raise NotFoundError(f"there is no topic {topic}")
        listed = managed_ledger_references(managed_ledger.data)
        answers: dict[Position, EntryAnswer] = {}
        for (ledger_id, inside), node in zip(wanted.items(), nodes, strict=True):
            found = self._read_from_ledger(topic, listed, ledger_id, node, list(inside), keep)
            answers.update((inside[entry_id], answer) for entry_id, answer in found.items())
        return answers

    def _read_from_ledger(
        self,
        topic: TopicName,
        listed: ManagedLedgerReferences,
        ledger_id: LedgerId,
        node: Node | None,
        wanted: Sequence[EntryId],
        keep: _Keep,
    ) -> dict[EntryId, EntryAnswer]:
        reference = listed.ledgers.get(ledger_id)
        if SHADOW_SOURCE in listed.properties:
            return self._read_from_broker(topic, ledger_id, wanted)
        if reference is None:
            return dict.fromkeys(wanted, Absent())
        if node is None and reference.offload is not None:
            return self._read_from_broker(topic, ledger_id, wanted)
        if node is None:
            reason = f"ledger {ledger_id} of {topic} is listed but has no metadata; it is being deleted, or lost"
            return dict.fromkeys(wanted, Unreadable(reason))
        try:
            metadata = decode_ledger_metadata(node.data)
        except UndecodableError as error:
            return dict.fromkeys(wanted, Unreadable(f"the metadata of ledger {ledger_id} cannot be read: {error}"))
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[topic, ledger_id] = self._clock.monotonic_seconds(), metadata
        closed = metadata.state is LedgerState.CLOSED
        inside = [entry for entry in wanted if entry >= 0 and not (closed and entry > metadata.last_entry_id)]
        read = self._entries.read_many(ledger_id, metadata, inside, keep)
        answers: dict[EntryId, EntryAnswer] = dict.fromkeys(wanted, Absent())
        answers.update(read.found)
        answers.update((entry_id, Unreadable(reason)) for entry_id, reason in read.unreadable.items())
        if read.missing:
            answers.update(self._resolve_missing(topic, ledger_id, sorted(read.missing), closed=closed))
        return answers

    def _resolve_missing(
        self, topic: TopicName, ledger_id: LedgerId, missing: Sequence[EntryId], *, closed: bool
    ) -> dict[EntryId, EntryAnswer]:
        """Classify entries that no bookie has: beyond the end of a ledger that is still written to, or lost."""
        try:
            last = None if closed else self._last_position(topic)
        except SidecarError as error:
            reason = f"it is not known whether ledger {ledger_id} of {topic} ends before it: {error}"
            return dict.fromkeys(missing, Unreadable(reason))
        beyond = [] if last is None else [entry for entry in missing if Position(ledger_id, entry) > last]
        lost = [entry for entry in missing if entry not in set(beyond)]
        return {**dict.fromkeys(beyond, Absent()), **self._read_from_broker(topic, ledger_id, lost)}

    def _last_position(self, topic: TopicName) -> Position:
        document = self._broker(topic).get(topic_path(topic, "/lastMessageId"))
        try:
            assert isinstance(document, dict)
            return Position(LedgerId(int(document["ledgerId"])), EntryId(int(document["entryId"])))
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise TemporaryError(f"a broker does not report the last message of {topic}; try again") from error

    def _read_from_broker(
        self, topic: TopicName, ledger_id: LedgerId, wanted: Sequence[EntryId]
    ) -> dict[EntryId, EntryAnswer]:
        return {entry_id: self._query_broker(topic, Position(ledger_id, entry_id)) for entry_id in wanted}

    def _broker(self, topic: TopicName) -> AdminRest:
        if self._rest is None:
            raise TemporaryError(f"no broker was queried, because that would have loaded {topic}")
        return self._rest

    def _query_broker(self, topic: TopicName, position: Position) -> EntryAnswer:
        try:
            path = topic_path(topic, f"/ledger/{position.ledger_id}/entry/{position.entry_id}")
            return entry_facts_in_headers(self._broker(topic).headers(path))
        except NotFoundError:
            return Absent()
        except SidecarError as error:
            return Unreadable(f"no bookie has {position} of {topic}, and the broker cannot read it: {error}")


class BookieDelayTimes:
    """`delayed_index.ports.DelayTimes`; safe for use by several threads."""

    def __init__(self, entries: BookieEntries) -> None:
        self._entries = entries

    def delayed(self, ledger_id: LedgerId, metadata: LedgerMetadata, entries: BitMap) -> DelayedIndexes:
        answer = self._entries.read_many(ledger_id, metadata, map(EntryId, entries), _deliver_at_ms)
        if len(answer.found) != len(entries):
            entry_id, why = min(
                answer.unreadable.items(), default=(min(answer.missing, default=-1), "no bookie has it")
            )
            raise TemporaryError(
                f"entry {ledger_id}:{entry_id} cannot be read ({why}), so its due time is unknown; try again"
            )
        rows = sorted(answer.found.items())
        return DelayedIndexes.of((due_ms, ledger_id, entry_id) for entry_id, due_ms in rows if due_ms > 0)


def _deliver_at_ms(payload: bytes) -> int:
    """Return the due time; 0 for entries that brokers' trackers do not hold themselves."""
    metadata, _ = metadata_of(payload)
    if metadata.HasField("txnid_most_bits") or metadata.HasField("marker_type"):
        return 0
    return max(0, metadata.deliver_at_time)


class StoredDueTimes:
    """`features.pins.ports.DueTimesOfCursors`; ``entries`` must not use a broker, which would load topics."""

    def __init__(self, entries: BulkDelayedEntries, indexes: StoredIndexes) -> None:
        self._entries, self._indexes = entries, indexes

    def first_due_ms(self, topic: TopicName, positions: Sequence[Position]) -> Mapping[Position, int]:
        try:
            found = self._entries.read(topic, positions) if positions else {}
        except SidecarError:
            return {}
        return {
            position: facts.deliver_at_ms
            for position, facts in found.items()
            if isinstance(facts, EntryFacts) and facts.deliver_at_ms is not None
        }

    def spans(self, topic: TopicName) -> Mapping[LedgerId, tuple[DueSpan, ...]]:
        try:
            buckets = list(self._indexes.buckets(topic))
        except SidecarError:
            return {}
        return {
            bucket.ledger_id: tuple(
                DueSpan(frozenset(segment.bitmaps), segment.max_schedule_timestamp) for segment in bucket.snapshot
            )
            for bucket in buckets
            if isinstance(bucket.snapshot, tuple)
        }
