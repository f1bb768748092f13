"""Which tenant a ledger belongs to, by what brokers stamped on it: a ledger's id alone is no right."""

from collections.abc import Sequence

from pulsar_sidecar.ledger_ownership.claims import ForeignLedger, UnknownClaim, owner_path, read_claim
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.paths import ledger_path, tenant_of_owner
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import NodeReader


def tenants_of(store: NodeReader, ledger_ids: Sequence[LedgerId], root: str) -> list[str | None]:
    """The tenant of each ledger, in order; None for one that does not exist, or that no topic of Pulsar's owns.

    Raises:
        TemporaryError: a ledger's node was not read, or not understood.
    """
    nodes = store.read_many([ledger_path(ledger_id, root) for ledger_id in ledger_ids])
    return [None if node is None else tenant_of(node.data) for node in nodes]


def tenant_of(metadata: bytes) -> str | None:
    """The tenant of a ledger by its node; `UndecodableError` if that is not understood."""
    claim = read_claim(decode_ledger_metadata(metadata).custom_metadata)
    if isinstance(claim, ForeignLedger | UnknownClaim):
        return None
    return tenant_of_owner(owner_path(claim))
