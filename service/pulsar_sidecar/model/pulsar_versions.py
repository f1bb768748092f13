"""The versions of Pulsar that this project was tried on, oldest first; ``make matrix`` runs its tests on each."""

from typing import Final

TRIED_VERSIONS: Final = ("3.3.6", "4.0.6", "4.0.8")


def tried_of_line(version: str) -> tuple[str, ...]:
    """The tried versions of a version's line: 4.0.6 and 4.0.8 for 4.0.9, none for 4.1.0."""
    return tuple(tried for tried in TRIED_VERSIONS if _line(tried) == _line(version))


def _line(version: str) -> list[str]:
    return version.split(".")[:2]
