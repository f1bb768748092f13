"""The port to tiered storage: from an offload context to a deleted copy.

Pulsar's own offloader takes the bucket from the context and the address from its present configuration, and so misses
copies made before a change. Invariant: here both come from the context, policies are never asked, and a place outside
the operator's list is never contacted.
"""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pulsar_sidecar.adapters.offload.copies import copy_of
from pulsar_sidecar.adapters.offload.credentials import OffloadCredentials
from pulsar_sidecar.adapters.offload.file_copies import delete_map_file
from pulsar_sidecar.adapters.offload.locations import AllowedLocations, OffloadDriver, OffloadTarget, offload_target
from pulsar_sidecar.adapters.offload.object_copies import BucketCopies
from pulsar_sidecar.adapters.offload.object_stores import open_store
from pulsar_sidecar.ledger_deletion.ports import OffloadDeletion
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import ManagedLedgerName

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class ObjectStoreOffloadedLedgers:
    """Copies in S3, stores that speak its protocol, Google Cloud Storage, Azure, OSS, and directories. Thread-safe."""

    def __init__(
        self,
        allowed_locations: Iterable[str],
        cluster_name: str,
        credentials: OffloadCredentials | None = None,
    ) -> None:
        """Nothing is contacted yet.

        Args:
            allowed_locations: items as `AllowedLocations` reads them; empty allows nothing.
            cluster_name: the brokers' ``clusterName``, which their objects carry.
            credentials: keys by driver; None leaves all to the providers' own chains.

        Raises:
            InvalidInputError: an allowed location cannot be read.
        """
        self._allowed = AllowedLocations(allowed_locations)
        self._cluster_name = cluster_name
        self._credentials = credentials or OffloadCredentials()
        self._stores: dict[OffloadTarget, ObjectStore] = {}
        self._lock = threading.Lock()

    def delete_offloaded(
        self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName
    ) -> OffloadDeletion:
        """Delete the copy that a context names; see `ledger_deletion.ports.OffloadedLedgers`.

        Raises:
            PermanentError: the context is incomplete, its location is not allowed, or the copy is another owner's.
            TemporaryError: storage could not be asked, refused, or still shows what it reported as deleted.
            OutcomeUnknownError: whether something was deleted is not known.
        """
        copy = copy_of(ledger_id, context, managed_ledger)
        wanted = offload_target(context.driver_name, context.driver_metadata)
        location = self._allowed.permitted(wanted.location)
        if wanted.driver is OffloadDriver.FILESYSTEM:
            return delete_map_file(Path(location.container), copy)
        store = self._store(OffloadTarget(wanted.driver, location, wanted.region))
        return BucketCopies(store, location, self._cluster_name).delete(copy)

    def _store(self, target: OffloadTarget) -> "ObjectStore":
        """One client per target, so that credentials from a chain are fetched once."""
        with self._lock:
            if target not in self._stores:
                self._stores[target] = open_store(target, self._credentials)
            return self._stores[target]
