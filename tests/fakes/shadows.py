"""The current shadow topics of a store in memory, like a complete `ShadowIndex`."""

from collections.abc import Collection, Sequence

from pulsar_sidecar.features.ledger_deletion.topic_deletion.known_shadows import KnownShadows, UnreadNode
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import is_topic_node
from pulsar_sidecar.ownership.shadows import Shadow

from tests.fakes.hooks import Hooks
from tests.fakes.metadata import FakeMetadataStore


class FakeShadows:
    """`Shadows`, which reads the store without its hooks and journal."""

    def __init__(self, store: FakeMetadataStore) -> None:
        self.hooks = Hooks()
        self._store = store

    def shadows_of(self, sources: Collection[TopicName]) -> Sequence[Shadow]:
        self.hooks.arrive("shadows_of")
        return self._known().of(sources)

    def all_shadows(self, *, for_deletion: bool = False) -> tuple[Sequence[Shadow], Sequence[UnreadNode]]:
        del for_deletion
        self.hooks.arrive("all_shadows")
        known = self._known()
        return list(known.shadows.values()), list(known.unread.values())

    def _known(self) -> KnownShadows:
        known = KnownShadows()
        for path in filter(is_topic_node, self._store.paths()):
            node = self._store.peek(path)
            known.note(path, None if node is None else node.data)
        return known
