"""Reading of facts about topics from their nodes, from bookies, and from the brokers that have loaded them.

Invariant: nothing here loads a topic. Few requests read the nodes of all requested topics.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from pulsar_sidecar.features.pins.facts import (
    CursorFacts,
    LedgerFacts,
    Retention,
    TopicFacts,
    UnownedBundle,
    waiting,
)
from pulsar_sidecar.features.pins.ports import DueTimesOfCursors, LiveViews, TrimPolicies
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import CursorName, TopicName, decode_cursor, parse_topic_name
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges
from pulsar_sidecar.model.printable import quoted
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR, TopicInternalStats, remote_cluster
from pulsar_sidecar.ownership.compaction import CompactedLedgers
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path
from pulsar_sidecar.ownership.ports import CursorPositions, LedgerLengths
from pulsar_sidecar.ownership.references import (
    CursorReferences,
    LedgerReference,
    ManagedLedgerReferences,
    cursor_references,
    managed_ledger_references,
)
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE
from pulsar_sidecar.ownership.stored_topics import StoredTopics

_EVENTS: Final = "__change_events"


@dataclass(frozen=True, slots=True)
class Sources:
    """Adapters that read nodes, bookies and loaded topics."""

    store: MetadataStore
    cursors: CursorPositions
    lengths: LedgerLengths
    compacted: CompactedLedgers
    views: LiveViews
    policies: TrimPolicies
    dues: DueTimesOfCursors
    clock: Clock
    ledgers_root: str


def facts_of(
    sources: Sources, topics: Sequence[TopicName], views: Mapping[TopicName, TopicInternalStats] | None = None
) -> list[TopicFacts]:
    """Return the facts about the topics (partitions, or topics without partitions) that exist, in order.

    Args:
        sources: adapters.
        topics: the topics.
        views: brokers' views of the loaded ones, if they are known; otherwise brokers are queried.

    Raises:
        TemporaryError: the metadata store or the brokers could not be reached, or a list cannot be read.
    """
    nodes = sources.store.read_many([managed_ledger_path(topic.managed_ledger_name) for topic in topics])
    there = {topic: node for topic, node in zip(topics, nodes, strict=True) if node is not None}
    views = sources.views.views(there.keys()) if views is None else views
    sources = replace(sources, policies=_AskedOnce(sources))
    return [_Topic(sources, topic, node, views.get(topic)).facts() for topic, node in there.items()]


class _AskedOnce:
    """`TrimPolicies` for one result: reads shared policies of partitions once, and never where that would load topics.

    To return a topic's policies, a broker reads ``__change_events`` by a client. A bundle that a client's
    look-up gives to a broker is loaded with all its topics (``PulsarService.loadNamespaceTopics``).
    """

    def __init__(self, sources: Sources) -> None:
        self._sources, self._unowned = sources, cache(self._unowned_bundle)
        self._retention, self.offload_lag_ms = cache(sources.policies.retention), cache(sources.policies.offload_lag_ms)
        self._replicated_to = cache(sources.policies.replicated_to)

    def retention(self, topic: TopicName) -> Retention | Unreadable:
        return self._unowned(topic.namespace) or self._retention(topic.base)

    def replicated_to(self, topic: TopicName) -> frozenset[str] | Unreadable:
        return self._unowned(topic.namespace) or self._replicated_to(topic.base)

    def _unowned_bundle(self, namespace: str) -> UnownedBundle | None:
        events = parse_topic_name(f"persistent://{namespace}/{_EVENTS}")
        try:
            places = StoredTopics(self._sources.store).places_of(events)
        except NotFoundError:
            places = [events]
        if all(self._sources.views.owner_url(place) is not None for place in places):
            return None
        return UnownedBundle(
            f"no broker owns the bundle of {_EVENTS}. This makes a broker load all topics of the bundle: "
            f"pulsar-admin topics lookup {quoted(str(events))}"
        )


class _Topic:
    def __init__(self, sources: Sources, topic: TopicName, node: Node, view: TopicInternalStats | None) -> None:
        self._sources, self._topic, self._view = sources, topic, view
        self._now_ms = sources.clock.now_ms()
        listed = _list(topic, node)
        self._source = listed.properties.get(SHADOW_SOURCE)
        self._listed = listed if self._source is None else replace(listed, ledgers={})
        names = [CursorName(name) for name in sources.store.children(node.path) or ()]
        found = sources.store.read_many([f"{node.path}/{name}" for name in names])
        self._cursors = {name: each for name, each in zip(names, found, strict=True) if each is not None}

    def facts(self) -> TopicFacts:
        measured = self._sources.lengths.measured(self._listed.ledgers)
        listed = self._listed.ledgers if isinstance(measured, Unreadable) else measured
        references = {name: _references(node) for name, node in self._cursors.items()}
        buckets = {
            ledger_id
            for each in references.values()
            if isinstance(each, CursorReferences)
            for ledger_id in each.buckets.values()
        }
        compacted = self._compacted(references.get(COMPACTION_CURSOR))
        others = buckets if isinstance(compacted, Unreadable) else buckets | compacted
        metadata, undecodable = ledgers_metadata(self._sources, [*listed, *others])
        ledgers = tuple(_listed(ledger_id, each, metadata.get(ledger_id)) for ledger_id, each in listed.items())
        cursors = self._cursor_facts(references, ledgers, metadata)
        return TopicFacts(
            self._topic,
            ledgers,
            cursors,
            self._sources.policies.retention(self._topic),
            None if self._view is None else self._view.broker or "a broker",
            self._now_ms,
            compacted if isinstance(compacted, Unreadable) else facts_of_ledgers(compacted, metadata),
            self._offload_lag(self._listed),
            self._listed.terminated,
            measured.reason if isinstance(measured, Unreadable) else None,
            undecodable,
            self._replicated_to(),
            self._replicators(cursors, ledgers),
            self._source,
        )

    def _cursor_facts(
        self,
        references: Mapping[CursorName, CursorReferences | Unreadable],
        ledgers: Sequence[LedgerFacts],
        metadata: Mapping[LedgerId, LedgerMetadata],
    ) -> tuple[CursorFacts, ...]:
        positions = self._acknowledged({ledger.ledger_id: ledger.entries for ledger in ledgers})
        firsts = {
            name: first
            for name, each in positions.items()
            if isinstance(each, PositionRanges) and (first := _first(waiting(each, ledgers))) is not None
        }
        dues = self._sources.dues.first_due_ms(self._topic, list(firsts.values()))
        has_buckets = any(isinstance(each, CursorReferences) and each.buckets for each in references.values())
        spans = self._sources.dues.spans(self._topic) if has_buckets else {}

        def of(name: CursorName) -> CursorFacts:
            each, first = references[name], firsts.get(name)
            named = each.buckets.values() if isinstance(each, CursorReferences) else ()
            return CursorFacts(
                decode_cursor(name) or name,
                positions[name],
                None if first is None else dues.get(first),
                facts_of_ledgers(named, metadata),
                tuple(span for ledger_id in named for span in spans.get(ledger_id, ())),
            )

        return tuple(of(name) for name in self._cursors)

    def _acknowledged(self, lengths: Mapping[LedgerId, int]) -> dict[CursorName, PositionRanges | Unreadable]:
        """Return the acknowledgements in the broker's memory, or the stored ones if the topic is not loaded."""
        live = {} if self._view is None else self._view.cursors
        known = {name: live[sub].acknowledged for name in self._cursors if (sub := decode_cursor(name) or name) in live}
        stored = [name for name in self._cursors if name not in known]
        read = self._sources.cursors.acknowledged([self._cursors[name].data for name in stored], lengths)
        return {**dict(zip(stored, read, strict=True)), **known}

    def _compacted(self, cursor: CursorReferences | Unreadable | None) -> frozenset[LedgerId] | Unreadable:
        live = None if self._view is None else self._view.compacted_ledger
        if live is not None:
            return frozenset({live})
        if cursor is None or isinstance(cursor, Unreadable):
            return frozenset() if cursor is None else cursor
        try:
            return self._sources.compacted.referenced(cursor)
        except SidecarError as error:
            return Unreadable(str(error))

    def _replicated_to(self) -> frozenset[str] | Unreadable:
        if any(remote_cluster(decode_cursor(name) or name) for name in self._cursors):
            return self._sources.policies.replicated_to(self._topic)
        return frozenset()

    def _replicators(
        self, cursors: Sequence[CursorFacts], ledgers: Sequence[LedgerFacts]
    ) -> Mapping[str, bool] | Unreadable:
        if self._view is None or self._view.broker is None:
            return {}
        behind = (
            remote_cluster(each.subscription)
            and not isinstance(each.acknowledged, Unreadable)
            and _first(waiting(each.acknowledged, ledgers))
            for each in cursors
        )
        return self._sources.views.replicators(self._topic, self._view.broker) if any(behind) else {}

    def _offload_lag(self, listed: ManagedLedgerReferences) -> int | Unreadable:
        if any(ledger.offload is not None and ledger.in_bookkeeper for ledger in listed.ledgers.values()):
            return self._sources.policies.offload_lag_ms(self._topic.namespace)
        return -1


def ledgers_metadata(
    sources: Sources, ids: Sequence[LedgerId]
) -> tuple[dict[LedgerId, LedgerMetadata], dict[LedgerId, str]]:
    """Return BookKeeper's metadata of the existing ledgers, and the reasons why some cannot be read.

    Raises:
        TemporaryError: the metadata store could not be read.
    """
    nodes = sources.store.read_many([ledger_path(ledger_id, sources.ledgers_root) for ledger_id in ids])
    found: dict[LedgerId, LedgerMetadata] = {}
    undecodable = {}
    for ledger_id, node in zip(ids, nodes, strict=True):
        try:
            if node is not None:
                found[ledger_id] = decode_ledger_metadata(node.data)
        except UndecodableError as error:
            undecodable[ledger_id] = str(error)
    return found, undecodable


def facts_of_ledgers(ids: Collection[LedgerId], metadata: Mapping[LedgerId, LedgerMetadata]) -> tuple[LedgerFacts, ...]:
    """Return the facts about the existing ledgers, which are closed or empty."""
    return tuple(ledger_facts(ledger_id, metadata[ledger_id]) for ledger_id in sorted(ids) if ledger_id in metadata)


def ledger_facts(ledger_id: LedgerId, metadata: LedgerMetadata) -> LedgerFacts:
    """Return the facts in a ledger's metadata, which lack the length of an open one."""
    return LedgerFacts(ledger_id, metadata.last_entry_id + 1, metadata.length_bytes, metadata.write_quorum_size)


def _first(ranges: Iterator[EntryRange]) -> Position | None:
    found = next(ranges, None)
    return None if found is None else Position(found.ledger_id, found.first)


def _list(topic: TopicName, node: Node) -> ManagedLedgerReferences:
    try:
        return managed_ledger_references(node.data)
    except UndecodableError as error:
        raise UndecodableError(f"{topic}: {error}") from error


def _references(node: Node) -> CursorReferences | Unreadable:
    try:
        return cursor_references(node.data)
    except SidecarError as error:
        return Unreadable(str(error))


def _listed(ledger_id: LedgerId, listed: LedgerReference, metadata: LedgerMetadata | None) -> LedgerFacts:
    copies = 0 if metadata is None else metadata.write_quorum_size
    return LedgerFacts(ledger_id, listed.entries, listed.size_bytes, copies, listed.closed_ms, listed.offload)
