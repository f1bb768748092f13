"""Shadow topics (PIP-180) of a cluster, by source: the contents of the shadow index.

Invariant: an unreadable node never counts as an ordinary topic's. It is kept, with the reason, and `KnownShadows.of`
raises `UndecodableError` for every source that it may belong to:

* the topics of its own namespace;
* every topic whose name its bytes contain: a shadow with fields of a newer version still spells its source;
* every topic, where a newer broker may have wrapped the bytes.

It blocks no other deletion: no broker can load a damaged node (``MetaStoreImpl``), so no client reads a source through
it. The status names each of them.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, field

from pulsar_sidecar.model.errors import UndecodableError, UnknownFieldError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.exact_decoding import unwrap
from pulsar_sidecar.ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.shadows import Shadow, shadow_at, source_topic


@dataclass(frozen=True, slots=True)
class UnreadNode:
    """Unreadable node that may be a shadow's; ``reason`` names it.

    ``plain`` is the node's unwrapped content; None where a newer version may have written it.
    """

    path: str
    reason: str
    plain: bytes | None

    def may_belong_to(self, source: TopicName) -> bool:
        """Return True if it may be the node of a shadow of this topic; see the module."""
        if self.plain is None:
            return True
        name = source.base.local_name
        spelled = (name.encode(), json.dumps(name)[1:-1].encode())
        places = (managed_ledger_path(source.managed_ledger_name), partitioned_topic_path(source))
        is_beside = self.path.rpartition("/")[0] in [place.rpartition("/")[0] for place in places]
        return is_beside or any(each in self.plain for each in spelled)

    def may_belong_to_namespace(self, namespace: str) -> bool:
        """Return True if it may be the node of a shadow in the namespace, or of a topic in it."""
        return self.plain is None or f"/{namespace}/" in self.path or namespace.encode() in self.plain


@dataclass(slots=True)
class KnownShadows:
    """Shadows and unreadable nodes, each by its path."""

    shadows: dict[str, Shadow] = field(default_factory=dict)
    unread: dict[str, UnreadNode] = field(default_factory=dict)
    _by_source: dict[TopicName, set[str]] = field(default_factory=dict)

    def note(self, path: str, data: bytes | None) -> None:
        """Update the entry of a topic's node (`ownership.paths.is_topic_node`); None if it does not exist."""
        self._forget(path)
        if data is None:
            return
        try:
            shadow = shadow_at(path, data)
        except UndecodableError as error:
            self.unread[path] = UnreadNode(path, str(error), _plain(data))
            return
        if shadow is not None:
            self.shadows[path] = shadow
            source = source_topic(shadow.source)
            if source is not None:
                self._by_source.setdefault(source, set()).add(path)

    def of(self, sources: Collection[TopicName]) -> list[Shadow]:
        """Return the shadows of these topics.

        Raises:
            UndecodableError: no shadow is known, and an unreadable node may be one's.
        """
        paths = sorted({path for source in sources for path in self._by_source.get(source, ())})
        if not paths:
            for node in self.unread.values():
                if any(node.may_belong_to(source) for source in sources):
                    raise UndecodableError(node.reason)
        return [self.shadows[path] for path in paths]

    def _forget(self, path: str) -> None:
        self.unread.pop(path, None)
        shadow = self.shadows.pop(path, None)
        source = None if shadow is None else source_topic(shadow.source)
        if source is not None:
            paths = self._by_source[source]
            paths.discard(path)
            if not paths:
                del self._by_source[source]


def _plain(data: bytes) -> bytes | None:
    try:
        return unwrap(data)
    except UnknownFieldError:
        return None
    except UndecodableError:
        return data
