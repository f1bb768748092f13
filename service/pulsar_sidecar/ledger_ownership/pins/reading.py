"""What pins a topic, a namespace or a ledger, as the doors ask for it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, assert_never

from pulsar_sidecar.ledger_ownership.claims import (
    BucketClaim,
    Claim,
    CompactedClaim,
    CursorClaim,
    DataClaim,
    SchemaClaim,
    owner_path,
    read_claim,
)
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.paths import ledger_path, managed_ledger_path
from pulsar_sidecar.ledger_ownership.pins.causes import Held, PinCause, collecting, remedies
from pulsar_sidecar.ledger_ownership.pins.decide import Pin, TopicPins, held_by, pins_of
from pulsar_sidecar.ledger_ownership.pins.facts import Bytes, LedgerFacts, TopicFacts
from pulsar_sidecar.ledger_ownership.pins.gathering import Sources, facts_of, ledger_facts
from pulsar_sidecar.ledger_ownership.pins.ports import BookieFigures, Bookies, StoredCopies
from pulsar_sidecar.ledger_ownership.places import topic_of_schema
from pulsar_sidecar.ledger_ownership.references import (
    LedgerReference,
    cursor_references,
    managed_ledger_references,
    schema_references,
)
from pulsar_sidecar.ledger_ownership.stored_topics import StoredTopics
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerMetadata, LedgerState
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName, decode_cursor, topic_of_managed_ledger
from pulsar_sidecar.model.printable import quoted

_NODES_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class LedgerPins:
    """What pins one ledger.

    Attributes:
        read_ms: when it was read.
        topic: that it belongs to, by its own metadata; None if they name none.
        kind: what it is for, None once its metadata is gone.
        bookies: that hold entries of it; asked only of a ledger whose metadata is gone.
    """

    ledger_id: LedgerId
    read_ms: int
    topic: TopicName | None
    kind: str | None
    bytes: Bytes
    pins: tuple[Pin, ...]
    bookies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NamespacePins:
    """What pins the largest topics of a namespace.

    Attributes:
        read_ms: when it was read.
        topics: how many it has, partitions counted one by one.
        listed_bytes: of their lists: one copy, without what topics write to at the moment.
        unreadable: topics whose lists cannot be read; they are not among the largest.
        largest: those that were asked for, the largest first.
    """

    namespace: str
    read_ms: int
    topics: int
    listed_bytes: int
    unreadable: tuple[TopicName, ...]
    largest: tuple[TopicPins, ...]


class PinsReader:
    """Answers from what is stored, and from brokers about what they have loaded; loads no topic."""

    def __init__(self, sources: Sources, bookies: Bookies) -> None:
        self._sources, self._bookies = sources, bookies
        self._topics = StoredTopics(sources.store)

    def topic(self, topic: TopicName) -> tuple[TopicPins, ...]:
        """What pins each partition, or the topic without; a partition that does not exist is left out.

        Raises:
            NotFoundError: there is no such topic.
            TemporaryError: it could not be read.
        """
        return tuple(map(pins_of, facts_of(self._sources, self._topics.places_of(topic))))

    def namespace(self, namespace: str, offset: int, limit: int) -> NamespacePins:
        """What pins its topics from the ``offset``-th largest on.

        Raises:
            NotFoundError: there is no such namespace.
            TemporaryError: it could not be read.
        """
        read_ms = self._sources.clock.now_ms()
        sizes: dict[TopicName, int] = {}
        unreadable = []
        for topic, size in self._sizes(self._topics.places_below(namespace)):
            if size is None:
                unreadable.append(topic)
            else:
                sizes[topic] = size
        largest = sorted(sizes, key=lambda topic: (-sizes[topic], str(topic)))
        chosen = facts_of(self._sources, largest[offset : offset + limit])
        topics, listed = len(sizes) + len(unreadable), sum(sizes.values())
        return NamespacePins(namespace, read_ms, topics, listed, tuple(unreadable), tuple(map(pins_of, chosen)))

    def _sizes(self, topics: Iterator[TopicName]) -> Iterator[tuple[TopicName, int | None]]:
        while some := list(islice(topics, _NODES_AT_ONCE)):
            paths = [managed_ledger_path(topic.managed_ledger_name) for topic in some]
            for topic, node in zip(some, self._sources.store.read_many(paths), strict=True):
                if node is not None:
                    yield topic, listed_bytes(node.data)

    def tenants_of(self, ledger_ids: Sequence[LedgerId]) -> list[str | None]:
        """The tenant that owns each ledger by its own metadata; None if that is gone or names none.

        Raises:
            TemporaryError: the metadata store could not be asked.
        """
        root = self._sources.ledgers_root
        nodes = self._sources.store.read_many([ledger_path(ledger_id, root) for ledger_id in ledger_ids])
        claims = [
            None if node is None else read_claim(decode_ledger_metadata(node.data).custom_metadata) for node in nodes
        ]
        topics = [topic_of(claim) if isinstance(claim, Claim) else None for claim in claims]
        return [None if topic is None else topic.tenant for topic in topics]

    def ledger(self, ledger_id: LedgerId) -> LedgerPins:
        """What pins one ledger.

        Raises:
            NotFoundError: it has no metadata, and no bookie holds an entry of it.
            TemporaryError: it could not be read.
        """
        now_ms = self._sources.clock.now_ms()
        node = self._sources.store.read(ledger_path(ledger_id, self._sources.ledgers_root))
        if node is None:
            return self._deleted(ledger_id, now_ms)
        metadata = decode_ledger_metadata(node.data)
        claim = read_claim(metadata.custom_metadata)
        if not isinstance(claim, Claim):
            ledger = self._measured(ledger_id, metadata)
            pin = Pin(PinCause.NOT_PULSARS, "", frozenset({ledger_id}), "its metadata names no topic of Pulsar")
            return LedgerPins(ledger_id, now_ms, None, None, ledger.bytes, (replace(pin, bytes=ledger.bytes),))
        topic = topic_of(claim)
        facts = [] if topic is None else facts_of(self._sources, [topic])
        listed = next((each for each in _all_ledgers(facts) if each.ledger_id == ledger_id), None)
        found = listed or self._measured(ledger_id, metadata)
        pins = [pin for each in facts for pin in held_by(pins_of(each), found)]
        return LedgerPins(
            ledger_id,
            now_ms,
            topic,
            claim.kind.value,
            found.bytes,
            tuple(pins or self._by_reference(claim, topic, found)),
        )

    def _measured(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> LedgerFacts:
        """An open one, such as that of a cursor in use, as bookies have it; `TemporaryError` if they do not answer."""
        facts = ledger_facts(ledger_id, metadata)
        if metadata.state is LedgerState.CLOSED:
            return facts
        measured = self._sources.lengths.measured({ledger_id: LedgerReference()})
        if isinstance(measured, Unreadable):
            raise TemporaryError(measured.reason)
        return replace(facts, entries=measured[ledger_id].entries, size_bytes=measured[ledger_id].size_bytes)

    def _by_reference(self, claim: Claim, topic: TopicName | None, ledger: LedgerFacts) -> Iterable[Pin]:
        """Of a ledger that is not of a topic's list: the one node that may reference it does, or it has leaked."""
        node = self._sources.store.read(owner_path(claim))
        cause, detail = PinCause.UNREFERENCED, "the node that should reference it does not: audit it before you delete"
        if node is not None and ledger.ledger_id in _references(claim, node.data):
            cause = PinCause.SCHEMA if isinstance(claim, SchemaClaim) else PinCause.CURSOR_LEDGER
            detail = f"{node.path} references it"
        holder = (decode_cursor(claim.cursor) or claim.cursor) if isinstance(claim, CursorClaim) else ""
        ids = frozenset({ledger.ledger_id})
        helps = () if topic is None else remedies(cause, Held(topic, holder, component=_component(claim, ids)))
        return [Pin(cause, holder, ids, detail, bytes=ledger.bytes, frees=ledger.bytes, remedies=helps)]

    def _deleted(self, ledger_id: LedgerId, now_ms: int) -> LedgerPins:
        copies = self._bookies.copies(ledger_id)
        if not copies.bookies:
            none = f"ledger {ledger_id} has no metadata, and no bookie"
            if copies.unanswered:
                silent = ", ".join(copies.unanswered)
                raise TemporaryError(f"{none} that answers holds an entry of it; no answer from {silent}; try again")
            raise NotFoundError(f"{none} holds an entry of it")
        size = Bytes(copies.size_bytes, copies.size_bytes * len(copies.bookies))
        figures = self._bookies.figures(copies.bookies).values()
        helps = tuple(each for read in figures if isinstance(read, BookieFigures) for each in collecting(read))
        pin = Pin(PinCause.NOT_COLLECTED, "", frozenset({ledger_id}), _where(copies), None, size, size, (), helps)
        return LedgerPins(ledger_id, now_ms, None, None, size, (pin,), copies.bookies)


def listed_bytes(data: bytes) -> int | None:
    """Of a managed ledger's list, one copy; None if it cannot be read."""
    try:
        return sum(ledger.size_bytes for ledger in managed_ledger_references(data).ledgers.values())
    except UndecodableError:
        return None


def topic_of(claim: Claim) -> TopicName | None:
    """The topic that a ledger claims to belong to."""
    match claim:
        case DataClaim(name) | CursorClaim(name, _):
            return topic_of_managed_ledger(name)
        case SchemaClaim(schema_id):
            return topic_of_schema(schema_id)
        case CompactedClaim(topic) | BucketClaim(topic, _, _):
            return topic
        case never:
            assert_never(never)


def _references(claim: Claim, data: bytes) -> Iterable[LedgerId]:
    if isinstance(claim, SchemaClaim):
        return schema_references(data)
    if isinstance(claim, DataClaim):
        return managed_ledger_references(data).ledgers
    cursor = cursor_references(data)
    return [*cursor.buckets.values(), *(each for each in (cursor.cursor_ledger, cursor.compacted_ledger) if each)]


def _all_ledgers(facts: Sequence[TopicFacts]) -> Iterator[LedgerFacts]:
    for each in facts:
        yield from each.ledgers
        yield from () if isinstance(each.compacted, Unreadable) else each.compacted
        for cursor in each.cursors:
            yield from cursor.buckets


def _component(claim: Claim, ids: Iterable[LedgerId]) -> str:
    """The options by which ``topics delete-ledger`` names it."""
    ledgers = "".join(f" -l {ledger_id}" for ledger_id in ids)
    match claim:
        case DataClaim():
            return ledgers
        case CursorClaim(_, cursor):
            named = quoted(decode_cursor(cursor) or cursor)
            return f"{ledgers} --component {LedgerComponent.MANAGED_CURSOR.value} --cursor-name {named}"
        case SchemaClaim(schema_id):
            return f"{ledgers} --component {LedgerComponent.SCHEMA_STORAGE.value} --schema-id {quoted(schema_id)}"
        case CompactedClaim():
            return f"{ledgers} --component {LedgerComponent.COMPACTED_LEDGER.value}"
        case BucketClaim(_, subscription, _):
            named = quoted(subscription)
            return f"{ledgers} --component {LedgerComponent.DELAYED_INDEX_BUCKET.value} --cursor-name {named}"
        case never:
            assert_never(never)


def _where(copies: StoredCopies) -> str:
    held = f"bookies that hold it: {', '.join(copies.bookies)}"
    unanswered = f"; no answer from {', '.join(copies.unanswered)}" if copies.unanswered else ""
    return f"its metadata is gone; {held}{unanswered}"
