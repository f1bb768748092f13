"""Reading of the pins of a topic, a namespace or a ledger, from stored nodes and loaded topics."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, assert_never

from pulsar_sidecar.features.pins.causes import Held, collecting, remedies
from pulsar_sidecar.features.pins.decide import Pin, answer_of, held_by, pins_of
from pulsar_sidecar.features.pins.facts import Bytes, LedgerFacts, TopicFacts
from pulsar_sidecar.features.pins.gathering import Sources, facts_of, ledger_facts
from pulsar_sidecar.features.pins.ports import Bookies, StoredCopies
from pulsar_sidecar.features.pins.results import LISTED, BookieFigures, LedgerPins, NamespacePins, PinCause, TopicPins
from pulsar_sidecar.model.clocks import rest_seconds
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerMetadata, LedgerState
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName, decode_cursor, topic_of_managed_ledger
from pulsar_sidecar.model.printable import quoted
from pulsar_sidecar.ownership.claims import (
    BucketClaim,
    Claim,
    CompactedClaim,
    CursorClaim,
    DataClaim,
    SchemaClaim,
    owner_path,
    read_claim,
)
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path
from pulsar_sidecar.ownership.places import topic_of_schema
from pulsar_sidecar.ownership.references import (
    LedgerReference,
    cursor_references,
    managed_ledger_references,
    schema_references,
)
from pulsar_sidecar.ownership.stored_topics import StoredTopics

_NODES_AT_ONCE: Final = 1_000
_QUICK_SECONDS: Final = 1.0
"""A reading that takes less is not kept."""


@dataclass(frozen=True, slots=True)
class ListedBytes:
    """Bytes of a managed ledger's list, one copy; those in tiered storage, and those only there."""

    all: int
    tiered: int
    tiered_alone: int


@dataclass(frozen=True, slots=True)
class _Listed:
    """A namespace's lists, without pins of its topics, and the topics, the largest first."""

    pins: NamespacePins
    largest: Sequence[TopicName]


class PinsReader:
    """Finder of pins in stored state and on topics that brokers have loaded; loads no topic."""

    def __init__(self, sources: Sources, bookies: Bookies) -> None:
        self._sources, self._bookies = sources, bookies
        self._topics = StoredTopics(sources.store)
        self._kept: tuple[float, _Listed] | None = None

    def topic(self, topic: TopicName) -> tuple[TopicPins, ...]:
        """Return the pins of each existing partition, or of the topic without partitions.

        Raises:
            NotFoundError: there is no such topic.
            TemporaryError: it could not be read.
        """
        return tuple(map(answer_of, facts_of(self._sources, self._topics.places_of(topic))))

    def namespace(self, namespace: str, offset: int, limit: int) -> NamespacePins:
        """Return the pins of the topics from the ``offset``-th largest on.

        Raises:
            NotFoundError: there is no such namespace.
            TemporaryError: it could not be read.
        """
        found = self._listed(namespace)
        return replace(
            found.pins, largest=tuple(map(answer_of, facts_of(self._sources, found.largest[offset:][:limit])))
        )

    def _listed(self, namespace: str) -> _Listed:
        began = self._sources.clock.monotonic_seconds()
        kept = self._kept
        if kept is not None and began < kept[0] and kept[1].pins.namespace == namespace:
            return kept[1]
        found = self._read_lists(namespace)
        ended = self._sources.clock.monotonic_seconds()
        # Of very many topics, readers open the next pages within seconds.
        rest = rest_seconds(0, ended - began - _QUICK_SECONDS)
        self._kept = (ended + rest, found) if rest else None
        return found

    def _read_lists(self, namespace: str) -> _Listed:
        read_ms = self._sources.clock.now_ms()
        sizes: dict[TopicName, ListedBytes] = {}
        unreadable = []
        for topic, size in self._sizes(self._topics.places_below(namespace)):
            if size is None:
                unreadable.append(topic)
            else:
                sizes[topic] = size
        pins = NamespacePins(
            namespace=namespace,
            read_ms=read_ms,
            topics=len(sizes) + len(unreadable),
            listed_bytes=sum(size.all for size in sizes.values()),
            tiered_bytes=sum(size.tiered for size in sizes.values()),
            tiered_alone_bytes=sum(size.tiered_alone for size in sizes.values()),
            unreadable=len(unreadable),
            unreadable_topics=tuple(map(str, unreadable[:LISTED])),
            largest=(),
        )
        return _Listed(pins, sorted(sizes, key=lambda topic: (-sizes[topic].all, str(topic))))

    def _sizes(self, topics: Iterator[TopicName]) -> Iterator[tuple[TopicName, ListedBytes | None]]:
        while some := list(islice(topics, _NODES_AT_ONCE)):
            paths = [managed_ledger_path(topic.managed_ledger_name) for topic in some]
            for topic, node in zip(some, self._sources.store.read_many(paths), strict=True):
                if node is not None:
                    yield topic, listed_bytes(node.data)

    def tenants_of(self, ledger_ids: Sequence[LedgerId]) -> list[str | None]:
        """Return the tenant that owns each ledger by its own metadata; None if that is gone or names none.

        Raises:
            TemporaryError: the metadata store could not be read.
        """
        root = self._sources.ledgers_root
        nodes = self._sources.store.read_many([ledger_path(ledger_id, root) for ledger_id in ledger_ids])
        claims = [
            None if node is None else read_claim(decode_ledger_metadata(node.data).custom_metadata) for node in nodes
        ]
        topics = [topic_of(claim) if isinstance(claim, Claim) else None for claim in claims]
        return [None if topic is None else topic.tenant for topic in topics]

    def ledger(self, ledger_id: LedgerId) -> LedgerPins:
        """Return the pins of one ledger.

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
            return _answer(ledger_id, now_ms, None, None, ledger.bytes, [replace(pin, bytes=ledger.bytes)])
        topic = topic_of(claim)
        facts = [] if topic is None else facts_of(self._sources, [topic])
        listed = next((each for each in _all_ledgers(facts) if each.ledger_id == ledger_id), None)
        found = listed or self._measured(ledger_id, metadata)
        pins = [pin for each in facts for pin in held_by(pins_of(each), found)]
        pins = pins or self._by_reference(claim, topic, found)
        return _answer(ledger_id, now_ms, topic, claim.kind.value, found.bytes, pins)

    def _measured(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> LedgerFacts:
        """Return the facts about a ledger; bookies measure an open one, such as the ledger of a cursor in use.

        Raises:
            TemporaryError: bookies do not respond.
        """
        facts = ledger_facts(ledger_id, metadata)
        if metadata.state is LedgerState.CLOSED:
            return facts
        measured = self._sources.lengths.measured({ledger_id: LedgerReference()})
        if isinstance(measured, Unreadable):
            raise TemporaryError(measured.reason)
        return replace(facts, entries=measured[ledger_id].entries, size_bytes=measured[ledger_id].size_bytes)

    def _by_reference(self, claim: Claim, topic: TopicName | None, ledger: LedgerFacts) -> list[Pin]:
        """Return the pin of a ledger outside a topic's list: its owner's node references it, or it has leaked."""
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
        return replace(_answer(ledger_id, now_ms, None, None, size, [pin]), bookies=copies.bookies)


def _answer(
    ledger_id: LedgerId, read_ms: int, topic: TopicName | None, kind: str | None, size: Bytes, pins: Iterable[Pin]
) -> LedgerPins:
    name, found = None if topic is None else str(topic), tuple(pin.result() for pin in pins)
    return LedgerPins(ledger_id, read_ms, name, kind, size.once, size.on_bookies, found)


def listed_bytes(data: bytes) -> ListedBytes | None:
    """Return the bytes of a managed ledger's list; None if it cannot be read."""
    try:
        ledgers = managed_ledger_references(data).ledgers.values()
    except UndecodableError:
        return None
    return ListedBytes(
        sum(ledger.size_bytes for ledger in ledgers),
        sum(ledger.size_bytes for ledger in ledgers if ledger.offload is not None and ledger.offload.complete),
        sum(ledger.size_bytes for ledger in ledgers if not ledger.in_bookkeeper),
    )


def topic_of(claim: Claim) -> TopicName | None:
    """Return the topic that a ledger claims as its owner."""
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
