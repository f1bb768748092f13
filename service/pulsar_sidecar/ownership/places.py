"""Kinds of nodes below ``/managed-ledgers`` and ``/schemas`` by their paths, and the owners of names.

Invariant: a path that fits no place that this version knows is `Place.ODD`; nothing is concluded from its name.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from pulsar_sidecar.model.names import SchemaId, TopicDomain, TopicName, java_url_decode, topic_of_managed_ledger
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS, SCHEMAS

_DOMAINS = frozenset(domain.value for domain in TopicDomain)
# Names whose encoding equals the text, so that they need no decoding and encoding to find the owner.
_PLAIN = re.compile(r"[A-Za-z0-9_.*-]+")
_V2_PARTS, _V1_PARTS = 4, 5


class Place(Enum):
    """Kind of node that Pulsar keeps at a path."""

    MANAGED_LEDGER = "managed ledger"
    CURSOR = "cursor"
    EITHER = "managed ledger or cursor"
    """A namespace or a topic called "persistent": only the value distinguishes a V1 managed ledger from a V2 cursor."""
    SCHEMA = "schema"
    ODD = "unknown"


class LocatedNode(NamedTuple):
    """A node's place; ``owner`` is a managed ledger's name or a schema's id, or the path itself where it is odd."""

    place: Place
    owner: str
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of ledgers, as the tables name it; a missing part is None."""

    tenant: str | None = None
    namespace: str | None = None
    topic: str | None = None


def locate(path: str) -> LocatedNode:
    """Return the place of a node below ``/managed-ledgers`` or ``/schemas``."""
    if path.startswith(f"{SCHEMAS}/"):
        return LocatedNode(Place.SCHEMA, path[len(SCHEMAS) + 1 :])
    if not path.startswith(f"{MANAGED_LEDGERS}/"):
        return LocatedNode(Place.ODD, path)
    parts = path[len(MANAGED_LEDGERS) + 1 :].split("/")
    count = len(parts)
    is_v2 = count >= _V2_PARTS and parts[2] in _DOMAINS
    is_v1 = count >= _V1_PARTS and parts[3] in _DOMAINS
    if count == _V2_PARTS and is_v2:
        return LocatedNode(Place.MANAGED_LEDGER, "/".join(parts))
    if count == _V2_PARTS + 1 and is_v2:
        return LocatedNode(Place.EITHER if is_v1 else Place.CURSOR, "/".join(parts[:-1]), parts[-1])
    if count == _V1_PARTS and is_v1:
        return LocatedNode(Place.MANAGED_LEDGER, "/".join(parts))
    if count == _V1_PARTS + 1 and is_v1:
        return LocatedNode(Place.CURSOR, "/".join(parts[:-1]), parts[-1])
    return LocatedNode(Place.ODD, path)


def owner_at(path: str) -> Owner:
    """Return the owner of a node's references."""
    located = locate(path)
    match located.place:
        case Place.SCHEMA:
            return owner_of_schema(located.owner)
        case Place.ODD:
            return Owner()
        case Place.MANAGED_LEDGER | Place.CURSOR | Place.EITHER:
            return owner_of_managed_ledger(located.owner)


def owner_of_managed_ledger(name: str) -> Owner:
    """Return the owner by a managed ledger's name; an empty one if the name is not a topic's."""
    parts = name.split("/")
    if len(parts) == _V2_PARTS and parts[2] in _DOMAINS and _PLAIN.fullmatch(parts[3]):
        namespace = f"{parts[0]}/{parts[1]}"
        return Owner(parts[0], namespace, f"{parts[2]}://{namespace}/{parts[3]}")
    return owner_of_topic(topic_of_managed_ledger(name))


def owner_of_schema(schema_id: str) -> Owner:
    """Return the owner by a schema's id: the base topic, which all partitions share; an empty one without a topic."""
    return owner_of_topic(topic_of_schema(schema_id))


def owner_of_topic(topic: TopicName | None) -> Owner:
    return Owner() if topic is None else Owner(topic.tenant, topic.namespace, str(topic))


def topic_of_schema(schema_id: str) -> TopicName | None:
    """Return a topic whose schema has this id, the partitioned one of several; None if there can be none."""
    parts = schema_id.split("/")
    if len(parts) != _V2_PARTS - 1 or not all(parts):
        return None
    try:
        topic = TopicName(TopicDomain.PERSISTENT, parts[0], None, parts[1], java_url_decode(parts[2]))
        # A base name that itself looks like a partition is the base of its partitions only.
        fitting = (each for each in (topic, topic.partition(0)) if each.schema_id == SchemaId(schema_id))
        return next(fitting, None)
    except UnicodeError:
        return None
