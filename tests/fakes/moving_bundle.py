"""Two brokers whose bundle moves between them while a topic may stay loaded, behind the real `BrokerLiveOwners`.

Invariant: a broker replaces a node only at the version that it has loaded or written; what it has loaded stays in its
memory when it loses the bundle, and only the owner serves the topic. The weakest case: loading writes nothing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pulsar_sidecar.adapters.pulsar_rest.admin_rest import BROKERS_PATH, topic_path
from pulsar_sidecar.adapters.pulsar_rest.bundles import ownership_path
from pulsar_sidecar.adapters.pulsar_rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR
from pulsar_sidecar.ownership.paths import LOCAL_POLICIES, managed_ledger_path

from tests.fakes.pulsar import FakePulsar

BROKERS = ("broker-1:8080", "broker-2:8080")
_EVERYTHING = ("0x00000000", "0xffffffff")
_BEFORE_EVERYTHING = "-1:-1"


@dataclass
class MovingBundle:
    """The bundle of a topic, owned by the first broker, which has the topic loaded; it is also the brokers' REST API.

    Attributes:
        compacted: the compacted ledger that the owner has written and has not linked yet.
        versioned: False for brokers that replace nodes at any version, which none does.
    """

    fake_pulsar: FakePulsar
    topic: TopicName
    compacted: LedgerId | None = None
    versioned: bool = True
    owner: str | None = None
    memories: dict[str, dict[str, Node]] = field(default_factory=lambda: {broker: {} for broker in BROKERS})

    def __post_init__(self) -> None:
        store = self.fake_pulsar.store
        for broker in BROKERS:
            store.put(f"{BROKERS_PATH}/{broker}", b'{"webServiceUrl": "http://%s"}' % broker.encode())
        store.put(f"{LOCAL_POLICIES}/{self.topic.namespace}", b"{}")
        self.owners = self.fake_pulsar.owners = BrokerLiveOwners(self, store)
        self.first_takes_the_bundle()
        self.owner_loads()

    # --- steps of brokers --------------------------------------------------------------------------------------------

    def owner_loses_the_bundle(self) -> None:
        """End the owner's session, or its wait for an unload, while it has the topic loaded."""
        if self.owner is not None:
            self.fake_pulsar.store.remove(self._ownership)
            self.owner, self.compacted = None, None
            self.fake_pulsar.loaded.clear()

    def first_takes_the_bundle(self) -> None:
        self._take(BROKERS[0])

    def second_takes_the_bundle(self) -> None:
        self._take(BROKERS[1])

    def owner_loads(self) -> None:
        if self.owner is None or not self._nodes():
            return
        self.memories[self.owner] = self._nodes()
        self.fake_pulsar.load(self.topic)

    def owner_links_the_compacted_ledger(self) -> None:
        """Write the position that has only been in memory, to the ledger of the cursor."""
        cursor = self.fake_pulsar.cursors(self.topic).get(COMPACTION_CURSOR)
        if cursor is not None and cursor.cursor_ledger is not None and self.compacted is not None:
            self.fake_pulsar.append_position(cursor.cursor_ledger, self.compacted)
            self.compacted = None

    def owner_trims(self) -> None:
        """Take the first ledger off the list and die before deleting it."""
        path = managed_ledger_path(self.topic.managed_ledger_name)
        if self.owner is not None and self._may_write(self.owner, path):
            self.fake_pulsar.trim(self.topic, 1, dies_between=True)
            self.memories[self.owner][path] = self._nodes()[path]

    def owner_writes(self) -> None:
        if self.owner is not None:
            self._write(self.owner)

    def others_write(self) -> None:
        """Replace every node with the copy in memory of brokers without the bundle."""
        for broker in self._others:
            self._write(broker)

    def others_close(self) -> None:
        for broker in self._others:
            self.memories[broker] = {}

    # --- the brokers' REST API ---------------------------------------------------------------------------------------

    def reachable(self, urls: Sequence[str]) -> Sequence[str]:
        return urls

    def get_exactly(self, url: str, path: str, params: Mapping[str, str]) -> object:
        self.fake_pulsar.admin.hooks.arrive("views")
        is_owner = self.owner is not None and url == f"http://{self.owner}"
        if path.endswith("/bookieops"):
            return {"bundle": {str(topic): {} for topic in self.fake_pulsar.loaded} if is_owner else {}}
        assert path == topic_path(self.topic, "/internalStats")
        return self._internal_stats()

    def _internal_stats(self) -> object:
        view = self.fake_pulsar.view(self.topic)
        cursors = {
            name: {
                "markDeletePosition": _BEFORE_EVERYTHING,
                "readPosition": _BEFORE_EVERYTHING,
                "individuallyDeletedMessages": "[]",
                "totalNonContiguousDeletedMessagesRange": 0,
                "cursorLedger": -1 if cursor.ledger is None else cursor.ledger,
                "cursorLedgerLastEntry": 0,
            }
            for name, cursor in view.cursors.items()
        }
        compacted = self.compacted or view.compacted_ledger
        return {
            "lastConfirmedEntry": _BEFORE_EVERYTHING,
            "ledgers": _ledgers(view.ledgers),
            "cursors": cursors,
            "schemaLedgers": _ledgers(view.schema_ledgers),
            "compactedLedger": {"ledgerId": -1 if compacted is None else compacted, "entries": 1},
        }

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def _others(self) -> list[str]:
        return [broker for broker in BROKERS if broker != self.owner]

    @property
    def _ownership(self) -> str:
        return ownership_path(self.topic, _EVERYTHING)

    def _take(self, broker: str) -> None:
        if self.owner is None:
            self.owner = broker
            self.fake_pulsar.store.put(self._ownership, b'{"httpUrl": "http://%s"}' % broker.encode())

    def _nodes(self) -> dict[str, Node]:
        path, store = managed_ledger_path(self.topic.managed_ledger_name), self.fake_pulsar.store
        found = (store.peek(each) for each in store.paths() if each == path or each.startswith(f"{path}/"))
        return {node.path: node for node in found if node is not None}

    def _may_write(self, broker: str, path: str) -> bool:
        remembered, node = self.memories[broker].get(path), self.fake_pulsar.store.peek(path)
        if remembered is None or node is None:
            return False
        return node.version == remembered.version or not self.versioned

    def _write(self, broker: str) -> None:
        for path, remembered in self.memories[broker].items():
            if self._may_write(broker, path):
                self.memories[broker][path] = self.fake_pulsar.store.put(path, remembered.data)


def _ledgers(ids: Collection[LedgerId]) -> list[dict[str, int]]:
    return [{"ledgerId": ledger_id, "entries": 1} for ledger_id in ids]
