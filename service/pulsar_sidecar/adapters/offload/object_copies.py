"""Deleting the two objects of a copy from a bucket: look, compare, delete, look again.

A missing bucket answers a HEAD as a missing object does, and at least one driver of the field reported deletions that
never happened. Invariant: *gone* is reported only of a bucket that listed itself, *deleted* only after a second look.

Limits: parts of a multipart upload that never finished are no objects and stay (a bucket's lifecycle rule removes
those); in a versioned bucket *deleted* means hidden; a server that is not an object store but answers 404 to every HEAD
and well-formed XML to a listing is taken for an empty bucket.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from pulsar_sidecar.adapters.offload.copies import ObjectRole, OffloadedCopy, check_identity
from pulsar_sidecar.adapters.offload.locations import OffloadLocation
from pulsar_sidecar.ledger_deletion.ports import OffloadDeletion
from pulsar_sidecar.model.errors import OutcomeUnknownError, TemporaryError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

CLIENT_ERRORS = (BaseError, OSError, ValueError, NotImplementedError)
"""Everything the client raises; `FileNotFoundError`, its "no such object", is among the `OSError`."""


class BucketCopies:
    """Copies in one bucket, written by one cluster's brokers."""

    def __init__(self, store: "ObjectStore", location: OffloadLocation, cluster_name: str) -> None:
        self._store = store
        self._location = location
        self._cluster_name = cluster_name

    def delete(self, copy: OffloadedCopy) -> OffloadDeletion:
        """Delete what is there of a copy, if all of it is what it claims.

        Raises:
            PermanentError: an object belongs to another owner; nothing was deleted.
            TemporaryError: the store could not be asked, refused, or kept an object that it reported as deleted.
            OutcomeUnknownError: the answer to a deletion, or the look after it, was lost.
        """
        found = {
            role: attributes for role in ObjectRole if (attributes := self._attributes(copy.key(role))) is not None
        }
        if not found:
            self._confirm_bucket(copy)
            return OffloadDeletion.GONE
        for role, attributes in found.items():
            check_identity(copy, role, attributes, self._cluster_name)
        for role in found:
            self._delete(copy.key(role))
        for role in found:
            self._verify_gone(copy.key(role))
        return OffloadDeletion.DELETED

    def _attributes(self, key: str) -> Mapping[str, str] | None:
        try:
            return obstore.get(self._store, key, options={"head": True}).attributes
        except FileNotFoundError:
            return None
        except CLIENT_ERRORS as error:
            raise self._unasked(key, error) from error

    def _confirm_bucket(self, copy: OffloadedCopy) -> None:
        """A listing, unlike a HEAD, fails when the bucket itself is missing."""
        prefix = copy.key(ObjectRole.DATA)
        try:
            next(iter(obstore.list(self._store, prefix=prefix)), None)
        except CLIENT_ERRORS as error:
            raise self._unasked(prefix, error) from error

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
            remains = self._attributes(key)
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
