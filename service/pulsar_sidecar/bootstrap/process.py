"""The operating system's side of a process: its signals, its open files, the version that is installed."""

import importlib.metadata
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pulsar_sidecar.model.progress import Report

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


@contextmanager
def asked_to_stop(report: Report, what_follows: str) -> Iterator[threading.Event]:
    """SIGINT and SIGTERM set the event, and a second one ends the command as it would without this."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(_number: int, _frame: object) -> None:
        back()
        stop.set()
        report(what_follows)

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        back()


def tool_version() -> str:
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
