"""What a Python worker of Spark's does around each task of ours."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from zipimport import zipimporter

Rows = TypeVar("Rows")
Answer = TypeVar("Answer")


def in_worker(task: Callable[[Rows], Answer]) -> Callable[[Rows], Answer]:
    """The same task, after which the worker begins its next one at once."""

    @wraps(task)
    def run(rows: Rows) -> Answer:
        _forget_archives()
        return task(rows)

    return run


def _forget_archives() -> None:
    """Forget importers of archives (``pyspark.zip``, wheels); Python makes them again when it needs one.

    Before each task Spark calls `importlib.invalidate_caches`, and each importer, one for each package of an archive,
    then reads the archive's whole directory: 0.2 s of processor time before a task of milliseconds.
    """
    cache: dict[str, Any] = sys.path_importer_cache
    for place in [place for place, importer in cache.items() if isinstance(importer, zipimporter)]:
        del cache[place]
