"""Strips: one line of a table as a picture, on the same scale in each row. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Strip:
    """Bars from left to right.

    Attributes:
        text: for readers who do not see it.
        path: of SVG, in a box that is ``width`` wide and 100 high; ``pale`` is another one, in a lighter shade.
    """

    text: str
    path: str
    width: int
    pale: str = ""


def bars(found: Iterable[tuple[int, int, int]]) -> str:
    """Return the path of bars, each by its left, width and height."""
    return "".join(f"M{left} 100v-{height}h{width}v{height}z" for left, width, height in found)
