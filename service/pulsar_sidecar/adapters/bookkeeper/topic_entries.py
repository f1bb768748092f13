"""Streams of a topic's entries in order, from the bookies: no consumer, no fencing, and the topic is not loaded.

Invariant: every entry between the two ends that the topic's list of ledgers had at the beginning is in the stream, as
itself or within an `UnseenEntries`. The ledger that is still written to is read up to where BookKeeper's own recovery
would close it: the first entry that no bookie has, above every entry known to be acknowledged.
"""

from collections.abc import Generator, Iterator

from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries, LedgerEnd
from pulsar_sidecar.model.clocks import Pace
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, UndecodableError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerEntry, LedgerMetadata, UnseenCause, UnseenEntries
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path
from pulsar_sidecar.ownership.references import LedgerReference, managed_ledger_references
from pulsar_sidecar.reports.formatting import format_count

_AT_A_TIME_BYTES = 4 * 1024 * 1024
_MOST_AT_A_TIME = 1024
_FIRST_AT_A_TIME = 16
"""Entries at a time until the size of a ledger's entries is known: at most 5 MB each by default."""
_BEGINNING = Position(LedgerId(0), EntryId(0))
_END = Position(LedgerId(MAX_LEDGER_ID), EntryId(MAX_LEDGER_ID))


class BookieTopicEntries:
    """Streams of topics' entries; ``pace`` limits all of them together."""

    def __init__(self, store: MetadataStore, entries: BookieEntries, ledgers_root: str, pace: Pace) -> None:
        self._store = store
        self._entries = entries
        self._root = ledgers_root
        self._pace = pace

    def read(
        self, topic: TopicName, first: Position = _BEGINNING, last: Position = _END
    ) -> Iterator[LedgerEntry | UnseenEntries]:
        """Yield the entries of a partition, or of a topic without, from ``first`` to ``last``, both included.

        The stream reads the list of ledgers at its first entry; it leaves out later ledgers.

        Raises:
            NotFoundError: there is no such topic; a partitioned topic has no entries of its own.
            UndecodableError: the list of ledgers is damaged.
            TemporaryError: the metadata store could not be read. A bookie that does not respond is not an error.
        """
        topic_node = self._store.read(managed_ledger_path(topic.managed_ledger_name))
        if topic_node is None:
            raise NotFoundError(f"there is no topic {topic}")
        try:
            listed = managed_ledger_references(topic_node.data).ledgers
        except UndecodableError as error:
            raise UndecodableError(f"the ledgers of {topic} cannot be read: {error}") from error
        for ledger_id, reference in listed.items():
            if first.ledger_id <= ledger_id <= last.ledger_id:
                begin = first.entry_id if ledger_id == first.ledger_id else EntryId(0)
                end = last.entry_id if ledger_id == last.ledger_id else _END.entry_id
                if begin <= end:
                    yield from self._ledger(topic_node, ledger_id, reference, range(begin, end + 1))

    def _ledger(
        self, topic_node: Node, ledger_id: LedgerId, reference: LedgerReference, wanted: range
    ) -> Iterator[LedgerEntry | UnseenEntries]:
        listed_last = reference.entries - 1 if reference.closed_ms else None

        def unseen(first: int, cause: UnseenCause, reason: str) -> Iterator[UnseenEntries]:
            last = None if listed_last is None else EntryId(min(listed_last, wanted[-1]))
            if last is None or last >= first:
                yield UnseenEntries(ledger_id, EntryId(first), last, cause, reason)

        node = self._node(ledger_id)
        if node is None:
            yield from unseen(wanted.start, *self._absence_reason(topic_node, ledger_id, reference))
            return
        try:
            metadata = decode_ledger_metadata(node.data)
            end = self._entries.end(ledger_id, metadata)
        except SidecarError as error:
            yield from unseen(wanted.start, UnseenCause.UNREADABLE, str(error))
            return
        if listed_last is not None:
            # Every entry that the topic lists was acknowledged.
            end = end._replace(confirmed=EntryId(max(end.confirmed, listed_last)))
        ended_at = yield from self._entries_of(
            ledger_id, metadata, end, range(wanted.start, min(wanted[-1], end.highest) + 1)
        )
        if ended_at is not None and self._node(ledger_id) is None:
            # The ledger was deleted while it was read, so a missing entry is neither its end nor damage.
            yield from unseen(ended_at, *self._absence_reason(topic_node, ledger_id, reference))
        elif listed_last is not None:
            reason = (
                f"the topic lists {format_count(reference.entries, 'entry')} of ledger {ledger_id}, and "
                "BookKeeper has fewer"
            )
            yield from unseen(max(wanted.start, end.highest + 1), UnseenCause.UNREADABLE, reason)

    def _node(self, ledger_id: LedgerId) -> Node | None:
        return self._store.read(ledger_path(ledger_id, self._root))

    def _absence_reason(
        self, topic_node: Node, ledger_id: LedgerId, reference: LedgerReference
    ) -> tuple[UnseenCause, str]:
        listed: LedgerReference | None = reference
        if not _is_offloaded(reference):
            now = self._store.read(topic_node.path)
            if now is None or now.created_order != topic_node.created_order:
                reason = f"the topic was deleted while it was being read, and ledger {ledger_id} too"
                return UnseenCause.UNREADABLE, reason
            listed = managed_ledger_references(now.data).ledgers.get(ledger_id)
        if listed is None:
            return UnseenCause.TRIMMED, f"ledger {ledger_id} was removed from the topic while it was being read"
        if _is_offloaded(listed):
            return UnseenCause.OFFLOADED, f"ledger {ledger_id} is in tiered storage only"
        return UnseenCause.UNREADABLE, f"ledger {ledger_id} is listed and BookKeeper does not know it; it is lost"

    def _entries_of(
        self, ledger_id: LedgerId, metadata: LedgerMetadata, end: LedgerEnd, wanted: range
    ) -> Generator[LedgerEntry | UnseenEntries, None, EntryId | None]:
        """Yield the wanted entries; return the first that no bookie has if the ledger ends there or is gone."""
        at_a_time = _FIRST_AT_A_TIME
        ending = None
        while wanted:
            some = wanted[: self._pace.batch_size(at_a_time)]
            answer = self._entries.read_many(ledger_id, metadata, map(EntryId, some), bytes)
            missing = sorted(answer.missing)
            is_gone = bool(missing) and missing[0] <= end.confirmed and self._node(ledger_id) is None
            ending = next((each for each in missing if is_gone or each > end.confirmed), None)
            if ending is not None:
                some, wanted = range(some.start, ending), range(0)
            else:
                wanted = wanted[len(some) :]
            yield from _merge_in_order(ledger_id, some, answer.found, answer.unreadable)
            self._pace.wait_after(len(some))
            mean_bytes = sum(map(len, answer.found.values())) / max(1, len(answer.found))
            at_a_time = max(1, min(_MOST_AT_A_TIME, at_a_time * 4, int(_AT_A_TIME_BYTES / max(1.0, mean_bytes))))
        return ending


def _is_offloaded(reference: LedgerReference) -> bool:
    return reference.offload is not None and reference.offload.complete


def _merge_in_order(
    ledger_id: LedgerId, entry_ids: range, found: dict[EntryId, bytes], unreadable: dict[EntryId, str]
) -> Iterator[LedgerEntry | UnseenEntries]:
    """Yield each entry, or a run of neighbours that cannot be read for the same reason."""
    run: UnseenEntries | None = None
    for entry_id in map(EntryId, entry_ids):
        payload = found.get(entry_id)
        reason = unreadable.get(entry_id, "no bookie has it; it is lost")
        if run is not None and payload is None and run.reason == reason:
            run = UnseenEntries(ledger_id, run.first_entry_id, entry_id, run.cause, reason)
            continue
        if run is not None:
            yield run
            run = None
        if payload is not None:
            yield LedgerEntry(ledger_id, entry_id, payload)
        else:
            run = UnseenEntries(ledger_id, entry_id, entry_id, UnseenCause.UNREADABLE, reason)
    if run is not None:
        yield run
