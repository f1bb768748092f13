"""A small Pulsar in memory: topics, the brokers that own and delete them, and its invariants.

Invariant: a broker here changes metadata and ledgers in the order of a 4.0.8 broker, one step at a time, and may die
before any of them. The fake watches deletions by the sidecar, and records that of a referenced ledger at once.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerState, OffloadContext
from pulsar_sidecar.model.metadata import DeletionResult, GuardedDeletion, Node, always
from pulsar_sidecar.model.names import CursorName, SchemaId, TopicName, encode_cursor, java_url_decode, parse_topic_name
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR, Cursor, TopicInternalStats
from pulsar_sidecar.ownership.paths import (
    MANAGED_LEDGERS,
    SCHEMAS,
    available_bookies_path,
    cursor_path,
    instance_id_path,
    ledger_id_of_path,
    ledger_path,
    managed_ledger_path,
    partitioned_topic_path,
    schema_path,
)
from pulsar_sidecar.ownership.places import topic_of_schema
from pulsar_sidecar.ownership.references import (
    CursorReferences,
    cursor_references,
    managed_ledger_references,
    schema_references,
)
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.fakes.bookkeeper import (
    FakeLedgerEntries,
    bucket_custom_metadata,
    compacted_custom_metadata,
    cursor_bytes,
    cursor_custom_metadata,
    data_custom_metadata,
    ledger_metadata_bytes,
    managed_ledger_bytes,
    position_entry,
    schema_custom_metadata,
    schema_locator_bytes,
)
from tests.fakes.brokers import FakeLiveOwners, FakeTopicAdmin, TopicDeletion
from tests.fakes.clock import FakeClock
from tests.fakes.deleting_broker import delete_topic
from tests.fakes.deletion_topics import FakeDeletionTopics
from tests.fakes.metadata import FakeMetadataStore
from tests.fakes.offload import FakeOffloadedLedgers
from tests.fakes.shadows import FakeShadows

INSTANCE_ID = "f4c1a5a4-0000-4000-8000-000000000001"
BROKER = "broker-1:8080"
YEAR_MS = 365 * 24 * 3_600_000


class FakePulsarClock(FakeClock):
    """A sidecar's clock, which advances the metadata store's too."""

    def __init__(self, store: FakeMetadataStore) -> None:
        super().__init__()
        self._store = store

    def advance_ms(self, milliseconds: int) -> None:
        super().advance_ms(milliseconds)
        self._store.advance_ms(milliseconds)


class WatchedStore(FakeMetadataStore):
    """A store that reports ledgers deleted by a sidecar to the fake Pulsar."""

    watcher: Callable[[LedgerId], None] | None = None

    def delete_many(
        self, deletions: Sequence[GuardedDeletion], may_send: Callable[[], bool] = always
    ) -> list[DeletionResult]:
        present = [deletion.path for deletion in deletions if self.peek(deletion.path) is not None]
        results = super().delete_many(deletions, may_send)
        for path in present:
            ledger_id = ledger_id_of_path(path)
            if self.peek(path) is None and ledger_id is not None and self.watcher is not None:
                self.watcher(ledger_id)
        return results

    def other_session(self) -> "WatchedStore":
        """Return another sidecar's session, also watched."""
        other = WatchedStore(self._tree)
        other.watcher = self.watcher
        return other


class FakePulsarOwners(FakeLiveOwners):
    """Owners from the topics that the fake brokers have loaded."""

    def __init__(self, fake_pulsar: "FakePulsar") -> None:
        super().__init__()
        self._fake_pulsar = fake_pulsar

    def views(self, topics: Collection[TopicName]) -> Mapping[TopicName, TopicInternalStats]:
        self.asked.append(frozenset(topics))
        self.hooks.arrive("views")
        return {topic: self._fake_pulsar.view(topic) for topic in topics if topic in self._fake_pulsar.loaded}


BEFORE_EVERYTHING = Position(LedgerId(-1), EntryId(-1))


@dataclass(slots=True)
class TopicPlan:
    """Parts of a topic; numbers are counts of ledgers, ``offloaded`` has indexes in the list."""

    ledgers: int = 3
    subscriptions: Sequence[str] = ("sub",)
    closed_cursors: bool = False
    schema_versions: int = 0
    compacted: bool = False
    buckets: int = 0
    offloaded: Sequence[int] = ()
    bookkeeper_deleted: Sequence[int] = ()
    last_open: bool = True
    age_ms: int = YEAR_MS


@dataclass(slots=True)
class FakePulsar:
    """The metadata store, the bookies, the brokers and the topics of the service in one process.

    Attributes:
        loaded: topics that a broker has loaded.
        die_at: number, from 0, of the step before which the broker is killed; None if it survives.
        broker_steps: number of steps that brokers have taken.
        removed_by_brokers: ledgers that brokers deleted themselves, maybe before their references.
        violations: ledgers that a sidecar deleted while they were referenced.
    """

    store: WatchedStore = field(default_factory=WatchedStore)
    entries: FakeLedgerEntries = field(default_factory=FakeLedgerEntries)
    offloaded: FakeOffloadedLedgers = field(default_factory=FakeOffloadedLedgers)
    loaded: set[TopicName] = field(default_factory=set)
    die_at: int | None = None
    broker_steps: int = 0
    removed_by_brokers: set[LedgerId] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    next_ledger_id: int = 10
    partitions: int = 2
    _positions: dict[LedgerId, list[LedgerId | None]] = field(default_factory=dict)
    clock: FakePulsarClock = field(init=False)
    topics: FakeDeletionTopics = field(init=False)
    owners: FakePulsarOwners = field(init=False)
    admin: FakeTopicAdmin = field(init=False)
    shadows: FakeShadows = field(init=False)

    def __post_init__(self) -> None:
        self.store.watcher = self._watch
        self.clock = FakePulsarClock(self.store)
        self.topics = FakeDeletionTopics(self.clock, partitions=self.partitions)
        self.owners = FakePulsarOwners(self)
        self.admin = FakeTopicAdmin(self.delete_by_broker)
        self.shadows = FakeShadows(self.store)
        self.store.put(instance_id_path(), INSTANCE_ID.encode())
        self.store.put(f"{available_bookies_path()}/bookie:3181")

    # --- builders ------------------------------------------------------------------------------------------------

    def ledger(
        self,
        custom_metadata: Mapping[str, bytes],
        *,
        state: LedgerState = LedgerState.CLOSED,
        age_ms: int = YEAR_MS,
        ledger_id: int | None = None,
    ) -> LedgerId:
        """Create a ledger without a reference."""
        created = LedgerId(self._next_id() if ledger_id is None else ledger_id)
        created_ms = self.clock.now_ms() - age_ms
        self.store.put(ledger_path(created), ledger_metadata_bytes(state, custom_metadata), created_ms=created_ms)
        return created

    def topic(self, name: str, plan: TopicPlan | None = None) -> TopicName:
        """Create an unloaded topic with all parts of the plan."""
        topic = parse_topic_name(name)
        plan = plan or TopicPlan()
        ids = [self._data_ledger(topic, plan, place) for place in range(plan.ledgers)]
        contexts = {ids[place]: self.context(ids[place], deleted=False) for place in plan.offloaded}
        for place in plan.bookkeeper_deleted:
            contexts[ids[place]] = self.context(ids[place], deleted=True)
            self.remove_ledger(ids[place])
        for ledger_id, context in contexts.items():
            self.offloaded.put(ledger_id, context, topic.managed_ledger_name)
        self.store.put(managed_ledger_path(topic.managed_ledger_name), managed_ledger_bytes(ids, offloaded=contexts))
        for subscription in plan.subscriptions:
            self.cursor(topic, subscription, plan)
        if plan.compacted:
            self.compact(topic, age_ms=plan.age_ms)
        if plan.schema_versions:
            self.schema(topic, plan.schema_versions, age_ms=plan.age_ms)
        return topic

    def partitioned_topic(self, name: str, partitions: int, plan: TopicPlan | None = None) -> TopicName:
        """Create a partitioned topic with the plan for each partition, except the common schema."""
        topic = parse_topic_name(name)
        each = plan or TopicPlan()
        versions, each.schema_versions = each.schema_versions, 0
        data = f'{{"partitions":{partitions},"deleted":false}}'.encode()
        self.store.put(partitioned_topic_path(topic), data)
        for index in range(partitions):
            self.topic(str(topic.partition(index)), each)
        if versions:
            self.schema(topic, versions, age_ms=each.age_ms)
        return topic

    def shadow(self, name: str, source: TopicName, *, spelled: str | None = None) -> TopicName:
        """Create a shadow with its own cursor and a copy of the source's list, including offload contexts."""
        topic = parse_topic_name(name)
        properties = {SHADOW_SOURCE: spelled or str(source)}
        data = managed_ledger_bytes(self.listed(source), properties=properties, offloaded=self.copies_of(source))
        self.store.put(managed_ledger_path(topic.managed_ledger_name), data)
        self.cursor(topic, "of-the-shadow")
        return topic

    def partitioned_shadow(self, name: str, source: TopicName, partitions: int) -> TopicName:
        """Create a shadow of a partitioned source, without loaded partitions."""
        topic = parse_topic_name(name)
        data = {"partitions": partitions, "deleted": False, "properties": {SHADOW_SOURCE: str(source)}}
        self.store.put(partitioned_topic_path(topic), json.dumps(data, separators=(",", ":")).encode())
        return topic

    def cursor(self, topic: TopicName, subscription: str, plan: TopicPlan | None = None) -> None:
        """Create a subscription's cursor, open with its own ledger unless the plan closes it."""
        plan = plan or TopicPlan()
        name = topic.managed_ledger_name
        buckets = {
            f"#pulsar.internal.delayed.bucket_{number}_{number}": self.ledger(
                bucket_custom_metadata(str(topic), subscription, f"#pulsar.internal.delayed.bucket_{number}_{number}"),
                age_ms=plan.age_ms,
            )
            for number in range(plan.buckets)
        }
        own = None if plan.closed_cursors else self._cursor_ledger(topic, encode_cursor(subscription), plan.age_ms)
        self.store.put(cursor_path(name, encode_cursor(subscription)), cursor_bytes(own, buckets=buckets))

    def compact(self, topic: TopicName, *, closed: bool = False, age_ms: int = YEAR_MS) -> LedgerId:
        """Create a compacted ledger and point the ``__compaction`` cursor to it; the former one stays."""
        compacted = self.ledger(compacted_custom_metadata(str(topic)), age_ms=age_ms)
        path = cursor_path(topic.managed_ledger_name, COMPACTION_CURSOR)
        node = self.store.peek(path)
        own = cursor_references(node.data).cursor_ledger if node else None
        if closed:
            self.store.put(path, cursor_bytes(None, compacted_ledger=compacted))
            return compacted
        if own is None:
            own = self._cursor_ledger(topic, COMPACTION_CURSOR, age_ms)
            self.store.put(path, cursor_bytes(own))
        self.append_position(own, compacted)
        return compacted

    def append_position(self, cursor_ledger: LedgerId, compacted: LedgerId | None) -> None:
        """Write a cursor's position like a broker, with the compacted ledger's id if any."""
        positions = self._positions.setdefault(cursor_ledger, [])
        self.entries.put(cursor_ledger, position_entry(compacted), first_entry_id=len(positions))
        positions.append(compacted)

    def schema(self, topic: TopicName, versions: int, *, age_ms: int = YEAR_MS) -> list[LedgerId]:
        """Create a schema with ``versions`` versions, each with its ledger."""
        custom = schema_custom_metadata(topic.schema_id)
        ids = [self.ledger(custom, age_ms=age_ms) for _ in range(versions)]
        self.store.put(schema_path(topic.schema_id), schema_locator_bytes(ids))
        return ids

    def rollover(self, topic: TopicName) -> LedgerId:
        """Append a new open ledger to the topic's list like a broker."""
        path = managed_ledger_path(topic.managed_ledger_name)
        node = self._node(path)
        fresh = self.ledger(data_custom_metadata(topic.managed_ledger_name), state=LedgerState.OPEN, age_ms=0)
        self.store.put(path, managed_ledger_bytes([*managed_ledger_references(node.data).ledgers, fresh]))
        return fresh

    def trim(self, topic: TopicName, count: int, *, dies_between: bool = False) -> list[LedgerId]:
        """Trim like a broker: shorten the list, then delete the ledgers unless the broker dies between the two."""
        path = managed_ledger_path(topic.managed_ledger_name)
        ids = list(managed_ledger_references(self._node(path).data).ledgers)
        self.store.put(path, managed_ledger_bytes(ids[count:]))
        if not dies_between:
            for ledger_id in ids[:count]:
                self.remove_ledger(ledger_id)
        return ids[:count]

    def load(self, topic: TopicName) -> None:
        self.loaded.add(topic)

    def kill_broker(self) -> None:
        """Unload everything; the next broker survives."""
        self.loaded.clear()
        self.die_at = None

    def context(self, ledger_id: int, *, deleted: bool) -> OffloadContext:
        base = self.offloaded.context(uid_msb=ledger_id)
        return OffloadContext(
            base.uid_msb, base.uid_lsb, base.driver_name, base.driver_metadata, bookkeeper_deleted=deleted
        )

    # --- brokers' changes of ledgers and nodes -------------------------------------------------------------------

    def delete_by_broker(self, deletion: TopicDeletion) -> None:
        """Delete like a broker, one step at a time; raise `OutcomeUnknownError` if it dies meanwhile."""
        delete_topic(self, deletion)

    def copies_of(self, topic: TopicName) -> dict[LedgerId, OffloadContext]:
        """Return the offload attempts in the topic's list."""
        listed = managed_ledger_references(self._node(managed_ledger_path(topic.managed_ledger_name)).data).ledgers
        return {ledger_id: entry.offload for ledger_id, entry in listed.items() if entry.offload}

    def listed_at(self, path: str) -> list[LedgerId]:
        """Return the list in a managed ledger's node, empty without a node."""
        node = self.store.peek(path)
        return list(managed_ledger_references(node.data).ledgers) if node else []

    def remove_ledger(self, ledger_id: LedgerId) -> None:
        """Delete a ledger like a broker by BookKeeper's client; idempotent."""
        self.removed_by_brokers.add(ledger_id)
        self.remove_node(ledger_path(ledger_id))

    def remove_node(self, path: str) -> None:
        if self.store.peek(path) is not None:
            self.store.remove(path)

    # --- inspection ----------------------------------------------------------------------------------------------

    def ledgers(self) -> set[LedgerId]:
        found = (ledger_id_of_path(path) for path in self.store.paths())
        return {ledger_id for ledger_id in found if ledger_id is not None}

    def listed(self, topic: TopicName) -> list[LedgerId]:
        return self.listed_at(managed_ledger_path(topic.managed_ledger_name))

    def cursors(self, topic: TopicName) -> dict[CursorName, CursorReferences]:
        prefix = managed_ledger_path(topic.managed_ledger_name) + "/"
        paths = [path for path in self.store.paths() if path.startswith(prefix)]
        return {CursorName(path.removeprefix(prefix)): cursor_references(self._node(path).data) for path in paths}

    def compacted(self, cursor: CursorReferences) -> frozenset[LedgerId]:
        """Return the references of the compaction cursor's newest positions; none if its ledger is gone."""
        if cursor.cursor_ledger is None:
            positions = [cursor.compacted_ledger]
        elif self.store.peek(ledger_path(cursor.cursor_ledger)) is None:
            positions = []
        else:
            positions = self._positions.get(cursor.cursor_ledger, [])
        return frozenset(ledger_id for ledger_id in positions[-2:] if ledger_id is not None)

    def referenced(self) -> dict[LedgerId, str]:
        """Return every referenced ledger with one node that references it."""
        found: dict[LedgerId, str] = {}
        for path in self.store.paths():
            data = self._node(path).data
            if path.startswith(f"{SCHEMAS}/") and data:
                found.update(dict.fromkeys(schema_references(data), path))
            elif path.startswith(f"{MANAGED_LEDGERS}/") and data:
                found.update(dict.fromkeys(self._managed_references(path, data), path))
        return found

    def _managed_references(self, path: str, data: bytes) -> set[LedgerId]:
        parts = path.removeprefix(f"{MANAGED_LEDGERS}/").split("/")
        if parts[-2] == "persistent":
            listed = managed_ledger_references(data).ledgers
            return {
                ledger_id
                for ledger_id, entry in listed.items()
                if entry.offload is None or not entry.offload.bookkeeper_deleted
            }
        cursor = cursor_references(data)
        ids = set(cursor.buckets.values()) | ({cursor.cursor_ledger} - {None})
        return ids | (self.compacted(cursor) if parts[-1] == COMPACTION_CURSOR else frozenset())

    def view(self, topic: TopicName) -> TopicInternalStats:
        cursors = self.cursors(topic)
        compacted = self.compacted(cursors[COMPACTION_CURSOR]) if COMPACTION_CURSOR in cursors else frozenset()
        listed = self.listed(topic)
        schema = self.store.peek(schema_path(topic.schema_id))
        return TopicInternalStats(
            broker=BROKER,
            cursors={java_url_decode(name): _cursor(c.cursor_ledger) for name, c in cursors.items()},
            ledgers=dict.fromkeys(sorted(listed), 1),
            last_confirmed=BEFORE_EVERYTHING,
            cursor_ledgers=frozenset(c.cursor_ledger for c in cursors.values() if c.cursor_ledger is not None),
            schema_ledgers=schema_references(schema.data) if schema else frozenset(),
            compacted_ledger=max(compacted, default=None),
            ledgers_being_read=frozenset(listed[-1:]),
        )

    def leftover_schemas(self) -> list[str]:
        """Return the nodes of schemas without a ledger and without a topic."""
        paths = self.store.paths()
        nodes = [self._node(path) for path in paths if path.startswith(f"{SCHEMAS}/")]
        gone = [node for node in nodes if node.data and not self.ledgers() & schema_references(node.data)]
        return [node.path for node in gone if not self._has_topic(SchemaId(node.path.removeprefix(f"{SCHEMAS}/")))]

    def _has_topic(self, schema_id: SchemaId) -> bool:
        topic = topic_of_schema(schema_id)
        paths = (managed_ledger_path(topic.managed_ledger_name), partitioned_topic_path(topic)) if topic else ()
        return any(self.store.peek(path) for path in paths)

    def dangling(self) -> set[LedgerId]:
        """Return dangling references that no broker caused, which must never exist."""
        return self.referenced().keys() - self.ledgers() - self.removed_by_brokers

    # --- inside --------------------------------------------------------------------------------------------------

    def _watch(self, ledger_id: LedgerId) -> None:
        referenced_by = self.referenced().get(ledger_id)
        if referenced_by is not None:
            self.violations.append(f"ledger {ledger_id} was deleted while {referenced_by} referenced it")

    def _data_ledger(self, topic: TopicName, plan: TopicPlan, place: int) -> LedgerId:
        still_open = plan.last_open and place == plan.ledgers - 1
        state = LedgerState.OPEN if still_open else LedgerState.CLOSED
        return self.ledger(data_custom_metadata(topic.managed_ledger_name), state=state, age_ms=plan.age_ms)

    def _cursor_ledger(self, topic: TopicName, cursor: CursorName, age_ms: int) -> LedgerId:
        custom = cursor_custom_metadata(topic.managed_ledger_name, cursor)
        own = self.ledger(custom, state=LedgerState.OPEN, age_ms=age_ms)
        self.append_position(own, None)
        return own

    def _node(self, path: str) -> Node:
        node = self.store.peek(path)
        if node is None:
            raise AssertionError(f"{path} is not there")
        return node

    def _next_id(self) -> int:
        self.next_ledger_id += 1
        return self.next_ledger_id


def _cursor(ledger: LedgerId | None) -> Cursor:
    return Cursor(PositionRanges(BEFORE_EVERYTHING), 0, BEFORE_EVERYTHING, ledger, EntryId(0))
