"""Listing of buckets and directories that hold offloaded ledgers, for an audit.

A bucket's listing has names, sizes and times. The rest is in each object: its user metadata name the owner, and an
index has the length of its data. Both come with one request for each object. Invariant: a request that fails
fails the listing; only an object that was deleted meanwhile is left out.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import obstore

from pulsar_sidecar.adapters.offload.blocks import MAX_INDEX_BYTES, indexed_data_bytes
from pulsar_sidecar.adapters.offload.map_files import holds_whole_ledger, is_index, matches_checksums
from pulsar_sidecar.adapters.offload.object_stores import OffloadCredentials, open_store
from pulsar_sidecar.adapters.offload.offloaded_ledgers import CLIENT_ERRORS, FORMAT_VERSION, FORMAT_VERSION_KEY
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID
from pulsar_sidecar.ownership.offload_locations import ObjectRole, OffloadTarget, Storage

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OBJECT = re.compile(rf"(?P<attempt>{_UUID})-ledger-(?P<ledger>[0-9]{{1,19}})(?P<index>-index)?")
_DIRECTORY = re.compile(rf"(?P<ledger>[0-9]{{1,19}})-(?P<attempt>{_UUID})")
_MAP_FILE = {ObjectRole.DATA.value, ObjectRole.INDEX.value, ".data.crc", ".index.crc"}
_AT_ONCE, _REQUESTS_AT_ONCE = 1_000, 16

Row = dict[str, Any]


def object_listing(target: OffloadTarget, credentials: OffloadCredentials) -> "BucketObjects | DirectoryObjects":
    """Return `audit.ports.OffloadedObjects` of a place; this sends no request."""
    if target.location.storage is Storage.FILES:
        return DirectoryObjects(target)
    return BucketObjects(target, open_store(target, credentials))


@dataclass(frozen=True, slots=True)
class BucketObjects:
    """`audit.ports.OffloadedObjects` of a bucket."""

    target: OffloadTarget
    store: "ObjectStore"

    @property
    def location(self) -> str:
        return str(self.target.location)

    def rows(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            try:
                for listed in obstore.list(self.store, chunk_size=_AT_ONCE):
                    yield [row for row in pool.map(self._row, listed) if row is not None]
            except CLIENT_ERRORS as error:
                raise TemporaryError(
                    f"{self.location} cannot be listed ({type(error).__name__}); check that it exists and that the "
                    "offload credentials may list it and read its objects"
                ) from error

    def _row(self, listed: "ObjectMeta") -> Row | None:
        key, size = listed["path"], listed["size"]
        row = _row(self.target, key, size, int(listed["last_modified"].timestamp() * 1000))
        match = _OBJECT.fullmatch(key)
        if match is None or int(match["ledger"]) > MAX_LEDGER_ID:
            return row
        role = ObjectRole.INDEX if match["index"] else ObjectRole.DATA
        try:
            attributes, index = self._head(key, role, size)
        except FileNotFoundError:
            return None
        if attributes.get(FORMAT_VERSION_KEY) != FORMAT_VERSION or attributes.get("role", role.value) != role.value:
            return row
        row |= _identity(match, role, attributes.get("managedledgername"), attributes.get("pulsarclustername"))
        if role is ObjectRole.INDEX:
            row["indexed_bytes"] = indexed_data_bytes(index)
            if row["indexed_bytes"] is None:
                row["damage"] = "the index is too short, or is not an index"
        return row

    def _head(self, key: str, role: ObjectRole, size: int) -> tuple[dict[str, str], bytes]:
        """Return an object's user metadata, and the content of an index."""
        is_read = role is ObjectRole.INDEX and size <= MAX_INDEX_BYTES
        found = obstore.get(self.store, key, options={"head": not is_read})
        index = bytes(found.bytes()) if is_read else b""
        return {name.lower(): value for name, value in found.attributes.items()}, index


@dataclass(frozen=True, slots=True)
class DirectoryObjects:
    """`audit.ports.OffloadedObjects` of the filesystem driver's base directory; symbolic links are not followed."""

    target: OffloadTarget

    @property
    def location(self) -> str:
        return str(self.target.location)

    def rows(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        base = Path(self.target.location.container)
        try:
            if not list(base.iterdir()):
                raise TemporaryError(f"{base} is empty; check that it is mounted here")
            for path, _, names in os.walk(base, onerror=_fail):
                if names:
                    yield list(self._files(base, Path(path), names))
        except OSError as error:
            raise TemporaryError(
                f"{error.filename} cannot be read ({error.strerror}); check the mount and its permissions"
            ) from error

    def _files(self, base: Path, directory: Path, names: Sequence[str]) -> Iterator[Row]:
        match = _DIRECTORY.fullmatch(directory.name)
        is_copy = match is not None and set(names) <= _MAP_FILE and int(match["ledger"]) <= MAX_LEDGER_ID
        for name in sorted(names):
            if is_copy and name.startswith("."):
                continue  # checksums, which are not Pulsar's
            path = directory / name
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue
            row = _row(self.target, str(path.relative_to(base)), found.st_size, found.st_mtime_ns // 1_000_000)
            if is_copy and match is not None and stat.S_ISREG(found.st_mode):
                row |= _identity(match, ObjectRole(name), str(directory.parent.relative_to(base)), None)
                row["damage"] = _damage(path, ObjectRole(name))
            yield row


def _fail(error: OSError) -> None:
    # A directory that was deleted meanwhile no longer has any files.
    if not isinstance(error, FileNotFoundError):
        raise error


def _damage(path: Path, role: ObjectRole) -> str | None:
    """Describe a MapFile's file that is not whole; the data's own checksums are not compared, which would read it."""
    try:
        with path.open("rb") as file:
            if role is ObjectRole.DATA:
                return None if holds_whole_ledger(file) else "the data do not hold every entry of a closed ledger"
            if not is_index(file):
                return "the index is too short, or is not an index"
            file.seek(0)
            with path.with_name(f".{path.name}.crc").open("rb") as checksums:
                return None if matches_checksums(file, checksums) else "the index does not match its checksums"
    except FileNotFoundError:
        return f"the {role.value} or its checksums are missing"


def _row(target: OffloadTarget, name: str, size: int, modified_ms: int) -> Row:
    return {
        "place": target.location.place,
        "driver": target.driver.value,
        "region": target.region,
        "object": name,
        "size_bytes": size,
        "modified_ms": modified_ms,
    }


def _identity(match: re.Match[str], role: ObjectRole, managed_ledger: str | None, cluster: str | None) -> Row:
    return {
        "role": role.value,
        "ledger_id": int(match["ledger"]),
        "attempt": str(UUID(match["attempt"])),
        "managed_ledger": managed_ledger,
        "cluster": cluster,
    }
