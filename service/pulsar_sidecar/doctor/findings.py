"""What the doctor reports: one finding for each thing that was looked at."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How a thing is."""

    OK = "ok"
    OFF = "off"
    """A feature that is not switched on; nothing is wrong."""
    WARNING = "warning"
    """It works, and something will hurt later, or could not be looked at."""
    FAILED = "failed"
    """The sidecar cannot do its work so."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        remedy: what to do about it; None where nothing is to be done.
    """

    level: Level
    subject: str
    text: str
    remedy: str | None = None


def counted(findings: Sequence[Finding]) -> str:
    """How many findings there are of each level, such as "9 ok, 2 off, 1 warning, 0 failed"."""
    counts = Counter(finding.level for finding in findings)
    return ", ".join(f"{counts[level]} {level.value}" for level in Level)
