"""Changes to the buckets that a subscription's cursor names, while no broker has the topic loaded.

A broker reads the names once, when it loads the topic, and later overwrites the cursor's node with its own copy. So the
sidecar changes the node by compare-and-set, only while no live broker lists the topic, and checks both again
afterwards. It never takes bundle ownership: a client's lookup makes a broker load the topic at any moment, and
`PointerOutcome` reports if one did.

Invariants: only the cursor's bucket properties change; the cursor names no bucket whose ledger is missing, or that
overlaps another. A lost race costs time, never a message: a broker that does not know a bucket reads the backlog
instead.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.results.maintenance import PointerOutcome
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, OutcomeUnknownError, SidecarError
from pulsar_sidecar.model.ids import LedgerId, NodeVersion
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName, encode_cursor
from pulsar_sidecar.ownership.exact_decoding import decode_exactly, unwrap
from pulsar_sidecar.ownership.paths import cursor_path, ledger_path
from pulsar_sidecar.ownership.ports import LoadedTopics
from pulsar_sidecar.ownership.references import cursor_references
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

RECHECK_SECONDS: Final = 3.0
"""Wait before the recheck: a broker that began to load the topic just before the change lists it by then, unless it
takes longer to load."""


@dataclass(frozen=True, slots=True)
class PointerChange:
    """Buckets to attach to a cursor, and buckets to detach from it.

    Attributes:
        topic: topic without partitions, or one partition.
        version: version of the cursor's node when the change was decided.
        attach: ledgers of closed, complete buckets, by key.
        detach: ledgers of buckets by the whole name of their property, which may be malformed.
    """

    topic: TopicName
    subscription: str
    version: NodeVersion
    attach: Mapping[BucketKey, LedgerId] = field(default_factory=dict)
    detach: Mapping[str, LedgerId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BucketPointers:
    """Reader and writer of the buckets that cursors name, one cursor at a time."""

    store: MetadataStore
    loaded: LoadedTopics
    clock: Clock
    ledgers_root: str

    def named(self, topic: TopicName, subscription: str) -> Mapping[str, LedgerId]:
        """Return the bucket ledgers that the cursor names now, by property; empty if there is no cursor."""
        node = self.store.read(_path(topic, subscription))
        return {} if node is None else cursor_references(node.data).buckets

    def demand_unloaded(self, topic: TopicName) -> None:
        """Raise if a broker has the topic loaded.

        Raises:
            ConflictError: a broker has the topic loaded; the message has the command that helps.
            TemporaryError: not every broker is reachable.
        """
        broker = self.loaded.loaded_by(topic)
        if broker is not None:
            raise ConflictError(
                f"broker {broker} has {topic} loaded and would overwrite its cursors; stop its producers and "
                f"consumers, run pulsar-admin topics unload {topic}, then repeat this"
            )

    def change(self, change: PointerChange) -> PointerOutcome:
        """Change the cursor, unless the facts behind the decision have changed.

        Raises:
            ConflictError: the topic is loaded, the cursor has changed, or a bucket to attach does not fit; nothing was
                changed.
            NotFoundError: the cursor, or the ledger of a bucket to attach, is gone; nothing was changed.
            OutcomeUnknownError: the cursor may have been changed; plan again.
        """
        self.demand_unloaded(change.topic)
        self._demand_ledgers(change.attach.values())
        path = _path(change.topic, change.subscription)
        node = self.store.read(path)
        if node is None:
            raise NotFoundError(f"there is no subscription {change.subscription} on {change.topic}")
        if node.version != change.version:
            raise ConflictError(
                f"the cursor of {change.subscription} on {change.topic} has changed since the plan was made; plan again"
            )
        data = _changed(node, change)
        try:
            self.store.write(path, data, node.version)
        except NotFoundError as error:
            raise NotFoundError(f"the subscription {change.subscription} on {change.topic} is gone") from error
        except OutcomeUnknownError as error:
            self._demand_named(change, error)
        self.clock.wait_seconds(RECHECK_SECONDS)
        try:
            return self._outcome_by_nodes(change)
        except SidecarError as error:
            raise OutcomeUnknownError(
                f"the cursor of {change.subscription} on {change.topic} was changed, and could not be read again "
                f"({error}); run pulsar-sidecar delayed-index show {change.topic}"
            ) from error

    def _demand_ledgers(self, wanted: Collection[LedgerId]) -> None:
        ledgers = list(wanted)
        nodes = self.store.read_many([ledger_path(ledger_id, self.ledgers_root) for ledger_id in ledgers])
        for ledger_id, node in zip(ledgers, nodes, strict=True):
            if node is None:
                raise NotFoundError(f"ledger {ledger_id} of a bucket is gone, so no cursor may name it; plan again")

    def _outcome_by_nodes(self, change: PointerChange) -> PointerOutcome:
        # Query the brokers first: if none has the topic now, none that read the old node can still write it.
        broker = self.loaded.loaded_by(change.topic)
        if not self._names(change):
            return PointerOutcome.OVERWRITTEN
        self._demand_ledgers(change.attach.values())
        return PointerOutcome.DONE if broker is None else PointerOutcome.LOADED_MEANWHILE

    def _demand_named(self, change: PointerChange, lost: OutcomeUnknownError) -> None:
        try:
            is_named = self._names(change)
        except SidecarError:
            is_named = False
        if not is_named:
            raise lost

    def _names(self, change: PointerChange) -> bool:
        named = self.named(change.topic, change.subscription)
        attached = all(named.get(str(key)) == ledger_id for key, ledger_id in change.attach.items())
        return attached and not any(named.get(name) == ledger_id for name, ledger_id in change.detach.items())


def _path(topic: TopicName, subscription: str) -> str:
    return cursor_path(topic.managed_ledger_name, encode_cursor(subscription))


def _changed(node: Node, change: PointerChange) -> bytes:
    """Return the changed data of the cursor's node; raises `ConflictError` if the change does not fit."""
    named = dict(cursor_references(node.data).buckets)
    for name, ledger_id in change.detach.items():
        if named.pop(name, None) != ledger_id:
            raise ConflictError(f"the cursor does not name ledger {ledger_id} as {name}; plan again")
    info = decode_exactly(ml.ManagedCursorInfo, unwrap(node.data))
    kept = [each for each in info.cursorProperties if each.name not in change.detach]
    del info.cursorProperties[:]
    info.cursorProperties.extend(kept)
    keys = [BucketKey.parse(name) for name in named] if change.attach else []
    for key, ledger_id in sorted(change.attach.items()):
        overlapped = next(filter(key.overlaps, keys), None)
        if overlapped is not None:
            raise ConflictError(f"bucket {key} overlaps {overlapped}, which the cursor names; a broker would drop one")
        keys.append(key)
        info.cursorProperties.add(name=str(key), value=str(ledger_id))
    # Uncompressed, whatever the node was: brokers read both forms, and compress again when they write.
    return info.SerializeToString()
