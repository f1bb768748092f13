"""Limits of the lag of a deduplication cursor, in a module of their own that the command line imports quickly."""

from dataclasses import dataclass
from typing import Final

DEFAULT_ENTRIES: Final = 10_000
DEFAULT_BYTES: Final = 1024**3


@dataclass(frozen=True, slots=True)
class LagLimits:
    """Limits of a cursor's lag behind the end of its topic; exceeding one of them is enough to be reported."""

    entries: int = DEFAULT_ENTRIES
    size_bytes: int = DEFAULT_BYTES
