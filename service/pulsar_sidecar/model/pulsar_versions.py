"""The versions of Pulsar that this project was tried on, oldest first; ``make matrix`` runs its tests on each."""

import re
from typing import Final

TRIED_VERSIONS: Final = ("3.3.6", "4.0.6", "4.0.8", "4.2.4")

Line = tuple[int, int]
"""What a version begins with: 4 and 0 of 4.0.8."""


def line_of(version: str) -> Line | None:
    """None for what is not a version."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return None if numbers is None else (int(numbers[1]), int(numbers[2]))


def tried_of_line(version: str) -> tuple[str, ...]:
    """The tried versions of a version's line: 4.0.6 and 4.0.8 for 4.0.9, none for 4.1.0."""
    return tuple(tried for tried in TRIED_VERSIONS if line_of(tried) == line_of(version))
