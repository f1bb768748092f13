"""The port to tiered storage: from an offload context to a deleted copy.

Pulsar's own offloader takes the bucket from the context and the address from its present configuration, and so misses
copies made before a change. Invariant: here both come from the context, policies are never asked, and a place outside
the operator's list is never contacted.

A copy in a bucket is two objects: look, compare, delete, look again. Their names alone prove little: buckets are shared
between clusters, records may be forged, and a shadow topic's list holds the offload contexts of its source. A missing
bucket answers a HEAD as a missing object does, and at least one driver of the field reported deletions that never
happened. Invariant: an object passes only if by its own metadata Pulsar's offloader wrote it for the record's
managed ledger in this cluster; *gone* is reported only of a bucket that listed itself, *deleted* only after a second
look.

Limits: parts of a multipart upload that never finished are no objects and stay (a bucket's lifecycle rule removes
those); in a versioned bucket *deleted* means hidden; a server that is not an object store but answers 404 to every HEAD
and well-formed XML to a listing is taken for an empty bucket.
"""

import struct
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from pulsar_sidecar.adapters.offload.file_copies import delete_map_file, is_whole_map_file, map_file_exists
from pulsar_sidecar.adapters.offload.locations import (
    AllowedLocations,
    ObjectRole,
    OffloadDriver,
    OffloadedCopy,
    OffloadLocation,
    OffloadTarget,
    copy_of,
    offload_target,
)
from pulsar_sidecar.adapters.offload.object_stores import OffloadCredentials, open_store
from pulsar_sidecar.ledger_deletion.ports import OffloadDeletion
from pulsar_sidecar.model.errors import OutcomeUnknownError, PermanentError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import ManagedLedgerName

if TYPE_CHECKING:
    from obstore import GetResult
    from obstore.store import ObjectStore

FORMAT_VERSION_KEY = "s3managedledgeroffloaderformatversion"
FORMAT_VERSION = "1"
_ROLE_KEY = "role"
_INDEX_HEAD = struct.Struct(">Iiqqii")
"""What an index object begins with (``OffloadIndexBlockImpl.toStream``): magic word, length of the index, length of
the data object, length of a data block's header, number of index entries, length of the ledger's metadata."""
_INDEX_MAGIC = 0xDE47DE47
"""Streaming offload's index (``OffloadIndexBlockV2Impl``) has another; brokers cannot read one beside such a copy."""
_INDEX_ENTRY_BYTES = 20
CLIENT_ERRORS = (BaseError, OSError, ValueError, NotImplementedError)
"""Everything the client raises; `FileNotFoundError`, its "no such object", is among the `OSError`."""


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
            OutcomeUnknownError: the answer to a deletion, or the look after it, was lost.
        """
        copy = copy_of(ledger_id, context, managed_ledger)
        target = self._permitted(context)
        if target.driver is OffloadDriver.FILESYSTEM:
            return delete_map_file(Path(target.location.container), copy)
        return self._bucket(target).delete(copy)

    def exists(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> bool:
        """Whether there is anything that `delete_offloaded` would delete; raises what that does before it deletes."""
        copy = copy_of(ledger_id, context, managed_ledger)
        target = self._permitted(context)
        if target.driver is OffloadDriver.FILESYSTEM:
            return map_file_exists(Path(target.location.container), copy)
        return self._bucket(target).exists(copy)

    def is_whole(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> bool:
        """Whether a copy is there in full; see `ledger_deletion.ports.OffloadedLedgers`.

        Lengths are compared, contents are not: a bucket's own checksums stand for those. The filesystem driver keeps
        no lengths, so `is_whole_map_file` goes through the copy.

        Raises:
            PermanentError: the context names no copy, its location is not allowed, or the copy is another owner's.
            TemporaryError: storage could not be asked, or refused.
        """
        if not context.complete or context.segments:
            return False
        copy = copy_of(ledger_id, context, managed_ledger)
        target = self._permitted(context)
        if target.driver is OffloadDriver.FILESYSTEM:
            return is_whole_map_file(Path(target.location.container), copy)
        return self._bucket(target).is_whole(copy)

    def _permitted(self, context: OffloadContext) -> OffloadTarget:
        wanted = offload_target(context.driver_name, context.driver_metadata)
        return replace(wanted, location=self._allowed.permitted(wanted.location))

    def _bucket(self, target: OffloadTarget) -> "_Bucket":
        return _Bucket(self._store(target), target.location, self._cluster_name)

    def _store(self, target: OffloadTarget) -> "ObjectStore":
        """One client per target, so that credentials from a chain are fetched once."""
        with self._lock:
            if target not in self._stores:
                self._stores[target] = open_store(target, self._credentials)
            return self._stores[target]


class _Bucket:
    """Copies in one bucket, written by one cluster's brokers."""

    def __init__(self, store: "ObjectStore", location: OffloadLocation, cluster_name: str) -> None:
        self._store = store
        self._location = location
        self._cluster_name = cluster_name

    def delete(self, copy: OffloadedCopy) -> OffloadDeletion:
        """Delete what is there of a copy, if all of it is what it claims; otherwise nothing."""
        found = self._owned(copy)
        if not found:
            return OffloadDeletion.GONE
        for role in found:
            self._delete(copy.key(role))
        for role in found:
            self._verify_gone(copy.key(role))
        return OffloadDeletion.DELETED

    def exists(self, copy: OffloadedCopy) -> bool:
        return bool(self._owned(copy))

    def is_whole(self, copy: OffloadedCopy) -> bool:
        """Whether both objects are there and as long as in the index."""
        found = self._owned(copy)
        if len(found) < len(ObjectRole):
            return False
        data_length, index_length = (found[role].meta["size"] for role in (ObjectRole.DATA, ObjectRole.INDEX))
        head = self._index_head(copy.key(ObjectRole.INDEX)) if index_length >= _INDEX_HEAD.size else b""
        if len(head) < _INDEX_HEAD.size:
            return False
        magic, block_length, indexed_data_length, _, entries, metadata_length = _INDEX_HEAD.unpack(head)
        described_length = _INDEX_HEAD.size + metadata_length + entries * _INDEX_ENTRY_BYTES
        return (magic, block_length, described_length, indexed_data_length) == (
            _INDEX_MAGIC,
            index_length,
            index_length,
            data_length,
        )

    def _owned(self, copy: OffloadedCopy) -> Mapping[ObjectRole, "GetResult"]:
        """What is there of a copy, each object proven to be what it claims; none of it only in a bucket that exists."""
        found = {role: head for role in ObjectRole if (head := self._head(copy.key(role))) is not None}
        if not found:
            self._confirm_bucket(copy)
        for role, head in found.items():
            check_identity(copy, role, head.attributes, self._cluster_name)
        return found

    def _head(self, key: str) -> "GetResult | None":
        try:
            return obstore.get(self._store, key, options={"head": True})
        except FileNotFoundError:
            return None
        except CLIENT_ERRORS as error:
            raise self._unasked(key, error) from error

    def _index_head(self, key: str) -> bytes:
        try:
            return bytes(obstore.get_range(self._store, key, start=0, length=_INDEX_HEAD.size))
        except CLIENT_ERRORS as error:
            raise self._unasked(key, error) from error

    def _confirm_bucket(self, copy: OffloadedCopy) -> None:
        """A listing, unlike a HEAD, fails when the bucket itself is missing; and it knows of no such copy either."""
        prefix = copy.key(ObjectRole.DATA)
        try:
            listed = next(iter(obstore.list(self._store, prefix=prefix)), None)
        except CLIENT_ERRORS as error:
            raise self._unasked(prefix, error) from error
        if listed:
            raise TemporaryError(f"{self._location} lists {prefix} and answers that it has no such object; look again")

    def _delete(self, key: str) -> None:
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError:
            return
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise self._unasked(key, error) from error
        except CLIENT_ERRORS as error:
            raise OutcomeUnknownError(
                f"whether {key} was deleted from {self._location} is not known ({type(error).__name__}); look again"
            ) from error

    def _verify_gone(self, key: str) -> None:
        try:
            remains = self._head(key)
        except TemporaryError as error:
            raise OutcomeUnknownError(
                f"{key} was deleted from {self._location} but could not be looked for afterwards; look again"
            ) from error
        if remains is not None:
            raise TemporaryError(
                f"{self._location} reported {key} as deleted, but it is still there; check the bucket's retention or "
                "object locks"
            )

    def _unasked(self, key: str, error: Exception) -> TemporaryError:
        what = "refuses" if isinstance(error, PermissionDeniedError | UnauthenticatedError) else "cannot be asked for"
        return TemporaryError(
            f"{self._location} {what} {key} ({type(error).__name__}); check that it is reachable and that the offload "
            "credentials may list the bucket and read and delete its objects"
        )


def check_identity(copy: OffloadedCopy, role: ObjectRole, attributes: Mapping[str, str], cluster_name: str) -> None:
    """Compare an object's user metadata with the record.

    4.0.8 writes all of it. The role came late, so it may be missing but not differ. An object of an older offloader
    that names no managed ledger or no cluster cannot be attributed, so it stays.

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
                "in the object store if it is not needed any more"
            )
        raise PermanentError(
            f"{copy.key(role)} is not the copy that the record names: its {name} is {present[:200]!r}, expected "
            f"{value!r}"
        )
