"""Strips: pictures of table rows on one common scale. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Strip:
    """Bars from left to right.

    Attributes:
        text: description for readers who do not see it.
        path: SVG path, in a box that is ``width`` wide and 100 high; ``pale`` is a second path in a lighter shade.
    """

    text: str
    path: str
    width: int
    pale: str = ""


def bars(found: Iterable[tuple[int, int, int]]) -> str:
    """Return the SVG path of bars, given as left, width and height."""
    return "".join(f"M{left} 100v-{height}h{width}v{height}z" for left, width, height in found)
