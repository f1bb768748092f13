"""Processor time and memory of this process and its descendants, living or ended."""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_KIB = 1024


def processor_seconds() -> float:
    """User and system time of this process and of all below it, so far."""
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    ended = sum(usage.ru_utime + usage.ru_stime for usage in own)
    return ended + sum(_seconds(pid) for pid in _living(os.getpid()))


def largest_process_mb() -> float:
    """The most memory that any one of them ever held."""
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max([*(usage.ru_maxrss / _KIB for usage in own), *map(_peak_mb, _living(os.getpid()))])


def _living(pid: int) -> Iterator[int]:
    """All processes below one."""
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                yield child
                yield from _living(child)


def _seconds(pid: int) -> float:
    """Processor seconds of one process and of its ended children."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS_PER_SECOND
    return 0.0


def _peak_mb(pid: int) -> float:
    with suppress(OSError):
        _, _, peak = Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")
        return int(peak.split()[0]) / _KIB if peak else 0.0  # one that has ended holds nothing any more
    return 0.0
