"""What is made of files that change while the sidecar runs: keys and certificates are rotated without a restart."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from pulsar_sidecar.model.errors import InvalidInputError

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class Reloaded(Generic[T]):
    """A value that is made again whenever a file changes; one that cannot be made leaves the value before it."""

    def __init__(self, setting: str, files: Sequence[Path], make: Callable[[], T]) -> None:
        """``setting`` names it in the log; `InvalidInputError` of ``make``, which reads the files, if it fails now."""
        self._setting, self._files, self._make = setting, files, make
        self._versions = self._versions_now()
        self._value = make()

    def current(self) -> T:
        """The value as the files are now, or were when they could last be used."""
        versions = self._versions_now()
        if versions != self._versions:
            self._versions = versions
            try:
                self._value = self._make()
                _log.info("a file has changed; what it holds now is in force", setting=self._setting)
            except InvalidInputError as error:
                _log.warning(
                    "a file has changed and cannot be used; what it held before stays in force",
                    setting=self._setting,
                    error=str(error),
                )
        return self._value

    def _versions_now(self) -> list[tuple[int, ...]]:
        return [_version(file) for file in self._files]


def _version(file: Path) -> tuple[int, ...]:
    # Kubernetes exchanges a link, an editor the file, others write into it.
    try:
        stat = file.stat()
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size
