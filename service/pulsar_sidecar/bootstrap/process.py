"""The operating system's side of a process: its signals, its open files, the version that is installed."""

import importlib.metadata
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_MOST_FILES = 65_536
"""More would only make the tables larger that some libraries keep for each."""
_FEWEST_CONNECTIONS = 8


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


def connections_for_callers(wanted: int) -> int:
    """Let this process open as many files as it may, and give callers at most half of them."""
    if sys.platform == "win32":
        return wanted
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    files = _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    return min(wanted, max(_FEWEST_CONNECTIONS, files // 2))
