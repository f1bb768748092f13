"""Deletion and checks of the filesystem driver's copies: each is a Hadoop MapFile directory below a base directory.

Only its path identifies such a copy, so the sidecar descends with directory handles that follow no symbolic link, and
removes only the files of a MapFile. Invariant: the sidecar never removes anything outside the base, or that the driver
would not have written; an empty or missing base is unmounted, not an absence.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pulsar_sidecar.adapters.offload.map_files import holds_whole_ledger, is_index, matches_checksums
from pulsar_sidecar.features.ledger_deletion.ports import OffloadDeletion
from pulsar_sidecar.model.errors import InvalidInputError, PermanentError, TemporaryError
from pulsar_sidecar.ownership.offload_locations import OffloadedCopy

_SEQUENCE_FILES = ("data", "index")
_MAP_FILE = frozenset((*_SEQUENCE_FILES, ".data.crc", ".index.crc"))
_SEQUENCE_FILE_MAGIC = b"SEQ"
_STILL_OPEN_PREFIX = ".nfs"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class MapFiles:
    """Copies ``<base>/<managed ledger>/<ledger id>-<uuid>`` below a base directory.

    Every method raises `InvalidInputError` if the managed ledger's name is not a relative path, `PermanentError`, with
    nothing changed, if the path has a symbolic link or the directory is not a MapFile, and `TemporaryError` if
    something cannot be read or changed now.
    """

    base: Path

    def delete(self, copy: OffloadedCopy) -> OffloadDeletion:
        """Delete a copy (``FileSystemManagedLedgerOffloader.deleteOffloaded``)."""
        with _found(self.base, copy) as found:
            if found is None:
                return OffloadDeletion.GONE
            for name in found.names:
                os.unlink(name, dir_fd=found.directory)
            os.rmdir(copy.directory_name, dir_fd=found.parent)
            if copy.directory_name in _names(found.parent):
                raise TemporaryError(
                    f"{copy.directory_name} below {self.base} was deleted, but it is still there; check the mount"
                )
            return OffloadDeletion.DELETED

    def exists(self, copy: OffloadedCopy) -> bool:
        with _found(self.base, copy) as found:
            return found is not None

    def is_whole(self, copy: OffloadedCopy) -> bool:
        """Return True if a copy's files match their checksums and hold every entry of the ledger; reads all of it.

        Returns False if that cannot be proven: without the checksum files that Hadoop's ``LocalFileSystem`` keeps, and
        for data that `holds_whole_ledger` cannot read.
        """
        with _found(self.base, copy) as found, ExitStack() as opened:
            if found is None or set(found.names) != _MAP_FILE:
                return False
            files = {name: opened.enter_context(_opened(name, found.directory)) for name in found.names}
            intact = all(matches_checksums(files[name], files[f".{name}.crc"]) for name in _SEQUENCE_FILES)
            return intact and is_index(files["index"]) and holds_whole_ledger(files["data"])


@dataclass(frozen=True, slots=True)
class _Found:
    """Handles of a copy's directory and its parent, and the directory's files, all of which belong to a MapFile."""

    parent: int
    directory: int
    names: list[str]


@contextmanager
def _found(base: Path, copy: OffloadedCopy) -> Iterator[_Found | None]:
    try:
        with ExitStack() as handles:
            yield _find(base, copy, handles)
    except OSError as error:
        raise TemporaryError(
            f"{copy.directory_name} below {base} cannot be read or deleted ({os.strerror(error.errno or 0)}); check "
            "the mount and its permissions"
        ) from error


def _find(base: Path, copy: OffloadedCopy, handles: ExitStack) -> _Found | None:
    root = _kept(os.open(base, _DIRECTORY), handles)
    parent: int | None = root
    for name in _components(copy.managed_ledger):
        parent = None if parent is None else _descend(parent, name, handles)
    directory = None if parent is None else _descend(parent, copy.directory_name, handles)
    if parent is None or directory is None:
        if not _names(root):
            raise TemporaryError(f"{base} is empty; check that it is mounted here")
        return None
    names = _names(directory)
    for name in names:
        _check_belongs(directory, name, copy)
    return _Found(parent, directory, names)


def _names(directory: int) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


def _components(managed_ledger: str) -> list[str]:
    names = managed_ledger.split("/")
    if any(name in ("", ".", "..") or "\0" in name for name in names):
        raise InvalidInputError(f"{managed_ledger[:200]!r} is not a managed ledger's name")
    return names


def _descend(parent: int, name: str, handles: ExitStack) -> int | None:
    """Return a handle of a directory, None if there is nothing of that name."""
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(mode):
        raise PermanentError(f"{name} is not a directory; copies behind symbolic links are not touched")
    return _kept(os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent), handles)


def _kept(handle: int, handles: ExitStack) -> int:
    handles.callback(os.close, handle)
    return handle


def _check_belongs(directory: int, name: str, copy: OffloadedCopy) -> None:
    if name.startswith(_STILL_OPEN_PREFIX):
        raise TemporaryError(
            f"a file of {copy.directory_name} is still open on this machine; it is deleted when it is closed"
        )
    is_file = stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    if name in _MAP_FILE and is_file and (name not in _SEQUENCE_FILES or _is_sequence_file(directory, name)):
        return
    raise PermanentError(
        f"{copy.directory_name} is not a MapFile: {name[:80]!r} does not belong in one; "
        "inspect the directory before you delete it"
    )


def _is_sequence_file(directory: int, name: str) -> bool:
    """Return True for a file that starts as Hadoop's SequenceFile, or is empty because its writer died at once."""
    with _opened(name, directory) as file:
        return file.read(len(_SEQUENCE_FILE_MAGIC)) in (b"", _SEQUENCE_FILE_MAGIC)


def _opened(name: str, directory: int) -> BinaryIO:
    return os.fdopen(os.open(name, _FILE, dir_fd=directory), "rb")
