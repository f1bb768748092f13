"""The operating system's side of a process: signals, open files, and the installed version."""

import importlib.metadata
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pulsar_sidecar.model.progress import Report

_MOST_FILES = 65_536
"""More would only enlarge the tables that some libraries keep of open files."""
_FEWEST_CONNECTIONS = 8


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Make SIGTERM end the command like an error, so that nothing unfinished stays behind."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def asked_to_stop(report: Report, what_follows: str) -> Iterator[threading.Event]:
    """Yield an event that SIGINT or SIGTERM sets; a second signal has its usual effect."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore_handlers() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle_signal(_number: int, _frame: object) -> None:
        restore_handlers()
        stop.set()
        report(what_follows)

    for number in before:
        signal.signal(number, handle_signal)
    try:
        yield stop
    finally:
        restore_handlers()


def tool_version() -> str:
    try:
        return importlib.metadata.version("pulsar-sidecar")
    except importlib.metadata.PackageNotFoundError:
        return "source"


def connections_for_callers(wanted: int) -> int:
    """Raise the limit of open files as far as allowed, and return the callers' share: at most half of them."""
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
