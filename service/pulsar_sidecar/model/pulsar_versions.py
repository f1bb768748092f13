"""Versions of Pulsar that this project is tested on, oldest first; ``make matrix`` runs its tests on each."""

import re
from typing import Final

TESTED_VERSIONS: Final = ("3.3.6", "4.0.6", "4.0.8", "4.2.4")

Line = tuple[int, int]
"""First two numbers of a version: 4 and 0 of 4.0.8."""


def line_of(version: str) -> Line | None:
    """Return the line of a version; None for any other string."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def tested_of_line(version: str) -> tuple[str, ...]:
    """Return the tested versions of a version's line: 4.0.6 and 4.0.8 for 4.0.9, none for 4.1.0."""
    return tuple(tested for tested in TESTED_VERSIONS if line_of(tested) == line_of(version))
