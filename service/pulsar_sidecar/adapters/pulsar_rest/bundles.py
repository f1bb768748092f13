"""Bundles of topics and their owners, computed as brokers compute them: ``NamespaceBundleFactory``, ``OwnershipCache``.

Only the modular load manager keeps owners in the metadata store.
"""

import zlib
from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pulsar_sidecar.adapters.pulsar_rest.admin_rest import Broker, json_object
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore, Nodes, read_nodes
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import LOCAL_POLICIES, POLICIES

_FULL_RANGE = ("0x00000000", "0xffffffff")


@dataclass(frozen=True, slots=True)
class Ownership:
    """Owners of topics' bundles by the metadata store.

    Attributes:
        nodes: all nodes that were read.
        paths: path of each topic's ownership node; None where its namespace does not exist.
    """

    nodes: Nodes
    paths: Mapping[TopicName, str | None]

    def owners_among(self, brokers: Collection[Broker]) -> Collection[Broker]:
        """Return the topics' owners; all brokers if a topic has none among them."""
        by_url = {url: broker for broker in brokers for url in broker.web_service_urls}
        found: set[Broker] = set()
        for path, topic in {path: topic for topic, path in self.paths.items()}.items():
            node = self.nodes[path] if path is not None else None
            owner = by_url.get(owning_url(node.data, topic)) if node is not None else None
            if owner is None:
                return brokers
            found.add(owner)
        return found

    def changed(self, store: MetadataStore) -> bool:
        """Return True unless all nodes are as they were; a namespace that does not exist may be created unseen."""
        return None in self.paths.values() or read_nodes(store, self.nodes) != self.nodes


def read_ownership(store: MetadataStore, topics: Collection[TopicName]) -> Ownership:
    """Return the owners of the topics' bundles."""
    namespaces = {topic.namespace for topic in topics}
    nodes = read_nodes(store, [path for namespace in namespaces for path in boundary_paths(namespace)])
    boundaries = {namespace: boundaries_in(nodes, namespace) for namespace in namespaces}
    paths = {
        topic: ownership_path(topic, found) if (found := boundaries[topic.namespace]) is not None else None
        for topic in topics
    }
    return Ownership({**nodes, **read_nodes(store, (path for path in paths.values() if path is not None))}, paths)


def owning_url(data: bytes, topic: TopicName) -> str:
    """Return the web service URL in a bundle's ownership node (``NamespaceEphemeralData``)."""
    document = json_object(data, f"the ownership of {topic}'s bundle")
    url = document.get("httpUrl") or document.get("httpUrlTls")
    if not isinstance(url, str):
        raise TemporaryError(f"the owner of {topic}'s bundle names no web service URL; try again")
    return url.rstrip("/")


def owned_bundles(document: object, broker_id: str) -> frozenset[str]:
    """Return the active bundles in an ``ownedNamespaces`` response, as ``namespace/range``."""
    if not isinstance(document, dict):
        raise TemporaryError(f"broker {broker_id} did not list the bundles it owns; try again")
    return frozenset(name for name, status in document.items() if isinstance(status, dict) and status.get("is_active"))


def bundle_range(topic: TopicName, boundaries: tuple[str, ...]) -> str:
    """Return the topic's range (``0xa0000000_0xb0000000``) by the CRC-32 of the full name; half-open but the last."""
    values = _values(boundaries)
    position = zlib.crc32(str(topic).encode("utf-8"))
    index = min(bisect_right(values, position) - 1, len(values) - 2)
    return f"0x{values[index]:08x}_0x{values[index + 1]:08x}"


@lru_cache(maxsize=1_024)
def _values(boundaries: tuple[str, ...]) -> list[int]:
    return [int(boundary, 16) for boundary in boundaries]


def ownership_path(topic: TopicName, boundaries: tuple[str, ...]) -> str:
    """Return the path of the ephemeral node that names the owning broker (``OwnershipCache``, modular load manager)."""
    return f"/namespace/{topic.namespace}/{bundle_range(topic, boundaries)}"


def boundary_paths(namespace: str) -> tuple[str, str]:
    """Return the paths of the nodes that have the namespace's bundle boundaries."""
    return f"{LOCAL_POLICIES}/{namespace}", f"{POLICIES}/{namespace}"


def boundaries_in(nodes: Nodes, namespace: str) -> tuple[str, ...] | None:
    """Return the namespace's bundle boundaries; None when there is no such namespace.

    A namespace that was never loaded has them only in its policies; one without any has the full range.
    """
    existing = [node for path in boundary_paths(namespace) if (node := nodes[path]) is not None]
    if not existing:
        return None
    found = (_boundaries(node.data, namespace) for node in existing)
    return next((boundaries for boundaries in found if boundaries is not None), _FULL_RANGE)


def _boundaries(data: bytes, namespace: str) -> tuple[str, ...] | None:
    bundles = json_object(data or b"{}", f"the bundles of namespace {namespace}").get("bundles") or {}
    try:
        found = tuple(f"0x{int(str(boundary), 16):08x}" for boundary in bundles.get("boundaries") or ())
    except (ValueError, AttributeError, TypeError) as error:
        raise TemporaryError(f"the bundles of namespace {namespace} cannot be read; try again") from error
    return found if len(found) > 1 else None
