"""How far a deduplication cursor may be behind; apart from what searches, so that the command line stays quick."""

from dataclasses import dataclass
from typing import Final

DEFAULT_ENTRIES: Final = 10_000
DEFAULT_BYTES: Final = 1024**3


@dataclass(frozen=True, slots=True)
class LagLimits:
    """How far a cursor may be behind the end of its topic; behind one of both is enough to be reported."""

    entries: int = DEFAULT_ENTRIES
    size_bytes: int = DEFAULT_BYTES
