"""The shadow topics (PIP-180) of a cluster, by source: what an index of them holds, whatever the number of topics.

Invariant: a node that cannot be read is never taken for an ordinary topic's. It is kept, with the reason, and
`KnownShadows.of` raises `UndecodableError` for every source that it may belong to:

* the topics of its own namespace;
* every topic whose name its bytes hold: a shadow with more than this version knows still spells its source;
* every topic, where a newer broker may have wrapped what the bytes hold.

It holds up no other deletion. What is left are damaged nodes in other namespaces, which no broker can load
(``MetaStoreImpl`` fails on what does not expand or parse), so no client reads a source through them. The status names
each of them.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, field

from pulsar_sidecar.ledger_ownership.exact_decoding import unwrap
from pulsar_sidecar.ledger_ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ledger_ownership.shadows import Shadow, shadow_at, source_topic
from pulsar_sidecar.model.errors import UndecodableError, UnknownFieldError
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.names import TopicName


@dataclass(frozen=True, slots=True)
class UnreadNode:
    """A node that may be a shadow's and cannot be read; ``reason`` names it.

    ``plain`` is what it holds as far as that is known; None where a newer version may have written it.
    """

    path: str
    reason: str
    plain: bytes | None

    def may_be_of(self, source: TopicName) -> bool:
        """Whether it may be the node of a shadow of this topic; see the module."""
        if self.plain is None:
            return True
        name = source.base.local_name
        spelled = (name.encode(), json.dumps(name)[1:-1].encode())
        places = (managed_ledger_path(source.managed_ledger_name), partitioned_topic_path(source))
        is_beside = self.path.rpartition("/")[0] in [place.rpartition("/")[0] for place in places]
        return is_beside or any(each in self.plain for each in spelled)

    def may_be_of_namespace(self, namespace: str) -> bool:
        """The same for any topic of a namespace: its own nodes, and those that hold its name."""
        return self.plain is None or f"/{namespace}/" in self.path or namespace.encode() in self.plain


@dataclass(slots=True)
class KnownShadows:
    """Shadows and nodes that cannot be read, each by its path."""

    shadows: dict[str, Shadow] = field(default_factory=dict)
    unread: dict[str, UnreadNode] = field(default_factory=dict)
    _by_source: dict[TopicName, set[str]] = field(default_factory=dict)

    def note(self, path: str, node: Node | None) -> None:
        """Replace what is known of a topic's node (`ledger_ownership.paths.is_topic_node`); None: there is none."""
        self._forget(path)
        if node is None:
            return
        try:
            shadow = shadow_at(path, node.data)
        except UndecodableError as error:
            self.unread[path] = UnreadNode(path, str(error), _plain(node.data))
            return
        if shadow is not None:
            self.shadows[path] = shadow
            source = source_topic(shadow.source)
            if source is not None:
                self._by_source.setdefault(source, set()).add(path)

    def of(self, sources: Collection[TopicName]) -> list[Shadow]:
        """The shadows of these topics.

        Raises:
            UndecodableError: none is known, and a node that cannot be read may be one's.
        """
        paths = sorted({path for source in sources for path in self._by_source.get(source, ())})
        if not paths:
            self._demand_read(sources)
        return [self.shadows[path] for path in paths]

    def _demand_read(self, sources: Collection[TopicName]) -> None:
        for node in self.unread.values():
            if any(node.may_be_of(source) for source in sources):
                raise UndecodableError(node.reason)

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
