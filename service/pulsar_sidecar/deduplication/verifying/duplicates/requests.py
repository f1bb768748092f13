"""What a user asks for, in the words of the command line, and what comes of it; no Arrow, so ``--help`` is quick."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DuplicatesRequest:
    """``deduplication duplicates``: look through an extract, and make a directory of what was found."""

    extract: Path
    output: Path


@dataclass(frozen=True, slots=True)
class DuplicatesOutcome:
    """The result of a search, for its user."""

    exit_code: int
    sentence: str
    next_step: str
