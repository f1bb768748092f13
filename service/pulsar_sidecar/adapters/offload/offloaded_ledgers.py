"""Adapter of tiered storage, which finds, checks and deletes the copy that an offload context names.

Pulsar's own offloader takes the bucket from the context and the address from its present configuration, and so misses
copies made before a change. Invariant: here both come from the context, policies are ignored, and the sidecar never
contacts a place outside the operator's list.

A copy in a bucket is two objects, which the sidecar reads, compares, deletes and reads again. Their names alone prove
little: clusters share buckets, records may be forged, and a shadow topic's list holds the offload contexts of its
source. A missing bucket responds to a HEAD as a missing object does, and at least one driver in the field reported
deletions that never happened. Invariant: an object passes only if by its own metadata Pulsar's offloader wrote it for
the record's managed ledger in this cluster; *gone* is reported only after the bucket listed its objects, *deleted* only
after it listed them again.

Limits: parts of an unfinished multipart upload are no objects and stay (a bucket's lifecycle rule removes them); in a
versioned bucket *deleted* means hidden; a server that is not an object store but returns 404 to every HEAD and
well-formed XML to a listing counts as an empty bucket.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from pulsar_sidecar.adapters.offload.blocks import MAX_INDEX_BYTES, Block, holds_entries, indexed_blocks
from pulsar_sidecar.adapters.offload.file_copies import MapFiles
from pulsar_sidecar.adapters.offload.object_stores import OffloadCredentials, open_store
from pulsar_sidecar.features.ledger_deletion.ports import OffloadDeletion
from pulsar_sidecar.model.errors import OutcomeUnknownError, PermanentError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import ManagedLedgerName
from pulsar_sidecar.ownership.offload_locations import (
    AllowedLocations,
    ObjectRole,
    OffloadDriver,
    OffloadedCopy,
    OffloadLocation,
    OffloadTarget,
    copy_of,
    offload_target,
)

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ObjectStore

FORMAT_VERSION_KEY = "s3managedledgeroffloaderformatversion"
FORMAT_VERSION = "1"
_ROLE_KEY = "role"
_READ_BYTES = 8 * 1024 * 1024
"""Bytes of a block that one request reads."""
CLIENT_ERRORS = (BaseError, OSError, ValueError, NotImplementedError)
"""Exceptions that the client raises; `FileNotFoundError`, its "no such object", is an `OSError`."""


class ObjectStoreOffloadedLedgers:
    """Copies in S3 and compatible stores, Google Cloud Storage, Azure, OSS, and directories. Thread-safe."""

    def __init__(
        self,
        allowed_locations: Iterable[str],
        cluster_name: str,
        credentials: OffloadCredentials | None = None,
    ) -> None:
        """Read the allowed locations, without contacting any.

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
            TemporaryError: storage did not respond, refused, or still shows objects that it reported as deleted.
            OutcomeUnknownError: the response to a deletion, or to the read after it, was lost.
        """
        copy = copy_of(ledger_id, context, managed_ledger)
        return self._storage(context).delete(copy)

    def exists(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> bool:
        """Return True if `delete_offloaded` would delete anything; raises as that does before it deletes."""
        copy = copy_of(ledger_id, context, managed_ledger)
        return self._storage(context).exists(copy)

    def is_whole(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> bool:
        """Return True if a whole copy is there; see `ledger_deletion.ports.OffloadedLedgers`.

        In a bucket this reads the index, and the first and the last block; between them it compares lengths, and not
        contents, which a bucket's own checksums protect. The filesystem driver keeps no lengths, so `MapFiles.is_whole`
        reads the whole copy.

        Raises:
            PermanentError: the context names no copy, its location is not allowed, or the copy is another owner's.
            TemporaryError: storage did not respond, or refused.
        """
        if not context.complete or context.segments:
            return False
        copy = copy_of(ledger_id, context, managed_ledger)
        return self._storage(context).is_whole(copy)

    def _storage(self, context: OffloadContext) -> "_Bucket | MapFiles":
        wanted = offload_target(context.driver_name, context.driver_metadata)
        location = self._allowed.permitted(wanted.location)
        if wanted.driver is OffloadDriver.FILESYSTEM:
            return MapFiles(Path(location.container))
        return _Bucket(self._store(replace(wanted, location=location)), location, self._cluster_name)

    def _store(self, target: OffloadTarget) -> "ObjectStore":
        """Return the target's one client, so that credentials from a chain are fetched once."""
        with self._lock:
            if target not in self._stores:
                self._stores[target] = open_store(target, self._credentials)
            return self._stores[target]


class _Bucket:
    """Copies in one bucket that one cluster's brokers wrote."""

    def __init__(self, store: "ObjectStore", location: OffloadLocation, cluster_name: str) -> None:
        self._store = store
        self._location = location
        self._cluster_name = cluster_name

    def delete(self, copy: OffloadedCopy) -> OffloadDeletion:
        """Delete the existing objects of a copy if all of them prove their identity; otherwise none."""
        found = self._owned(copy)
        if not found:
            return OffloadDeletion.GONE
        for role in found:
            self._delete(copy.key(role))
        self._verify_gone(copy)
        return OffloadDeletion.DELETED

    def exists(self, copy: OffloadedCopy) -> bool:
        return bool(self._owned(copy))

    def is_whole(self, copy: OffloadedCopy) -> bool:
        """Return True if the index describes the whole ledger, and the first and the last block hold their entries."""
        found = self._owned(copy)
        if len(found) < len(ObjectRole):
            return False
        data_bytes, index_bytes = (found[role].meta["size"] for role in (ObjectRole.DATA, ObjectRole.INDEX))
        if not 0 < index_bytes <= MAX_INDEX_BYTES:
            return False
        blocks = indexed_blocks(self._read(copy.key(ObjectRole.INDEX), index_bytes), data_bytes)
        return bool(blocks) and self._holds(
            copy.key(ObjectRole.DATA), data_bytes, dict.fromkeys((blocks[0], blocks[-1]))
        )

    def _read(self, key: str, length: int) -> bytes:
        try:
            return bytes(obstore.get_range(self._store, key, start=0, length=length))
        except CLIENT_ERRORS as error:
            raise self._query_failed(key, error) from error

    def _holds(self, key: str, data_bytes: int, blocks: Iterable[Block]) -> bool:
        try:
            reader = obstore.open_reader(self._store, key, buffer_size=_READ_BYTES, size=data_bytes)
            for block in blocks:
                reader.seek(block.start)
                if not holds_entries(lambda at_most: bytes(reader.read(at_most)), block):
                    return False
        except CLIENT_ERRORS as error:
            raise self._query_failed(key, error) from error
        return True

    def _owned(self, copy: OffloadedCopy) -> Mapping[ObjectRole, "GetResult"]:
        """Return the existing objects of a copy, each with proven identity; none only if the bucket exists."""
        found = {role: head for role in ObjectRole if (head := self._head(copy.key(role))) is not None}
        if not found and (listed := self._listed(copy)):
            raise TemporaryError(
                f"{self._location} lists {listed[0]} but reports that it has no such object; try again"
            )
        for role, head in found.items():
            check_identity(copy, role, head.attributes, self._cluster_name)
        return found

    def _head(self, key: str) -> "GetResult | None":
        try:
            return obstore.get(self._store, key, options={"head": True})
        except FileNotFoundError:
            return None
        except CLIENT_ERRORS as error:
            raise self._query_failed(key, error) from error

    def _listed(self, copy: OffloadedCopy) -> list[str]:
        """Return the objects of a copy that the bucket lists; without a bucket a listing fails, unlike a HEAD."""
        # From an offset: the client ends a prefix at a slash, and so finds no part of a name.
        attempt, keys = str(copy.attempt), sorted(map(copy.key, ObjectRole))
        found: set[str] = set()
        try:
            for listed in obstore.list(self._store, offset=attempt):
                paths = {each["path"] for each in listed}
                found.update(paths.intersection(keys))
                # Some servers ignore the offset.
                if max(paths, default="") >= keys[-1]:
                    break
        except CLIENT_ERRORS as error:
            raise self._query_failed(attempt, error) from error
        return sorted(found)

    def _delete(self, key: str) -> None:
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError:
            return
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise self._query_failed(key, error) from error
        except CLIENT_ERRORS as error:
            raise OutcomeUnknownError(
                f"it is not known whether {key} was deleted from {self._location} ({type(error).__name__}); try again"
            ) from error

    def _verify_gone(self, copy: OffloadedCopy) -> None:
        try:
            left = self._listed(copy)
        except TemporaryError as error:
            raise OutcomeUnknownError(
                f"the copy {copy.key(ObjectRole.DATA)} was deleted from {self._location}, but whether it is gone could "
                "not be checked; try again"
            ) from error
        if left:
            raise TemporaryError(
                f"{self._location} reported {left[0]} as deleted, but it is still there; check the bucket's retention "
                "or object locks"
            )

    def _query_failed(self, key: str, error: Exception) -> TemporaryError:
        what = "refuses" if isinstance(error, PermissionDeniedError | UnauthenticatedError) else "cannot be asked for"
        return TemporaryError(
            f"{self._location} {what} {key} ({type(error).__name__}); check that it is reachable and that the offload "
            "credentials may list the bucket and read and delete its objects"
        )


def check_identity(copy: OffloadedCopy, role: ObjectRole, attributes: Mapping[str, str], cluster_name: str) -> None:
    """Compare an object's user metadata with the record.

    Pulsar 4.0.8 writes all of it. The role was added late, so it may be missing but not differ. An object of an older
    offloader that names no managed ledger or no cluster cannot be attributed, so it stays.

    Raises:
        PermanentError: the object belongs to another owner or names none; the message names what differs.
    """
    found = {name.lower(): value for name, value in attributes.items()}
    expected = {
        FORMAT_VERSION_KEY: FORMAT_VERSION,
        _ROLE_KEY: role.value,
        "managedledgername": copy.managed_ledger,
        "pulsarclustername": cluster_name,
    }
    for name, value in expected.items():
        present = found.get(name)
        if present == value or (present is None and name == _ROLE_KEY):
            continue
        if present is None:
            raise PermanentError(
                f"{copy.key(role)} does not name its owner: its {name} is missing, expected {value!r}; delete it "
                "in the object store if it is no longer needed"
            )
        raise PermanentError(
            f"{copy.key(role)} is not the copy that the record names: its {name} is {present[:200]!r}, expected "
            f"{value!r}"
        )
