"""Work in threads, all at once or while a test's body runs."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_parallel(work: Callable[[_Item], _Result], items: Iterable[_Item], threads: int) -> list[_Result]:
    """Return all results, computed a few at a time."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


@contextmanager
def running_until(stop: threading.Event, works: Sequence[Callable[[], object]]) -> Iterator[None]:
    """Run each work in its own thread until the body ends and sets ``stop``; reraise the works' errors."""
    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(work) for work in works]
        try:
            yield
        finally:
            stop.set()
            for each in running:
                each.result()
