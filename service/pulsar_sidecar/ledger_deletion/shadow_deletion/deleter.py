"""Deletes a shadow topic (PIP-180) and leaves its source as it was: one stage a call, until it is done.

A shadow's managed ledger lists its source's ledgers, and stock brokers delete whatever a topic lists. So the broker is
asked to delete the shadow only when no node of it leads to the source any more and no broker has it loaded. The
invariant: wherever it stops, no broker is asked to delete, or left free to trim, a topic that lists a ledger of the
source. Every stage may be taken again from its beginning, by any sidecar.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import assert_never

from pulsar_sidecar.ledger_deletion.deletion_node import decode_node, encode_node, marked_node, remaining_nodes
from pulsar_sidecar.ledger_deletion.ports import LiveOwners, ShadowAdmin
from pulsar_sidecar.ledger_deletion.service import ShadowDeletionStage, ShadowDeletionStatus
from pulsar_sidecar.ledger_deletion.shadow_deletion.operation import (
    SHADOW_DELETIONS,
    ShadowDeletion,
    shadow_deletion_path,
)
from pulsar_sidecar.ledger_deletion.shadow_deletion.shadow_nodes import (
    check_sources,
    detached,
    detached_partitioned_topic,
    is_detached,
    is_partitioned_topic_detached,
    planned_deletion,
)
from pulsar_sidecar.ledger_ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ledger_ownership.shadows import partition_count, source_topic
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import NodeVersion, OperationId
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName

_REPORT_KEPT_MS = 24 * 3_600_000
_PARTITIONS_A_CALL = 50
"""A call has to be answered before its client gives up waiting."""
_BETWEEN_UNLOADS_MS = 15_000
_RETRIED_REFUSALS = (409, 412)
"""What brokers answer to a deletion while clients or another change are in its way."""


class _NotReadyError(TemporaryError):
    """The stage cannot be completed at this moment; the text says what it waits for."""


class ShadowDeleter:
    """Begins deletions of shadow topics and continues them."""

    def __init__(self, store: MetadataStore, admin: ShadowAdmin, owners: LiveOwners, ledgers_root: str) -> None:
        self._store = store
        self._admin = admin
        self._owners = owners
        self._root = ledgers_root
        self._unloaded_ms: dict[OperationId, int] = {}
        """When this process unloaded the sources of a deletion whose replicators it still waits for."""

    def advance(self, operation_id: OperationId, topic: TopicName, *, requested_by: str | None) -> ShadowDeletionStatus:
        """Begin the topic's deletion, under the new id, or take the next stage of the one that was begun.

        Raises:
            NotFoundError: there is no such topic.
            ConflictError: it is not a shadow topic, or clients are connected to it.
            BrokerRefusedError, NotAuthorizedError: a broker refuses a call; what was done so far stays.
        """
        node = self._store.read(shadow_deletion_path(topic))
        if node is None:
            return self._begin(planned_deletion(self._store, topic, operation_id, requested_by, self._root), None)
        deletion = decode_node(node.data, ShadowDeletion)
        if deletion.stage is ShadowDeletionStage.DONE:
            try:
                again = planned_deletion(self._store, topic, operation_id, requested_by, self._root)
            except (NotFoundError, ConflictError):
                return deletion.status()
            return self._begin(again, node.version)
        deletion = self._with_new_partitions(deletion)
        try:
            following = self._run_stage(deletion)
        except (TemporaryError, OutcomeUnknownError, NotFoundError) as error:
            return deletion.status(str(error))
        return self._write(following, node.version)

    def _begin(self, deletion: ShadowDeletion, version: NodeVersion | None) -> ShadowDeletionStatus:
        self._refuse_clients(deletion)
        self._remove_old_reports()
        return self._write(deletion, version)

    def _write(self, deletion: ShadowDeletion, version: NodeVersion | None) -> ShadowDeletionStatus:
        """Create its node, or replace the version that was read."""
        path = shadow_deletion_path(deletion.topic)
        try:
            if version is None:
                self._store.create(path, encode_node(deletion))
            else:
                self._store.write(path, encode_node(deletion), version)
        except (ConflictError, NotFoundError) as error:
            raise TemporaryError(f"another sidecar continues the deletion of {deletion.topic}; ask again") from error
        return deletion.status()

    def _remove_old_reports(self) -> None:
        oldest_ms = self._store.now_ms() - _REPORT_KEPT_MS
        for name in self._store.children(SHADOW_DELETIONS) or []:
            node = self._store.read(f"{SHADOW_DELETIONS}/{name}")
            if node is not None and node.modified_ms < oldest_ms and _is_done(node):
                self._store.delete(node.path, node.version)

    def _run_stage(self, deletion: ShadowDeletion) -> ShadowDeletion:
        match deletion.stage:
            case ShadowDeletionStage.VERIFYING | ShadowDeletionStage.DONE:
                return self._verify(deletion)
            case _ if self._all_nodes_gone(deletion):
                return deletion.at(ShadowDeletionStage.VERIFYING)
            case ShadowDeletionStage.PROTECTING:
                return self._protect(deletion)
            case ShadowDeletionStage.DISCONNECTING:
                return self._disconnect(deletion)
            case ShadowDeletionStage.DETACHING:
                return self._detach(deletion)
            case ShadowDeletionStage.REMOVING:
                return self._remove(deletion)
            case _:
                assert_never(deletion.stage)

    # --- stages ------------------------------------------------------------------------------------------------------

    def _protect(self, deletion: ShadowDeletion) -> ShadowDeletion:
        """A broker that loads the shadow from now on trims nothing: what it would trim is the source's."""
        self._refuse_clients(deletion)
        if not self._admin.keeps_forever(deletion.topic):
            self._admin.keep_forever(deletion.topic)
        if not self._admin.keeps_forever(deletion.topic):
            raise _NotReadyError(f"the broker has not taken up infinite retention for {deletion.topic} yet")
        return deletion.at(ShadowDeletionStage.DISCONNECTING)

    def _disconnect(self, deletion: ShadowDeletion) -> ShadowDeletion:
        """Have the source replicate nothing to it.

        The replicator's producer outlives its policy until the source is unloaded, and would create the name again.
        """
        self._remove_from_list(deletion)
        self._unload_sources(deletion)
        if self._refuse_clients(deletion):
            raise _NotReadyError(f"the source's replicator is still connected to {deletion.topic}")
        self._unloaded_ms.pop(deletion.operation_id, None)
        return deletion.at(ShadowDeletionStage.DETACHING)

    def _unload_sources(self, deletion: ShadowDeletion) -> None:
        """Once for some seconds of calls: it disconnects the source's clients, and replicators go a little later."""
        last_ms = self._unloaded_ms.get(deletion.operation_id)
        if last_ms is not None and 0 <= self._store.now_ms() - last_ms < _BETWEEN_UNLOADS_MS:
            return
        # Brokers unload a partitioned topic's partitions at once.
        for source in dict.fromkeys(source.base if deletion.partitioned else source for source in deletion.sources):
            self._unload(source)
        self._unloaded_ms[deletion.operation_id] = self._store.now_ms()

    def _remove_from_list(self, deletion: ShadowDeletion) -> None:
        source = source_topic(deletion.source)
        if source is None:
            return
        # Policies belong to the partitioned topic, whichever partition a shadow's source may be.
        with suppress(NotFoundError):
            listed = self._admin.shadow_topics(source.base)
            if deletion.topic in listed:
                self._admin.set_shadow_topics(source.base, [each for each in listed if each != deletion.topic])
                if deletion.topic in self._admin.shadow_topics(source.base):
                    raise _NotReadyError(f"the broker still lists {deletion.topic} among the shadow topics of {source}")

    def _detach(self, deletion: ShadowDeletion) -> ShadowDeletion:
        if self._refuse_clients(deletion):
            return deletion.at(ShadowDeletionStage.DISCONNECTING)
        self._detach_nodes(deletion)
        return deletion.at(ShadowDeletionStage.REMOVING)

    def _detach_nodes(self, deletion: ShadowDeletion) -> None:
        """The partitioned topic's node first: while it names the source, brokers list its ledgers again."""
        self._detach_node(deletion, partitioned_topic_path(deletion.topic))
        left = [shadow for shadow in deletion.topics if not self._is_gone_or_detached(deletion, shadow)]
        for shadow in left[:_PARTITIONS_A_CALL]:
            self._unload(shadow)
            self._detach_node(deletion, managed_ledger_path(shadow.managed_ledger_name))
        _require_none_left(left, "to be detached")

    def _is_gone_or_detached(self, deletion: ShadowDeletion, shadow: TopicName) -> bool:
        node = self._own_node(deletion, managed_ledger_path(shadow.managed_ledger_name))
        return node is None or self._is_detached(deletion, node)

    def _detach_node(self, deletion: ShadowDeletion, path: str) -> None:
        node = self._own_node(deletion, path)
        if node is None or self._leads_nowhere(deletion, node):
            return
        if path == partitioned_topic_path(deletion.topic):
            changed = detached_partitioned_topic(node.data, deletion.no_source)
        else:
            changed = detached(node.data, deletion.no_source, spells_source=not deletion.partitioned)
        try:
            self._store.write(path, changed, node.version)
        except (ConflictError, NotFoundError) as error:
            raise _NotReadyError(f"a broker changed {path} at the same time") from error

    def _remove(self, deletion: ShadowDeletion) -> ShadowDeletion:
        """Have the broker delete what is left, each managed ledger right after it was found to list nothing."""
        paths = {shadow: managed_ledger_path(shadow.managed_ledger_name) for shadow in deletion.topics}
        left = [shadow for shadow, path in paths.items() if self._own_node(deletion, path) is not None]
        for shadow in left[:_PARTITIONS_A_CALL]:
            self._require_unloaded(deletion, shadow)
            self._require_detached(deletion, (partitioned_topic_path(deletion.topic), paths[shadow]))
            self._delete_by_broker(shadow, partitioned=False)
        _require_none_left(left, "to be deleted")
        path = partitioned_topic_path(deletion.topic)
        if self._own_node(deletion, path) is not None:
            self._require_detached(deletion, (*paths.values(), path))
            self._delete_by_broker(deletion.topic, partitioned=True)
        if not self._all_nodes_gone(deletion):
            raise _NotReadyError(f"the broker has not deleted all of {deletion.topic} yet")
        return deletion.at(ShadowDeletionStage.VERIFYING)

    def _require_unloaded(self, deletion: ShadowDeletion, shadow: TopicName) -> None:
        self._unload(shadow)
        # Asking waits for a load that began before the nodes were changed, which may list the ledgers again.
        if self._admin.can_load(shadow):
            self._detach_nodes(deletion)
            raise _NotReadyError(f"a broker still has {shadow} loaded")

    def _require_detached(self, deletion: ShadowDeletion, paths: Sequence[str]) -> None:
        """None of these leads to the source, and the last one, which the broker is to delete, is still there."""
        nodes = [self._own_node(deletion, path) for path in paths]
        if nodes[-1] is None:
            raise _NotReadyError(f"{deletion.topic} was deleted meanwhile")
        if not all(self._is_detached(deletion, node) for node in nodes if node is not None):
            self._detach_nodes(deletion)
            raise _NotReadyError(f"a broker listed the source's ledgers in {deletion.topic} again")

    def _is_detached(self, deletion: ShadowDeletion, node: Node) -> bool:
        is_partitioned_topic = node.path == partitioned_topic_path(deletion.topic)
        has_more_partitions = is_partitioned_topic and partition_count(node.data) != deletion.partitions
        return self._leads_nowhere(deletion, node) and not has_more_partitions

    def _leads_nowhere(self, deletion: ShadowDeletion, node: Node) -> bool:
        """Whether no broker reaches a ledger of the source through the node."""
        if node.path == partitioned_topic_path(deletion.topic):
            return is_partitioned_topic_detached(node.data, deletion.no_source)
        return is_detached(node.data, deletion.no_source, spells_source=not deletion.partitioned)

    def _delete_by_broker(self, topic: TopicName, *, partitioned: bool) -> None:
        try:
            self._admin.delete_topic(topic, partitioned=partitioned, force=False)
        except NotFoundError:
            return
        except BrokerRefusedError as error:
            if error.status not in _RETRIED_REFUSALS:
                raise
            raise _NotReadyError(f"the broker does not delete {topic} yet: {error.reason}") from error

    def _verify(self, deletion: ShadowDeletion) -> ShadowDeletion:
        check = check_sources(self._store, deletion.sources, self._root)
        return deletion.checked(check).at(ShadowDeletionStage.DONE)

    # --- looking -----------------------------------------------------------------------------------------------------

    def _refuse_clients(self, deletion: ShadowDeletion) -> int:
        """How many replicators are connected, once no client is.

        Only a shadow that is loaded anyway is asked: a load may be what destroys the source.
        """
        replicators = 0
        for shadow in self._owners.views(deletion.topics):
            clients = self._admin.clients(shadow)
            if clients.consumers or clients.producers:
                raise ConflictError(
                    f"{clients.consumers} consumers or readers and {clients.producers} producers are connected to "
                    f"{shadow}; close them and run the same command again"
                )
            replicators += clients.replicators
        return replicators

    def _unload(self, shadow: TopicName) -> None:
        with suppress(NotFoundError):
            self._admin.unload(shadow)

    def _own_node(self, deletion: ShadowDeletion, path: str) -> Node | None:
        """The node, unless it belongs to a topic that was created again under the name."""
        node = self._store.read(path)
        if node is None or deletion.incarnations.get(path) == node.created_order:
            return node
        partitioned = partitioned_topic_path(deletion.topic)
        # A partition that was created since belongs to the same topic as long as the partitioned topic's node stays.
        is_own = path != partitioned and marked_node(self._store, deletion.incarnations, partitioned) is not None
        return node if is_own else None

    def _all_nodes_gone(self, deletion: ShadowDeletion) -> bool:
        return not remaining_nodes(self._store, deletion.incarnations)

    def _with_new_partitions(self, deletion: ShadowDeletion) -> ShadowDeletion:
        """With the partitions that were added since it was begun."""
        node = self._own_node(deletion, partitioned_topic_path(deletion.topic)) if deletion.partitioned else None
        return deletion if node is None else deletion.with_partitions(partition_count(node.data))


def _require_none_left(left: Sequence[TopicName], what: str) -> None:
    if len(left) > _PARTITIONS_A_CALL:
        raise _NotReadyError(f"{len(left) - _PARTITIONS_A_CALL} partitions are still {what}")


def _is_done(node: Node) -> bool:
    try:
        return decode_node(node.data, ShadowDeletion).stage is ShadowDeletionStage.DONE
    except SidecarError:
        return False
