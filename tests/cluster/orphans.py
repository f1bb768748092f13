"""Ledgers that nothing references, by the ten thousand: what a retention change frees at once.

Each carries the metadata that a broker's own BookKeeper client wrote for a closed ledger of a topic that is loaded and
alive, under an id of its own, with the version and the time that ZooKeeper gives it. Only the nodes are made: deleting
a ledger is deleting its node, for BookKeeper's client as for ours, and no bookie is involved.
"""

import itertools
import secrets
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.handlers.threading import AsyncResult
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.protobuf.DataFormats_pb2 import LedgerMetadataFormat

from tests.cluster.patience import until
from tests.cluster.running import ExternalClusterUnderTest
from tests.cluster.topics import Workload
from tests.fakes.bookkeeper import delimited

_FIRST_ID = 1_000_000_000
"""Far above BookKeeper's ids in a run; each run begins some millions further on."""
_RUNS = 100
_FILLED_TOPICS = 20
_MANAGED_LEDGER = "pulsar/managed-ledger"
_IDS_OF_A_RUN = 10_000_000

_HEADER = b"BookieMetadataFormatVersion\t3\n"
_NODES_PER_TRANSACTION = 500
_TRANSACTIONS_IN_FLIGHT = 4


@dataclass(frozen=True, slots=True)
class Orphan:
    """A ledger that its topic does not list."""

    ledger_id: LedgerId
    topic: TopicName

    @property
    def path(self) -> str:
        return ledger_path(self.ledger_id)

    @property
    def directory(self) -> str:
        return self.path.rpartition("/")[0]


class OrphanMaker:
    """Topics on the cluster, and ledgers that look like theirs.

    Attributes:
        in_use: the ledgers to which some of the topics write.
    """

    def __init__(self, addresses: ClusterAddresses, topics: int) -> None:
        self._kazoo = KazooClient(parse_metadata_store_url(addresses.metadata_store_url).hosts)
        self._kazoo.start()
        self._ids = itertools.count(_FIRST_ID + secrets.randbelow(_RUNS) * _IDS_OF_A_RUN)
        with closing(Workload(ExternalClusterUnderTest(addresses))) as workload:
            self._closed = _closed_ledgers(workload, topics)
            written = list(self._closed)[:_FILLED_TOPICS]
            self.in_use = [Orphan(max(workload.ledgers(topic).data), topic) for topic in written]
        self.topics = tuple(self._closed)

    def make(self, count: int, side_by_side: int = 1) -> list[Orphan]:
        """Make this many ledgers, the topics taking turns with some side by side."""
        turns = (topic for topic in itertools.cycle(self.topics) for _ in range(side_by_side))
        orphans = [Orphan(LedgerId(next(self._ids)), next(turns)) for _ in range(count)]
        # BookKeeper's own driver removes a directory with its last ledger, so they are looked for every time.
        for directory in dict.fromkeys(orphan.directory for orphan in orphans):
            self._kazoo.ensure_path(directory)
        create_nodes(self._kazoo, [(each.path, _metadata(self._closed[each.topic], each)) for each in orphans])
        return orphans

    def remaining(self, orphans: Sequence[Orphan]) -> int:
        """Count the orphans that still have metadata in the listings of their directories."""
        wanted = {orphan.path for orphan in orphans}
        directories = {orphan.directory for orphan in orphans}
        return sum(f"{directory}/{name}" in wanted for directory in directories for name in self._children(directory))

    def close(self) -> None:
        self._kazoo.stop()
        self._kazoo.close()

    def _children(self, directory: str) -> list[str]:
        try:
            return self._kazoo.get_children(directory)
        except NoNodeError:
            return []


def _closed_ledgers(workload: Workload, topics: int) -> dict[TopicName, Node]:
    """Return a closed ledger's node for each of some new topics, which are loaded and write to another ledger.

    Topics beyond the first are only created, which loads them, and take turns with the nodes of the first.
    """
    namespace = f"public/orphans-{secrets.token_hex(4)}"
    workload.create_namespace(namespace)
    names = [parse_topic_name(f"persistent://{namespace}/topic-{number}") for number in range(topics)]
    closed = {topic: _closed_ledger(workload, topic) for topic in names[:_FILLED_TOPICS]}
    for topic in names[_FILLED_TOPICS:]:
        workload.admin("PUT", workload.of_topic(topic))
    return dict(zip(names, itertools.cycle(closed.values()), strict=False))


def _closed_ledger(workload: Workload, topic: TopicName) -> Node:
    workload.produce(topic, [b"before"])
    (ledger_id,) = workload.ledgers(topic).data
    workload.unload(topic)
    workload.produce(topic, [b"after"])
    until(lambda: workload.metadata(ledger_id).state is LedgerState.CLOSED, f"the first ledger of {topic} is closed")
    node = workload.store.read(ledger_path(ledger_id))
    assert node is not None
    assert decode_ledger_metadata(node.data).custom_metadata
    return node


def _metadata(node: Node, orphan: Orphan) -> bytes:
    """Return the node's metadata with the topic, the length and the last entry of this ledger."""
    header, body = node.data[: len(_HEADER)], node.data[len(_HEADER) :]
    length_bytes = 1 + next(index for index, byte in enumerate(body) if byte < 0x80)
    message = LedgerMetadataFormat.FromString(body[length_bytes:])
    for entry in message.customMetadata:
        if entry.key == _MANAGED_LEDGER:
            entry.value = orphan.topic.managed_ledger_name.encode()
    message.lastEntryId = orphan.ledger_id % 50_000
    message.length = (message.lastEntryId + 1) * 1_000
    return header + delimited(message.SerializeToString())


def create_nodes(kazoo: KazooClient, nodes: Sequence[tuple[str, bytes]]) -> None:
    """Create nodes with their data; all must be new, and their parents exist or come earlier in the list."""
    in_flight: deque[AsyncResult[list[object]]] = deque()
    for start in range(0, len(nodes), _NODES_PER_TRANSACTION):
        transaction = kazoo.transaction()
        for path, data in nodes[start : start + _NODES_PER_TRANSACTION]:
            transaction.create(path, data)
        in_flight.append(transaction.commit_async())
        while len(in_flight) > _TRANSACTIONS_IN_FLIGHT:
            _demand_created(in_flight.popleft())
    for answer in in_flight:
        _demand_created(answer)


def _demand_created(answer: "AsyncResult[list[object]]") -> None:
    refused = [each for each in answer.get() if not isinstance(each, str)]
    if refused:
        raise RuntimeError(f"nodes could not be made: {refused[0]!r}")
