"""Judgement of a soak: pure, from its samples alone.

The first half is warm-up: caches fill, and every thread takes its part of the heap. What counts is the last quarter
of the time against the one before it.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.soak.samples import Sample

_SHARE = 0.05
_ROOM = {"anonymous_mb": 4.0, "descriptors": 6.0, "threads": 4.0, "nodes": 100.0, "watches": 100.0, "topics": 6.0}
"""Tolerated difference of a quarter's median beside the share, since kills and turns of the work move it."""

CLUSTER = "cluster"
_OF_PROCESSES = ("anonymous_mb", "descriptors", "threads")
_OF_CLUSTER = ("nodes", "watches", "topics")


@dataclass(frozen=True, slots=True)
class Series:
    """A figure of a process, or of the cluster, over time (seconds)."""

    of: str
    what: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Course:
    """Course of a series: medians of the four quarters, the highest, and growth an hour in the last half."""

    of: str
    what: str
    quarters: Sequence[float]
    highest: float
    per_hour: float

    @property
    def is_flat(self) -> bool:
        before, last = self.quarters[2:]
        return last <= before * (1 + _SHARE) + _ROOM[self.what]


def series_of(samples: Sequence[Sample], sidecars: Sequence[str]) -> list[Series]:
    """Return the series that must stay flat: those of these sidecars, which live throughout, and of the cluster."""
    found = [
        Series(
            name,
            what,
            [(each.seconds, getattr(each.sidecars[name], what)) for each in samples if name in each.sidecars],
        )
        for name in sidecars
        for what in _OF_PROCESSES
    ]
    return found + [
        Series(CLUSTER, what, [(each.seconds, each.cluster[what]) for each in samples if each.cluster])
        for what in _OF_CLUSTER
    ]


def judge(series: Series) -> Course:
    """Return the course of a series of eight samples or more."""
    if len(series.points) < 8:
        raise ValueError(f"{series.of}: {len(series.points)} looks at {series.what} are too few")
    first, last = series.points[0][0], series.points[-1][0]
    quarter = (last - first) / 4
    parts: list[list[float]] = [[], [], [], []]
    for seconds, value in series.points:
        parts[min(3, int((seconds - first) / quarter))].append(value)
    later = [point for point in series.points if point[0] >= first + 2 * quarter]
    slope = statistics.linear_regression(*zip(*later, strict=True)).slope
    medians = [statistics.median(part) for part in parts]
    return Course(series.of, series.what, medians, max(value for _, value in series.points), slope * 3_600)
