"""Values that follow their files, so that operators rotate keys and certificates without a restart."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from pulsar_sidecar.model.errors import InvalidInputError

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class Reloaded(Generic[T]):
    """A value rebuilt whenever a file changes; if that fails, the previous value stays."""

    def __init__(self, setting: str, files: Sequence[Path], make: Callable[[], T]) -> None:
        """Build the value with ``make``, which reads the files and may raise `InvalidInputError`; log ``setting``."""
        self._setting, self._files, self._make = setting, files, make
        self._versions = self._versions_now()
        self._value = make()

    def current(self) -> T:
        """Return the value of the files now, or when they were last usable."""
        versions = self._versions_now()
        if versions != self._versions:
            self._versions = versions
            try:
                self._value = self._make()
                _log.info("configuration file reloaded", setting=self._setting)
            except InvalidInputError as error:
                _log.warning(
                    "configuration file unusable, keeping its previous content",
                    setting=self._setting,
                    error=str(error),
                )
        return self._value

    def _versions_now(self) -> list[tuple[int, ...]]:
        return [_version(file) for file in self._files]


def _version(file: Path) -> tuple[int, ...]:
    # Kubernetes replaces a link, an editor the file; others write into it.
    try:
        stat = file.stat()
    except OSError:
        return ()
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size
