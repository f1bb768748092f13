"""Shadow topics (PIP-180) and their sources, and the number of partitions in a partitioned topic's node.

A shadow's managed ledger lists its source's ledgers, offload contexts included, and stock 4.0.8 brokers delete them
with the shadow. A node that cannot be read never counts as an ordinary topic's: the call raises `UndecodableError`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pulsar_sidecar.model.errors import InvalidInputError, UndecodableError
from pulsar_sidecar.model.names import TopicName, parse_topic_name, topic_of_managed_ledger
from pulsar_sidecar.ownership.exact_decoding import WRAPPER_MAGIC, unwrap
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS, PARTITIONED_TOPICS
from pulsar_sidecar.ownership.references import managed_ledger_references

SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"
"""``ManagedLedgerConfig.PROPERTY_SOURCE_TOPIC_KEY``: the property that makes a topic a shadow and names its source."""
_PROPERTY = SHADOW_SOURCE.encode()


@dataclass(frozen=True, slots=True)
class Shadow:
    """A topic that is a shadow by its node, with its source as the node spells it."""

    topic: TopicName
    source: str


def may_be_shadow(data: bytes) -> bool:
    """Return False for an ordinary topic's node, of which `shadow_at` returns None; costs next to nothing."""
    return _PROPERTY in data or data.startswith(WRAPPER_MAGIC)


def may_hold_shadow(nodes: bytes, starts: Iterable[int]) -> bool:
    """Return True if `may_be_shadow` is True for a node that begins at one of these places."""
    return _PROPERTY in nodes or WRAPPER_MAGIC in {nodes[start : start + len(WRAPPER_MAGIC)] for start in starts}


def shadow_at(path: str, data: bytes) -> Shadow | None:
    """Return the shadow that a managed ledger's or a partitioned topic's node makes, or None for an ordinary topic.

    Cheap for all other nodes: protobuf and JSON write the property's name as it is.

    Raises:
        UndecodableError: the node may be a shadow's and cannot be read; the message names it.
    """
    root, read = (
        (PARTITIONED_TOPICS, partitioned_topic_shadow_source)
        if path.startswith(f"{PARTITIONED_TOPICS}/")
        else (MANAGED_LEDGERS, managed_ledger_shadow_source)
    )
    try:
        source = read(data) if _PROPERTY in unwrap(data) else None
    except UndecodableError as error:
        raise UndecodableError(f"{path} cannot be read, so it may be a shadow's: {error}") from error
    if source is None:
        return None
    topic = topic_of_managed_ledger(path.removeprefix(f"{root}/"))
    return None if topic is None else Shadow(topic, source)


def managed_ledger_shadow_source(data: bytes) -> str | None:
    """Return the source as a ``ManagedLedgerInfo`` node, compressed or not, spells it; None for an ordinary one."""
    return managed_ledger_references(data).properties.get(SHADOW_SOURCE)


def partitioned_topic_shadow_source(data: bytes) -> str | None:
    """Return the source as a node below ``/admin/partitioned-topics`` spells it, or None for an ordinary topic.

    Brokers read a partition's source from here: it is this topic's partition of the same number.

    Raises:
        UndecodableError: the node is not what Pulsar 4.0 writes.
    """
    properties = _partitioned_topic(data).get("properties")
    if properties is None:
        return None
    if not isinstance(properties, dict):
        raise UndecodableError("a partitioned topic's node is not what Pulsar 4.0 writes; inspect it with zkCli.sh")
    source = properties.get(SHADOW_SOURCE)
    if source is not None and not isinstance(source, str):
        raise UndecodableError(
            f"a partitioned topic's {SHADOW_SOURCE} is not a UTF-8 string; inspect its node with zkCli.sh"
        )
    return source


def source_topic(spelled: str) -> TopicName | None:
    """Return the topic that a shadow's property names, or None if no broker could load a topic of that name."""
    try:
        return parse_topic_name(spelled)
    except InvalidInputError:
        return None


def partition_count(data: bytes) -> int:
    """Return the number of partitions in a partitioned topic's node (``PartitionedTopicMetadata``).

    Raises:
        UndecodableError: the node is not what Pulsar 4.0 writes.
    """
    partitions = _partitioned_topic(data).get("partitions")
    if type(partitions) is not int or partitions < 0:
        raise UndecodableError(f"a partitioned topic has {partitions!r:.80} partitions; inspect its node with zkCli.sh")
    return partitions


def _partitioned_topic(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UndecodableError("a partitioned topic's node is not JSON; read it again") from error
    if not isinstance(document, dict):
        raise UndecodableError("a partitioned topic's node is not what Pulsar 4.0 writes; inspect it with zkCli.sh")
    return document
