"""Result of one part of ``make test``: a process of pytest leaves it in a file for the common summary."""

from dataclasses import dataclass
from pathlib import Path

import msgspec


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed: its id, the error in a few lines, and the command that runs it again."""

    test: str
    reason: str
    again: str


@dataclass(frozen=True, slots=True)
class Part:
    """Tests of one process.

    Attributes:
        skipped: how many tests were skipped, by reason.
        second_tries: tests whose first try failed because a wait ran out.
        seconds: of each test, with its fixtures, by id.
        elapsed_seconds: from the process's first test to its last.
        branches: of the code that decides, taken and all; None where they were not measured.
    """

    passed: int
    failures: tuple[Failure, ...]
    skipped: dict[str, int]
    second_tries: tuple[str, ...]
    seconds: dict[str, float]
    elapsed_seconds: float
    branches: tuple[int, int] | None = None

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(self))


def load_part(path: Path) -> Part:
    """Return the part in a file; raise OSError or ValueError if there is none."""
    return msgspec.json.decode(path.read_bytes(), type=Part)
