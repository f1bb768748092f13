"""New ledger ids on ZooKeeper: an id is the number of an ephemeral sequential node, which is deleted at once."""

from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from pulsar_sidecar.adapters.sequential_ledger_ids import SequentialLedgerIds
from pulsar_sidecar.adapters.zookeeper.session import Deadline
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT

_NUMBER_PREFIX: Final = "ID-"


class ZooKeeperLedgerIds(SequentialLedgerIds):
    """Generator of ids that no ledger has had; safe for use by several threads."""

    def __init__(self, store: ZooKeeperMetadataStore, ledgers_root: str = DEFAULT_LEDGERS_ROOT) -> None:
        super().__init__(store, ledgers_root)
        self._session = store

    def _number_below(self, folder: str) -> int:
        def create(client: KazooClient, deadline: Deadline) -> str:
            made = client.create_async(f"{folder}/{_NUMBER_PREFIX}", b"", ephemeral=True, sequence=True)
            return deadline.answer(made)

        try:
            path = self._session.writing(f"take a ledger id below {folder}", create)
        except NoNodeError:
            self.make(folder)
            return self._number_below(folder)
        # A node that cannot be deleted now is gone at the end of the session.
        self._session.delete(path)
        return int(path.rpartition(_NUMBER_PREFIX)[2])
