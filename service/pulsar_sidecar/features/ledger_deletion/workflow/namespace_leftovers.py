"""Records of a namespace's rest: brokers' own topics, pending acknowledgements, schemas, and late writes.

No topic's deletion records these. The sidecar records them under the namespace's deletion before brokers delete them.
Once the namespace is gone, it also records whatever brokers left or wrote later, and removes the nodes by their
versions: nothing else would ever do that.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from pulsar_sidecar.features.ledger_deletion.record import record_key
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_contents import FoundNode, NamespaceContents
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_operation import (
    NamespaceDeletion,
    Presence,
    presence,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import incarnations, node_paths
from pulsar_sidecar.features.ledger_deletion.topic_deletion.recorder import Recorder
from pulsar_sidecar.model.errors import DataLossError, TemporaryError, UndecodableError
from pulsar_sidecar.model.metadata import DeletionResult, MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import LOCAL_POLICIES


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Leftovers in one pass over one namespace; thread-safe. Each ledger is recorded once."""

    deletion: NamespaceDeletion
    store: MetadataStore
    recorder: Recorder
    steps: Steps
    _sent: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def contents(self) -> NamespaceContents:
        return NamespaceContents(self.store, self.deletion.namespace)

    @property
    def recorded(self) -> int:
        """Number of records that this pass has sent."""
        return len(self._sent)

    def record_topic(self, topic: TopicName) -> None:
        """Record the references of a topic's managed ledger and schema, and again after loading it.

        Raises:
            UndecodableError: a node cannot be decoded; no broker may be called.
            TemporaryError: something could not be read or sent; no broker may be called.
            DataLossError: the topic is or was a shadow.
        """
        marked = incarnations(self.store, node_paths(topic, None))
        self._record(topic, marked, load=False)
        if marked:
            self._record(topic, marked, load=True)

    def record_schema(self, topic: TopicName) -> None:
        """Record the ledgers of a schema, whether its topic exists or not; raises as `record_topic` does."""
        self._record(topic, {}, load=False)

    def remove(self) -> str | None:
        """Record and remove leftovers of a deleted namespace in the store; return why something stays, if so.

        Raises:
            TemporaryError: something could not be read, sent or removed; try again.
        """
        kept = None
        for found in (*self.contents.managed_ledgers(), *self.contents.schemas(), *self.contents.partitioned_topics()):
            kept = self._removed(found) or kept
        local = self.store.read(f"{LOCAL_POLICIES}/{self.deletion.namespace}")
        if kept is None and local is not None and local.path != self.deletion.policies_path:
            self._delete(local.path)
        return kept

    def _removed(self, found: FoundNode) -> str | None:
        if found.topic is None:
            return f"{found.path} has a name that Pulsar does not write"
        try:
            # For a partitioned topic or a schema this records the schema alone.
            self._record(found.topic, incarnations(self.store, node_paths(found.topic, None)), load=False)
        except (UndecodableError, DataLossError) as error:
            return f"{found.path}: {error}"
        for name in self.store.children(found.path) or ():
            self._delete(f"{found.path}/{name}")
        self._delete(found.path)
        return None

    def _delete(self, path: str) -> None:
        node = self.store.read(path)
        if node is None:
            return
        if presence(self.store, self.deletion) is not Presence.GONE:
            raise TemporaryError(f"{self.deletion.namespace} was created again; what it contains now stays")
        with self.steps.taking(Step.NAMESPACE_NODES_REMOVED):
            result = self.store.delete(path, node.version, node.modified_order)
        if result not in (DeletionResult.DELETED, DeletionResult.GONE):
            raise TemporaryError(f"{path} changed while it was removed; try again")

    def _record(self, topic: TopicName, marked: Mapping[str, int], *, load: bool) -> None:
        records = self.recorder.records_now(self.deletion.as_of_topic(topic, marked), load=load)
        with self._lock:
            new = {record_key(record): record for record in records if record_key(record) not in self._sent}
        if new:
            self.recorder.send(list(new.values()), self.deletion.trace)
            with self._lock:
                self._sent.update(new)
