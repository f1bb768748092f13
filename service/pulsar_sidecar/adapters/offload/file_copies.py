"""A copy that the filesystem driver wrote, deleted or looked at: one Hadoop MapFile directory below a base directory.

The path is all that identifies such a copy, so the way down is walked with directory handles that follow no symbolic
link, and only the files of a MapFile are removed. Invariant: nothing outside the base, and nothing that the driver
would not have written, is ever removed; an empty or missing base is an unmounted one, not an absence.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pulsar_sidecar.adapters.offload.locations import OffloadedCopy
from pulsar_sidecar.adapters.offload.map_files import holds_whole_ledger, is_index, matches_checksums
from pulsar_sidecar.ledger_deletion.ports import OffloadDeletion
from pulsar_sidecar.model.errors import InvalidInputError, PermanentError, TemporaryError

_SEQUENCE_FILES = ("data", "index")
_MAP_FILE = frozenset((*_SEQUENCE_FILES, ".data.crc", ".index.crc"))
_SEQUENCE_FILE_MAGIC = b"SEQ"
_STILL_OPEN_PREFIX = ".nfs"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def delete_map_file(base: Path, copy: OffloadedCopy) -> OffloadDeletion:
    """Delete ``<base>/<managed ledger>/<ledger id>-<uuid>`` (``FileSystemManagedLedgerOffloader.deleteOffloaded``).

    Raises:
        InvalidInputError: the managed ledger's name is not a relative path.
        PermanentError: a symbolic link is in the way, or the directory is not a MapFile; nothing was deleted.
        TemporaryError: the directories cannot be read or changed now.
    """
    with _found(base, copy) as found:
        if found is None:
            return OffloadDeletion.GONE
        for name in found.names:
            os.unlink(name, dir_fd=found.directory)
        os.rmdir(copy.directory_name, dir_fd=found.parent)
        return OffloadDeletion.DELETED


def map_file_exists(base: Path, copy: OffloadedCopy) -> bool:
    """Whether there is such a directory; raises what `delete_map_file` does."""
    with _found(base, copy) as found:
        return found is not None


def is_whole_map_file(base: Path, copy: OffloadedCopy) -> bool:
    """Whether a copy's files match their checksums, and its data hold every entry of the ledger; reads all of it.

    False also where that cannot be shown: without the checksum files that Hadoop's ``LocalFileSystem`` keeps, and for
    data that `holds_whole_ledger` cannot read.

    Raises:
        InvalidInputError, PermanentError: as `delete_map_file`.
        TemporaryError: the directories or files cannot be read now.
    """
    with _found(base, copy) as found, ExitStack() as opened:
        if found is None or set(found.names) != _MAP_FILE:
            return False
        files = {name: opened.enter_context(_opened(name, found.directory)) for name in found.names}
        intact = all(matches_checksums(files[name], files[f".{name}.crc"]) for name in _SEQUENCE_FILES)
        return intact and is_index(files["index"]) and holds_whole_ledger(files["data"])


@dataclass(frozen=True, slots=True)
class _Found:
    """Handles of a copy's directory and of the one above, and the files in it, all of which belong there."""

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
    """A handle of a directory, None if there is nothing of that name."""
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
            f"a file of {copy.directory_name} is still open on this machine; it goes when it is closed"
        )
    is_file = stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    if name in _MAP_FILE and is_file and (name not in _SEQUENCE_FILES or _is_sequence_file(directory, name)):
        return
    raise PermanentError(
        f"{copy.directory_name} is not a MapFile: {name[:80]!r} does not belong in one; "
        "inspect the directory before you delete it"
    )


def _is_sequence_file(directory: int, name: str) -> bool:
    """Whether it starts as Hadoop's SequenceFile does; one whose writer died at once is empty."""
    with _opened(name, directory) as file:
        return file.read(len(_SEQUENCE_FILE_MAGIC)) in (b"", _SEQUENCE_FILE_MAGIC)


def _opened(name: str, directory: int) -> BinaryIO:
    return os.fdopen(os.open(name, _FILE, dir_fd=directory), "rb")
