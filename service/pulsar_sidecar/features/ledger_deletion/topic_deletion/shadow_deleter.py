"""Deletion of a shadow topic (PIP-180) without touching its source: one stage per call, until it is done.

A shadow's managed ledger lists its source's ledgers, and stock brokers delete whatever a topic lists. So the sidecar
requests the shadow's deletion only when none of its nodes leads to the source and no broker has it loaded.
Invariant: wherever it stops, no broker gets a request to delete, or stays free to trim, a topic that lists a ledger of
the source. Any sidecar can repeat every stage from its beginning.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import assert_never

from msgspec.structs import replace

from pulsar_sidecar.features.ledger_deletion.ports import LiveOwners, TopicAdmin
from pulsar_sidecar.features.ledger_deletion.results import ShadowDeletionStage, ShadowDeletionStatus
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    SHADOW_DELETIONS,
    ShadowDeletion,
    decode_node,
    encode_node,
    marked_node,
    node_paths,
    remaining_nodes,
    shadow_deletion_path,
    topics_with_ledgers,
)
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    TemporaryError,
    UndecodableError,
)
from pulsar_sidecar.model.ids import LedgerId, NodeVersion, OperationId
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.exact_decoding import decode_exactly, unwrap
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.references import managed_ledger_references
from pulsar_sidecar.ownership.shadows import (
    SHADOW_SOURCE,
    managed_ledger_shadow_source,
    partition_count,
    partitioned_topic_shadow_source,
    source_topic,
)
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml
from pulsar_sidecar.reports.formatting import format_count

_REPORT_KEPT_MS = 24 * 3_600_000
_PARTITIONS_A_CALL = 50
"""Limit that lets a call finish before its client gives up waiting."""
_BETWEEN_UNLOADS_MS = 15_000
_RETRIED_REFUSALS = (409, 412)
"""Brokers' statuses for a deletion that clients or another change obstruct."""


class _NotReadyError(TemporaryError):
    """Raised when the stage cannot be completed now; the text names the obstacle."""


@dataclass(frozen=True, slots=True)
class ShadowDeleter:
    """Service that begins and continues deletions of shadow topics."""

    store: MetadataStore
    admin: TopicAdmin
    owners: LiveOwners
    root: str
    _unloaded_ms: dict[OperationId, int] = field(default_factory=dict)
    """Time at which this process unloaded a deletion's sources, while it waits for their replicators."""

    def advance(self, operation_id: OperationId, topic: TopicName, *, requested_by: str | None) -> ShadowDeletionStatus:
        """Begin the topic's deletion under the new id, or take the next stage of the running one.

        Raises:
            NotFoundError: there is no such topic.
            ConflictError: it is not a shadow topic, or clients are connected to it.
            BrokerRefusedError, NotAuthorizedError: a broker refuses a call; completed stages stay.
        """
        node = self.store.read(shadow_deletion_path(topic))
        if node is None:
            return self._begin(planned_deletion(self.store, topic, operation_id, requested_by, self.root), None)
        deletion = decode_node(node.data, ShadowDeletion)
        if deletion.stage is ShadowDeletionStage.DONE:
            try:
                again = planned_deletion(self.store, topic, operation_id, requested_by, self.root)
            except (NotFoundError, ConflictError):
                return deletion.status()
            return self._begin(again, node.version)
        # Partitions that were added since it was begun belong to it.
        partitioned = self._own_node(deletion, partitioned_topic_path(deletion.topic)) if deletion.partitioned else None
        if partitioned is not None:
            deletion = deletion.with_partitions(partition_count(partitioned.data))
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
        path = shadow_deletion_path(deletion.topic)
        try:
            if version is None:
                self.store.create(path, encode_node(deletion))
            else:
                self.store.write(path, encode_node(deletion), version)
        except (ConflictError, NotFoundError) as error:
            raise TemporaryError(f"another sidecar continues the deletion of {deletion.topic}; retry") from error
        return deletion.status()

    def _remove_old_reports(self) -> None:
        oldest_ms = self.store.now_ms() - _REPORT_KEPT_MS
        for name in self.store.children(SHADOW_DELETIONS) or []:
            node = self.store.read(f"{SHADOW_DELETIONS}/{name}")
            if node is None or node.modified_ms >= oldest_ms:
                continue
            with suppress(UndecodableError):
                if decode_node(node.data, ShadowDeletion).stage is ShadowDeletionStage.DONE:
                    self.store.delete(node.path, node.version, node.modified_order)

    def _run_stage(self, deletion: ShadowDeletion) -> ShadowDeletion:
        match deletion.stage:
            case ShadowDeletionStage.VERIFYING | ShadowDeletionStage.DONE:
                return _checked(self.store, deletion, self.root).at(ShadowDeletionStage.DONE)
            case _ if not remaining_nodes(self.store, deletion.incarnations):
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
        """Set infinite retention, so that a broker that loads the shadow trims none of the source's ledgers."""
        self._refuse_clients(deletion)
        if not self.admin.keeps_forever(deletion.topic):
            self.admin.keep_forever(deletion.topic)
        if not self.admin.keeps_forever(deletion.topic):
            raise _NotReadyError(f"the broker has not applied infinite retention to {deletion.topic} yet")
        return deletion.at(ShadowDeletionStage.DISCONNECTING)

    def _disconnect(self, deletion: ShadowDeletion) -> ShadowDeletion:
        """Stop the source's replication to the shadow.

        The replicator's producer outlives its policy until the source is unloaded, and would recreate the shadow.
        """
        self._remove_from_list(deletion)
        self._unload_sources(deletion)
        if self._refuse_clients(deletion):
            raise _NotReadyError(f"the source's replicator is still connected to {deletion.topic}")
        self._unloaded_ms.pop(deletion.operation_id, None)
        return deletion.at(ShadowDeletionStage.DETACHING)

    def _unload_sources(self, deletion: ShadowDeletion) -> None:
        """Unload the sources at most every 15 s: it disconnects their clients, and replicators end a little later."""
        last_ms = self._unloaded_ms.get(deletion.operation_id)
        if last_ms is not None and 0 <= self.store.now_ms() - last_ms < _BETWEEN_UNLOADS_MS:
            return
        # Brokers unload a partitioned topic's partitions at once.
        for source in dict.fromkeys(source.base if deletion.partitioned else source for source in deletion.sources):
            self._unload(source)
        self._unloaded_ms[deletion.operation_id] = self.store.now_ms()

    def _remove_from_list(self, deletion: ShadowDeletion) -> None:
        source = source_topic(deletion.source)
        if source is None:
            return
        # Policies belong to the partitioned topic, whichever partition a shadow's source may be.
        with suppress(NotFoundError):
            listed = self.admin.shadow_topics(source.base)
            if deletion.topic in listed:
                self.admin.set_shadow_topics(source.base, [each for each in listed if each != deletion.topic])
                if deletion.topic in self.admin.shadow_topics(source.base):
                    raise _NotReadyError(f"the broker still lists {deletion.topic} among the shadow topics of {source}")

    def _detach(self, deletion: ShadowDeletion) -> ShadowDeletion:
        if self._refuse_clients(deletion):
            return deletion.at(ShadowDeletionStage.DISCONNECTING)
        self._detach_nodes(deletion)
        return deletion.at(ShadowDeletionStage.REMOVING)

    def _detach_nodes(self, deletion: ShadowDeletion) -> None:
        """Detach the partitioned topic's node first: while it names the source, brokers list its ledgers again."""
        self._detach_node(deletion, partitioned_topic_path(deletion.topic))
        nodes = {
            each: self._own_node(deletion, managed_ledger_path(each.managed_ledger_name)) for each in deletion.topics
        }
        left = [each for each, node in nodes.items() if node is not None and not self._is_detached(deletion, node)]
        for shadow in left[:_PARTITIONS_A_CALL]:
            self._unload(shadow)
            self._detach_node(deletion, managed_ledger_path(shadow.managed_ledger_name))
        _require_none_left(left, "to be detached")

    def _detach_node(self, deletion: ShadowDeletion, path: str) -> None:
        node = self._own_node(deletion, path)
        if node is None or self._leads_nowhere(deletion, node):
            return
        if path == partitioned_topic_path(deletion.topic):
            changed = detached_partitioned_topic(node.data, deletion.no_source)
        else:
            changed = detached(node.data, deletion.no_source, spells_source=not deletion.partitioned)
        try:
            self.store.write(path, changed, node.version)
        except (ConflictError, NotFoundError) as error:
            raise _NotReadyError(f"a broker changed {path} at the same time") from error

    def _remove(self, deletion: ShadowDeletion) -> ShadowDeletion:
        """Make the broker delete the rest, each managed ledger right after a check that it lists nothing."""
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
        if remaining_nodes(self.store, deletion.incarnations):
            raise _NotReadyError(f"the broker has not deleted all of {deletion.topic} yet")
        return deletion.at(ShadowDeletionStage.VERIFYING)

    def _require_unloaded(self, deletion: ShadowDeletion, shadow: TopicName) -> None:
        self._unload(shadow)
        # The call waits for a load that began before the nodes were changed, which may list the ledgers again.
        if self.admin.can_load(shadow):
            self._detach_nodes(deletion)
            raise _NotReadyError(f"a broker still has {shadow} loaded")

    def _require_detached(self, deletion: ShadowDeletion, paths: Sequence[str]) -> None:
        """Raise unless none of these leads to the source and the last one, which the broker is to delete, exists."""
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
        """Return True if no broker reaches a ledger of the source through the node."""
        if node.path == partitioned_topic_path(deletion.topic):
            return partitioned_topic_shadow_source(node.data) == deletion.no_source
        return is_detached(node.data, deletion.no_source, spells_source=not deletion.partitioned)

    def _delete_by_broker(self, topic: TopicName, *, partitioned: bool) -> None:
        try:
            self.admin.delete_topic(topic, partitioned=partitioned, force=False)
        except NotFoundError:
            return
        except BrokerRefusedError as error:
            if error.status not in _RETRIED_REFUSALS:
                raise
            raise _NotReadyError(f"the broker does not delete {topic} yet: {error.reason}") from error

    # --- reading -----------------------------------------------------------------------------------------------------

    def _refuse_clients(self, deletion: ShadowDeletion) -> int:
        """Return the number of connected replicators; raise `ConflictError` if a client is connected."""
        replicators = 0
        # Only of shadows that are already loaded: a load may destroy the source's data.
        for shadow in self.owners.views(deletion.topics):
            clients = self.admin.clients(shadow)
            if clients.consumers or clients.producers:
                raise ConflictError(
                    f"connected to {shadow}: "
                    f"{format_count(clients.consumers, 'consumer or reader', 'consumers or readers')} and "
                    f"{format_count(clients.producers, 'producer')}; close them and run the same command again"
                )
            replicators += clients.replicators
        return replicators

    def _unload(self, shadow: TopicName) -> None:
        with suppress(NotFoundError):
            self.admin.unload(shadow)

    def _own_node(self, deletion: ShadowDeletion, path: str) -> Node | None:
        """Return the node, unless it belongs to a recreated topic of that name."""
        node = self.store.read(path)
        if node is None or deletion.incarnations.get(path) == node.created_order:
            return node
        partitioned = partitioned_topic_path(deletion.topic)
        # A partition created since belongs to the same topic as long as the partitioned topic's node stays.
        is_own = path != partitioned and marked_node(self.store, deletion.incarnations, partitioned) is not None
        return node if is_own else None


def _require_none_left(left: Sequence[TopicName], what: str) -> None:
    if len(left) > _PARTITIONS_A_CALL:
        raise _NotReadyError(f"still {what}: {format_count(len(left) - _PARTITIONS_A_CALL, 'partition')}")


# --- the shadow and its sources --------------------------------------------------------------------------------------


def planned_deletion(
    store: MetadataStore, topic: TopicName, operation_id: OperationId, requested_by: str | None, ledgers_root: str
) -> ShadowDeletion:
    """Return a new deletion of the shadow of that name, before its first stage; raise if there is no such one."""
    partitioned = store.read(partitioned_topic_path(topic))
    partitions = None if partitioned is None else partition_count(partitioned.data)
    nodes = {node.path: node for node in store.read_many(node_paths(topic, partitions)) if node is not None}
    if not nodes:
        raise NotFoundError(f"there is no topic {topic}")
    if topic.partition_index is not None and store.read(partitioned_topic_path(topic.base)) is not None:
        raise InvalidInputError(f"{topic} is a partition; name the partitioned topic {topic.base}")
    own = None if partitioned is None else partitioned_topic_shadow_source(partitioned.data)
    spelled: dict[TopicName, str | None] = {}
    for shadow in topics_with_ledgers(topic, partitions):
        node = nodes.get(managed_ledger_path(shadow.managed_ledger_name))
        spelled[shadow] = None if node is None else managed_ledger_shadow_source(node.data)
    source = next((each for each in (own, *spelled.values()) if each is not None), None)
    if source is None:
        raise ConflictError(
            f"{topic} is not a shadow topic: none of its nodes has the property {SHADOW_SOURCE}. If it was a shadow, "
            "make it one again first, as docs/shadow-topics.md shows"
        )
    sources = _sources(own, spelled)
    planned = ShadowDeletion(
        operation_id=operation_id,
        topic_name=str(topic),
        partitions=partitions,
        source=source,
        source_names=tuple(str(each) for each in sources),
        incarnations={path: node.created_order for path, node in nodes.items()},
        requested_by=requested_by,
        requested_ms=store.now_ms(),
        checked_ledgers=0,
        missing_ledgers=(),
        missing_sources=(),
        missing_before=(),
        stage=ShadowDeletionStage.PROTECTING,
    )
    checked = _checked(store, planned, ledgers_root)
    return replace(checked, missing_before=checked.missing_ledgers)


def _sources(own: str | None, spelled: Mapping[TopicName, str | None]) -> tuple[TopicName, ...]:
    """Return the partitions of the partitioned topic's source, and any source that a managed ledger's node names."""
    base = None if own is None else source_topic(own)
    indexes = (shadow.partition_index for shadow in spelled)
    of_base = [] if base is None else [base.partition(index) for index in indexes if index is not None]
    of_nodes = [source_topic(text) for text in spelled.values() if text is not None]
    return tuple(dict.fromkeys([*of_base, *(source for source in of_nodes if source is not None)]))


# --- the sources' ledgers --------------------------------------------------------------------------------------------


def _checked(store: MetadataStore, deletion: ShadowDeletion, ledgers_root: str) -> ShadowDeletion:
    """Return the deletion with a check that BookKeeper has the ledgers that the sources' lists name.

    Skips ledgers that are only in tiered storage: BookKeeper has no node of them.
    """
    count, missing, gone = 0, list[LedgerId](), list[str]()
    for source in deletion.sources:
        listed = _listed(store, source)
        if listed is None:
            gone.append(str(source))
            continue
        count += len(listed)
        missing += _missing(store, source, listed, ledgers_root)
    return replace(deletion, checked_ledgers=count, missing_ledgers=tuple(sorted(missing)), missing_sources=tuple(gone))


def _missing(store: MetadataStore, source: TopicName, listed: Iterable[LedgerId], root: str) -> set[LedgerId]:
    ordered = sorted(listed)
    nodes = store.read_many([ledger_path(ledger_id, root) for ledger_id in ordered])
    absent = {ledger_id for ledger_id, node in zip(ordered, nodes, strict=True) if node is None}
    # A broker that trims shortens the list before it deletes a ledger: only a ledger still listed is missing.
    return absent & (_listed(store, source) or set()) if absent else absent


def _listed(store: MetadataStore, source: TopicName) -> set[LedgerId] | None:
    node = store.read(managed_ledger_path(source.managed_ledger_name))
    if node is None:
        return None
    ledgers = managed_ledger_references(node.data).ledgers
    return {ledger_id for ledger_id, reference in ledgers.items() if reference.in_bookkeeper}


# --- detached nodes --------------------------------------------------------------------------------------------------


def is_detached(data: bytes, no_source: str, *, spells_source: bool) -> bool:
    """Return True if a ``ManagedLedgerInfo`` node leads to no ledger of a source.

    ``spells_source`` is False for a partition, whose source is in the partitioned topic's node.
    """
    info = decode_exactly(ml.ManagedLedgerInfo, unwrap(data))
    sources = {pair.value for pair in info.properties if pair.key == SHADOW_SOURCE}
    return not info.ledgerInfo and sources <= {no_source} and (bool(sources) or not spells_source)


def detached(data: bytes, no_source: str, *, spells_source: bool) -> bytes:
    """Return the node without ledgers, and with a nonexistent source.

    A broker that loads the topic then finds no ledgers to list, and gives up. Cursors stay: they are the shadow's own,
    and the broker deletes them.
    """
    info = decode_exactly(ml.ManagedLedgerInfo, unwrap(data))
    info.ClearField("ledgerInfo")
    info.ClearField("terminatedPosition")
    kept = [(pair.key, pair.value) for pair in info.properties if pair.key != SHADOW_SOURCE]
    if spells_source or len(kept) < len(info.properties):
        kept.append((SHADOW_SOURCE, no_source))
    info.ClearField("properties")
    for key, value in kept:
        info.properties.add(key=key, value=value)
    return info.SerializeToString()


def detached_partitioned_topic(data: bytes, no_source: str) -> bytes:
    """Return the node with a nonexistent source and its other fields unchanged."""
    document = json.loads(data)
    properties = document.get("properties") or {}
    return json.dumps({**document, "properties": {**properties, SHADOW_SOURCE: no_source}}).encode()
