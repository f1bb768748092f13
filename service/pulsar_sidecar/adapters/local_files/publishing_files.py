"""The published file, and the checkpoint beside it.

Invariant: the checkpoint's file holds a whole checkpoint at any moment, and the last one written even after a power
failure: the sidecar writes a file beside it, syncs it, renames it, and syncs the directory.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pulsar_sidecar.adapters.local_files import sync_directory
from pulsar_sidecar.features.publishing.checkpoint import Checkpoint, checkpoint_of
from pulsar_sidecar.features.publishing.file_publisher import SourceFile
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError

_READ_AHEAD_BYTES: Final = 1024 * 1024
_OWNERS_FILE: Final = 0o600


@contextmanager
def source_file(path: Path) -> Iterator[SourceFile]:
    """Open the file.

    `InvalidInputError`: there is no such file, it may not be read, or it is not a regular file: a pipe cannot be read
    twice. `TemporaryError`: it could not be read.
    """
    try:
        # Checked first: opening a pipe waits until a process writes to it.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidInputError(f"{path} is not a regular file; write the records into one first")
        file = path.open("rb", buffering=_READ_AHEAD_BYTES)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read ({os.strerror(error.errno or 0)})") from error
    with file:
        try:
            yield SourceFile(file, os.fstat(file.fileno()).st_size)
        except OSError as error:
            raise TemporaryError(f"{path} cannot be read ({error}); run the same command again") from error


def checkpoint_path(file: Path, producer_name: str) -> Path:
    """Return the path of a checkpoint without ``--checkpoint``: beside the file, one for each producer name."""
    safe = "".join(character if character.isalnum() or character in "-_" else "_" for character in producer_name)
    return file.with_name(f"{file.name}.{safe[:80]}.checkpoint")


class CheckpointFile:
    """`CheckpointStore` in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Checkpoint | None:
        try:
            return checkpoint_of(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (InvalidInputError, UnicodeDecodeError) as error:
            raise InvalidInputError(
                f"the checkpoint {self._path} cannot be used: {error}. Restore it from a copy; or move it away, and "
                "the published records are read back from the topic and compared"
            ) from error
        except OSError as error:
            raise TemporaryError(f"the checkpoint {self._path} cannot be read ({error})") from error

    def write(self, checkpoint: Checkpoint) -> None:
        beside = self._path.with_name(f".{self._path.name}.new")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _OWNERS_FILE)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(checkpoint.to_json())
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise TemporaryError(
                f"the checkpoint {self._path} cannot be written ({error}); make room or name another --checkpoint, "
                "then run the same command again"
            ) from error
