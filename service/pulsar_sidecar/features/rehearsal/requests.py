"""Parameters of a rehearsal."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a rehearsal.

    Attributes:
        topics: maximum number of topics to examine.
        rows: maximum number of topics in the response.
        seconds: time after which no look-up counts.
    """

    topics: int = 1_000
    rows: int = 20
    seconds: float = 40


USUAL: Final = Bounds()


def broker_address(text: str) -> str:
    """Return the ``host:port`` of a broker's web service, which may be given as a URL."""
    return (text.partition("://")[2] or text).rstrip("/")
