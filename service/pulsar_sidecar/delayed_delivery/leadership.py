"""One sidecar of several reconciles the cancellations: an ephemeral node names it, and dies with its session."""

from pulsar_sidecar.model.errors import AlreadyExistsError
from pulsar_sidecar.model.metadata import MetadataStore

LEADER_NODE = "/pulsar-sidecar/delayed-delivery/asserter"


class Leadership:
    """Whether this sidecar is the one; asked before each round of work."""

    def __init__(self, store: MetadataStore, name: str) -> None:
        self._store = store
        self._name = name.encode()

    def held(self) -> bool:
        """Take the node if nobody has it; True when it is this sidecar's.

        Two may hold themselves for it for a moment, when a session ends; acknowledging twice is harmless.
        """
        node = self._store.read(LEADER_NODE)
        if node is not None:
            return node.data == self._name
        try:
            self._store.create(LEADER_NODE, self._name, ephemeral=True)
        except AlreadyExistsError:
            return False
        return True

    def resign(self) -> None:
        """Let another one take over at once."""
        node = self._store.read(LEADER_NODE)
        if node is not None and node.data == self._name:
            self._store.delete(LEADER_NODE, node.version)
