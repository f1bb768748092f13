"""New ledger ids on etcd: Pulsar numbers a sequential node by the version of its parent, which it writes for that.

The sequential node itself is not needed: nobody else gets the number.
"""

from pulsar_sidecar.adapters.etcd.etcd import EtcdMetadataStore
from pulsar_sidecar.adapters.etcd.gateway import encoded
from pulsar_sidecar.adapters.sequential_ledger_ids import SequentialLedgerIds
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT


class EtcdLedgerIds(SequentialLedgerIds):
    """Generator of ids that no ledger has had; safe for use by several threads."""

    def __init__(self, store: EtcdMetadataStore, ledgers_root: str = DEFAULT_LEDGERS_ROOT) -> None:
        super().__init__(store, ledgers_root)
        self._gateway = store.gateway

    def _number_below(self, folder: str) -> int:
        what = f"take a ledger id below {folder}"
        answer = self._gateway.writing(what, "kv/put", {"key": encoded(folder), "value": "", "prev_kv": True})
        return int(answer.get("prev_kv", {}).get("version", 0))
