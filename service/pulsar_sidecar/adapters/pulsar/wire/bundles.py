"""Which bundle of its namespace a topic falls into, computed as brokers compute it.

Source: ``NamespaceBundleFactory`` and ``NamespaceBundles`` (CRC-32 of the full topic name, ranges closed below and open
above except the last). Invariant: reading, never assigning; a namespace whose bundles cannot be read has none.
"""

import json
import zlib
from bisect import bisect_right

from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName

_FULL_RANGE = ("0x00000000", "0xffffffff")


def bundle_range(topic: TopicName, boundaries: tuple[str, ...]) -> str:
    """The range of the topic's bundle, as in ``0xa0000000_0xb0000000``."""
    values = [int(boundary, 16) for boundary in boundaries]
    position = zlib.crc32(str(topic).encode("utf-8"))
    index = min(bisect_right(values, position) - 1, len(values) - 2)
    return f"0x{values[index]:08x}_0x{values[index + 1]:08x}"


def read_boundaries(store: MetadataStore, namespace: str) -> tuple[str, ...] | None:
    """The namespace's bundle boundaries; None when there is no such namespace.

    A namespace that was never loaded has them in its policies only, one without any has the full range.

    Raises:
        TemporaryError: the store could not be asked, or holds something else there.
    """
    local, policies = store.read_many([f"/admin/local-policies/{namespace}", f"/admin/policies/{namespace}"])
    if local is None and policies is None:
        return None
    for node in (local, policies):
        found = _boundaries(node.data, namespace) if node is not None else None
        if found is not None:
            return found
    return _FULL_RANGE


def ownership_path(topic: TopicName, boundaries: tuple[str, ...]) -> str:
    """The ephemeral node in which the owning broker says so (``OwnershipCache``, modular load manager)."""
    return f"/namespace/{topic.namespace}/{bundle_range(topic, boundaries)}"


def _boundaries(data: bytes, namespace: str) -> tuple[str, ...] | None:
    try:
        document = json.loads(data or b"{}")
        bundles = document.get("bundles") or {}
        found = tuple(f"0x{int(str(boundary), 16):08x}" for boundary in bundles.get("boundaries") or ())
    except (ValueError, AttributeError, TypeError) as error:
        raise TemporaryError(f"the bundles of namespace {namespace} cannot be read; try again") from error
    return found if len(found) > 1 else None
