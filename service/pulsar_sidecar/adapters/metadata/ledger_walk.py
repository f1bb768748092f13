"""Every ledger's own metadata, one after the other."""

from collections.abc import Iterator

from pulsar_sidecar.adapters.metadata.addressing import ZooKeeperCredential
from pulsar_sidecar.adapters.metadata.zookeeper_walk import LedgerNodes
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import MetadataStore


def every_ledger(
    url: str,
    store: MetadataStore,
    clock: Clock,
    ledgers_root: str,
    *,
    credential: ZooKeeperCredential | None = None,
    nodes_per_second: float | None = None,
) -> Iterator[tuple[LedgerId, bytes]]:
    """The delayed index's `EveryLedger`, by a walk over a session of its own.

    Without ``nodes_per_second`` there is no limit.
    """
    nodes = LedgerNodes(
        url,
        store,
        clock,
        ledgers_root,
        credential=credential,
        nodes_per_second=nodes_per_second,
        with_metadata=True,
    )
    for batch in nodes.batches():
        columns = (batch.column(name).to_pylist() for name in ("ledger_id", "metadata", "unreadable"))
        for ledger_id, data, refusal in zip(*columns, strict=True):
            if refusal is not None:
                raise TemporaryError(f"ledger {ledger_id} cannot be read ({refusal}); give a credential that may")
            yield LedgerId(ledger_id), data or b""
