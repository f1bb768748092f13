"""Stock 4.0.8 brokers and shadow topics (PIP-180), in memory.

Invariant: a broker here deletes all ledgers in a topic's list, from memory or else from the node, and lists a source's
ledgers whenever it loads a shadow of an existing source. ``destroyed`` has the ledgers that this cost. A load has two
steps: the broker reads the topic's source, and later opens the managed ledger with it.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence

from pulsar_sidecar.features.ledger_deletion.ports import ConnectedClients
from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.topic_stats import TopicInternalStats
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.references import managed_ledger_references
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.fakes.bookkeeper import managed_ledger_bytes
from tests.fakes.metadata import FakeMetadataStore


class ShadowBrokers:
    """`ledger_deletion.ports.TopicAdmin` and `LiveOwners` over a store with topics."""

    def __init__(self, store: FakeMetadataStore) -> None:
        self.store = store
        self.destroyed: set[LedgerId] = set()
        self.kept_forever: set[TopicName] = set()
        self.lists: dict[TopicName, list[str]] = {}
        self.replicating: dict[TopicName, TopicName] = {}
        self.clients_of: dict[TopicName, ConnectedClients] = {}
        self.refusals: list[BrokerRefusedError] = []
        self.asked: list[str] = []
        self.policy_is_late = False
        self.unloads_missed = 0
        """Number of unloads that reach a broker without the topic's bundle, while another broker keeps it loaded."""
        self.replicators_linger = False
        """True if the unload of a source leaves its replicators connected."""
        self.after_deletion: Callable[[TopicName], None] = lambda _: None
        self._loaded: dict[TopicName, tuple[LedgerId, ...]] = {}
        self._loading: dict[TopicName, str | None] = {}
        self._with_backlog: set[TopicName] = set()
        self._next_ledger_id = 100

    # --- setup by tests ----------------------------------------------------------------------------------------------

    def source(self, name: str, ledgers: int = 3) -> TopicName:
        """Create a topic with its own ledgers, and a subscription that needs all of them."""
        topic = parse_topic_name(name)
        self._with_backlog.add(topic)
        ids = [LedgerId(self._next_ledger_id + place) for place in range(ledgers)]
        self._next_ledger_id += ledgers
        for ledger_id in ids:
            self.store.put(ledger_path(ledger_id), b"metadata")
        self.store.put(managed_ledger_path(topic.managed_ledger_name), managed_ledger_bytes(ids))
        return topic

    def shadow(self, name: str, source: TopicName, *, partitions: int | None = None) -> TopicName:
        """Create a shadow loaded once; with partitions only the partitioned topic's node has the property."""
        topic = parse_topic_name(name)
        if partitions is not None:
            document = {"partitions": partitions, "deleted": False, "properties": {SHADOW_SOURCE: str(source)}}
            self.store.put(partitioned_topic_path(topic), json.dumps(document).encode())
        for index in range(partitions) if partitions is not None else (None,):
            each = topic if index is None else topic.partition(index)
            listed = self.listed(source if index is None else source.partition(index)) or ()
            properties = {SHADOW_SOURCE: str(source)} if index is None else {}
            path = managed_ledger_path(each.managed_ledger_name)
            self.store.put(path, managed_ledger_bytes(listed, properties=properties))
            self.store.put(f"{path}/sub", b"cursor")
        return topic

    def listed(self, topic: TopicName) -> tuple[LedgerId, ...] | None:
        """Return a managed ledger's list; None without its node."""
        node = self.store.peek(managed_ledger_path(topic.managed_ledger_name))
        return None if node is None else tuple(managed_ledger_references(node.data).ledgers)

    # --- loading -----------------------------------------------------------------------------------------------------

    def begin_load(self, topic: TopicName) -> None:
        """Begin a load: a broker reads the topic's source."""
        if topic not in self._loaded and topic not in self._loading and self.listed(topic) is not None:
            self._loading[topic] = self._property(topic)

    def end_load(self, topic: TopicName) -> None:
        """End a load: the broker opens the managed ledger; a shadow lists its source's ledgers again and is trimmed."""
        if topic not in self._loading:
            return
        spelled = self._loading.pop(topic)
        listed = self.listed(topic)
        if listed is None:
            return
        if spelled is not None:
            source = parse_topic_name(spelled)
            listed = self.listed(source if topic.partition_index is None else source.partition(topic.partition_index))
            if listed is None:
                return
            self._write_list(topic, listed)
        self._loaded[topic] = listed
        if topic.base not in self.kept_forever and topic not in self._with_backlog:
            self._destroy(listed[:-1])

    def load(self, topic: TopicName) -> bool:
        """Load the topic for a client; return True if it is loaded now."""
        self.begin_load(topic)
        self.end_load(topic)
        return topic in self._loaded

    def replicate(self) -> None:
        """Publish from the sources' connected replicators, which recreates deleted shadows."""
        for shadow in self.replicating:
            path = managed_ledger_path(shadow.managed_ledger_name)
            if self.store.peek(path) is None:
                self.store.put(path, managed_ledger_bytes([]))
            self.load(shadow)

    # --- the ports ---------------------------------------------------------------------------------------------------

    def views(self, topics: Collection[TopicName]) -> Mapping[TopicName, TopicInternalStats]:
        empty = TopicInternalStats({}, Position(LedgerId(-1), EntryId(-1)), broker="broker")
        return {topic: empty for topic in topics if topic in self._loaded}

    def owner_url(self, topic: TopicName) -> str | None:
        return None

    def keeps_forever(self, topic: TopicName) -> bool:
        self._require(topic)
        return topic in self.kept_forever and not self.policy_is_late

    def keep_forever(self, topic: TopicName) -> None:
        self._require(topic)
        self.asked.append(f"keep {topic.local_name}")
        self.kept_forever.add(topic)

    def shadow_topics(self, source: TopicName) -> list[TopicName]:
        self._require(source)
        return [parse_topic_name(name) for name in self.lists.get(source, [])]

    def set_shadow_topics(self, source: TopicName, shadows: Sequence[TopicName]) -> None:
        self._require(source)
        self.asked.append(f"list {source.local_name}")
        self.lists[source] = [str(shadow) for shadow in shadows]

    def unload(self, topic: TopicName) -> None:
        self.asked.append(f"unload {topic.local_name}")
        node = self.store.peek(partitioned_topic_path(topic))
        if node is None:
            self._unload(topic)
        for index in range(json.loads(node.data)["partitions"] if node else 0):
            self._unload(topic.partition(index))

    def _unload(self, topic: TopicName) -> None:
        lost = () if self.replicators_linger else list(self.replicating.items())
        for shadow in [shadow for shadow, source in lost if source == topic]:
            del self.replicating[shadow]
        if topic in self._loaded and self.unloads_missed:
            self.unloads_missed -= 1
            return
        if not self.load(topic):
            raise NotFoundError(f"Topic {topic} not found")
        del self._loaded[topic]

    def clients(self, topic: TopicName) -> ConnectedClients:
        if not self.load(topic):
            raise NotFoundError(f"Topic {topic} not found")
        connected = self.clients_of.get(topic, ConnectedClients())
        replicators = int(topic in self.replicating)
        return ConnectedClients(connected.consumers, connected.producers, replicators)

    def can_load(self, topic: TopicName) -> bool:
        return self.load(topic)

    def delete_topic(self, topic: TopicName, *, partitioned: bool, force: bool) -> None:
        assert not force
        self.asked.append(f"delete {topic.local_name}")
        if self.refusals:
            raise self.refusals.pop(0)
        if not partitioned:
            self._require(topic)
            self._delete(topic)
            self.after_deletion(topic)
            return
        path = partitioned_topic_path(topic)
        node = self.store.peek(path)
        if node is None:
            raise NotFoundError("Partitioned Topic Metadata not found")
        for index in range(json.loads(node.data)["partitions"]):
            self._delete(topic.partition(index))
        self.store.remove(path)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _delete(self, topic: TopicName) -> None:
        self.end_load(topic)
        self._destroy(self._loaded.pop(topic, None) or self.listed(topic) or ())
        path = managed_ledger_path(topic.managed_ledger_name)
        if self.store.peek(path) is not None:
            self.store.remove(path)

    def _destroy(self, ledger_ids: Sequence[LedgerId]) -> None:
        for ledger_id in ledger_ids:
            path = ledger_path(ledger_id)
            if self.store.peek(path) is not None:
                self.store.remove(path)
                self.destroyed.add(ledger_id)

    def _property(self, topic: TopicName) -> str | None:
        if topic.partition_index is None:
            path = managed_ledger_path(topic.managed_ledger_name)
            return managed_ledger_references(self._data(path)).properties.get(SHADOW_SOURCE)
        node = self.store.peek(partitioned_topic_path(topic.base))
        return json.loads(node.data).get("properties", {}).get(SHADOW_SOURCE) if node else None

    def _write_list(self, topic: TopicName, listed: Sequence[LedgerId]) -> None:
        path = managed_ledger_path(topic.managed_ledger_name)
        properties = managed_ledger_references(self._data(path)).properties
        if self.listed(topic) != tuple(listed):
            self.store.put(path, managed_ledger_bytes(listed, properties=properties))

    def _require(self, topic: TopicName) -> None:
        if self.listed(topic) is None and self.store.peek(partitioned_topic_path(topic)) is None:
            raise NotFoundError(f"Topic {topic} not found")

    def _data(self, path: str) -> bytes:
        node = self.store.peek(path)
        assert node is not None
        return node.data
