"""Findings of the doctor, one for each thing that it examines."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """Severity of a finding."""

    OK = "ok"
    OFF = "off"
    """The feature is disabled; nothing is wrong."""
    WARNING = "warning"
    """The subject works, but will cause trouble later, or could not be examined."""
    FAILED = "failed"
    """The sidecar cannot work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        remedy: advice to the operator; None if there is nothing to do.
    """

    level: Level
    subject: str
    text: str
    remedy: str | None = None


def counted(findings: Sequence[Finding]) -> str:
    """Count the findings of each level, such as "9 ok, 2 off, 1 warning, 0 failed"."""
    counts = Counter(finding.level for finding in findings)
    return ", ".join(f"{counts[level]} {level.value}" for level in Level)
