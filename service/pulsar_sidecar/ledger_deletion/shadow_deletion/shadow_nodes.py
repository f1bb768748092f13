"""The nodes of a shadow topic: found with its sources, checked against them, and detached from them.

A detached managed ledger lists no ledger, and the topic's source is one that does not exist, so a broker that loads the
topic finds nothing to list again and gives up. Cursors stay: they are the shadow's own, and the broker deletes them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence

from pulsar_sidecar.ledger_deletion.deletion_node import node_paths, topics_with_ledgers
from pulsar_sidecar.ledger_deletion.service import ShadowDeletionStage, SourceCheck
from pulsar_sidecar.ledger_deletion.shadow_deletion.operation import ShadowDeletion
from pulsar_sidecar.ledger_ownership.exact_decoding import decode_exactly, unwrap
from pulsar_sidecar.ledger_ownership.paths import ledger_path, managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ledger_ownership.references import managed_ledger_references
from pulsar_sidecar.ledger_ownership.shadows import (
    SHADOW_SOURCE,
    managed_ledger_shadow_source,
    partition_count,
    partitioned_topic_shadow_source,
    source_topic,
)
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, NotFoundError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.wire import MLDataFormats_pb2 as ml

# --- the shadow and its sources --------------------------------------------------------------------------------------


def planned_deletion(
    store: MetadataStore, topic: TopicName, operation_id: OperationId, requested_by: str | None, ledgers_root: str
) -> ShadowDeletion:
    """The deletion of the shadow of that name, before its first stage.

    Raises:
        NotFoundError: there is no such topic.
        ConflictError: it is not a shadow.
        InvalidInputError: it is a partition of one.
    """
    partitioned = store.read(partitioned_topic_path(topic))
    partitions = None if partitioned is None else partition_count(partitioned.data)
    nodes = {node.path: node for node in store.read_many(node_paths(topic, partitions)) if node is not None}
    if not nodes:
        raise NotFoundError(f"there is no topic {topic}")
    if topic.partition_index is not None and store.read(partitioned_topic_path(topic.base)) is not None:
        raise InvalidInputError(f"{topic} is a partition; name the partitioned topic {topic.base}")
    own = None if partitioned is None else partitioned_topic_shadow_source(partitioned.data)
    spelled = {shadow: _spelled(nodes, shadow) for shadow in topics_with_ledgers(topic, partitions)}
    source = next((each for each in (own, *spelled.values()) if each is not None), None)
    if source is None:
        raise ConflictError(
            f"{topic} is not a shadow topic: none of its nodes has the property {SHADOW_SOURCE}. If it was a shadow, "
            "make it one again first, as docs/shadow-topics.md shows"
        )
    sources = _sources(own, spelled)
    check = check_sources(store, sources, ledgers_root)
    return ShadowDeletion(
        operation_id=operation_id,
        topic_name=str(topic),
        partitions=partitions,
        source=source,
        source_names=tuple(str(each) for each in sources),
        incarnations={path: node.created_order for path, node in nodes.items()},
        requested_by=requested_by,
        requested_ms=store.now_ms(),
        checked_ledgers=check.ledgers,
        missing_ledgers=check.missing,
        missing_sources=tuple(str(each) for each in check.missing_sources),
        missing_before=check.missing,
        stage=ShadowDeletionStage.PROTECTING,
    )


def _spelled(nodes: Mapping[str, Node], shadow: TopicName) -> str | None:
    node = nodes.get(managed_ledger_path(shadow.managed_ledger_name))
    return None if node is None else managed_ledger_shadow_source(node.data)


def _sources(own: str | None, spelled: Mapping[TopicName, str | None]) -> tuple[TopicName, ...]:
    """Those of the partitioned topic's source, partition by partition, and any that a managed ledger's node names."""
    base = None if own is None else source_topic(own)
    indexes = (shadow.partition_index for shadow in spelled)
    of_base = [] if base is None else [base.partition(index) for index in indexes if index is not None]
    of_nodes = [source_topic(text) for text in spelled.values() if text is not None]
    return tuple(dict.fromkeys([*of_base, *(source for source in of_nodes if source is not None)]))


# --- the sources' ledgers --------------------------------------------------------------------------------------------


def check_sources(store: MetadataStore, sources: Sequence[TopicName], ledgers_root: str) -> SourceCheck:
    """What BookKeeper's metadata has of the ledgers that the sources' lists name.

    Ledgers that live in tiered storage only are left out: nothing of theirs is in BookKeeper.
    """
    count, missing, gone = 0, list[LedgerId](), list[TopicName]()
    for source in sources:
        listed = _listed(store, source)
        if listed is None:
            gone.append(source)
            continue
        count += len(listed)
        missing += _missing(store, source, listed, ledgers_root)
    return SourceCheck(count, tuple(sorted(missing)), tuple(gone))


def _missing(store: MetadataStore, source: TopicName, listed: Iterable[LedgerId], root: str) -> set[LedgerId]:
    ordered = sorted(listed)
    nodes = store.read_many([ledger_path(ledger_id, root) for ledger_id in ordered])
    absent = {ledger_id for ledger_id, node in zip(ordered, nodes, strict=True) if node is None}
    # A broker that trims shortens the list before it deletes a ledger: what the list still names is missing.
    return absent & (_listed(store, source) or set()) if absent else absent


def _listed(store: MetadataStore, source: TopicName) -> set[LedgerId] | None:
    node = store.read(managed_ledger_path(source.managed_ledger_name))
    if node is None:
        return None
    ledgers = managed_ledger_references(node.data).ledgers
    return {ledger_id for ledger_id, reference in ledgers.items() if reference.in_bookkeeper}


# --- detached nodes --------------------------------------------------------------------------------------------------


def is_detached(data: bytes, no_source: str, *, spells_source: bool) -> bool:
    """Whether a ``ManagedLedgerInfo`` node leads to no ledger of a source.

    ``spells_source`` is False for a partition, whose source stands in the partitioned topic's node.
    """
    info = decode_exactly(ml.ManagedLedgerInfo, unwrap(data))
    sources = {pair.value for pair in info.properties if pair.key == SHADOW_SOURCE}
    return not info.ledgerInfo and sources <= {no_source} and (bool(sources) or not spells_source)


def detached(data: bytes, no_source: str, *, spells_source: bool) -> bytes:
    """The node without ledgers, and with a source that does not exist."""
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


def is_partitioned_topic_detached(data: bytes, no_source: str) -> bool:
    """Whether a node below ``/admin/partitioned-topics`` names the source that does not exist."""
    return partitioned_topic_shadow_source(data) == no_source


def detached_partitioned_topic(data: bytes, no_source: str) -> bytes:
    """The node with a source that does not exist; its other fields stay as they are."""
    document = json.loads(data)
    properties = document.get("properties") or {}
    return json.dumps({**document, "properties": {**properties, SHADOW_SOURCE: no_source}}).encode()
