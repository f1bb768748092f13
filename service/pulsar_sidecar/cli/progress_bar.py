"""Long work's progress: a bar on a terminal, a line now and then anywhere else."""

import sys
from collections.abc import Callable
from typing import Final, Self

_LINES: Final = 20


class ProgressBar:
    """Shows how much of how much is done, from the first report on."""

    def __init__(self, what: str, say: Callable[[str], None]) -> None:
        from rich.console import Console  # it takes longer to load than --help to answer
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._what = what
        self._say = say
        self._said = -1
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(file=sys.stderr))
        self._task = self._bar.add_task(what, visible=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def report(self, done: int, total: int) -> None:
        """So many of so many are done; never fewer than before."""
        if sys.stderr.isatty():
            self._bar.start()
            self._bar.update(self._task, completed=done, total=total, visible=True)
        elif total and done * _LINES // total > self._said:
            self._said = done * _LINES // total
            self._say(f"{self._what}: {done:,} of {total:,}")
