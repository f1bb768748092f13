"""One sidecar of all watches; the others stand by."""

from dataclasses import dataclass

from pulsar_sidecar.ledger_deletion.control import decode_instance, encode
from pulsar_sidecar.ledger_deletion.service import SidecarInstance
from pulsar_sidecar.ledger_deletion.watch.control import WATCH
from pulsar_sidecar.model.errors import AlreadyExistsError
from pulsar_sidecar.model.metadata import MetadataStore

LEADER = f"{WATCH}/leader"


@dataclass(frozen=True, slots=True)
class Leadership:
    """An ephemeral node, which dies with its sidecar's session.

    For as long as a session takes to expire, two may believe that they lead. Both only append records, each of which is
    judged before anything is deleted, so a second one does no harm.
    """

    store: MetadataStore
    own: SidecarInstance

    def take(self) -> bool:
        """Whether this sidecar leads now; it does if nobody else does."""
        leader = self.leader()
        if leader is not None:
            return leader == self.own
        try:
            self.store.create(LEADER, encode(self.own), ephemeral=True)
        except AlreadyExistsError:
            return False
        return True

    def leader(self) -> SidecarInstance | None:
        """The sidecar that leads, or None."""
        node = self.store.read(LEADER)
        return None if node is None else decode_instance(node.data)

    def resign(self) -> None:
        """Let another sidecar lead at once."""
        if self.leader() == self.own:
            self.store.delete(LEADER)
