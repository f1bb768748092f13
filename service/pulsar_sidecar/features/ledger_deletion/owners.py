"""Tenants of ledgers, from what brokers stamped on them: a ledger's id alone grants no right."""

from collections.abc import Sequence

from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import NodeReader
from pulsar_sidecar.ownership.claims import ForeignLedger, UnknownClaim, owner_path, read_claim
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path, tenant_of_owner


def tenants_of(store: NodeReader, ledger_ids: Sequence[LedgerId], root: str) -> list[str | None]:
    """Return the tenant of each ledger, in order; None for one that does not exist or that no Pulsar topic owns.

    Raises:
        TemporaryError: a ledger's node could not be read or decoded.
    """
    nodes = store.read_many([ledger_path(ledger_id, root) for ledger_id in ledger_ids])
    return [None if node is None else tenant_of(node.data) for node in nodes]


def tenant_of(metadata: bytes) -> str | None:
    """Return a ledger's tenant from its node; raises `UndecodableError` if the node cannot be decoded."""
    claim = read_claim(decode_ledger_metadata(metadata).custom_metadata)
    if isinstance(claim, ForeignLedger | UnknownClaim):
        return None
    return tenant_of_owner(owner_path(claim))
