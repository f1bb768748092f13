"""What commands that end by themselves have in common."""

import importlib.metadata
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM ends the command like an error does, so that nothing unfinished stays behind."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def tool_version() -> str:
    """The version of this program that is installed."""
    try:
        return importlib.metadata.version("pulsar-sidecar")
    except importlib.metadata.PackageNotFoundError:
        return "source"
