"""Small plots of text, in characters that every terminal has."""

from collections.abc import Sequence

_LEVELS = " .:=#"
_FULL = "#"


def level(part: float, whole: float) -> str:
    """One character for a share: a blank for nothing, the darkest for everything, never either of them in between."""
    if part <= 0 or whole <= 0:
        return _LEVELS[0]
    if part >= whole:
        return _LEVELS[-1]
    middle = len(_LEVELS) - 2
    return _LEVELS[1 + min(middle - 1, int(part / whole * middle))]


def strip(shares: Sequence[tuple[float, float]]) -> str:
    """A row of shares, each a part and its whole."""
    return "".join(level(part, whole) for part, whole in shares)


def bar(value: float, largest: float, width: int) -> str:
    """A bar that is as long as the value is large; something is never nothing."""
    if value <= 0 or largest <= 0:
        return ""
    return _FULL * max(1, round(value / largest * width))
