"""One sidecar of several sees to the cancellations: an ephemeral node says which, and dies with its session."""

from pulsar_sidecar.model.errors import AlreadyExistsError
from pulsar_sidecar.model.metadata import MetadataStore

ASSERTER = "/pulsar-sidecar/delayed-delivery/asserter"


class Leadership:
    """Whether this sidecar is the one; asked before each round of work."""

    def __init__(self, store: MetadataStore, name: str) -> None:
        self._store = store
        self._name = name.encode()

    def held(self) -> bool:
        """Take the node if nobody has it; True when it is this sidecar's.

        Two may hold themselves for it for a moment, when a session ends; acknowledging twice is harmless.
        """
        node = self._store.read(ASSERTER)
        if node is not None:
            return node.data == self._name
        try:
            self._store.create(ASSERTER, self._name, ephemeral=True)
        except AlreadyExistsError:
            return False
        return True

    def resign(self) -> None:
        """Let another one take over at once."""
        node = self._store.read(ASSERTER)
        if node is not None and node.data == self._name:
            self._store.delete(ASSERTER, node.version)
