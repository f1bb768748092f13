"""Processes and threads that work on large inputs; small ones are worked on where they are."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TypeVar

from pulsar_sidecar.model.errors import TemporaryError

Piece = TypeVar("Piece")
Worked = TypeVar("Worked")

_MAX_PROCESSES = 8


@dataclass(frozen=True, slots=True)
class Workers:
    """Do some work on many pieces; answers come in the pieces' order, and the work begins at once."""

    _processes: ProcessPoolExecutor | None = None
    _threads: ThreadPoolExecutor | None = None

    def by_processes(self, work: Callable[[Piece], Worked], pieces: Sequence[Piece]) -> Iterator[Worked]:
        """For work of many small steps; it, pieces and answers are pickled.

        Raises:
            TemporaryError: a process was killed.
        """
        return map(work, pieces) if self._processes is None else _unbroken(self._processes.map(work, pieces))

    def by_threads(self, work: Callable[[Piece], Worked], pieces: Sequence[Piece]) -> Iterator[Worked]:
        """For work of few long steps, each of which leaves the interpreter to others meanwhile."""
        return map(work, pieces) if self._threads is None else self._threads.map(work, pieces)


@contextmanager
def opened_workers(*, worth_it: bool) -> Iterator[Workers]:
    """As many as there are processors; the processes are starting when this returns."""
    count = min(len(os.sched_getaffinity(0)), _MAX_PROCESSES)
    if count == 1 or not worth_it:
        yield Workers()
        return
    with ExitStack() as stack:
        # Never forked: this process has threads of Arrow's.
        processes = ProcessPoolExecutor(count, mp_context=get_context("spawn"))
        stack.callback(processes.shutdown, cancel_futures=True)
        for _ in range(count):
            processes.submit(_imported)
        yield Workers(processes, stack.enter_context(ThreadPoolExecutor(count)))


def _imported() -> None:
    """Take the time for imports before there is work."""
    import pulsar_sidecar.audit.engine.decoding
    import pulsar_sidecar.audit.engine.judging  # noqa: F401


def _unbroken(answers: Iterator[Worked]) -> Iterator[Worked]:
    try:
        yield from answers
    except BrokenProcessPool as error:
        raise TemporaryError("a process of this audit was killed; was there too little memory?") from error
