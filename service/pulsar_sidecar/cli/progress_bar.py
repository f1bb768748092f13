"""Long work's progress: a bar on a terminal, a line now and then anywhere else."""

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

import typer

_LINES: Final = 20


class ProgressBar:
    """Told how much of how much is done; shows nothing until it is told."""

    def __init__(self, what: str, say: Callable[[str], None]) -> None:
        self._what = what
        self._say = say
        self._bar: Any = None
        self._done = 0
        self._said = -1

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, error, trace)

    def tell(self, done: int, total: int) -> None:
        """So many of so many are done; never fewer than before."""
        if sys.stderr.isatty():
            self._draw(done, total)
        elif total and done * _LINES // total > self._said:
            self._said = done * _LINES // total
            self._say(f"{self._what}: {done:,} of {total:,}")

    def _draw(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = typer.progressbar(length=total, label=self._what, file=sys.stderr, show_pos=True)
            self._bar.__enter__()
        self._bar.update(done - self._done)
        self._done = done
