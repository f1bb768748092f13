"""Work that goes on in threads of its own while a test's body runs."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def running_until(stop: threading.Event, works: Sequence[Callable[[], object]]) -> Iterator[None]:
    """Each work in a thread of its own until the body ends, which sets ``stop``; what a work raises is raised here."""
    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(work) for work in works]
        try:
            yield
        finally:
            stop.set()
            for each in running:
                each.result()
